"""vLLM's model classes with the calculator: the gate is computed at the sampled tokens, and logits are masked.

Hidden states and caches are the base model's. Before each step the model reads the requests' new tokens; after the
forward pass `compute_logits` asks the gate where a value is pending, and masks the logits where one is written.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from vllm.config import VllmConfig

from ani.calculator.calculator import read_gate
from ani.calculator.rows import Row, RowReader
from ani.calculator.serving import FOLDER
from ani.calculator.writer import Writer
from ani.serving.engine_step import EngineStep
from ani.serving.plugin import tokenizer_of
from ani.serving.vllm import StepModel, decoder_layers, keep_gate_inputs, model_class

REMEMBERED = 4096
"""Requests whose reading is remembered."""


def __getattr__(name: str) -> type[StepModel]:
    return model_class(CalculatorForCausalLM, name, "Calculator")


class _Reading(NamedTuple):
    """A request as far as it is read."""

    row: Row
    tokens: int

    @property
    def idle(self) -> bool:
        """True if no value is known: tokens that cannot make one known need no reading."""
        return self.row.reader.idle and self.row.spelling is None


class StepReader:
    """Reads the requests of engine steps for pending values.

    Args:
        rows: Reads rows of token ids.
    """

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows
        self._learns = lru_cache(maxsize=None)(self._may_learn)
        self._read: dict[str, _Reading] = {}

    def read(self, step: EngineStep) -> dict[int, Row]:
        """Return the requests, by index, after whose last token a value is pending or being written."""
        found, stops = {}, step.stops
        last = step.token_ids[step.rows, stops - 1].tolist()
        samples = (stops >= step.prompt_lengths).tolist()
        for i, (name, stop) in enumerate(zip(step.names, stops.tolist(), strict=True)):
            known = self._read.get(name)
            if not samples[i] or step.closed(i) or (known is not None and known.tokens > stop):
                continue  # a part of a prompt, or of a text that is computed again after a preemption
            if known is not None and known.idle and not self._learns(last[i]):
                continue
            row, tokens = known or (self._rows.unread, 0)
            if tokens < stop:
                row = self._rows.after(row, step.text(i)[tokens:])
                self.remember(name, row, stop)
            if row.pending or row.spelling:
                found[i] = row
        return found

    def _may_learn(self, token: int) -> bool:
        """True if a value may become known within a token."""
        (piece,), begun = self._rows.scanner.pieces([token])
        return bool(begun) or not piece.isprintable() or self._rows.unread.reader.may_learn(piece)

    def remember(self, name: str, row: Row, tokens: int) -> None:
        """Keep a request as it is read, in place of what was known of it."""
        self._read.pop(name, None)
        self._read[name] = _Reading(row, tokens)
        if len(self._read) > REMEMBERED:
            del self._read[next(iter(self._read))]


class CalculatorForCausalLM(StepModel):
    """Mixed into a family's vLLM class: the family with a calculator."""

    model: Any
    reads_answers = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        model_config = vllm_config.model_config
        path = Path(model_config.model)
        if not path.is_dir():
            files = {"revision": model_config.revision, "allow_patterns": [f"{FOLDER}/*"]}
            path = Path(snapshot_download(model_config.model, **files))
        gate, config = read_gate(path / FOLDER)
        tokenizer = tokenizer_of(model_config)
        reads = [(layer, "states", config.hidden_size) for layer in config.layers]
        reads += [(layer, "values", config.value_size) for layer in config.context]
        self._parts = keep_gate_inputs(decoder_layers(self, model_config), reads, vllm_config)
        # Not as a child: vLLM would look for its weights in the base model's files.
        self._gate = [gate.to(self._parts[0].device).float().eval()]
        self._bias = config.bias
        rows = RowReader(tokenizer)
        self._reader = StepReader(rows)
        self._writer = Writer(rows.scanner, tokenizer.get_vocab())
        self._step: tuple[EngineStep, dict[int, Row]] | None = None

    def before_step(self, step: EngineStep | None) -> None:
        """Read the requests' new tokens."""
        found = {} if step is None else self._reader.read(step)
        self._step = (step, found) if step is not None and found else None

    def compute_logits(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """vLLM's logits of one token per request, masked where a value is written.

        vLLM calls it once after each forward pass, and then again if it needs the logits of prompts, which stay as they
        are.
        """
        logits = super().compute_logits(hidden_states, *args, **kwargs)  # type: ignore[misc]
        if self._step is not None and logits is not None:
            (step, rows), self._step = self._step, None
            assert len(logits) == len(step.names)
            self._mask(step, rows, logits)
        return logits

    @torch.no_grad()
    def _mask(self, step: EngineStep, rows: dict[int, Row], logits: torch.Tensor) -> None:
        def gate_logits(undecided: list[int]) -> list[float]:
            places = torch.from_numpy(step.offsets[1:][undecided] - 1).to(logits.device)
            parts = torch.cat([kept[places].float() for kept in self._parts], dim=-1)
            found: list[float] = (self._gate[0](parts) + self._bias).tolist()
            return found

        for i, row in self._writer.begun(rows, gate_logits).items():
            rows[i] = row
            self._reader.remember(step.names[i], row, int(step.stops[i]))
        for i, row in rows.items():
            if row.spelling:
                self._writer.mask(row.spelling, logits[i])
