"""`fit`: fits a calculator's gate on a frozen model's states. No gradients pass through the model."""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ani import terminal
from ani.calculator.calculator import BIASES, CalculatorConfig, Rate, shape_of
from ani.calculator.data.chats import asked_chats, unasked_chats
from ani.calculator.data.drawn_text import DrawnText
from ani.calculator.data.sentences import sentences as drawn_sentences
from ani.calculator.gate import Gate, GateStates
from ani.calculator.reader.pending import Pending
from ani.calculator.rows import RowReader
from ani.calculator.writer import Writer
from ani.data.split import Split
from ani.errors import InputError
from ani.evaluation.engines import Engine, TransformersEngine, VllmEngine, VllmSettings, vllm_serves_on_gpu
from ani.injection.model_parts import base_model, decoder_layers
from ani.models import evaluating, lasting_name, model_source
from ani.terminal import SILENT, counting
from ani.training.fitting import epochs_for
from ani.training.fitting import fit as fit_network

ANSWER = 32
"""Tokens of the model's own answer to a chat that asks for nothing."""
ROWS = 32
"""Rows per forward pass."""
MOST_BYTES = 8 * 2**30
"""Upper bound for the states of all decisions."""
TEST_PART = 10
"""One test text, of other wordings and calculations, is measured per so many texts that the gate is fitted on."""
HIDDEN_SIZE, DROPOUT = 48, 0.3
_DEEPEST = 0.6
"""The deepest layer that the gate reads, as a share of the model's depth."""
_LOOK_AHEAD = 8  # tokens


class Text(NamedTuple):
    """A text whose decisions are known."""

    token_ids: list[int]
    meant: list[bool]
    """Per token: whether a value that is pending there may be meant."""
    answer: int
    """Tokens before the answer."""


