"""Remainders on a straight scale: exact, and linear in what a sum carries."""

from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ani.encoders.residues import ResidueNumberEncoder
from tests.refusals import refused

VALUES = st.decimals(min_value=-(10**10) + 1, max_value=10**10 - 1, places=4, allow_nan=False, allow_infinity=False)


@given(values=st.lists(VALUES, min_size=1, max_size=20))
def test_features_are_the_remainders(values: list[Decimal]) -> None:
    features = ResidueNumberEncoder(10, 4).encode(values)
    assert features.shape == (len(values), 15) and features.dtype == torch.float32
    expected = [
        [float(2 * (abs(value) % period) / period - 1) for period in (Decimal(f"1e{i}") for i in range(-3, 11))]
        for value in values
    ]
    assert features[:, :-1].tolist() == [pytest.approx(row, abs=3e-7) for row in expected]
    assert features[:, -1].tolist() == [-1.0 if value < 0 else 1.0 for value in values]


@given(a=st.integers(0, 999_999), b=st.integers(0, 999_999))
def test_a_carry_is_a_sum_and_a_threshold(a: int, b: int) -> None:
    features = ResidueNumberEncoder(6, 1).encode([a, b])[:, :-1].double().sum(dim=0)
    for place in range(1, 7):  # the columns of the periods 10 to 10^6
        assert bool(features[place] >= -1e-6) == (a % 10**place + b % 10**place >= 10**place)


def test_range_and_errors() -> None:
    encoder = ResidueNumberEncoder(3, 1)
    assert [encoder.in_range(value) for value in ("999.9", "-1,000", 1000)] == [True, False, False]
    assert torch.equal(encoder.encode([1234567]), encoder.encode([567]))  # it wraps
    assert encoder.encode(["-0", "-0.04", "-0.06", "-1000"])[:, -1].tolist() == [1, 1, -1, -1]  # −0 is zero
    refused(lambda: encoder.encode(["inf"]), "not a finite decimal number")
    refused(lambda: ResidueNumberEncoder(0, 0), "integer_digits and fraction_digits")
