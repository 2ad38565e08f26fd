"""Finds the numbers in token ids: each number's tokens, and the first token from which it is certainly complete."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import accumulate, repeat
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple

from ani.errors import InputError
from ani.numbers.context import CLOSED, OPEN, settled
from ani.numbers.grammar import Rule, digit_runs, ended_spans, number_spans
from ani.numbers.signs import BOUNDARY
from ani.numbers.text import decimal_value
from ani.numbers.token_bytes import completed, decode, encode, readable, token_decoder

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedTokenizerBase

    TokenIds = Sequence[int] | np.ndarray[Any, np.dtype[np.integer[Any]]] | torch.Tensor

_DIGIT = re.compile("[0-9]")
# A boundary without characters: the byte 0xFF, which never occurs in UTF-8, and is kept out of the vocabulary.
_NOTHING = "\udcff"
_FIRST_CONTEXT = 32  # tokens read back at first; what is not enough is doubled
_SAMPLE = "On 12 May 2.5% of $1,234 – café, 数 7🙂\n\t-3e5"


class Number:
    """A number of a token sequence; immutable by convention. Its text is cut out when it is asked for, because the
    numbers so far of n digits have n²/2 digits together."""

    __slots__ = ("_begin", "_context", "end", "first_token", "last_token", "start")

    def __init__(self, context: str, begin: int, start: int, end: int, first_token: int, last_token: int) -> None:
        self._context = context  # the text is context[begin:], for as long as the number is
        self._begin = begin
        self.start = start
        """Index of its first character in `NumberScanner.text` of the ids; from `scan_running` and `scan_ended`, of the
        ids from `first_token` on."""
        self.end = end
        """Index after its last character, in the same text."""
        self.first_token = first_token
        """Index of the token that contains its first character."""
        self.last_token = last_token
        """Index of the token that contains its last character: the terminal token."""

    @property
    def text(self) -> str:
        """The number as it is written, with sign (and the currency after it), separators and exponent."""
        return self._context[self._begin : self._begin + self.end - self.start]

    @property
    def value(self) -> Decimal:
        """The exact value."""
        return decimal_value(self.text)

    def __eq__(self, other: object) -> bool:
        names = ("text", "start", "end", "first_token", "last_token")
        return isinstance(other, Number) and all(getattr(self, name) == getattr(other, name) for name in names)

    def __repr__(self) -> str:
        return f"Number({self.text!r}, [{self.start}, {self.end}), tokens {self.first_token} to {self.last_token})"


class NumberScanner:
    """Finds the numbers in token ids of one tokenizer.

    Token ids are a 1-D sequence, NumPy array or tensor of integers. Special tokens (`all_special_ids` and added tokens
    marked special) are boundaries: their characters count, but their digits are no number and no number extends across
    them. Negative ids (padding) and ids beyond the vocabulary are boundaries without characters.

    Args:
        tokenizer: A byte-level BPE tokenizer, or one that writes a space as `▁` (sentencepiece), with or without byte
            fallback, on the `tokenizers` backend.

    Raises:
        InputError: the tokenizer is of another kind, or none of its tokens contains an ASCII digit.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        to_bytes = token_decoder(tokenizer)
        special = set(tokenizer.all_special_ids)
        special.update(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._pieces = _Pieces()
        self._special_text: dict[int, str] = {}
        for token, token_id in tokenizer.get_vocab().items():
            # Neither 0xFF nor 0xFE occurs in UTF-8: to the text both are the same broken byte.
            piece = decode(to_bytes(token).replace(b"\xff", b"\xfe"))
            if token_id in special:
                self._special_text[token_id] = readable(piece)
                piece = BOUNDARY * len(piece)
            self._pieces[token_id] = piece or _NOTHING
        name = type(tokenizer).__name__
        if not _DIGIT.search("\n".join(self._pieces.values())):
            raise InputError(f"{name} has no token with an ASCII digit: numbers cannot be found in its tokens.")
        sample = tokenizer.encode(_SAMPLE, add_special_tokens=False)
        decoded = str(tokenizer.decode(sample, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if self.text(sample).lstrip(" ") != decoded.lstrip(" "):
            found = f"{name} decodes a sample to {decoded!r}, its tokens to {self.text(sample)!r}"
            raise InputError(f"{found}: use a byte-level BPE or sentencepiece tokenizer.")

    def text(self, token_ids: "TokenIds") -> str:
        """The text in which `Number.start` and `Number.end` count: `tokenizer.decode(ids, skip_special_tokens=False,
        clean_up_tokenization_spaces=False)`, with the space that sentencepiece decoders strip from the beginning, and
        one U+FFFD for each byte that is not part of valid UTF-8."""
        pieces = (self._special_text.get(i, self._pieces[i]) for i in _as_list(token_ids))
        return readable(decode(encode("".join(pieces))).replace(_NOTHING, ""))

    def pieces(self, token_ids: "TokenIds", before: bytes = b"") -> tuple[list[str], bytes]:
        """The text that each token adds, NUL characters for boundaries: a character comes with its last byte. `before`
        and the second result are the bytes of a character that the tokens so far have only begun."""
        raw = self._raw(token_ids)
        found, begun = completed(raw, before)
        if found is raw and _NOTHING not in raw:  # only whole characters
            return raw, begun
        return [readable(piece).replace(_NOTHING, BOUNDARY) for piece in found], begun

    def scan(self, token_ids: "TokenIds") -> list[Number]:
        """All numbers of a complete text, from left to right (policy `terminal`); linear in its length."""
        raw = self._raw(token_ids)
        context = "".join(pieces := completed(raw)[0])
        spans = number_spans(context.replace(_NOTHING, BOUNDARY))
        begins, ends = list(spans), list(spans.values())
        nothing = [0] * len(spans)
        if _NOTHING in context:
            gaps = map(slice, [0, *ends], begins)
            nothing = list(accumulate(context[gap].count(_NOTHING) for gap in gaps))
        token_ends = list(accumulate(map(len, pieces)))
        firsts: Iterable[int] = map(bisect_right, repeat(token_ends), begins)
        if "−" in context:  # the only first character of a number that several tokens may share
            firsts = map(_token_of, repeat(raw), repeat(token_ends), begins)
        tokens = firsts, map(bisect_left, repeat(token_ends), ends)
        return list(map(Number, repeat(context), begins, map(sub, begins, nothing), map(sub, ends, nothing), *tokens))

    def scan_running(self, token_ids: "TokenIds", start: int = 0) -> list[Number]:
        """The number so far at every token from `start` on that contains a digit (policy `running`).

        It ends at the token's last digit. Reads back from `start` only as far as a number can extend, and takes time
        linear in what it reads. Raises InputError if `start` is negative or beyond the end of the sequence.
        """
        _check_start(start, token_ids)
        pieces = self._raw(token_ids[start:])
        if not _DIGIT.search("\n".join(pieces)):
            return []
        read = self._read(token_ids, start, pieces)
        ends, alone = read.ends, Rule.ALONE
        numbers: list[Number] = []
        for run, _ in digit_runs(read.text, read.known):
            if run.end <= read.known:
                continue
            first, last = bisect_right(ends, max(run.begin, read.known)), bisect_left(ends, run.end)
            if numbers and numbers[-1].last_token == read.origin + first:
                numbers.pop()  # this run is the later one in its first token
            for token in range(first, last + 1):
                cut = ends[token] if token < last else run.end
                following = read.text[cut : ends[token]] if token == last else ""
                begin = run.alone if run.rule is alone else run.start(cut, following)
                if begin == run.alone or run.is_read(cut, begin):
                    numbers.append(read.number(begin, cut))
        return numbers

    def scan_ended(self, token_ids: "TokenIds", start: int = 0) -> dict[int, Number]:
        """The number that each token from `start` on completes (policy `after`), by token, ascending.

        That is the first token at which no continuation of the text so far can change the number (grammar.py, "Ended
        numbers"); a character counts once all its bytes are there. A token that completes several numbers has the last
        one: `12` at the bracket of `(10,12)`. Reads back and raises as `scan_running`.
        """
        _check_start(start, token_ids)
        before = min(start, 1)
        pieces = self._raw(token_ids[start - before :])
        if not _DIGIT.search("\n".join(pieces[before:])) and (start == 0 or CLOSED.search(pieces[0])):
            return {}
        read = self._read(token_ids, start, pieces[before:])
        return {
            read.origin + bisect_left(read.ends, known): read.number(begin, end)
            for begin, end, known in ended_spans(read.text, read.known)
            if read.known < known <= len(read.text)
        }

    def _raw(self, token_ids: "TokenIds") -> list[str]:
        return list(map(self._pieces.__getitem__, _as_list(token_ids)))

    @cached_property
    def tables(self) -> "tuple[np.ndarray[Any, Any], ...]":
        """Three tables, bool, by token id plus one (first and last for ids outside the vocabulary): True if the token
        contains a digit; if it ends so that no number continues after it; if the token before decides about that."""
        import numpy as np

        pieces = [self._pieces[i] for i in range(-1, max(self._pieces) + 2)]
        return tuple(np.array([bool(each.search(piece)) for piece in pieces]) for each in (_DIGIT, CLOSED, OPEN))

    def _read(self, token_ids: "TokenIds", start: int, raw: list[str]) -> "_Read":
        """Read what is needed for the numbers at the tokens from `start` on, whose pieces are `raw`."""
        size = _FIRST_CONTEXT
        while True:
            origin = max(0, start - size)
            raw_before = self._raw(token_ids[origin:start])
            before, begun = completed(raw_before)
            context = "".join(before).replace(_NOTHING, BOUNDARY)
            if origin == 0 or settled(context):
                break
            size *= 2
        after, _ = completed(raw, begun)
        text = context + "".join(after).replace(_NOTHING, BOUNDARY)
        return _Read(origin, len(context), text, list(accumulate(map(len, before + after))), raw_before + raw)


class _Read(NamedTuple):
    """The tokens from some `start` on, with the tokens before it that matter to them."""

    origin: int  # index of the first token
    known: int  # count of characters before `start`
    text: str  # with NUL for each boundary
    ends: list[int]  # index after the last character that each token completes
    raw: list[str]  # each token's own bytes

    def number(self, begin: int, end: int) -> Number:
        """The number of these characters; its characters are counted from its first token on."""
        first = token = bisect_right(self.ends, begin)
        before = self.text[self.ends[token - 1] if token else 0 : begin]
        offset = len(before)
        if not (before.isascii() and self.raw[token].isascii()):
            # The token may begin within a character, even the minus sign, or show that one is broken.
            first = _token_of(self.raw, self.ends, begin)
            offset = self.raw[first].rindex(self.text[begin : self.ends[first]] if first == token else "\udce2")
        tokens = self.origin + first, self.origin + bisect_left(self.ends, end)
        return Number(self.text, begin, offset, offset + end - begin, *tokens)


class _Pieces(dict[int, str]):
    """Token id → its bytes as `decode` writes them, with NUL for each character of a special token."""

    def __missing__(self, token_id: int) -> str:
        return _NOTHING


def _token_of(raw: list[str], ends: list[int], begin: int) -> int:
    """The token in which the character at `begin` begins, by the tokens' bytes and the ends of what they complete."""
    token = bisect_right(ends, begin)
    while (ends[token - 1] if token else 0) >= begin and "\udc80" <= raw[token][:1] <= "\udcbf":
        token -= 1
    return token


def _check_start(start: int, token_ids: "TokenIds") -> None:
    if not 0 <= start <= len(token_ids):
        raise InputError(f"start is {start}: it must lie in 0 to {len(token_ids)}, the number of tokens.")


def _as_list(token_ids: "TokenIds") -> Iterable[int]:
    """The ids in a form whose items are Python integers."""
    if isinstance(token_ids, Sequence):
        return token_ids
    if token_ids.ndim != 1:
        raise InputError(f"token ids have shape {tuple(token_ids.shape)}: scan one sequence (1-D) at a time.")
    ids: list[int] = token_ids.tolist()
    return ids
