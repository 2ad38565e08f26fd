import math
import struct
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ani.encoders.bits import BitsNumberEncoder
from tests.properties import examples

LARGEST = Fraction(2**1024 - 2**971)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def doubles(features: torch.Tensor) -> list[float]:
    """The doubles whose bits these features are."""
    assert features.dtype == torch.float32 and set(features.unique().tolist()) <= {-1.0, 1.0}
    return [struct.unpack(">d", row.tobytes())[0] for row in np.packbits(features.numpy() > 0, axis=1)]


def pattern(features: torch.Tensor) -> str:
    return "".join("1" if bit > 0 else "0" for bit in features.tolist())


def nearest(exact: Fraction) -> float:
    """The double nearest to a rational, ties to even, by rational arithmetic."""
    sign, magnitude = (-1 if exact < 0 else 1), abs(exact)
    if magnitude >= LARGEST + 2**970:
        return sign * math.inf
    # The unit in the last place: the significand has 53 bits, fewer below the smallest normal number.
    place = max(-1074, magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - 53)
    if magnitude / Fraction(2) ** place >= 2**53:
        place += 1
    # round(Fraction) is exact and half-even.
    return sign * math.ldexp(round(magnitude / Fraction(2) ** place), place)


@pytest.mark.parametrize(
    ("text", "sign", "exponent", "significand"),
    [
        ("1", "0", "01111111111", ""),
        ("-2", "1", "10000000000", ""),
        ("0.75", "0", "01111111110", "1"),
        ("505", "0", "10000000111", "11111001"),
        ("0", "0", "0" * 11, ""),
        ("-0", "1", "0" * 11, ""),
        ("4.9406564584124654e-324", "0", "0" * 11, "0" * 51 + "1"),
        ("2e-324", "0", "0" * 11, ""),
        ("9007199254740993", "0", "10000110100", ""),
        ("1e400", "0", "1" * 11, ""),
        ("-1e" + "9" * 5000, "1", "1" * 11, ""),
    ],
    ids=range(11),
)
def test_closed_forms(text: str, sign: str, exponent: str, significand: str) -> None:
    (features,) = BitsNumberEncoder().encode([text])
    assert pattern(features) == sign + exponent + significand.ljust(52, "0")
    assert BitsNumberEncoder().in_range(text) is (exponent != "1" * 11)


@examples(300)
@given(FLOATS)
@example(-0.0)
@example(5e-324)
@example(2.2250738585072014e-308)
@example(1.7976931348623157e308)
def test_parity_with_struct(value: float) -> None:
    (number,) = struct.unpack(">Q", struct.pack(">d", value))
    spellings = [repr(value), Decimal(value), f"{Decimal(value):f}", f"{Decimal(value):,f}", f"{Decimal(value):E}"]
    encoder = BitsNumberEncoder()
    for features in encoder.encode(spellings):
        assert pattern(features) == f"{number:064b}"
    assert encoder.in_range(Decimal(value))
