from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, bootstrap, norm

from ani.results.statistics import (
    Estimate,
    area_under_roc,
    bootstrap_means,
    grouped_share,
    holm,
    paired_difference,
    wilson_interval,
)


def test_bad_input_is_named() -> None:
    for values, groups, named in (
        (np.zeros((0, 2)), None, r"shape \(0, 2\)"),
        (np.array([[1.0], [np.nan]]), None, "finite"),
        (np.zeros((3, 1)), ["a", "b"], "3 rows, not 2"),
    ):
        with pytest.raises(ValueError, match=named):
            bootstrap_means(values, groups)
    with pytest.raises(ValueError, match="not of 2 and 3"):
        paired_difference(np.zeros(2), np.zeros(3))


def test_resampled_means_agree_with_scipy() -> None:
    values = np.random.default_rng(3).exponential(size=(60, 2))
    means = bootstrap_means(values, resamples=20_000)
    assert means.shape == (20_000, 2)
    found = np.quantile(means, [0.025, 0.975], axis=0)
    expected = bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", axis=0, rng=1)
    for side, bound in zip(found, expected.confidence_interval, strict=True):
        np.testing.assert_allclose(side, bound, atol=0.015)
    np.testing.assert_allclose(means.std(axis=0), values.std(axis=0) / 60**0.5, rtol=0.03)
    np.testing.assert_allclose(np.corrcoef(means.T), np.corrcoef(values.T), atol=0.03)


def test_groups_are_drawn_whole_and_rows_weigh_the_same() -> None:
    # Two groups, of one and of three rows: drawn twice one, once each, or twice the other.
    means = bootstrap_means(np.array([[1.0], [0.0], [1.0], [1.0]]), ["b", "a", "b", "b"], resamples=20_000).ravel()
    outcomes, counts = np.unique(means, return_counts=True)
    assert outcomes.tolist() == [0.0, 0.75, 1.0]
    np.testing.assert_allclose(counts / len(means), [0.25, 0.5, 0.25], atol=0.015)


def test_paired_difference_agrees_with_scipy() -> None:
    random = np.random.default_rng(8)
    baseline = random.random(200) < 0.5
    scores = np.where(random.random(200) < 0.8, baseline, ~baseline) | (random.random(200) < 0.15)
    found = paired_difference(scores, baseline, resamples=20_000)
    pair = (scores.astype(float), baseline.astype(float))

    def difference(a: Any, b: Any, axis: int) -> Any:
        return a.mean(axis=axis) - b.mean(axis=axis)

    expected = bootstrap(pair, difference, paired=True, n_resamples=20_000, method="percentile", rng=1)
    assert found.value == pytest.approx(scores.mean() - baseline.mean())
    assert (found.low, found.high) == pytest.approx(expected.confidence_interval, abs=0.006)
    assert found.p == pytest.approx(float((expected.bootstrap_distribution <= 0).mean()), abs=0.01)
    back = paired_difference(baseline, scores, resamples=20_000)
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low))


def test_p_in_closed_form() -> None:
    # One of six problems gained, none lost: there is no gain in a resample that misses it, (5/6)^6 of them.
    gained, before = np.eye(6)[0], np.zeros(6)
    assert paired_difference(gained, before, resamples=40_000).p == pytest.approx((5 / 6) ** 6, abs=0.01)
    # All gained: no resample is without gain, and only the observed one counts.
    assert paired_difference(np.ones(6), before) == pytest.approx(Estimate(1, 1, 1, 6, p=1 / 1001))
    assert paired_difference(before, np.ones(6)) == pytest.approx(Estimate(-1, -1, -1, 6, p=1))


def test_a_tie_is_no_gain_even_in_thirds() -> None:
    scores = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]] * 7)
    found = paired_difference(scores.mean(axis=1), scores[:, ::-1].mean(axis=1))
    assert found.p == 1
    assert (found.value, found.low, found.high) == pytest.approx((0, 0, 0), abs=1e-12)


