import math
import struct
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ani.encoders.bits import BitsNumberEncoder
from tests.properties import examples

EXACT = Context(prec=5000)
LARGEST = Fraction(2**1024 - 2**971)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
DECIMALS = st.builds(
    lambda digits, exponent: f"{digits}e{exponent}", st.integers(-(10**30), 10**30), st.integers(-370, 320)
)


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


def same(actual: float, expected: float) -> bool:
    return struct.pack(">d", actual) == struct.pack(">d", expected)


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
        ("1e400", "0", "1" * 11, ""),
        ("-1e" + "9" * 5000, "1", "1" * 11, ""),
    ],
    ids=range(9),
)
def test_closed_forms(text: str, sign: str, exponent: str, significand: str) -> None:
    (features,) = BitsNumberEncoder().encode([text])
    assert pattern(features) == sign + exponent + significand.ljust(52, "0")


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


@examples(200)
@given(DECIMALS)
@example("9007199254740993")
@example("0.1")
@example("2e-324")
def test_decimals_are_correctly_rounded(text: str) -> None:
    exact = Fraction(text)
    expected = nearest(exact)
    (number,) = doubles(BitsNumberEncoder().encode([text]))
    assert same(abs(number), abs(expected)) and (number == 0 or (number < 0) == (exact < 0))
    assert BitsNumberEncoder().in_range(text) is math.isfinite(expected)


@examples(100)
@given(FLOATS.filter(lambda value: 0 <= value < 1.7e308))
@example(0.0)
def test_ties_go_to_even_and_one_digit_more_breaks_them(value: float) -> None:
    above = math.nextafter(value, math.inf)
    middle = EXACT.divide(EXACT.add(Decimal(value), Decimal(above)), Decimal(2))
    assert Fraction(middle) * 2 == Fraction(value) + Fraction(above)
    even = value if struct.pack(">d", value)[-1] % 2 == 0 else above
    more = f"{middle:f}" + ("" if "." in f"{middle:f}" else ".") + "0" * 40 + "1"
    assert doubles(BitsNumberEncoder().encode([middle, more])) == [even, above]
