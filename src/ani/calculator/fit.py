"""`fit`: fits a calculator's gate on a frozen model's states. No gradients pass through the model."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import nn
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ani.calculator.calculator import CalculatorConfig, shape_of
from ani.calculator.data.chats import asked_chats, unasked_chats
from ani.calculator.data.sentences import sentences as calculations_in_sentences
from ani.calculator.gate import Gate, GateStates
from ani.calculator.reader.pending import Pending
from ani.calculator.rows import RowReader
from ani.calculator.writer import Writer
from ani.chat import rendered
from ani.errors import InputError
from ani.evaluation.engines import TransformersEngine
from ani.injection.model_parts import base_model, decoder_layers
from ani.models import evaluating, lasting_name
from ani.terminal import SILENT, counting
from ani.training.fitting import epochs_for
from ani.training.fitting import fit as fit_network

ANSWER = 32
"""Tokens of the model's own answer to a chat that asks for nothing."""
ROWS = 32
"""Rows per forward pass."""
MOST_BYTES = 8 * 2**30
"""Upper bound for the states of all decisions."""
HIDDEN_SIZE, DROPOUT = 48, 0.3
_DEEPEST = 0.6
"""The deepest layer that the gate reads, as a share of the model's depth."""
_LOOK_AHEAD = 8  # tokens


class Text(NamedTuple):
    """A text whose decisions are known."""

    token_ids: list[int]
    meant: list[bool]
    """Per token: whether a value that is pending there may be meant."""


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
        asked: Chats and raw texts that ask for a calculation, with the answer.
        unasked: Chats with a calculation that nobody asks for. The model itself answers them: no value is meant there.
        sentences: Sentences that end at an equals sign; in half of them the result is not meant.
        answers: JSON-lines file to which the model's answers are appended as they come; answers in it are not asked for
            again. None: they are not kept.
        seed: Seed of the texts and of the fit.
        console: Shows the progress.

    Returns:
        The fitted gate, on the model's device, and the config of a calculator.

    Raises:
        InputError: The model's layers have no attention as Llama's, or the texts have decisions of one kind alone.
    """
    base = base_model(model)
    reader = RowReader(tokenizer)
    with evaluating(base), torch.no_grad():
        config = _config(base, tokenizer)
        texts = [*_asked(asked, tokenizer, seed), *_sentences(sentences, tokenizer, seed)]
        texts += _unasked(unasked, base, tokenizer, answers, seed, console)
        gate = config.gate(DROPOUT)
        features, labels, groups = _decisions(base, gate, config, texts, tokenizer, reader, console, seed)
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
    return gate.eval(), config


def _config(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> CalculatorConfig:
    """The layers that the gate of a model reads: five states up to `_DEEPEST`, and nine layers' attention below."""
    depth = len(decoder_layers(model))
    deepest = max(1, round(_DEEPEST * depth))
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
        base=lasting_name(model.name_or_path) or model.config.model_type,
        **shape_of(model),
        value_size=best[0],
        layers=sorted({round(deepest * share / 9) for share in (2, 4, 6, 8, 9)}),
        context=sorted({usable[place] for place in places}),
        gate_hidden_size=HIDDEN_SIZE,
    )


# --- texts ------------------------------------------------------------------------------------------------------------


def _prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: Any) -> list[int]:
    if not isinstance(prompt, str):
        return list(tokenizer(rendered(tokenizer, prompt), add_special_tokens=False)["input_ids"])
    ids = list(tokenizer(prompt)["input_ids"])
    return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids


