"""Finds the numbers of a text that is not yet tokenized."""

from decimal import Decimal
from typing import NamedTuple

from ani.numbers.grammar import THIN, number_spans
from ani.numbers.signs import MONEY

_PLAIN = str.maketrans("−", "-", f",{THIN}{{}}\\! {''.join(MONEY)}")


def plain_text(text: str) -> str:
    """A number with ``-`` as its only sign, without separators and currency: `Decimal` reads it."""
    return text.translate(_PLAIN)


def decimal_value(text: str) -> Decimal:
    """The exact value of one number as it is written."""
    return Decimal(plain_text(text))


class NumberText(NamedTuple):
    """A number of a text: its characters `[start, end)`."""

    text: str
    start: int
    end: int

    @property
    def value(self) -> Decimal:
        """The exact value."""
        return decimal_value(self.text)


def find_numbers(text: str) -> list[NumberText]:
    """All numbers of a text, from left to right."""
    return [NumberText(text[start:end], start, end) for start, end in number_spans(text).items()]


def number_pieces(text: str) -> list[tuple[str, bool]]:
    """A text cut at its numbers, nothing left out; True for a number."""
    pieces: list[tuple[str, bool]] = []
    end = 0
    for number in find_numbers(text):
        pieces += [(text[end : number.start], False), (text[number.start : number.end], True)]
        end = number.end
    return [*pieces, (text[end:], False)]
