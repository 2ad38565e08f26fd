"""Features of pending digits: of each of the next characters of a value, by itself.

A character has one feature for each digit, point, minus sign and end, one that says that the value goes on for ever,
and ten more for the digit that it would be if it were the last one. What follows a character changes none of its
features.
"""

from collections.abc import Sequence

import torch

from ani.values.digits import END
from ani.values.pending import Pending

_CHARACTERS = {character: index for index, character in enumerate([*"0123456789.-", END])}
_ENDLESS = len(_CHARACTERS)
_LAST = _ENDLESS + 1
_FEATURES = _LAST + 10


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
        ones: list[int] = []
        for row, each in enumerate(pending):
            for place, digit in enumerate(each.next(self.characters) if each else ()):
                first = row * self.width + place * _FEATURES
                ones.append(first + _CHARACTERS[digit.character])
                if digit.endless:
                    ones.append(first + _ENDLESS)
                if digit.last:
                    ones.append(first + _LAST + int(digit.last))
        features = torch.zeros(len(pending) * self.width)
        features[ones] = 1
        return features.reshape(len(pending), self.width)
