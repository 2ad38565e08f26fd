"""Tokenizes examples, says which tokens are learnt, and collates them into padded batches with their numbers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from ani.chat import rendered
from ani.data.records import Example
from ani.injection.locate import NumberLocator
from ani.numbers import Number, find_numbers
from ani.roles import Role

IGNORED = -100
"""Label of a token that is not learnt: the prompt and the padding."""

_PLACEHOLDER = "\ue000"
"""Private-use character in place of a message, to find where a chat template puts it."""


class TokenizedExample(NamedTuple):
    """Token ids of one example: the prompt, then the response."""

    input_ids: list[int]
    prompt_length: int
    roles: list[int]
    """Role of the number that each token belongs to, `Role.UNKNOWN` elsewhere."""


def tokenize(
    example: Example, tokenizer: PreTrainedTokenizerBase, locator: NumberLocator | None, max_length: int
) -> TokenizedExample:
    """Tokenize an example as at inference: the prompt by itself, then the completion and EOS, cut after `max_length`
    tokens. A chat is rendered (`ani.chat`). Without a locator (a model without ANI) roles stay unknown."""
    prompt = example.prompt if isinstance(example.prompt, str) else rendered(tokenizer, example.prompt)
    prompt_ids = tokenizer(prompt, add_special_tokens=isinstance(example.prompt, str))["input_ids"]
    if isinstance(example.prompt, str) and prompt_ids[-1:] == [tokenizer.eos_token_id]:
        prompt_ids = prompt_ids[:-1]
    completion_ids = tokenizer(example.completion, add_special_tokens=False)["input_ids"]
    if tokenizer.eos_token_id is not None:
        completion_ids = [*completion_ids, tokenizer.eos_token_id]
    input_ids = [*prompt_ids, *completion_ids]
    roles: list[int] = [Role.UNKNOWN] * len(input_ids)
    if locator is not None and example.roles:
        for index, number in _own_numbers(example, prompt, prompt_ids, tokenizer, locator):
            for token in range(number.first_token, number.last_token + 1):
                roles[token] = Role.named(example.roles[index])
    return TokenizedExample(input_ids[:max_length], min(len(prompt_ids), max_length), roles[:max_length])


def _own_numbers(
    example: Example, prompt: str, prompt_ids: list[int], tokenizer: PreTrainedTokenizerBase, locator: NumberLocator
) -> Iterator[tuple[int, Number]]:
    """Yield index and number of each number of the example itself, without those of a chat template; nothing where
    template or tokenizer rewrites the text, so that their places are unknown."""
    text, start = example.prompt, 0
    if not isinstance(text, str):
        # The template says where the message goes: its words may be in the template or earlier in the chat too.
        last = text[-1]
        start = rendered(tokenizer, [*text[:-1], {**last, "content": _PLACEHOLDER}]).find(_PLACEHOLDER)
        text = last["content"] if prompt.startswith(last["content"], start) else last["content"].strip()
    decoded = locator.scanner.text(prompt_ids)
    if start < 0 or not prompt.startswith(text, start) or not decoded.endswith(prompt):
        return
    start += len(decoded) - len(prompt)  # special tokens in front
    own = {number.end + start: index for index, number in enumerate(find_numbers(text))}
    for number in locator.scanner.scan(prompt_ids):
        if number.end in own:
            yield own[number.end], number


class NumberCollator:
    """Pads tokenized examples on the right and finds their numbers with the attached model's locator (None: a model
    without ANI)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, locator: NumberLocator | None) -> None:
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.locator = locator

    def __call__(self, examples: Sequence[TokenizedExample]) -> dict[str, Any]:
        """Return `input_ids`, `attention_mask` and `labels`, int64 (B, T), and `numbers`, a NumberBatch."""
        rows = [example.input_ids for example in examples]
        batch: dict[str, Any] = {
            "input_ids": _padded(rows, self.pad_id),
            "attention_mask": _padded(([1] * len(row) for row in rows), 0),
            "labels": _padded(([IGNORED] * prompt + row[prompt:] for row, prompt, _ in examples), IGNORED),
        }
        if self.locator is not None:
            response = [[i >= example.prompt_length for i in range(len(example.input_ids))] for example in examples]
            roles = [example.roles for example in examples]
            batch["numbers"] = self.locator.batch(rows, response=response, roles=roles)
        return batch


def _padded(rows: Iterable[list[int]], value: int) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)
