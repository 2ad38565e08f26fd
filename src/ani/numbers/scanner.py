"""Align the numbers of a text with the tokens that hold them, for a Hugging Face tokenizer.

Knows nothing about what a number is (grammar.py does) nor about models.
"""

import codecs
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import accumulate, repeat
from operator import add
from typing import TYPE_CHECKING, Any

from ani.errors import InputError
from ani.numbers.grammar import BOUNDARY, Rule, decimal_value, digit_runs, ended_spans, number_spans, settled

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedTokenizerBase

    TokenIds = Sequence[int] | np.ndarray[Any, np.dtype[np.integer[Any]]] | torch.Tensor

_DIGIT = re.compile(rb"[0-9]")
# The end of a text in which no number can go on: a character that no number holds, then no digit.
_CLOSED = re.compile(rb"[^0-9.,eE+\-\x80-\xfe][.,eE+\-]*\Z")
# A boundary without characters. The byte never occurs in UTF-8, and `_piece` keeps it out of the vocabulary.
_NOTHING = b"\xff"
_NOTHING_DECODED = _NOTHING.decode("utf-8", "surrogateescape")
_LONE_BYTE = re.compile("[\udc80-\udcff]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FIRST_CONTEXT = 32  # tokens read back at first; what is not enough is doubled
_SAMPLE = "On 12 May 2.5% of $1,234 – café, 数 7🙂\n\t-3e5"


class Number:
    """A number of a token sequence; immutable by convention.

    Text and value are cut out when asked for: the numbers so far of n digits have n²/2 digits together.
    """

    __slots__ = ("_begin", "_context", "end", "first_token", "last_token", "start")

    def __init__(self, context: str, begin: int, start: int, end: int, first_token: int, last_token: int) -> None:
        self._context = context  # the text is context[begin:], for as long as the number is
        self._begin = begin
        self.start = start
        """Its first character, in `NumberScanner.text` of the ids. From `scan_running` and `scan_ended`, which do not
        read all of the text, in `NumberScanner.text` of the ids from `first_token` on."""
        self.end = end
        """One past its last character, likewise."""
        self.first_token = first_token
        """Index of the token that holds its first character."""
        self.last_token = last_token
        """Index of the token that holds its last character: the terminal token."""

    @property
    def text(self) -> str:
        """As it is written, with sign, separators and exponent."""
        return self._context[self._begin : self._begin + self.end - self.start]

    @property
    def value(self) -> Decimal:
        """The exact value."""
        return decimal_value(self.text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Number):
            return NotImplemented
        return self._place() == other._place() and self.text == other.text

    def __hash__(self) -> int:
        return hash(self._place())

    def __repr__(self) -> str:
        place = f"characters {self.start} to {self.end}, tokens {self.first_token} to {self.last_token}"
        return f"Number({self.text!r}, {place})"

    def _place(self) -> tuple[int, int, int, int]:
        return self.start, self.end, self.first_token, self.last_token


class NumberScanner:
    """Find the numbers in token ids of one tokenizer.

    Token ids are a 1-D sequence, NumPy array or tensor of integers. Special tokens (`all_special_ids` and
    added tokens marked special) are boundaries: their characters count, but their digits are no number and no
    number runs across them. Negative ids (padding) and ids beyond the vocabulary are boundaries without
    characters.

    Args:
        tokenizer: a byte-level BPE tokenizer, or one that writes a space as `▁` (sentencepiece), with or
            without byte fallback, on the `tokenizers` backend.

    Raises:
        InputError: the tokenizer is of another kind, or none of its tokens holds an ASCII digit.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        to_bytes = _token_decoder(tokenizer)
        special = set(tokenizer.all_special_ids)
        special.update(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._pieces = _Pieces()
        self._special_text: dict[int, bytes] = {}
        for token, token_id in tokenizer.get_vocab().items():
            # Neither 0xFF nor 0xFE occurs in UTF-8: to the text both are the same broken byte.
            piece = to_bytes(token).replace(_NOTHING, b"\xfe")
            if token_id in special:
                literal = _readable(_decode(piece))
                self._special_text[token_id] = literal.encode()
                piece = BOUNDARY.encode() * len(literal)
            self._pieces[token_id] = piece or _NOTHING
        name = type(tokenizer).__name__
        if not _DIGIT.search(b"\n".join(self._pieces.values())):
            raise InputError(f"{name} has no token with an ASCII digit: numbers cannot be found in its tokens.")
        sample = tokenizer.encode(_SAMPLE, add_special_tokens=False)
        decoded = str(tokenizer.decode(sample, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if self.text(sample).lstrip(" ") != decoded.lstrip(" "):
            raise InputError(
                f"{name} decodes a sample to {decoded!r}, its tokens to {self.text(sample)!r}: "
                "use a byte-level BPE or sentencepiece tokenizer."
            )

    def text(self, token_ids: "TokenIds") -> str:
        """The text that `Number.start` and `Number.end` refer to.

        It is what `tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)`
        gives, but it keeps the space that sentencepiece decoders strip from the beginning, and each byte that
        is not part of valid UTF-8 is one U+FFFD.
        """
        pieces = (self._special_text.get(i, self._pieces[i]) for i in _as_list(token_ids))
        return _readable(_decode(b"".join(pieces)).replace(_NOTHING_DECODED, ""))

    def pieces(self, token_ids: "TokenIds", before: bytes = b"") -> tuple[list[str], bytes]:
        """What each token adds to the text, NUL characters for boundaries: a character comes with its last byte.

        Args:
            token_ids: Of a text, or of what follows `before`.
            before: The bytes of a character that the tokens before have only begun.

        Returns:
            A text a token, and the bytes of a character that the last tokens have only begun.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(before)
        found = [
            decoder.decode(piece.replace(_NOTHING, BOUNDARY.encode()))
            for piece in map(self._pieces.__getitem__, _as_list(token_ids))
        ]
        return found, decoder.getstate()[0]

    def scan(self, token_ids: "TokenIds") -> list[Number]:
        """All numbers of a complete text, from left to right (policy `terminal`); linear in its length."""
        pieces = list(map(self._pieces.__getitem__, _as_list(token_ids)))
        data = b"".join(pieces)
        context = _decode(data)
        spans = number_spans(context.replace(_NOTHING_DECODED, BOUNDARY))
        if not spans:
            return []
        begins = starts = first_bytes = list(spans)
        ends = end_bytes = list(spans.values())
        if not data.isascii():
            first_bytes, end_bytes = _shifted(context, begins, ends, _extra_bytes)
            starts, ends = _shifted(context, begins, ends, _minus_nothing)
        token_ends = list(accumulate(map(len, pieces)))
        first_tokens = map(bisect_right, repeat(token_ends), first_bytes)
        last_tokens = map(bisect_left, repeat(token_ends), end_bytes)
        return list(map(Number, repeat(context), begins, starts, ends, first_tokens, last_tokens))

    def scan_running(self, token_ids: "TokenIds", start: int = 0) -> list[Number]:
        """The number so far at every token from `start` on that holds a digit (policy `running`).

        That is the last number of the text up to and including that token, so it depends on no later token.
        Reads back from `start` only as far as a number can go on from, some tens of tokens in prose, and
        takes time linear in what it reads.

        Raises:
            InputError: `start` is negative or beyond the end of the sequence.
        """
        _check_start(start, token_ids)
        pieces = list(map(self._pieces.__getitem__, _as_list(token_ids[start:])))
        if not _DIGIT.search(b"\n".join(pieces)):
            return []
        origin, fresh, data, context, token_ends = self._read(token_ids, start, pieces)
        numbers: list[Number] = []
        shift = position = 0  # bytes minus characters, up to position
        ascii_only = data.isascii()
        for run in digit_runs(context, fresh if ascii_only else 0):
            if not ascii_only:
                shift += _extra_bytes(context[position : run.begin])
                position = run.begin
            end_byte = run.end + shift
            if end_byte <= fresh:
                continue
            first = bisect_right(token_ends, max(run.begin + shift, fresh))
            last = bisect_left(token_ends, end_byte)
            if numbers and numbers[-1].last_token == origin + first:
                numbers.pop()  # this run is the later one in its first token
            begin = -1
            for token in range(first, last + 1):
                cut = min(end_byte, token_ends[token]) - shift
                so_far = run.alone
                if run.rule is not Rule.ONE_PROCESS:
                    following = _decode(data[end_byte : token_ends[token]]) if token == last else ""
                    so_far = run.start(cut, following)
                if so_far != begin:
                    begin = so_far
                    # A number is ASCII, so that bytes and characters agree from its beginning to the run's.
                    first_token = bisect_right(token_ends, begin + shift)
                    token_begin = token_ends[first_token - 1] if first_token else 0
                    offset = len(_decode(data[token_begin : begin + shift])) - begin
                numbers.append(
                    Number(context, begin, begin + offset, cut + offset, origin + first_token, origin + token)
                )
        return numbers

    def scan_ended(self, token_ids: "TokenIds", start: int = 0) -> dict[int, Number]:
        """The number that each token from `start` on shows to be over (policy `after`), by token, ascending.

        That is the first token at which no continuation of the text so far can change the number (grammar.py, "Ended
        numbers"), so it depends on no later token; of a character whose bytes are not all there, nothing is known. A
        token that shows two numbers to be over has the later one, which is the nearer to it and to what comes next:
        `12` for the bracket of `(10,12)`. Reads back from `start` and takes time as `scan_running` does.

        Raises:
            InputError: `start` is negative or beyond the end of the sequence.
        """
        _check_start(start, token_ids)
        before = min(start, 1)
        pieces = list(map(self._pieces.__getitem__, _as_list(token_ids[start - before :])))
        if not _DIGIT.search(b"\n".join(pieces[before:])) and (start == 0 or _CLOSED.search(pieces[0])):
            return {}
        origin, fresh, data, context, token_ends = self._read(token_ids, start, pieces[before:])
        numbers: dict[int, Number] = {}
        shift = position = 0  # bytes minus characters, up to position
        ascii_only = data.isascii()
        for begin, end, known in ended_spans(context, fresh if ascii_only else 0):
            if not ascii_only:
                shift += _extra_bytes(context[position:begin])
                position = begin
            # From the number's beginning on all is ASCII but the character that shows it to be over.
            known_byte = _character_end(data, known - 1 + shift)
            if not fresh < known_byte <= len(data):
                continue
            first, token = bisect_right(token_ends, begin + shift), bisect_left(token_ends, known_byte)
            last = bisect_left(token_ends, end + shift)
            offset = len(_decode(data[token_ends[first - 1] if first else 0 : begin + shift])) - begin
            place = begin + offset, end + offset, origin + first, origin + last
            numbers[origin + token] = Number(context, begin, *place)
        return numbers

    def _pieces_before(self, token_ids: "TokenIds", end: int, count: int) -> list[bytes]:
        return list(map(self._pieces.__getitem__, _as_list(token_ids[max(0, end - count) : end])))

    def _read(self, token_ids: "TokenIds", start: int, pieces: list[bytes]) -> tuple[int, int, bytes, str, list[int]]:
        """What has to be read for the numbers at the tokens from `start` on, whose pieces these are.

        Returns:
            The first token that is read; the bytes before `start`; all bytes; the same as text, where NUL stands for
            each boundary; one past each token's last byte.
        """
        size = _FIRST_CONTEXT
        while True:
            origin = max(0, start - size)
            before = self._pieces_before(token_ids, start, start - origin)
            # Without the first bytes of a character, which would pass for one that ends a number.
            whole, _ = codecs.utf_8_decode(b"".join(before), "surrogateescape", False)
            if origin == 0 or settled(whole.replace(_NOTHING_DECODED, BOUNDARY)):
                break
            size *= 2
        data = b"".join(before + pieces)
        context = _decode(data).replace(_NOTHING_DECODED, BOUNDARY)
        return origin, sum(map(len, before)), data, context, list(accumulate(map(len, before + pieces)))


class _Pieces(dict[int, bytes]):
    """Token id → its bytes, where NUL stands for each character of a special token."""

    def __missing__(self, token_id: int) -> bytes:
        return _NOTHING


def _token_decoder(tokenizer: "PreTrainedTokenizerBase") -> Callable[[str], bytes]:
    """How this tokenizer's tokens, as its vocabulary writes them, stand for bytes."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    steps: list[dict[str, Any]] = []
    if decoder is not None:
        state = json.loads(decoder.__getstate__())
        steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = {step["type"] for step in steps}
    if kinds and kinds <= {"ByteLevel", "Fuse"}:
        return _byte_level()
    replaces = [step for step in steps if step["type"] == "Replace"]
    writes_space = "Metaspace" in kinds or replaces
    if (
        writes_space
        and kinds <= {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
        and all(step["pattern"] == {"String": "▁"} and step["content"] == " " for step in replaces)
    ):
        return _byte_fallback if "ByteFallback" in kinds else _sentencepiece
    name = f"{type(tokenizer).__name__} (decoder {' + '.join(sorted(kinds)) or 'none'})"
    raise InputError(
        f"{name} is neither a byte-level BPE nor a sentencepiece tokenizer on the tokenizers backend: "
        "use a model with one of those."
    )


def _byte_level() -> Callable[[str], bytes]:
    """Byte-level BPE writes printable bytes of Latin-1 as themselves, the others from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    # A character below U+0100 that the alphabet lacks must not pass for a byte: its token is literal text.
    table = {byte: 0xFFFF for byte in others} | {0x100 + i: byte for i, byte in enumerate(others)}

    def to_bytes(token: str) -> bytes:
        try:
            return token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return to_bytes


def _sentencepiece(token: str) -> bytes:
    return token.replace("▁", " ").encode()


def _byte_fallback(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(match[1]) if match else _sentencepiece(token)


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


def _decode(data: bytes) -> str:
    """As UTF-8, with a lone surrogate for each byte that is not, so that bytes stay countable."""
    return data.decode("utf-8", "surrogateescape")


def _character_end(data: bytes, begin: int) -> int:
    """One past the byte that completes the character that begins here, or breaks it; beyond the end if none does."""
    end = begin + 1
    while end <= len(data) and not codecs.utf_8_decode(data[begin:end], "surrogateescape", False)[1]:
        end += 1
    return end


def _readable(decoded: str) -> str:
    return _LONE_BYTE.sub("\N{REPLACEMENT CHARACTER}", decoded)


def _extra_bytes(text: str) -> int:
    """Bytes minus characters."""
    return len(text.encode("utf-8", "surrogateescape")) - len(text)


def _minus_nothing(text: str) -> int:
    return -text.count(_NOTHING_DECODED)


def _shifted(text: str, starts: list[int], ends: list[int], shift: Callable[[str], int]) -> tuple[list[int], list[int]]:
    """The same spans in a unit in which what stands between them is longer by `shift`; one pass."""
    gaps = map(text.__getitem__, map(slice, [0, *ends], starts))
    shifts = list(accumulate(map(shift, gaps)))
    return list(map(add, starts, shifts)), list(map(add, ends, shifts))
