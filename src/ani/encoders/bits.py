"""The bits of a number's IEEE 754 double: BitTokens (arXiv 2510.06824); knows nothing about tokens or models."""

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import torch

from ani.encoders.base import as_double, as_text, as_texts

_BITS = 64


class BitsNumberEncoder:
    """Maps numbers to the 64 bits of the nearest double, +1 for a set bit and −1 for a clear one.

    The order is the double's own, highest bit first: the sign (set for negative numbers and −0), 11 bits of the
    exponent biased by 1023, 52 of the significand. Order and ±1 are those of the published code
    (github.com/KreitnerL/BitTokens, `bittoken_embedding.py`), as is the reciprocal's place behind the number.

    A number beyond the doubles is encoded as ±infinity, which is what it rounds to.

    Args:
        reciprocal: add the 64 bits of the double nearest to 1/x, with which a division is a product. It is rounded
            once, from the exact number; the published code takes the reciprocal of the double, which can differ in
            the last bit. 1/0 is infinity and 1/−0 is −infinity, as in IEEE 754 and the published code; a number
            whose double is ±0 or ±infinity has that double's reciprocal.
    """

    def __init__(self, reciprocal: bool = False) -> None:
        self.reciprocal = reciprocal

    @property
    def width(self) -> int:
        """Number of features of one number: 64 or 128."""
        return 2 * _BITS if self.reciprocal else _BITS

    def in_range(self, value: str | int | Decimal) -> bool:
        """Whether the number rounds to a finite double.

        Raises:
            TypeError, InputError: as `encode`.
        """
        return math.isfinite(as_double(as_text(value)))

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of exact numbers.

        Args:
            values: N numbers, written as for `FourierNumberEncoder.encode`.

        Returns:
            float32 tensor of shape (N, width), on the CPU.

        Raises:
            TypeError: a value is a float or of another inexact or unknown type.
            InputError: a value is not a finite decimal number.
        """
        texts = as_texts(values)
        doubles = [[as_double(text)] for text in texts]
        if self.reciprocal:
            doubles = [[double, _reciprocal(text, double)] for text, (double,) in zip(texts, doubles, strict=True)]
        big_endian = np.array(doubles, ">f8").reshape(len(texts), self.width // _BITS)
        bits = np.unpackbits(big_endian.view(np.uint8), axis=1)
        return torch.from_numpy(2 * bits.astype(np.float32) - 1)


def _reciprocal(text: str, double: float) -> float:
    """The double nearest to 1/x, where x is the written number and `double` its own."""
    if double == 0:
        return math.copysign(math.inf, double)
    if math.isinf(double):
        return math.copysign(0.0, double)
    # The double is finite and not 0: the exponent can only undo the text's own digits, so the ratio is no larger.
    numerator, denominator = Decimal(text.replace(",", "")).as_integer_ratio()
    try:
        return denominator / numerator  # of integers: correctly rounded
    except OverflowError:
        return math.copysign(math.inf, double)