def test_holms_correction() -> None:
    """The example of his paper's step-down rule, by hand; and as many as one is left as it is."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.02]) == [0.02]


def shares(right: Sequence[bool], groups: Sequence[int]) -> Estimate:
    found = grouped_share((group, 0, each) for group, each in zip(groups, right, strict=True))
    assert found is not None and (found.cases, found.seeds, found.p) == (len(right), 1, None)
    assert found.value == sum(right) / len(right)
    return found


def test_grouped_share() -> None:
    """Groups of one: Wilson's. Copies of a decision tell nothing new: the interval stays about as wide."""
    alone = shares([True] * 30 + [False] * 20, range(50))
    assert (alone.low, alone.high) == wilson_interval(30, 50)
    copies = shares([True] * 300 + [False] * 200, [i // 10 for i in range(500)])
    assert (copies.low, copies.high) == pytest.approx((alone.low, alone.high), abs=0.04)
    for right, size, interval in (
        ([True] * 40, 4, wilson_interval(10, 10)),
        ([False] * 40, 4, wilson_interval(0, 10)),
        ([True, False, False] * 6, 3, wilson_interval(2, 6)),
        ([True, False, False], 3, (0, 1)),
    ):
        found = shares(right, [i // size for i in range(len(right))])
        assert (found.low, found.high) == interval


def of_seeds(right: Any) -> Estimate:
    """The share of a matrix of decisions, one row per group and one column per seed."""
    found = grouped_share((group, seed, bool(each)) for (group, seed), each in np.ndenumerate(right))
    assert found is not None and found.value == pytest.approx(np.mean(right))
    return found


def test_intervals_of_shares_cover_seeds() -> None:
    random = np.random.default_rng(4)
    right = random.random((60, 4)) < np.array([0.4, 0.5, 0.7, 0.8])
    means = []  # by brute force: draw groups and seeds, and take the mean of what was drawn
    for _ in range(4000):
        groups, seeds = random.integers(60, size=60), random.integers(4, size=4)
        means.append(right[np.ix_(groups, seeds)].mean())
    found = of_seeds(right)
    assert (found.low, found.high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.025)
    # The same answers four times over are no more evidence than one seed's.
    one = wilson_interval(int(right[:, 0].sum()), 60)
    repeated = of_seeds(np.repeat(right[:, :1], 4, axis=1))
    assert (repeated.low, repeated.high) == pytest.approx(one, abs=0.03)
    # Seeds that are right or wrong as a whole: nothing is known but that.
    assert of_seeds(np.tile([True, False], (50, 1)))[1:3] == (0, 1)
    # A gate that is open in one seed closes no number there; a draw of this seed alone says nothing.
    uneven = [("a", 0, True), ("b", 0, False), ("c", 0, True), ("a", 1, True)]
    assert (found := grouped_share(uneven)) is not None and 0 <= found.low < 0.75 < found.high <= 1
    assert np.ptp(of_seeds(np.ones((10, 3)))[1:3]) == pytest.approx(np.ptp(wilson_interval(10, 10)))


def test_intervals_over_seeds_cover_the_share_of_other_seeds() -> None:
    """Bootstrap intervals over problems and seeds cover the true share in 90% of 200 draws or more; Wilson's intervals,
    which ignore seeds, cover it less often."""
    random, covered, by_wilson = np.random.default_rng(1), 0, 0
    for _ in range(200):
        seeds = 0.5 + random.choice([-0.12, 0.12], size=5)
        right = random.random((100, 5)) < seeds
        found, (low, high) = of_seeds(right), wilson_interval(round(right.mean() * 100), 100)
        covered += found.low <= 0.5 <= found.high
        by_wilson += low <= 0.5 <= high
    assert covered >= 180 and by_wilson < 180


def test_wilsons_interval() -> None:
    # 5 of 10: centre 1/2, half-width z·sqrt(n + z²) / (2·(n + z²)) in closed form
    z2 = float(norm.ppf(0.975)) ** 2
    half = (z2 / (10 + z2)) ** 0.5 / 2
    assert wilson_interval(5, 10) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-12)


def test_area_under_the_curve_counts_pairs() -> None:
    positive, negative = [0.1, 0.5, 0.9], [0.5, 0.2]
    pairs = [(a > b) + (a == b) / 2 for a in positive for b in negative]
    assert area_under_roc(positive, negative) == pytest.approx(sum(pairs) / 6)


def test_resampled_rates_are_binomial() -> None:
    solved = np.array([[1.0]] * 3 + [[0.0]] * 5)
    counts = np.rint(8 * bootstrap_means(solved, resamples=40_000)).astype(int).ravel()
    shares = np.bincount(counts, minlength=9) / len(counts)
    np.testing.assert_allclose(shares, binom.pmf(range(9), 8, 3 / 8), atol=0.01)


def test_intervals_of_differences_cover_seeds() -> None:
    random = np.random.default_rng(2)
    scores, baseline = random.random((50, 3)) < 0.7, random.random((50, 1)) < 0.5
    found, of_problems = paired_difference(scores, baseline), paired_difference(scores.mean(axis=1), baseline[:, 0])
    assert found.value == pytest.approx(of_problems.value)
    # Two runs that differ by their seeds alone: 0 or 0.9 points of all problems, whichever is drawn.
    lucky = np.tile([False, False, True], (400, 1))
    found = paired_difference(lucky, np.zeros(400))
    assert (found.value, found.low, found.high) == pytest.approx((1 / 3, 0, 1))
    assert found.p == pytest.approx((2 / 3) ** 3, abs=0.05)  # no draw of the third seed
    # The same answers three times over are no more evidence.
    one = paired_difference(scores[:, 0], baseline)
    assert paired_difference(np.repeat(scores[:, :1], 3, axis=1), baseline) == pytest.approx(one._replace(seeds=3))
