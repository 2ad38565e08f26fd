"""Decides by the policy which tokens of a row carry a number.

Under `after`, a number at the end of a prompt is injected at the first generated token that cannot continue it. Under
`terminal` a prompt is a complete text, so its last number is injected at its own last token. The collator, the forward
pass, generation and vLLM all use this module, so they cannot disagree.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from transformers import PreTrainedTokenizerBase

from ani.encoders import build_encoder
from ani.injection.config import AniConfig
from ani.injection.number_batch import PADDING, NumberBatch
from ani.numbers import Number, NumberScanner
from ani.numbers.text import plain_text
from ani.roles import Role


class NumberLocator:
    """Finds and encodes the numbers of token rows by a config's policy, encoders and overflow rule."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: AniConfig) -> None:
        self._tokenizer, self._scanner, self._known_tokens = tokenizer, NumberScanner(tokenizer), len(tokenizer)
        self.encoder = build_encoder(config)
        self.policy = config.policy
        end = tokenizer.eos_token_id if config.policy == "after" else None
        self._end = [] if end is None else [end]
        self.causal = config.causal
        """True if each forward pass finds the numbers from the tokens so far, in prompt and response alike."""
        self.hides_response = not config.causal and config.scope == "prompt"
        """True if numbers of the response get nothing, in training and in generation."""
        self.substitutes = config.combine == "substitute"
        self._skips = config.overflow == "skip"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # shared, because its token table is large

    @property
    def scanner(self) -> NumberScanner:
        """The scanner of the tokenizer's vocabulary, of which tokens may be added at any time."""
        if len(self._tokenizer) != self._known_tokens:
            self._scanner, self._known_tokens = NumberScanner(self._tokenizer), len(self._tokenizer)
        return self._scanner

    def whole_text(self, token_ids: Sequence[int]) -> list[int]:
        """Token ids with the end of the text: under `after` the tokenizer's end token, as after a completion in
        training, because only a later token completes the last number."""
        return [*token_ids, *self._end]

    def find(self, token_ids: Sequence[int], start: int = 0) -> dict[int, Number]:
        """The number that each token from `start` on carries, by token, ascending; the other tokens carry none.

        `token_ids` is one row, `PADDING` where there is no text. Under a causal policy this reader is incremental: it
        reads back from `start` only as far as a number can extend. Call it with a whole row, or again after each new
        token; both give the same numbers.
        """
        if self.policy == "after":  # padding ends a number too, but can't carry one
            ended = self.scanner.scan_ended(token_ids, start)
            found = {token: number for token, number in ended.items() if token_ids[token] != PADDING}
        elif self.policy == "running":
            found = {number.last_token: number for number in self.scanner.scan_running(token_ids, start)}
        else:
            every = self.policy == "digitwise"
            found = {
                token: number
                for number in self.scanner.scan(token_ids)
                for token in range(number.first_token if every else number.last_token, number.last_token + 1)
                if token >= start
            }
        if self._skips:
            found = {token: number for token, number in found.items() if self.encoder.in_range(plain_text(number.text))}
        if self.substitutes:  # other text in a number's tokens would be lost, such as the bracket of "(-5"
            found = {token: number for token, number in found.items() if self._has_own_tokens(number, token_ids)}
        return found

    def prompt(self, token_ids: Sequence[int]) -> tuple[list[int], list[tuple[int, str]]]:
        """A prompt, without the tokens that `combine="substitute"` hides, and its numbers: the index in what is left of
        the token that carries each, and the number as the encoder reads it."""
        left: list[int] = []
        numbers, begin = [], 0
        for token, number in self.find(token_ids).items():
            left += token_ids[begin : number.first_token if self.substitutes else token]
            numbers.append((len(left), plain_text(number.text)))
            begin = token
        return [*left, *token_ids[begin:]], numbers

    def _has_own_tokens(self, number: Number, token_ids: Sequence[int]) -> bool:
        tokens = token_ids[number.first_token : number.last_token + 1]
        return self.scanner.text(tokens).strip() == number.text

    def batch(
        self,
        rows: Sequence[Sequence[int]],
        *,
        start: int | Sequence[int] = 0,
        texts: Sequence[Sequence[int]] | None = None,
        response: Sequence[Sequence[bool]] | None = None,
        roles: Sequence[Sequence[int]] | None = None,
    ) -> NumberBatch:
        """The numbers of a batch.

        Args:
            rows: Token ids, `PADDING` where there is no text.
            start: Index of the first token to report, for all rows or one per row; `positions` count from it.
            texts: Index of each text's first token, per row, if a packed row contains several; `start` is then 0.
            response: True for tokens of the response, per row. They carry nothing if `hides_response`: during
                generation it is unknown whether a number is complete.
            roles: Role of the number that each token belongs to, per row and token. None: unknown.
        """
        starts = [start] * len(rows) if isinstance(start, int) else start
        if response is not None and self.hides_response:
            pairs = zip(rows, response, strict=True)
            rows = [[PADDING if hidden else i for i, hidden in zip(*pair, strict=True)] for pair in pairs]
        found: list[tuple[int, int, int, int]] = []
        written: list[str] = []
        for row, (token_ids, first) in enumerate(zip(rows, starts, strict=True)):
            begins = [0] if texts is None else texts[row]
            for begin, end in pairwise([*begins, len(token_ids)]):
                text = token_ids if end - begin == len(token_ids) else token_ids[begin:end]
                for token, number in self.find(text, first).items():
                    role = Role.UNKNOWN if roles is None else roles[row][begin + number.last_token]
                    masked = number.last_token - number.first_token if self.substitutes else 0
                    found.append((row, begin + token - first, role, masked))
                    written.append(plain_text(number.text))
        columns = torch.tensor(found, dtype=torch.long).reshape(len(found), 4).T.contiguous()
        return NumberBatch(columns[0], columns[1], self.encoder.encode(written), columns[2], columns[3])
