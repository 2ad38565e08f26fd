"""Finds the numbers of a text that is not yet tokenized."""

from decimal import Decimal
from typing import NamedTuple

from ani.numbers.grammar import decimal_value, number_spans


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
    """All numbers of a text, from left to right; every ASCII digit is in exactly one of them."""
    return [NumberText(text[start:end], start, end) for start, end in number_spans(text).items()]


def number_pieces(text: str) -> list[tuple[str, bool]]:
    """A text cut at its numbers, nothing left out; True for a number."""
    pieces: list[tuple[str, bool]] = []
    end = 0
    for number in find_numbers(text):
        pieces += [(text[end : number.start], False), (text[number.start : number.end], True)]
        end = number.end
    return [*pieces, (text[end:], False)]
