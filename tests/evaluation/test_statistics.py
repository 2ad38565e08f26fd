import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from ani.evaluation.statistics import wilson_interval


@given(total=st.integers(1, 5000), data=st.data(), confidence=st.floats(0.5, 0.999))
def test_the_bounds_are_the_roots_of_the_score_equation(total: int, data: st.DataObject, confidence: float) -> None:
    successes = data.draw(st.integers(0, total))
    low, high = wilson_interval(successes, total, confidence)
    z = norm.ppf(0.5 + confidence / 2)
    for p in (low, high):
        assert (successes / total - p) ** 2 == pytest.approx(z**2 * p * (1 - p) / total, rel=1e-7, abs=1e-12)
    assert 0 <= low < high <= 1
    assert low <= successes / total + 1e-12 and successes / total - 1e-12 <= high


def test_known_value_and_symmetry() -> None:
    # 5 of 10: centre 1/2, half-width z·sqrt(n + z²) / (2·(n + z²)) in closed form
    z2 = float(norm.ppf(0.975)) ** 2
    half = (z2 / (10 + z2)) ** 0.5 / 2
    assert wilson_interval(5, 10) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-12)
    low, high = wilson_interval(3, 40)
    assert wilson_interval(37, 40) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@pytest.mark.parametrize(
    ("successes", "total", "confidence", "named"),
    [(0, 0, 0.95, "total is 0"), (3, 2, 0.95, "3"), (-1, 2, 0.95, "-1"), (1, 2, 95.0, "95.0")],
)
def test_bad_input_is_named(successes: int, total: int, confidence: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        wilson_interval(successes, total, confidence)
