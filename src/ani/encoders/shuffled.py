"""Every number with the features of another one: a control; knows nothing about tokens or models."""

from collections.abc import Sequence
from decimal import Decimal
from random import Random

import torch

from ani.encoders.base import NumberEncoder, as_double, as_texts


class ShuffledNumberEncoder:
    """Maps a number to another's features, always the same: drawn by its value, as large as chance has it.

    What is gained with these features isn't gained by the value. An integer has an integer's, so that the features
    are as those of numbers are; that they go with the number is of no use for numbers that weren't trained.

    Args:
        encoder: whose features they are, and whose range.
        integer_digits: the other number has one to so many digits before its point.
        fraction_digits: and behind it so many, unless it is an integer.
    """

    def __init__(self, encoder: NumberEncoder, integer_digits: int, fraction_digits: int) -> None:
        self._encoder = encoder
        self._digits = (integer_digits, fraction_digits)

    @property
    def width(self) -> int:
        """Number of features of one number."""
        return self._encoder.width

    def in_range(self, value: str | int | Decimal) -> bool:
        """Whether the number itself is in the encoder's range; raises as the encoder's."""
        return self._encoder.in_range(value)

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of other numbers, float32 of shape (N, width), on the CPU; raises as the encoder's."""
        return self._encoder.encode([self._other(as_double(text)) for text in as_texts(values)])

    def _other(self, value: float) -> str:
        draw = Random(repr(value))
        integer_digits, fraction_digits = self._digits
        whole = draw.randrange(10 ** draw.randint(1, integer_digits))
        if value.is_integer() or not fraction_digits:
            return str(whole)
        return f"{whole}.{draw.randrange(10**fraction_digits):0{fraction_digits}}"
