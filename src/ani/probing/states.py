"""Collects every layer's hidden states at the numbers of labelled sentences, in one pass."""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from ani.chat import around_message
from ani.data.diagnostic import DiagnosticSentence
from ani.errors import InputError
from ani.injection.config import AniConfig
from ani.injection.locate import NumberLocator
from ani.injection.methods import DEFAULT_POLICY, Policy
from ani.injection.model_parts import base_model, decoder_layers, is_attached
from ani.models import evaluating
from ani.numbers.text import find_numbers
from ani.probing.curve import ProbedNumber

MAX_NUMBERS = 20_000
"""Numbers probed at most: with an 8B model of 36 layers their hidden states fill 6 GB on disk, 164 MB a layer."""
MAX_TOKENS = 4096
"""Tokens of a sentence that are read; numbers after them are left out."""
BATCH_TOKENS = 2048
"""Tokens of a batch, padding included."""


class NumberStates(NamedTuple):
    """N numbers and what each layer holds at the tokens that are read."""

    numbers: list[ProbedNumber]
    layers: tuple[int, ...]
    """Which `hidden_states[l]` of transformers were read, ascending; 0 is the embedding output."""
    states: torch.Tensor
    """(layers, N, hidden size) in the model's dtype; lies in a file that vanishes with it, not in memory."""


def number_states(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[DiagnosticSentence],
    *,
    policy: Policy = DEFAULT_POLICY,
    chat: bool = False,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    directory: Path | None = None,
    on_sentence: Callable[[int], None] = lambda amount: None,
) -> NumberStates:
    """Read the hidden states at equally many names and quantities (paper Section "Optimal Layer Selection").

    Args:
        model: A causal language model without ANI attached.
        tokenizer: The model's.
        sentences: With the roles of their numbers; each is a `NumberLocator.whole_text`.
        policy: Says at which token a number is read.
        chat: Whether a sentence is read as a user's message, by the model's chat template.
        layers: Indices of transformers' `hidden_states`, in any order; all if None.
        seed: Of the chance that leaves out numbers of the more frequent role, and those above `MAX_NUMBERS`.
        directory: On its disk lies the file of states, unnamed; it need not exist. None: the system's temporary one.
        on_sentence: Called with the number of sentences that are done.

    Raises InputError if the model has ANI attached or lacks a layer, or the sentences hold fewer than two roles, and
    OSError if the disk has no room for the states.
    """
    if is_attached(model):
        raise InputError("probe the base model: ANI is attached to this one; call ani.detach first")
    base = base_model(model)
    known = range(len(decoder_layers(base)) + 1)
    layers = tuple(sorted(known if layers is None else layers))
    if unknown := [layer for layer in layers if layer not in known]:
        raise InputError(f"layer {unknown[0]} is outside the model: its layers are 0 to {known[-1]}")
    if len(set(layers)) < len(layers) or not layers:
        raise InputError(f"the list of layers {list(layers)} must name at least one layer, and none twice")
    if not sentences:
        raise InputError("there are no sentences to probe; give some with numbers of both roles")
    locator = NumberLocator(tokenizer, AniConfig(layer=0, policy=policy))
    around = around_message(tokenizer) if chat else ("", "")
    encoded = tokenizer([s.text.join(around) for s in sentences], add_special_tokens=not chat)["input_ids"]
    token_ids = [locator.whole_text(ids)[:MAX_TOKENS] for ids in encoded]
    others = len(find_numbers(around[0]))
    numbers = _balanced(list(_numbers(locator, sentences, token_ids, others)), seed)
    width = int(base.config.get_text_config().hidden_size)
    states = _on_disk((len(layers), len(numbers), width), base.dtype, directory)
    with torch.inference_mode(), evaluating(base):
        for batch in _batches(numbers, token_ids):
            states[:, batch] = _read(base, layers, numbers, batch, token_ids)
            on_sentence(len({numbers[i].sentence for i in batch}))
    return NumberStates(numbers, layers, states)