def fit(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    *,
    asked: int = 2000,
    unasked: int = 2000,
    sentences: int = 1000,
    answers: Path | None = None,
    seed: int = 0,
    console: Console = SILENT,
) -> tuple[Gate, CalculatorConfig]:
    """Fit a gate: at each token at which a value is pending, whether the next token writes it.

    Args:
        model: A decoder-only transformers model; it is not changed.
        tokenizer: The model's tokenizer.
        asked: Number of chats and raw texts that ask for a calculation.
        unasked: Number of chats with a calculation that nobody asks for. The model itself answers them.
        sentences: Number of sentences that end at an equals sign; half of them do not mean the result.
        answers: JSON-lines file of models' answers; this model's are not computed again. None: they are not kept.
        seed: Seed of the texts and of the fit.
        console: Shows the progress.

    Returns:
        The fitted gate, on the model's device, and the config of a calculator, with its rates on test texts.

    Raises:
        InputError: The model's layers have no attention as Llama's, or the texts have decisions of one kind alone.
    """
    base = base_model(model)
    with evaluating(base), torch.no_grad():
        config = _config(base, tokenizer)
        engine = TransformersEngine(base, tokenizer)
        gate = config.gate(DROPOUT)

        given: dict[str, Any] = {"answers": answers, "seed": seed, "console": console}
        drawn = _drawn(engine, "train", asked, unasked, sentences, **given).values()
        texts = [_text(each, engine) for of_kind in drawn for each in of_kind]
        features, labels, groups = _decisions(engine, gate, config, texts, console, seed)
    if len(labels.unique()) < 2:
        raise InputError("a gate needs values that are written and values that are not; fit it on more texts")
    gate.to(base.device)
    with torch.random.fork_rng([base.device] if base.device.type == "cuda" else []):
        torch.manual_seed(seed)
        gate.inner.reset_parameters()
        gate.outer.reset_parameters()
        net = nn.Sequential(gate.inner, nn.GELU(), gate.dropout, gate.outer).train()
        with counting(console, "epochs of the gate's fit", epochs_for(len(labels))) as count:
            mean, std = fit_network(net, features, labels, groups, on_epoch=count)
    with torch.no_grad():  # the gate reads states as they are
        gate.inner.bias.sub_(gate.inner.weight @ (mean / std))
        gate.inner.weight.div_(std)
    tests = [count // TEST_PART for count in (asked, unasked, sentences)]
    return gate, config.model_copy(update={"rates": measure(engine, gate, config, *tests, **given)})


def measure(
    engine: TransformersEngine, gate: Gate, config: CalculatorConfig, *counts: int, seed: int = 0, **given: Any
) -> dict[str, Rate]:
    """How often a fitted gate is right at each of `BIASES`, on texts of the test split by their kind: `asked`, `raw`,
    `sentence`, `other sentence` and `unasked`.

    Args:
        engine: The model with its tokenizer.
        gate: The gate.
        config: The config of its calculator.
        counts: `asked`, `unasked` and `sentences`, as for `fit`.
        seed: Seed of the texts.
        given: `answers` and `console`, as for `fit`.
    """
    rates, device = {}, engine.model.device
    gate.to(device).eval()
    with evaluating(engine.model), torch.no_grad():
        for kind, drawn in _drawn(engine, "test", *counts, seed=seed, **given).items():
            texts = [_text(each, engine) for each in drawn]
            features, _, groups = _decisions(engine, gate, config, texts, SILENT, seed, answers=True)
            logits = torch.cat([gate(part.float().to(device)).cpu() for part in features.split(4096)])
            largest = torch.full((len(texts),), -torch.inf).scatter_reduce(0, groups, logits, "amax")
            right = {bias: (largest + bias > 0) == drawn[0].meant for bias in BIASES}
            rates[kind] = Rate(texts=len(texts), right={bias: int(each.sum()) for bias, each in right.items()})
    return rates


def model_name(model: PreTrainedModel) -> str:
    """The name under which a model can be loaded again; of a model without one, its type."""
    return lasting_name(model.name_or_path) or str(model.config.model_type)


def _config(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> CalculatorConfig:
    """The layers that the gate of a model reads: five states up to `_DEEPEST`, and nine layers' attention below."""
    deepest = max(1, round(_DEEPEST * len(decoder_layers(model))))
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([tokenizer("1")["input_ids"]], device=model.device), past_key_values=cache)
    widths = {}
    for index, layer in enumerate(cache.layers[:deepest]):
        values = getattr(layer, "values", None)
        if isinstance(values, torch.Tensor) and values.ndim == 4:
            widths[index] = values.shape[1] * values.shape[3], bool(getattr(layer, "is_sliding", False))
    if not widths:
        raise InputError(f"{type(model).__name__} has no attention as Llama's below layer {deepest}")
    # A window forgets the beginning of the text: layers without one are read, if there are any.
    best = min(widths.values(), key=lambda each: each[1])
    usable = [index for index, each in widths.items() if each == best]
    places = np.linspace(min(1, len(usable) - 1), len(usable) - 1, min(9, len(usable))).round().astype(int)
    return CalculatorConfig(
        base=model_name(model),
        **shape_of(model),
        value_size=best[0],
        layers=sorted({round(deepest * share / 9) for share in (2, 4, 6, 8, 9)}),
        context=sorted({usable[place] for place in places}),
        gate_hidden_size=HIDDEN_SIZE,
    )


def _drawn(
    engine: TransformersEngine,
    split: Split,
    asked: int,
    unasked: int,
    sentences: int,
    *,
    seed: int,
    answers: Path | None = None,
    console: Console = SILENT,
) -> dict[str, list[DrawnText]]:
    """Texts of a split by their kind, with their answers; kinds without a text are left out."""
    chats = asked_chats(asked, split=split, seed=seed)
    pairs = drawn_sentences(sentences, split=split, seed=seed)
    others = unasked_chats(unasked, split=split, seed=seed)
    found = {
        "asked": [chat for chat in chats if not chat.raw],
        "raw": [chat for chat in chats if chat.raw],
        "sentence": [sentence for sentence in pairs if sentence.meant],
        "other sentence": [sentence for sentence in pairs if not sentence.meant],
        "unasked": _answered(others, engine, model_name(engine.model), answers, console),
    }
    return {kind: texts for kind, texts in found.items() if texts}


def _text(drawn: DrawnText, engine: TransformersEngine) -> Text:
    ids, tokenizer = engine.ids(drawn.given), engine.tokenizer
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids = ids[:-1] if drawn.raw and ids[-1:] == ends else ids
    answer = [*tokenizer(drawn.completion, add_special_tokens=False)["input_ids"], *ends]
    before = drawn.meant or drawn.raw  # a sentence that does not mean its last result may mean others before
    return Text(ids + answer, [before] * (len(ids) - 1) + [drawn.meant] * (len(answer) + 1), len(ids))


def answer_by_vllm(model: str, unasked: int, seed: int, file: Path) -> None:
    """Let vLLM write the answers to the chats of `fit` that ask for nothing, much faster than transformers. It runs
    in a process of its own, which frees the GPU's memory at its end.

    Args:
        model: Directory, hub name, or `smollm2`.
        unasked: Number of chats, as for `fit`.
        seed: Seed of the chats.
        file: `answers` of `fit`.

    Raises:
        InputError: vLLM can't serve the model on this machine.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=terminal.only_ours) as pool:
        pool.submit(_answer_by_vllm, model, unasked, seed, file).result()


def _answer_by_vllm(model: str, unasked: int, seed: int, file: Path) -> None:
    settings = VllmSettings()
    if not vllm_serves_on_gpu():
        # On a CPU vLLM's default, 92% of the machine's memory, is seldom free, and compiling takes minutes.
        settings = VllmSettings(kv_cache_memory_bytes=2 * 2**30, enforce_eager=True)
    engine, name = VllmEngine(model, settings=settings), lasting_name(model_source(model)) or model
    counts: dict[Split, int] = {"train": unasked, "test": unasked // TEST_PART}
    for split, count in counts.items():
        _answered(unasked_chats(count, split=split, seed=seed), engine, name, file, terminal.console)


def _answered(
    chats: Sequence[DrawnText], engine: Engine, name: str, file: Path | None, console: Console
) -> list[DrawnText]:
    """The chats with the answers of the model of this name; those without an answer are left out. A line of the file
    has the model's name, a prompt and the answer."""
    found = dict[str, str]()
    if file is not None and file.is_file():
        for line in file.read_text("utf-8").splitlines():
            with suppress(ValueError):  # the last line of a killed process
                model, prompt, answer = json.loads(line)
                found |= {prompt: answer} if model == name else {}
    asked = sorted((chat for chat in chats if chat.prompt not in found), key=lambda chat: len(chat.prompt))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    with counting(console, "the model's own answers", len(asked)) as progress, open(file or os.devnull, "a") as lines:
        for place, answer in engine.generate([chat.given for chat in asked], ANSWER, batch_size=ROWS) if asked else ():
            found[asked[place].prompt] = answer
            lines.write(json.dumps([name, asked[place].prompt, answer]) + "\n")
            lines.flush()
            progress(1)
    return [chat._replace(completion=found[chat.prompt]) for chat in chats if found[chat.prompt]]


class _Read(Exception):
    """Ends a forward pass: the layers above are not needed."""


def _decisions(
    engine: TransformersEngine,
    gate: Gate,
    config: CalculatorConfig,
    texts: Sequence[Text],
    console: Console,
    seed: int,
    *,
    answers: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """N decisions: the gate's normalised parts, float16 (N, width); labels, int64 (N,); texts, int64 (N,), numbered
    from 0 without gaps. `answers`: only those that write an answer, up to the beginning of its value."""
    model, reader = engine.model, RowReader(engine.tokenizer)
    states = GateStates(model, config.layers, config.context, kept=None)
    writer = Writer(reader.scanner, engine.tokenizer.get_vocab())
    features = [torch.empty(0, sum(gate.sizes), dtype=torch.half)]
    labels: list[int] = []
    groups: list[int] = []
    labelled = ((text, list(_labels(text, reader, writer, answers))) for text in texts)
    decided = [(text, found) for text, found in labelled if found]
    decided.sort(key=lambda each: len(each[0].token_ids))
    # Texts of similar length share a batch; batches come in random order, because the last ones may not fit.
    batches = [decided[first : first + ROWS] for first in range(0, len(decided), ROWS)]
    np.random.default_rng(seed).shuffle(batches)

    def stop(*_: Any) -> None:
        raise _Read

    hook = decoder_layers(model)[config.layers[-1]].register_forward_pre_hook(stop)
    try:
        with counting(console, "states of the model", len(decided)) as progress:
            for batch in batches:
                ids = pad_sequence([torch.tensor(text.token_ids) for text, _ in batch], batch_first=True)
                mask = pad_sequence([torch.ones(len(text.token_ids), dtype=torch.long) for text, _ in batch], True)
                with suppress(_Read):
                    given = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
                    model(**given, past_key_values=DynamicCache(), use_cache=True)
                places = pad_sequence([torch.tensor([place for place, _ in found]) for _, found in batch], True)
                read = gate.normalised(states.parts(torch.arange(len(batch)), places)).half().cpu()
                for row, (_, found) in enumerate(batch):
                    features.append(read[row, : len(found)].clone())
                    labels += [label for _, label in found]
                    groups += [groups[-1] + 1 if groups else 0] * len(found)
                progress(len(batch))
                if len(labels) * read[0, 0].nbytes >= MOST_BYTES:
                    break
    finally:
        hook.remove()
    return torch.cat(features), torch.tensor(labels, dtype=torch.long), torch.tensor(groups, dtype=torch.long)


def _labels(text: Text, reader: RowReader, writer: Writer, answer: bool) -> Iterator[tuple[int, int]]:
    """The tokens at which a value is pending, and whether the next token writes it (1) or not (0). `answer`: only those
    that write the answer, up to the beginning of its value."""
    pieces, _ = reader.scanner.pieces(text.token_ids)
    for token, pending in enumerate(reader.every(text.token_ids)[:-1]):
        if pending is not None and token >= answer * (text.answer - 1):
            before = "".join(pieces[max(0, token - 2 * _LOOK_AHEAD) : token + 1])
            written = text.meant[token] and writes(writer, pending, before, pieces[token + 1 : token + 1 + _LOOK_AHEAD])
            yield token, int(written)
            if answer and written:
                break


def writes(writer: Writer, pending: Pending, text: str, pieces: Sequence[str]) -> bool:
    """Return whether the next of some pieces writes a value, its opening before it, or its end.

    Args:
        writer: The tokenizer's writer.
        pending: The value.
        text: The end of the text.
        pieces: What the next tokens add to the text.
    """
    spelling = writer.begin(pending, text)
    if spelling is None:
        return False
    if (following := spelling.next(1)) and following.may_end:
        return not pieces[0][:1].isdigit()
    for piece in pieces:
        spelling = spelling._replace(text=spelling.text + piece)
        if spelling.next(1) is None:
            return False
        if any(map(str.isdigit, piece)):
            return True
    return False
