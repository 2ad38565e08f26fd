"""One feature, the number's value, scaled: xVal (arXiv 2310.02989)."""

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import torch

from ani.encoders.base import as_double, as_text, as_texts
from ani.errors import InputError

_LIMIT = 5.0


class MagnitudeNumberEncoder:
    """Maps numbers to one feature in [−5, 5], 0 for zero and with the number's sign.

    5 · ln(1 + |x|) / ln(1 + M) · sign x, as FoNE's authors ran xVal (github.com/KevinZhoutianyi/FoNE,
    `number_encoders/XVAL.py`); [−5, 5] is the range that xVal's authors scale the numbers of their corpus to.

    M is the largest number of the data set in xVal and FoNE, which is unknown for new texts; here it is
    10^integer_digits, the bound of the range that the config sets for every encoder. In FoNE's code a larger number
    exceeds 5; this encoder stops at ±5, as BitTokens' does, so that no number's feature outgrows the others.

    One float32 distinguishes about seven digits of a number: use `fourier` or `bits` beside it where digits matter.

    Args:
        integer_digits: digits of the range before the point, 0 to 308 (10^308 is the largest power in a double).

    Raises:
        InputError: a setting is out of its domain.
    """

    width = 1

    def __init__(self, integer_digits: int = 10) -> None:
        if not 0 <= integer_digits <= 308:
            raise InputError(f"integer_digits must be 0 to 308 for magnitudes, not {integer_digits}")
        self.integer_digits = integer_digits
        self._maximum = float(10**integer_digits)

    def in_range(self, value: str | int | Decimal) -> bool:
        """True if |value| is below 10^integer_digits; raises as `encode`."""
        return abs(as_double(as_text(value))) < self._maximum

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of exact numbers: float32 of shape (N, 1), on the CPU; raises as `FourierNumberEncoder`'s."""
        doubles = np.array([as_double(text) for text in as_texts(values)])
        magnitudes = np.log1p(np.minimum(np.abs(doubles), self._maximum)) / math.log1p(self._maximum)
        return torch.from_numpy(np.copysign(_LIMIT * magnitudes, doubles).astype(np.float32)).unsqueeze(1)
