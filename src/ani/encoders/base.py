"""The protocol `NumberEncoder`, and functions that read a number's text."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

import torch

from ani.errors import InputError

_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?=\.?\d)(?P<whole>\d{1,3}(?:,\d{3})+|\d*)(?:\.(?P<fraction>\d*))?"
    r"(?:[eE](?P<exponent_sign>[+-]?)0*(?P<exponent>\d+))?",
    re.ASCII,
)


class NumberEncoder(Protocol):
    """Turns exact numbers into feature vectors; ANI needs these members of an encoder."""

    @property
    def width(self) -> int:
        """Number of features of one number."""

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of N numbers: finite float32 of shape (N, width), on the CPU; no row depends on the others."""

    def in_range(self, value: str | int | Decimal) -> bool:
        """True if the features represent this number as intended; if not, overflow="skip" injects nothing."""


def as_texts(values: Sequence[str | int | Decimal]) -> list[str]:
    """The numbers as they are written, unread.

    Raises:
        TypeError: `values` is a single text, or contains a float or another inexact or unknown type.
    """
    if isinstance(values, str):
        raise TypeError(f"encode takes a sequence of numbers: write [{values!r:.60}]")
    return [value if type(value) is str else as_text(value) for value in values]


def as_text(value: str | int | Decimal) -> str:
    """One number as it is written, unread; raises TypeError as `as_texts`."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | Decimal):
        return str(Decimal(value))  # without the limit that str(int) has on its length
    raise TypeError(f"{value!r:.60} is a {type(value).__name__}: pass text, int or Decimal, which are exact")


def read_number(text: str) -> re.Match[str]:
    """The parts of a written number: sign, whole, fraction, exponent_sign, exponent.

    Raises:
        InputError: the text is not a finite decimal number.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r:.60} is not a finite decimal number such as -1,234.5 or 1e-5")
    return match


def as_double(text: str) -> float:
    """The IEEE 754 double nearest to a written number, ties to even; ±infinity from 2^1024 − 2^970 on.

    Raises:
        InputError: the text is not a finite decimal number.
    """
    return float(read_number(text).group().replace(",", ""))
