from decimal import Decimal

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ani.encoders.magnitude import MagnitudeNumberEncoder
from tests.refusals import refused

VALUES = st.decimals(min_value=-(10**12), max_value=10**12, places=7, allow_nan=False, allow_infinity=False)


def published(value: Decimal, integer_digits: int) -> float:
    """The formula of FoNE's xVal, without an end."""
    with mpmath.workdps(400):
        x, maximum = mpmath.mpf(str(value)), mpmath.mpf(10) ** integer_digits
        return float(5 / mpmath.log(1 + maximum) * mpmath.log(1 + abs(x)) * mpmath.sign(x))


@given(value=VALUES, integer_digits=st.sampled_from([0, 3, 10, 12, 308]))
def test_parity_with_the_published_formula(value: Decimal, integer_digits: int) -> None:
    expected = max(-5.0, min(5.0, published(value, integer_digits)))
    features = MagnitudeNumberEncoder(integer_digits).encode([value])
    assert features.shape == (1, 1) and features.dtype == torch.float32
    assert features.item() == pytest.approx(expected, rel=2e-7, abs=1e-44)


def test_range_and_bad_settings() -> None:
    encoder = MagnitudeNumberEncoder(3)
    inside, outside = ["999.999", "-999", "0", "1e-999"], ["1000", "-1000", "1,000.5", "1e999"]
    assert [encoder.in_range(text) for text in inside + outside] == [True] * 4 + [False] * 4
    refused(lambda: MagnitudeNumberEncoder(-1), "-1")
    refused(lambda: MagnitudeNumberEncoder(309), "0 to 308", "309")
