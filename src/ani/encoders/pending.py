"""Encodes the next characters of a pending value, each by itself.

A character has one feature for each digit, point, minus sign and end, one that says that the value goes on for ever,
and ten more for the digit that it would be if it were the last one. Two say what an end stands behind: a fraction's
digits, or a dot or comma. What follows a character changes none of its features.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from ani.calculator.reader.digits import END, PendingDigit
from ani.calculator.reader.pending import Pending
from ani.encoders.base import NumberEncoder

_CHARACTERS = {character: index for index, character in enumerate([*"0123456789.-", END])}
_ENDLESS = len(_CHARACTERS)
_LAST = _ENDLESS + 1
_BEHIND = {"fraction": _LAST + 10, "separator": _LAST + 11}
_FEATURES = _LAST + 12


class PendingDigitsEncoder:
    """Features of the next characters of pending values.

    Args:
        characters: How many of them, at least 1.
    """

    def __init__(self, characters: int) -> None:
        self.characters = characters

    @property
    def width(self) -> int:
        """Number of features."""
        return _FEATURES * self.characters

    def encode(self, pending: Sequence[Pending | None]) -> torch.Tensor:
        """Float32 of shape (N, width), on the CPU, of zeros and ones; zeros for None, and behind the end."""
        features = np.zeros((len(pending), self.width), dtype=np.float32)
        latest, found = None, features[:0]
        for row, each in zip(features, pending, strict=True):
            if each is not None:
                if each is not latest:  # most tokens carry the same as the one before
                    latest, found = each, _features(each.next(self.characters), self.width)
                row[:] = found
        return torch.from_numpy(features)


@lru_cache(maxsize=4096)
def _features(digits: tuple[PendingDigit, ...], width: int) -> np.ndarray[Any, Any]:
    """Float32 of shape (width,)."""
    features = np.zeros(width, dtype=np.float32)
    for first, digit in zip(range(0, width, _FEATURES), digits, strict=False):
        features[first + _CHARACTERS[digit.character]] = 1
        features[first + _ENDLESS] = digit.endless
        if digit.last:
            features[first + _LAST + int(digit.last)] = 1
        if digit.behind:
            features[first + _BEHIND[digit.behind]] = 1
    return features


class Carried(NamedTuple):
    """What one token carries."""

    literal: str | None = None
    """A number as it is written."""
    pending: Pending | None = None
    """A value that is still to be written."""


class CarriedEncoder:
    """Features of a token's number beside the features of its pending value.

    Args:
        literal: Of numbers as they are written.
        characters: Of a pending value, as for `PendingDigitsEncoder`.
    """

    def __init__(self, literal: NumberEncoder, characters: int) -> None:
        self.literal = literal
        self.pending = PendingDigitsEncoder(characters)

    @property
    def width(self) -> int:
        """Number of features."""
        return self.literal.width + self.pending.width

    def in_range(self, value: str) -> bool:
        """Whether the literal is in the range of its encoder."""
        return self.literal.in_range(value)

    def encode(self, carried: Sequence[Carried]) -> torch.Tensor:
        """Float32 of shape (N, width), on the CPU; zeros where a token has no number, or no value."""
        there = [index for index, each in enumerate(carried) if each.literal is not None]
        features = torch.zeros(len(carried), self.literal.width)
        features[there] = self.literal.encode([carried[index].literal or "" for index in there])
        return torch.cat([features, self.pending.encode([each.pending for each in carried])], dim=1)
