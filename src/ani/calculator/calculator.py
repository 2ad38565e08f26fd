"""`Calculator`: a logits processor that writes the exact values that a text asks for, where its gate is open."""

from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase

from ani.calculator.gate import KEPT, Gate, GateStates
from ani.calculator.rows import RowReader
from ani.calculator.writer import Writer
from ani.errors import InputError
from ani.evaluation.engines import Processor
from ani.files import check_replaceable, replacing_directory
from ani.injection.model_parts import base_model, decoder_layers

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "calculator.json", "calculator.safetensors", "README.md"
SHIPPED = {"smollm2-calculator": Path(__file__).parents[1] / "assets" / "smollm2-calculator"}
"""Calculators that come with the package, by name."""
OPEN = "open"
"""Name of the calculator whose gate is always open."""
BIASES = -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0
"""The biases at which a gate is measured."""


class Rate(BaseModel):
    """How often a gate is right in texts of one kind that it was not fitted on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    texts: int
    """Number of texts."""
    right: dict[float, int]
    """Per bias, the texts in which the gate is right: it opens in the answer, at the latest where the answer writes the
    value; or, where nobody asks for the value, it opens nowhere in the answer."""


class CalculatorConfig(BaseModel):
    """The file `calculator.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    base: str
    """Name of the model whose states the gate was fitted on: a directory, a hub name, or `smollm2`."""
    model_type: str
    """The model's type in transformers, such as `llama`."""
    hidden_size: int = Field(ge=1)
    """Width of its hidden states."""
    num_hidden_layers: int = Field(ge=1)
    """Number of its decoder layers."""
    value_size: int = Field(ge=1)
    """Width of an attention's values, all heads together."""
    layers: list[int] = Field(min_length=1)
    """The layers whose hidden states the gate reads, ascending."""
    context: list[int]
    """The layers whose attention's values the gate reads, as a mean over the text so far; ascending."""
    gate_hidden_size: int = Field(ge=1)
    """Width of the gate's inner layer."""
    bias: float = Field(default=0.0, allow_inf_nan=False)
    """Added to the gate's logits: above 0 the gate opens more often. You may change it in the file."""
    rates: dict[str, Rate] = {}
    """How often the gate is right, per kind of text (the kinds of task `meant`); measured by `fit`."""

    def gate(self, dropout: float = 0.0) -> Gate:
        """A gate of this shape, not fitted."""
        sizes = [self.hidden_size] * len(self.layers) + [self.value_size] * len(self.context)
        return Gate(sizes, self.gate_hidden_size, dropout)


class Calculator(LogitsProcessor):
    """Writes the exact values that a text asks for, for transformers' `generate`::

        calculator = Calculator.load("smollm2-calculator", model, tokenizer)
        model.generate(**inputs, logits_processor=[calculator])

    Where a value is pending and the gate is open, only tokens that continue the value's spelling keep their scores, up
    to its end (`reader/spelling.py`). Elsewhere scores stay as they are, bit for bit. The model is not changed:
    hidden states and KV caches stay its own.

    Args:
        model: The model that generates, with a KV cache.
        tokenizer: The model's tokenizer.
        gate: The fitted gate.
        config: Describes gate and model.

    Raises:
        InputError: `config` was made for a model of another type, width or depth.
    """

    def __init__(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, gate: Gate, config: CalculatorConfig
    ) -> None:
        base = base_model(model)
        for key, found in shape_of(base).items():
            if (wanted := getattr(config, key)) != found:
                made = f"this calculator was made for {key}={wanted} ({config.base})"
                raise InputError(f"{made}, the model has {key}={found}")
        self.config = config
        self.gate = gate.to(base.device).eval().requires_grad_(False)
        self.states = GateStates(base, config.layers, config.context)
        self.rows = RowReader(tokenizer)
        self._unread = 0  # calls since the model read the text of one
        self.writer = Writer(self.rows.scanner, tokenizer.get_vocab())

    @torch.no_grad()
    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """The scores of the next token, shape (rows, vocabulary), after `input_ids`, shape (rows, length).

        Raises:
            InputError: Another model generates, or it has no KV cache.
        """
        if not self.states.have_read(input_ids):  # a draft is proposed: the model itself decides
            self._unread += 1
            if self._unread > KEPT:
                raise InputError("the calculator does not see the texts: load it with the model that generates")
            return scores
        self._unread = 0
        place, ids = input_ids.shape[1] - 1, input_ids.cpu().numpy()

        def logits(undecided: list[int]) -> list[float]:
            at_end = torch.full((len(undecided), 1), place)
            found: list[float] = self.logits(torch.tensor(undecided), at_end).squeeze(1).tolist()
            return found

        rows = dict(enumerate(map(self.rows.read, ids)))
        for index, row in self.writer.begun(rows, logits).items():
            rows[index] = row
            self.rows.remember(ids[index], row)
        writing = {index: row.spelling for index, row in rows.items() if row.spelling}
        if not writing:
            return scores
        scores = cast(torch.FloatTensor, scores.clone())
        for index, spelling in writing.items():
            self.writer.mask(spelling, scores[index])
        return scores

    def logits(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Gate logits at tokens of the model's latest forward pass, float32 (R, N); arguments as for
        `GateStates.parts`."""
        parts = self.states.parts(rows, places).to(self.gate.inner.weight.device)
        logits: torch.Tensor = self.gate(parts) + self.config.bias
        return logits

    @classmethod
    def load(cls, name: str | Path, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Load a calculator for a model.

        Args:
            name: `smollm2-calculator`, a directory, a name on the Hugging Face hub, or `open`: a calculator for any
                model whose gate is always open, so that it writes every pending value.
            model: The model that generates.
            tokenizer: The model's tokenizer.

        Raises:
            InputError: There is no calculator under this name, a file is damaged, or it was made for another model.
        """
        if name == OPEN:
            shape = shape_of(base_model(model))
            shape |= {"value_size": 1, "layers": [0], "context": [], "gate_hidden_size": 1}
            config = CalculatorConfig(base="any", bias=1.0, **shape)
            gate = config.gate()
            for parameter in gate.parameters():
                nn.init.zeros_(parameter)
            return cls(model, tokenizer, gate, config)
        return cls(model, tokenizer, *read_gate(folder_of(str(name))))

    @classmethod
    def fit(cls, model: nn.Module, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> Self:
        """Fit a calculator to a model; see `ani.calculator.fit.fit` for the settings."""
        from ani.calculator.fit import fit

        gate, config = fit(model, tokenizer, **settings)
        return cls(model, tokenizer, gate, config)

    def save(self, path: str | Path) -> None:
        """Write `calculator.json`, `calculator.safetensors` and a model card to a directory.

        A calculator that is there already is replaced as a whole.

        Raises:
            InputError: `path` is something else than a calculator.
        """
        path = Path(path)
        check_replaceable(path, "calculator", (path / CONFIG_FILE).is_file())
        with replacing_directory(path) as work:
            (work / CONFIG_FILE).write_text(self.config.model_dump_json(indent=2) + "\n", "utf-8")
            weights = {name: tensor.contiguous().cpu() for name, tensor in self.gate.state_dict().items()}
            save_file(weights, work / WEIGHTS_FILE)
            (work / CARD_FILE).write_text(_card(self.config), "utf-8")


def processor(name: str) -> Processor:
    """A calculator that takes part in an evaluation; its name there identifies its files.

    Raises:
        InputError: There is no calculator under this name.
    """
    load = partial(Calculator.load, name)
    if name == OPEN:
        return Processor(f"calculator {name}", load)
    folder = folder_of(name)
    read_config(folder)
    content = b"".join((folder / file).read_bytes() for file in (CONFIG_FILE, WEIGHTS_FILE))
    return Processor(f"calculator {name} ({sha256(content).hexdigest()[:12]})", load)


def shape_of(model: PreTrainedModel) -> dict[str, Any]:
    """The facts about a model that a calculator's config has, by key."""
    config, layers = model.config.get_text_config(), len(decoder_layers(model))
    return {"model_type": config.model_type, "hidden_size": config.hidden_size, "num_hidden_layers": layers}


def read_config(folder: Path) -> CalculatorConfig:
    """A calculator's config; raises InputError if the file is missing or damaged."""
    file = folder / CONFIG_FILE
    try:
        return CalculatorConfig.model_validate_json(file.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{folder} is no calculator: it has no {CONFIG_FILE}") from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise InputError(f"{file}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error


def read_gate(folder: Path) -> tuple[Gate, CalculatorConfig]:
    """Read a calculator's gate and config from its directory; raises InputError if a file is missing or damaged."""
    config = read_config(folder)
    gate, file = config.gate(), folder / WEIGHTS_FILE
    try:
        weights = load_file(file)
        gate.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(f"{file} does not fit {CONFIG_FILE}: {str(error).splitlines()[0]}") from error
    if not all(weight.isfinite().all() for weight in weights.values()):
        raise InputError(f"{file} contains weights that are not finite; fit the calculator again")
    return gate, config


def folder_of(name: str) -> Path:
    """The directory of a calculator: a shipped one, a directory, or a download from the hub."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    if name in SHIPPED:
        return SHIPPED[name]
    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG_FILE, WEIGHTS_FILE, CARD_FILE]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"no calculator {name!r}: it is no directory, and the hub has none ({reason})") from error


def _measured(rates: dict[str, Rate]) -> str:
    """A table of rates, a row per bias."""
    head = ["bias", *(f"{kind} ({rate.texts})" for kind, rate in rates.items())]
    rows = [[f"{bias:g}", *(f"{rate.right[bias] / rate.texts:.1%}" for rate in rates.values())] for bias in BIASES]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _card(config: CalculatorConfig) -> str:
    return f"""---
library_name: ani
tags: [ani, calculator]
---

# Calculator for {config.base}

Writes the exact value that a text asks for, with the base model's own hidden states and KV cache. A reader finds the
value, the gate in this directory decides whether the next token writes it, and a logits processor leaves only the
tokens that do.

- **Base model**: {config.base} ({config.model_type}, {config.num_hidden_layers} layers of width {config.hidden_size})
- **The gate reads** the hidden states of layers {", ".join(map(str, config.layers))}, and the mean of the
  attention's values over the text so far of layers {", ".join(map(str, config.context))}
- **Bias**: {config.bias:g} (`bias` in {CONFIG_FILE}). Above 0 the gate opens more often

Where the gate is right, in texts that it was not fitted on (how many), by bias: it opens where the value is asked for
or meant, and nowhere in the answer where it is not. How often whole answers are right, measure by
`ani eval --model {config.base} --calculator "this directory" --tasks meant,rivals --out runs/measured`.

{_measured(config.rates)}

```python
calculator = ani.Calculator.load("this directory", model, tokenizer)
model.generate(**inputs, logits_processor=[calculator])
```
"""
