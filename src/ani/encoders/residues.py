"""A number's remainders on a straight scale; knows nothing about tokens or models."""

import math
from collections.abc import Sequence
from decimal import Decimal

import torch

from ani.encoders.fourier import FourierNumberEncoder


class ResidueNumberEncoder:
    """One feature for each period T = 10^i, 2·(|x| mod T)/T − 1, and the sign: ±1, 1 for what is rounded to zero.

    `fourier` bends the same remainders into circles, on which 0.99 and 0.01 are neighbours: right for a sum modulo T,
    wrong for what it carries. Whether a + b reaches T is a straight line in these features, a sum and a threshold.

    Args:
        integer_digits: T goes up to 10^integer_digits; higher digits are lost.
        fraction_digits: T goes down to 10^(1 − fraction_digits); the value is rounded to as many digits.

    Raises:
        InputError: a setting is out of its domain.
    """

    def __init__(self, integer_digits: int = 10, fraction_digits: int = 6) -> None:
        self._circles = FourierNumberEncoder(integer_digits, fraction_digits)

    @property
    def width(self) -> int:
        """Number of features of one number: periods, ascending, and the sign."""
        return self._circles.width // 2 + 1

    def in_range(self, value: str | int | Decimal) -> bool:
        """Whether |value|, rounded, is below 10^integer_digits; raises as `encode`."""
        return self._circles.in_range(value)

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of exact numbers: float32 of shape (N, width), on the CPU; raises as `FourierNumberEncoder`'s."""
        features = self._circles.encode(values)
        cos, sin = features[:, :-1].double().unflatten(1, (-1, 2)).unbind(-1)
        turns = (torch.atan2(sin, cos) / (2 * math.pi)).remainder(1)
        return torch.cat([2 * turns - 1, features[:, -1:]], dim=1).float()
