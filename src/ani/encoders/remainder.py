"""Features of what is still to be written of a calculation's result; knows nothing about where it came from.

Each of the next characters has six features of its own: cos and sin of d/10 of a turn for a digit d, so that the ten
digits are equally far from their neighbours whatever follows them, and one each for digit, point, minus sign and end.
The fraction behind a digit would blur it: on one circle 2.99 and 3.01 are neighbours.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import torch

from ani.encoders.base import NumberEncoder

_FEATURES = 6
_MARKS = {".": 3, "-": 4}
_END = 5
_TURNS = [(math.cos(math.tau * digit / 10), math.sin(math.tau * digit / 10)) for digit in range(10)]


class Carried(NamedTuple):
    """What one token carries."""

    literal: str | None = None
    """A number as it is written."""
    upcoming: str | None = None
    """What is still to be written of a result (`ani.numbers.calculations`); empty: the end is next."""


class RemainderEncoder:
    """Features of the next characters of a result.

    Args:
        characters: how many of them, at least 1.
    """

    def __init__(self, characters: int) -> None:
        self.characters = characters

    @property
    def width(self) -> int:
        """Number of features."""
        return _FEATURES * self.characters

    def encode(self, upcoming: Sequence[str | None]) -> torch.Tensor:
        """Float32 of shape (N, width), on the CPU; zeros for None, and behind the end."""
        features = torch.zeros(len(upcoming), self.characters, _FEATURES)
        for row, text in enumerate(upcoming):
            if text is None:
                continue
            for place, character in enumerate(text[: self.characters]):
                if character in _MARKS:
                    features[row, place, _MARKS[character]] = 1
                else:
                    cos, sin = _TURNS[int(character)]
                    features[row, place, :3] = torch.tensor([cos, sin, 1])
            if len(text) < self.characters:
                features[row, len(text), _END] = 1
        return features.flatten(1)


class CarriedEncoder:
    """Features of what tokens carry: those of the literal, if there is an encoder for it, beside those of the result.

    Args:
        literal: of numbers as they are written; None: they have no features.
        characters: of a result, as for `RemainderEncoder`.
    """

    def __init__(self, literal: NumberEncoder | None, characters: int) -> None:
        self.literal = literal
        self.remainder = RemainderEncoder(characters)

    @property
    def width(self) -> int:
        """Number of features."""
        return self.remainder.width + (0 if self.literal is None else self.literal.width)

    def in_range(self, value: str | int | Decimal) -> bool:
        """Whether the features tell this literal as they should."""
        return self.literal is None or self.literal.in_range(value)

    def encode(self, carried: Sequence[Carried]) -> torch.Tensor:
        """Float32 of shape (N, width), on the CPU; zeros for what a token doesn't carry."""
        parts = [self.remainder.encode([each.upcoming for each in carried])]
        if self.literal is not None:
            there = [index for index, each in enumerate(carried) if each.literal is not None]
            features = torch.zeros(len(carried), self.literal.width)
            features[there] = self.literal.encode([carried[index].literal or "" for index in there])
            parts.insert(0, features)
        return torch.cat(parts, dim=1)
