"""Tokenizes examples, says which tokens are learnt, and collates them into padded or packed rows with their numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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
    without ANI). With `learns_all` prompts are learnt, too."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, locator: NumberLocator | None, learns_all: bool = False
    ) -> None:
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.locator, self.learns_all = locator, learns_all

    def __call__(
        self, examples: Sequence[TokenizedExample], rows: Sequence[Sequence[int]] | None = None
    ) -> dict[str, Any]:
        """Collate N examples, into a row each or into packed rows.

        Args:
            examples: The examples; their numbers are in the same order, however they are packed.
            rows: Indices of the examples of each packed row; None: no row is packed.

        Returns:
            `input_ids`, `labels` and `attention_mask`, int64 (B, T), and `numbers`, a NumberBatch. In place of the mask
            packed rows have `position_ids`, int64 (B, T), which restart with each example and are 0 in the padding, and
            `use_cache`, False: transformers looks for texts in rows without a mask and a cache.
        """
        joined = [[example] for example in examples] if rows is None else [[examples[i] for i in row] for row in rows]

        def column(tokens: Callable[[TokenizedExample], list[int]], padding: int) -> torch.Tensor:
            each = [torch.tensor([value for example in row for value in tokens(example)]) for row in joined]
            return pad_sequence(each, batch_first=True, padding_value=padding)

        batch: dict[str, Any] = {
            "input_ids": column(lambda example: example.input_ids, self.pad_id),
            "labels": column(self._labels, IGNORED),
        }
        if rows is None:
            batch["attention_mask"] = column(lambda example: [1] * len(example.input_ids), 0)
        else:
            batch |= {"position_ids": column(lambda example: [*range(len(example.input_ids))], 0), "use_cache": False}
        if self.locator is not None:
            response = [[i >= example.prompt_length for i in range(len(example.input_ids))] for example in examples]
            roles = [example.roles for example in examples]
            numbers = self.locator.batch([example.input_ids for example in examples], response=response, roles=roles)
            if rows is not None:
                row, start = _places(examples, rows)[:, numbers.rows]
                numbers = replace(numbers, rows=row, positions=start + numbers.positions)
            batch["numbers"] = numbers
        return batch

    def _labels(self, example: TokenizedExample) -> list[int]:
        # Nothing predicts a first token: the token before it is another text's.
        unlearnt = 1 if self.learns_all else max(example.prompt_length, 1)
        return [IGNORED] * unlearnt + example.input_ids[unlearnt:]


def _places(examples: Sequence[TokenizedExample], rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Row, and index of the first token in it, of each example, int64 (2, N)."""
    places = torch.zeros(2, len(examples), dtype=torch.long)
    for row, members in enumerate(rows):
        start = 0
        for member in members:
            places[:, member] = torch.tensor([row, start])
            start += len(examples[member].input_ids)
    return places