def _numbers(
    locator: NumberLocator, sentences: Sequence[DiagnosticSentence], token_ids: list[list[int]], others: int
) -> Iterator[ProbedNumber]:
    """The numbers of the sentences that are injected at one of the tokens, of which `others` stand before the sentence.

    A tokenizer that rewrites the text (or a cut) may change what its numbers are: those are left out. So is a number
    whose token carries a later one (`NumberScanner.scan_ended`).
    """
    for index, (sentence, ids) in enumerate(zip(sentences, token_ids, strict=True)):
        carrier = {number.last_token: token for token, number in locator.find(ids).items()}
        found = locator.scanner.scan(ids)[others:]
        for number, role, (start, end) in zip(found, sentence.roles, sentence.spans, strict=False):
            if number.text != sentence.text[start:end]:
                break
            if (token := carrier.get(number.last_token)) is not None:
                of: dict[str, Any] = {"role": role, "domain": sentence.domain, "template": sentence.template}
                yield ProbedNumber(sentence=index, position=token, value=abs(number.value), **of)


def _balanced(numbers: list[ProbedNumber], seed: int) -> list[ProbedNumber]:
    if not numbers:
        raise InputError("the sentences hold no number to probe")
    by_role: dict[str, list[int]] = {}
    for index, number in enumerate(numbers):
        by_role.setdefault(number.role, []).append(index)
    if len(by_role) < 2:
        raise InputError(f"every number of the sentences is {next(iter(by_role))}: a probe needs both roles")
    count = min(MAX_NUMBERS // 2, *map(len, by_role.values()))
    random = Random(f"numbers {seed}")
    kept = sorted(index for indices in by_role.values() for index in random.sample(indices, count))
    return [numbers[index] for index in kept]


def _on_disk(shape: tuple[int, int, int], dtype: torch.dtype, directory: Path | None) -> torch.Tensor:
    """A tensor in a file without a name: it needs no memory, and the disk gets its room back in any case."""
    size = shape[0] * shape[1] * shape[2] * dtype.itemsize
    if directory is not None and not directory.is_dir():
        # Not made here: sentences that turn out not to do must leave nothing.
        directory = next(parent for parent in directory.absolute().parents if parent.is_dir())
    with tempfile.TemporaryFile(dir=directory) as file:
        if hasattr(os, "posix_fallocate"):
            # A disk that is full says so here; a write into the mapping would kill the process.
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=dtype).view(shape)


def _batches(numbers: Sequence[ProbedNumber], token_ids: list[list[int]]) -> Iterator[list[int]]:
    """Indices of numbers, batch by batch: whole sentences, of similar lengths."""
    by_sentence: dict[int, list[int]] = {}
    for index, number in enumerate(numbers):
        by_sentence.setdefault(number.sentence, []).append(index)
    batch: list[int] = []
    rows = 0
    for sentence in sorted(by_sentence, key=lambda s: len(token_ids[s])):
        if rows and (rows + 1) * len(token_ids[sentence]) > BATCH_TOKENS:
            yield batch
            batch, rows = [], 0
        batch += by_sentence[sentence]
        rows += 1
    yield batch


def _read(
    model: Any, layers: tuple[int, ...], numbers: Sequence[ProbedNumber], batch: list[int], token_ids: list[list[int]]
) -> torch.Tensor:
    """One forward pass without the head; what each layer is given at the batch's numbers, on the CPU."""
    row_of = {sentence: row for row, sentence in enumerate(dict.fromkeys(numbers[i].sentence for i in batch))}
    texts = [torch.tensor(token_ids[sentence]) for sentence in row_of]
    # Not the tokenizer's padding: many have no padding token, and none is read.
    input_ids = pad_sequence(texts, batch_first=True).to(model.device)
    attention_mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True).to(model.device)
    rows = torch.tensor([row_of[numbers[i].sentence] for i in batch])
    positions = torch.tensor([numbers[i].position for i in batch])
    states: dict[int, torch.Tensor] = {}

    def keep(layer: int, hidden_states: torch.Tensor) -> None:
        device = hidden_states.device
        states[layer] = hidden_states[rows.to(device), positions.to(device)].to("cpu", model.dtype)

    # What a layer is given, not what it returns: that is a tuple in some families and a tensor in others.
    def before(layer: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        keep(layer, args[0] if args else kwargs["hidden_states"])

    with ExitStack() as hooks:
        for layer, module in enumerate(decoder_layers(model)):
            if layer in layers:
                hooks.enter_context(module.register_forward_pre_hook(partial(before, layer), with_kwargs=True))
        output = model.get_decoder()(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
    keep(len(decoder_layers(model)), output.last_hidden_state)
    return torch.stack([states[layer] for layer in layers])
