"""Fourier features of chosen periods, such as 7, 11 and 13; knows nothing about tokens or models."""

import math
from collections.abc import Sequence
from decimal import Decimal

import torch

from ani.encoders.base import as_text, as_texts, read_number
from ani.errors import InputError

_PLACES = 20
"""Behind the point, below which a float's phase doesn't change."""
_CHUNK = 1000
"""Digits that are read at once; Python reads no number of 4,300."""


class PeriodicNumberEncoder:
    """Maps numbers to (cos 2πx/T, sin 2πx/T) for each period T: `fourier`'s features at periods of one's choice.

    Exact to float32 at any size of x, as x mod T is taken in integers; the phase of a negative number is its own, so
    that a period of 7 tells the remainder modulo 7 of every integer.

    Args:
        periods: distinct integers of at least 2.

    Raises:
        InputError: the periods are out of their domain.
    """

    def __init__(self, periods: Sequence[int]) -> None:
        if not periods or len(set(periods)) < len(periods) or min(periods) < 2:
            raise InputError(f"periods must be distinct integers of at least 2, not {list(periods)!r:.80}")
        self.periods = tuple(periods)

    @property
    def width(self) -> int:
        """Number of features of one number: a cosine and a sine for each period, in their order."""
        return 2 * len(self.periods)

    def in_range(self, value: str | int | Decimal) -> bool:
        """True for every number; raises as `encode`."""
        read_number(as_text(value))
        return True

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of exact numbers: float32 of shape (N, width), on the CPU; raises as `FourierNumberEncoder`'s."""
        turns = torch.tensor([self._turns(text) for text in as_texts(values)], dtype=torch.float64)
        angles = turns.reshape(len(turns), len(self.periods), 1) * (2 * math.pi)
        return torch.cat([angles.cos(), angles.sin()], dim=2).flatten(1).float()

    def _turns(self, text: str) -> list[float]:
        """x/T without its whole turns, for each period."""
        sign, whole, fraction, exponent_sign, exponent = read_number(text).groups("")
        digits = whole.replace(",", "") + fraction
        # Nineteen digits of an exponent already outdo the length of any text.
        shift = int(exponent_sign + (exponent[:19] or "0")) - len(fraction)
        point = len(digits) + min(shift, 0)
        whole = digits[: max(point, 0)]
        below = "0" * min(-point, _PLACES) + digits[len(whole) :]
        rest = float(f"0.{below[:_PLACES]}0")
        turns = [(_remainder(whole, T) * pow(10, max(shift, 0), T) % T + rest) / T for T in self.periods]
        return [-each for each in turns] if sign == "-" else turns


def _remainder(digits: str, period: int) -> int:
    remainder = 0
    for start in range(0, len(digits), _CHUNK):
        chunk = digits[start : start + _CHUNK]
        remainder = (remainder * pow(10, len(chunk), period) + int(chunk)) % period
    return remainder
