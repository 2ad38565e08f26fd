"""Chosen periods: exact remainders at any size; and the control, which has another number's features."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ani.encoders import EncoderSettings, FourierNumberEncoder, build_encoder
from ani.encoders.periodic import PeriodicNumberEncoder
from tests.refusals import refused

TEXTS = st.from_regex(r"-?[0-9]{1,30}(\.[0-9]{1,30})?(e-?[0-9]{1,2})?", fullmatch=True)


@given(texts=st.lists(TEXTS, min_size=1, max_size=5), periods=st.lists(st.integers(2, 10**6), min_size=1, unique=True))
def test_features_are_the_phases(texts: list[str], periods: list[int]) -> None:
    features = PeriodicNumberEncoder(periods).encode(texts).double().unflatten(1, (-1, 2))
    for text, row in zip(texts, features, strict=True):
        angles = [2 * math.pi * float(Fraction(text) % period / period) for period in periods]
        expected = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles], dtype=torch.float64)
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("value", ["9" * 5000, 10**5000, "1e5000", "-" + "12" * 2500], ids=["9", "10", "e", "-"])
def test_long_numbers_are_exact(value: str | int) -> None:
    wanted = int(Decimal(value)) % 7  # Python's: of −1 it is 6
    assert torch.equal(PeriodicNumberEncoder([7]).encode([value]), PeriodicNumberEncoder([7]).encode([wanted]))


def test_periods_are_a_setting() -> None:
    settings = EncoderSettings(encoders=("fourier", "periodic"), periods=(12,))
    assert build_encoder(settings).width == 33 + 2
    for periods in ((), (7, 7), (1,)):
        refused(
            lambda periods=periods: PeriodicNumberEncoder(periods), "periods must be distinct integers", "at least 2"
        )


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=2))
def test_shuffled_features_are_those_of_another_number(value: Decimal) -> None:
    control = build_encoder(EncoderSettings(integer_digits=12, fraction_digits=6, shuffled=True))
    (other,) = FourierNumberEncoder(12, 6).decode(control.encode([value]))
    assert other != value and 0 <= other < 10**12
    assert other == int(other) or value != int(value)


def test_shuffled_numbers_have_every_size() -> None:
    control = build_encoder(EncoderSettings(shuffled=True))
    others = FourierNumberEncoder().decode(control.encode([*range(1000, 1500)]))
    assert len(set(others)) > 400
    assert {len(f"{other:f}") for other in others} == set(range(1, 11))
    with pytest.raises(ValidationError, match="shuffled is for the features of literals"):
        EncoderSettings(shuffled=True, values="results")
