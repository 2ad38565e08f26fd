"""Collects every layer's hidden states at the numbers of labelled sentences, in one pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
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
from ani.injection.model_parts import base_model, check_tokenizer, decoder_layers, is_attached
from ani.models import evaluating
from ani.numbers import find_numbers
from ani.probing.curve import ProbedNumber

MAX_NUMBERS = 20_000
"""Maximum of probed numbers: the hidden states of an 8B model with 36 layers then take 6 GB of memory."""
MAX_TOKENS = 4096
"""Maximum of tokens read per sentence; later numbers are left out."""
BATCH_TOKENS = 2048
"""Maximum of tokens per batch, padding included."""


class NumberStates(NamedTuple):
    """N numbers, and the hidden states of each layer at the tokens where they are read."""

    numbers: list[ProbedNumber]
    layers: tuple[int, ...]
    """Indices of transformers' `hidden_states`, ascending; 0 is the embedding output."""
    states: torch.Tensor
    """(layers, N, hidden size) in the model's dtype, on the CPU."""


def number_states(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[DiagnosticSentence],
    *,
    policy: Policy = DEFAULT_POLICY,
    chat: bool = False,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    on_sentence: Callable[[int], None] = lambda amount: None,
) -> NumberStates:
    """Read the hidden states at equally many names and quantities (paper Section "Optimal Layer Selection").

    Arguments as of `ani.select_layer`. `seed` draws the numbers of the more frequent role, and `MAX_NUMBERS` of all.
    `on_sentence` is called with the number of sentences done, after each batch. Raises InputError if the model has ANI
    attached or lacks a layer, or the sentences contain fewer than two roles.
    """
    if is_attached(model):
        raise InputError("probe the base model: ANI is attached to this one; call ani.detach first")
    base = base_model(model)
    check_tokenizer(tokenizer)
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
    states = torch.empty(len(layers), len(numbers), width, dtype=base.dtype)
    with torch.inference_mode(), evaluating(base):
        for batch in _batches(numbers, token_ids):
            states[:, batch] = _read(base, layers, numbers, batch, token_ids)
            on_sentence(len({numbers[i].sentence for i in batch}))
    return NumberStates(numbers, layers, states)


def _numbers(
    locator: NumberLocator, sentences: Sequence[DiagnosticSentence], token_ids: list[list[int]], others: int
) -> Iterator[ProbedNumber]:
    """The numbers of the sentences that are injected at one of the tokens; `others` numbers precede each sentence.

    A tokenizer that rewrites the text (or a cut) may change the numbers: these are left out. So is a number
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
        raise InputError("the sentences contain no number to probe")
    by_role: dict[str, list[int]] = {}
    for index, number in enumerate(numbers):
        by_role.setdefault(number.role, []).append(index)
    if len(by_role) < 2:
        raise InputError(f"every number of the sentences is {next(iter(by_role))}: a probe needs both roles")
    count = min(MAX_NUMBERS // 2, *map(len, by_role.values()))
    random = Random(f"numbers {seed}")
    kept = sorted(index for indices in by_role.values() for index in random.sample(indices, count))
    return [numbers[index] for index in kept]


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
    """Run the model without its head, and return each layer's input at the batch's numbers, on the CPU."""
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

    # A layer's input, because its output is a tuple in some families and a tensor in others.
    def before(layer: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        keep(layer, args[0] if args else kwargs["hidden_states"])

    with ExitStack() as hooks:
        for layer, module in enumerate(decoder_layers(model)):
            if layer in layers:
                hooks.enter_context(module.register_forward_pre_hook(partial(before, layer), with_kwargs=True))
        output = model.get_decoder()(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
    keep(len(decoder_layers(model)), output.last_hidden_state)
    return torch.stack([states[layer] for layer in layers])
