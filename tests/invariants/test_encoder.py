"""Invariant 7: |feature − exact| ≤ 1e-7 and decode(encode(x)) = x, over the whole range."""

from decimal import Decimal
from random import Random
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from ani.encoders.fourier import FourierNumberEncoder
from tests.properties import examples

Sign = Literal["feature", "phase", "none"]
SIGNS: list[Sign] = ["feature", "phase", "none"]


def as_text(units: int, fraction_digits: int) -> str:
    whole, fraction = divmod(abs(units), 10**fraction_digits)
    return f"{'-' * (units < 0)}{whole}" + (f".{fraction:0{fraction_digits}d}" if fraction_digits else "")


def exact_features(units: list[int], places: int) -> np.ndarray:
    """cos and sin of 2π(x mod T)/T with x mod T in integers: no digits, no shared code.

    x comes in units of 10^-fraction_digits, where every period is an integer.
    """
    x = np.array(units, dtype=np.int64 if places < 18 else object)
    columns = []
    for period in (10**place for place in range(1, places + 1)):
        angle = 2 * np.pi * ((x % period) / period).astype(np.float64)
        columns += [np.cos(angle), np.sin(angle)]
    return np.stack(columns, axis=1)


def units_between(sign: Sign, places: int) -> tuple[int, int]:
    """The range of units that `sign` tells apart, ends included."""
    limit = 10**places
    return {"feature": (1 - limit, limit - 1), "phase": (-(limit // 2), limit // 2 - 1), "none": (0, limit - 1)}[sign]


def assert_exact_and_invertible(integer_digits: int, fraction_digits: int, sign: Sign, units: list[int]) -> None:
    encoder = FourierNumberEncoder(integer_digits, fraction_digits, sign=sign)
    features = encoder.encode([as_text(u, fraction_digits) for u in units])
    assert features.dtype == torch.float32 and features.shape == (len(units), encoder.width)
    places = integer_digits + fraction_digits
    exact = exact_features([u if sign == "phase" else abs(u) for u in units], places)
    assert np.abs(features[:, : 2 * places].double().numpy() - exact).max(initial=0) <= 1e-7
    if sign == "feature":
        assert features[:, -1].tolist() == [-1.0 if u < 0 else 1.0 for u in units]
    assert encoder.decode(features) == [Decimal(as_text(u, fraction_digits)) for u in units]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize(
    ("integer_digits", "fraction_digits", "count"), [(10, 6, 2_000), (12, 0, 1_000), (30, 30, 200)]
)
@examples(10)
@given(random=st.integers(0, 2**64 - 1).map(Random))
def test_numbers_of_any_length_and_the_edges_of_the_range(
    integer_digits: int, fraction_digits: int, count: int, sign: Sign, random: Random
) -> None:
    places = integer_digits + fraction_digits
    low, high = units_between(sign, places)
    units = {low, high, 0, *(10**place + step for place in range(places) for step in (-1, 0, 1))}
    units |= {random.randrange(10 ** random.randint(1, places)) for _ in range(count)}
    units |= {-u for u in units} | {random.randint(low, high) for _ in range(count)}
    assert_exact_and_invertible(integer_digits, fraction_digits, sign, [u for u in units if low <= u <= high])


@examples(150)
@given(st.data(), st.integers(0, 40), st.integers(0, 40), st.sampled_from(SIGNS))
def test_any_shape_of_encoder(data: st.DataObject, integer_digits: int, fraction_digits: int, sign: Sign) -> None:
    assume(integer_digits or fraction_digits)
    units = st.integers(*units_between(sign, integer_digits + fraction_digits))
    assert_exact_and_invertible(integer_digits, fraction_digits, sign, data.draw(st.lists(units, max_size=6)))
