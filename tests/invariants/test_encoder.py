"""Invariant 7: |feature − exact| ≤ 1e-7 and decode(encode(x)) = x, over the whole range."""

from decimal import Decimal
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ani.encoders.fourier import FourierNumberEncoder


def as_text(units: int, fraction_digits: int) -> str:
    whole, fraction = divmod(abs(units), 10**fraction_digits)
    return f"{'-' * (units < 0)}{whole}" + (f".{fraction:0{fraction_digits}d}" if fraction_digits else "")


def exact_features(units: list[int], encoder: FourierNumberEncoder) -> np.ndarray:
    """cos and sin of 2π(x mod T)/T with x mod T in integers: no digits, no shared code.

    x comes in units of 10^-fraction_digits, where every period is the integer base·10^place.
    """
    places = encoder.integer_digits + encoder.fraction_digits
    x = np.array(units, dtype=np.int64 if places < 18 else object)
    columns = []
    for base in encoder.bases:
        for place in range(places):
            period = base * 10**place
            angle = 2 * np.pi * ((x % period) / period).astype(np.float64)
            columns += [np.cos(angle), np.sin(angle)]
    return np.stack(columns, axis=1)


def draw(random: Random, places: int, count: int) -> list[int]:
    """Non-negative units: both ends, powers of ten and their neighbours, then numbers of any length."""
    edges = {0, 10**places - 1, 10**places // 2, 10**places // 2 - 1}
    edges |= {10**place + step for place in range(places) for step in (-1, 0, 1)}
    drawn = [random.randrange(10 ** random.randint(1, places)) for _ in range(count // 2)]
    return sorted(edges) + drawn + [random.randrange(10**places) for _ in range(count // 2)]


@pytest.mark.parametrize(
    ("integer_digits", "fraction_digits", "bases", "count"),
    [
        (10, 6, (10,), 120_000),
        (10, 6, (2, 5, 10), 10_000),
        (12, 0, (2, 5), 10_000),
        (0, 5, (10,), 2_000),
        (1, 0, (5, 2), 50),
        (30, 30, (10,), 3_000),
        (30, 30, (2, 5), 1_000),
    ],
)
def test_exact_and_invertible_over_the_range(
    integer_digits: int, fraction_digits: int, bases: tuple[int, ...], count: int
) -> None:
    places = integer_digits + fraction_digits
    units = draw(Random(places), places, count)
    # One half-range on each side of zero: what sign="phase" can tell apart.
    units = [u - 10**places if 2 * u >= 10**places else u for u in units]
    encoder = FourierNumberEncoder(integer_digits, fraction_digits, bases=bases)
    features = encoder.encode([as_text(u, fraction_digits) for u in units])
    assert features.dtype == torch.float32 and features.shape == (len(units), encoder.width)
    assert np.abs(features.double().numpy() - exact_features(units, encoder)).max() <= 1e-7
    assert encoder.decode(features) == [Decimal(as_text(u, fraction_digits)) for u in units]


@pytest.mark.parametrize("bases", [(10,), (2, 5)])
def test_sign_feature_is_exact_on_both_sides_of_the_whole_range(bases: tuple[int, ...]) -> None:
    random = Random(1)
    units = [random.choice((-1, 1)) * u for u in draw(random, 16, 20_000)]
    encoder = FourierNumberEncoder(bases=bases, sign="feature")
    features = encoder.encode([as_text(u, 6) for u in units])
    magnitudes = exact_features([abs(u) for u in units], encoder)
    assert np.abs(features[:, :-1].double().numpy() - magnitudes).max() <= 1e-7
    assert features[:, -1].tolist() == [-1.0 if u < 0 else 1.0 for u in units]
    assert encoder.decode(features) == [Decimal(as_text(u, 6)) for u in units]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_shape_of_encoder(data: st.DataObject) -> None:
    integer_digits = data.draw(st.integers(0, 40), label="integer_digits")
    fraction_digits = data.draw(st.integers(0 if integer_digits else 1, 40), label="fraction_digits")
    bases = data.draw(st.sampled_from([(10,), (2, 5), (5, 2), (10, 2), (2, 5, 10)]), label="bases")
    sign = data.draw(st.sampled_from(["phase", "feature", "none"]), label="sign")
    limit = 10 ** (integer_digits + fraction_digits)
    low, high = {"phase": (-(limit // 2), limit // 2), "feature": (1 - limit, limit), "none": (0, limit)}[sign]
    units = data.draw(st.lists(st.integers(low, high - 1), max_size=6), label="units")
    encoder = FourierNumberEncoder(integer_digits, fraction_digits, bases=bases, sign=sign)
    features = encoder.encode([as_text(u, fraction_digits) for u in units])
    assert features.shape == (len(units), encoder.width)
    expected = exact_features([u if sign == "phase" else abs(u) for u in units], encoder)
    assert np.abs(features[:, : expected.shape[1]].double().numpy() - expected).max(initial=0) <= 1e-7
    assert encoder.decode(features) == [Decimal(as_text(u, fraction_digits)) for u in units]
