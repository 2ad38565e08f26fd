import struct
from decimal import Decimal

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ani.encoders.bits import BitsNumberEncoder
from tests.properties import examples

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def pattern(features: torch.Tensor) -> str:
    return "".join("1" if bit > 0 else "0" for bit in features.tolist())


@pytest.mark.parametrize(
    ("text", "sign", "exponent", "significand"),
    [
        ("505", "0", "10000000111", "11111001"),
        ("2e-324", "0", "0" * 11, ""),
        ("9007199254740993", "0", "10000110100", ""),
        ("1e400", "0", "1" * 11, ""),
        ("-1e" + "9" * 5000, "1", "1" * 11, ""),
    ],
    ids=range(5),
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