def _text(tokenizer: PreTrainedTokenizerBase, prompt_ids: list[int], completion: str, meant: list[bool]) -> Text:
    ids = [*prompt_ids, *tokenizer(completion, add_special_tokens=False)["input_ids"]]
    ids += [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return Text(ids, meant + meant[-1:] * (len(ids) - len(meant)))


def _asked(count: int, tokenizer: PreTrainedTokenizerBase, seed: int) -> Iterator[Text]:
    for chat in asked_chats(count, split="train", seed=seed):
        yield _text(tokenizer, _prompt_ids(tokenizer, chat.prompt), chat.completion, [True])


def _sentences(count: int, tokenizer: PreTrainedTokenizerBase, seed: int) -> Iterator[Text]:
    for sentence in calculations_in_sentences(count, split="train", seed=seed):
        ids = _prompt_ids(tokenizer, sentence.prompt)
        yield _text(tokenizer, ids, sentence.completion, [*[True] * (len(ids) - 1), sentence.meant])


def _unasked(
    count: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    file: Path | None,
    seed: int,
    console: Console,
) -> Iterator[Text]:
    prompts = {chat.prompt[0]["content"]: chat.prompt for chat in unasked_chats(count, split="train", seed=seed)}
    found: dict[str, str] = {}
    if file is not None and file.is_file():
        for line in file.read_text("utf-8").splitlines():
            with suppress(ValueError):  # the last line of a killed process
                found |= json.loads(line)
    asked = sorted(prompts.keys() - found.keys(), key=lambda text: (len(text), text))
    engine = TransformersEngine(model, tokenizer)
    with counting(console, "the model's own answers", len(asked)) as progress:
        for first in range(0, len(asked), 2 * ROWS):
            part = asked[first : first + 2 * ROWS]
            texts = engine.texts([prompts[text] for text in part], ANSWER)
            found |= dict(zip(part, texts, strict=True))
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a", encoding="utf-8") as lines:
                    lines.write("".join(json.dumps({text: found[text]}) + "\n" for text in part))
            progress(len(part))
    for text, prompt in prompts.items():
        if found[text]:
            yield _text(tokenizer, _prompt_ids(tokenizer, prompt), found[text], [False])


# --- decisions --------------------------------------------------------------------------------------------------------


class _Read(Exception):
    """Ends a forward pass: the layers above are not needed."""


def _decisions(
    model: PreTrainedModel,
    gate: Gate,
    config: CalculatorConfig,
    texts: Sequence[Text],
    tokenizer: PreTrainedTokenizerBase,
    reader: RowReader,
    console: Console,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """N decisions: the gate's normalised parts, float16 (N, width); labels, int64 (N,); texts, int64 (N,)."""
    states = GateStates(model, config.layers, config.context, kept=None)
    writer = Writer(reader.scanner, tokenizer.get_vocab())

    def stop(*_: Any) -> None:
        raise _Read

    hook = decoder_layers(model)[config.layers[-1]].register_forward_pre_hook(stop)
    features: list[torch.Tensor] = []
    labels: list[int] = []
    groups: list[int] = []
    order = [int(place) for place in np.random.default_rng(seed).permutation(len(texts))]
    # Batches of texts of similar length, in random order.
    batches = [
        sorted(order[first : first + 16 * ROWS], key=lambda i: len(texts[i].token_ids))
        for first in range(0, len(order), 16 * ROWS)
    ]
    try:
        with counting(console, "states of the model", len(texts)) as progress:
            for batch in (part[first : first + ROWS] for part in batches for first in range(0, len(part), ROWS)):
                found = [list(_labels(texts[place], reader, writer)) for place in batch]
                rows = [row for row, decisions in enumerate(found) if decisions]
                progress(len(batch))
                if not rows:
                    continue
                width = max(len(texts[place].token_ids) for place in batch)
                ids, mask = (torch.zeros(len(batch), width, dtype=torch.long) for _ in range(2))
                for row, place in enumerate(batch):
                    length = len(texts[place].token_ids)
                    ids[row, :length], mask[row, :length] = torch.tensor(texts[place].token_ids), 1
                given = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
                with suppress(_Read):
                    model(**given, past_key_values=DynamicCache(), use_cache=True)
                most = max(map(len, found))
                places = torch.tensor(
                    [[token for token, _ in found[row]] + [0] * (most - len(found[row])) for row in rows]
                )
                read = gate.normalised(states.parts(torch.tensor(rows), places)).half().cpu()
                features += [read[index, : len(found[row])] for index, row in enumerate(rows)]
                labels += [label for row in rows for _, label in found[row]]
                groups += [batch[row] for row in rows for _ in found[row]]
                if len(labels) * read[0, 0].nbytes >= MOST_BYTES:
                    break
    finally:
        hook.remove()
    made = torch.cat(features) if features else torch.empty(0, sum(gate.sizes), dtype=torch.half)
    return made, torch.tensor(labels, dtype=torch.long), torch.tensor(groups).unique(return_inverse=True)[1]


def _labels(text: Text, reader: RowReader, writer: Writer) -> Iterator[tuple[int, int]]:
    """The tokens at which a value is pending, and whether the next token writes it (1) or not (0)."""
    pieces, _ = reader.scanner.pieces(text.token_ids)
    for token, pending in enumerate(reader.every(text.token_ids)[:-1]):
        if pending is not None:
            before = "".join(pieces[max(0, token - 2 * _LOOK_AHEAD) : token + 1])
            written = text.meant[token] and writes(writer, pending, before, pieces[token + 1 : token + 1 + _LOOK_AHEAD])
            yield token, int(written)


def writes(writer: Writer, pending: Pending, text: str, pieces: Sequence[str]) -> bool:
    """Whether the next of some pieces writes a value, its opening before it, or its end.

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
