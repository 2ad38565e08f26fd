"""The bits of a number's IEEE 754 double: BitTokens (arXiv 2510.06824)."""

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import torch

from ani.encoders.base import as_double, as_text, as_texts


class BitsNumberEncoder:
    """Maps numbers to the 64 bits of the nearest double, +1 for a set bit and −1 for a clear one.

    The order is the double's own, highest bit first: the sign (set for negative numbers and −0), 11 bits of the
    exponent biased by 1023, 52 of the significand. Order and ±1 are those of the published code
    (github.com/KreitnerL/BitTokens, `bittoken_embedding.py`), which can append the bits of 1/x.

    A number beyond the doubles rounds to ±infinity and is encoded as that.
    """

    width = 64

    def in_range(self, value: str | int | Decimal) -> bool:
        """True if the number rounds to a finite double; raises as `encode`."""
        return math.isfinite(as_double(as_text(value)))

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of exact numbers: float32 of shape (N, width), on the CPU; raises as `FourierNumberEncoder`'s."""
        big_endian = np.array([as_double(text) for text in as_texts(values)], ">f8").reshape(-1, 1)
        bits = np.unpackbits(big_endian.view(np.uint8), axis=1)
        return torch.from_numpy(2 * bits.astype(np.float32) - 1)
