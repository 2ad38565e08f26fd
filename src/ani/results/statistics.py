"""Estimates with their 95% intervals: shares, means, paired differences."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import hypot
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_COUNTS_AT_ONCE = 4_000_000
"""Number of int64 entries of the resampling matrix that are drawn at once: 32 MB."""


class Estimate(NamedTuple):
    """A share in [0, 1], a mean or a difference of two, with its 95% interval [low, high].

    With several training seeds the interval is for other cases (problems, texts) and other seeds; with one seed it is
    for other cases alone.
    """

    value: float
    low: float
    high: float
    cases: int
    """Number of cases per seed."""
    seeds: int = 1
    """Number of training seeds."""
    p: float | None = None
    """p-value: one-sided for differences (H0: no gain), two-sided for `sign_test`."""


def share_facts(found: Estimate | None) -> dict[str, Any]:
    """A share as JSON; all but the counts is None where nothing was counted."""
    if found is None:
        return {"right": 0, "total": 0, "share": None, "low": None, "high": None}
    right = round(found.value * found.cases)
    return {"right": right, "total": found.cases, "share": found.value, "low": found.low, "high": found.high}


def difference_facts(parts: Mapping[Any, Estimate]) -> dict[str, Any]:
    """Differences as JSON, by part."""
    keys = ("value", "low", "high", "p")
    return {str(part): {key: getattr(found, key) for key in keys} for part, found in parts.items()}


def wilson_interval(successes: int, total: int) -> tuple[float, float]:
    """Wilson's 95% score interval (low, high) of a success rate, without continuity correction. Raises ValueError where
    `total` is 0 or `successes` is outside 0..total."""
    from scipy.stats import binomtest  # imported here, as it takes a second

    low, high = binomtest(successes, total).proportion_ci(method="wilson")
    return float(low), float(high)


def sign_test(fixed: int, broken: int) -> Estimate | None:
    """Return the share of fixed problems among those that only one of two models solves; None without such a problem.

    The interval is Clopper and Pearson's. p is the exact two-sided one of the sign test (McNemar's): as many fixed as
    broken. It is below 5% where the interval leaves out one half.
    """
    from scipy.stats import binomtest

    if not (changed := fixed + broken):
        return None
    test = binomtest(fixed, changed)
    low, high = test.proportion_ci()
    return Estimate(fixed / changed, float(low), float(high), changed, p=float(test.pvalue))


def mean_of_two(a: Estimate, b: Estimate) -> Estimate:
    """The mean of two independent shares.

    Square-and-add (Newcombe 1998; MOVER, Zou & Donner 2008): the distances from the estimate to the limits of
    independent intervals add in quadrature. Stays within [0, 1], unlike a normal interval.
    """
    value = (a.value + b.value) / 2
    low = value - hypot(a.value - a.low, b.value - b.low) / 2
    return Estimate(value, low, value + hypot(a.high - a.value, b.high - b.value) / 2, a.cases + b.cases)


def grouped_share(cases: Iterable[tuple[Hashable, Hashable, bool]]) -> Estimate | None:
    """The share of right decisions where those of one group, such as the numbers of a text, may depend on each other.

    The interval is the percentiles under resampling of whole groups and of training seeds (`resampled`). Where one seed
    has one decision per group, it is Wilson's. Where resampling changes nothing, because all have the same share, such
    as 0 or 1, it would say that the share is certain: the interval is then Wilson's for as many trials as there are
    groups, a fraction of a success rounded outward.

    Args:
        cases: The group and the training seed of each decision, and whether it is right.

    Returns:
        The share of all decisions, whose number is `cases`; None without a decision.
    """
    listed = list(cases)
    if not listed:
        return None
    groups = {name: place for place, name in enumerate(dict.fromkeys(group for group, *_ in listed))}
    seeds = {name: place for place, name in enumerate(dict.fromkeys(seed for _, seed, _ in listed))}
    counts = np.zeros((len(groups), len(seeds), 2))  # right decisions, and all
    for group, seed, right in listed:
        counts[groups[group], seeds[seed]] += right, 1
    total, hits, number = len(listed), sum(right for *_, right in listed), len(groups)
    if number == total and len(seeds) == 1:
        low, high = wilson_interval(hits, total)
    else:
        _, low, high, *_ = resampled([counts], lambda means: means[:, 0] / means[:, 1])
        if high - low < 1e-12:  # equal means may differ in their last bit
            low, _ = wilson_interval(number * hits // total, number)
            _, high = wilson_interval(-(-number * hits // total), number)
    return Estimate(hits / total, low, high, total)


def area_under_roc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """The share of pairs in which the positive case has the larger value; a tie counts half. Neither may be empty."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(positive, negative, method="asymptotic").statistic) / (len(positive) * len(negative))


def bootstrap_means(
    values: NDArray[np.number | np.bool],
    groups: Sequence[Hashable] | NDArray[Any] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Means of all columns under resampling of whole groups of rows, with replacement.

    All columns of a resample are means of the same rows, so differences of columns are paired. A resample draws as
    many groups as there are; where groups differ in size, so does its number of rows, and its mean is over rows.

    Args:
        values: (N, K), finite, N at least 1.
        groups: N ids; rows that share one are drawn together. None: each row is a group.
        resamples: R, at least 1.
        seed: Seed of the draws.

    Returns:
        The means of each resample, (R, K).

    Raises:
        ValueError: `values` has another shape or isn't finite, or `groups` isn't N ids, or there are no resamples.
    """
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or not len(rows) or not np.isfinite(rows).all():
        raise ValueError(f"values must be finite and of shape (N, K), N at least 1, not of shape {rows.shape}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}")
    sums, sizes = rows, np.ones(len(rows))
    if groups is not None:
        if len(groups) != len(rows):
            raise ValueError(f"groups must name a group for each of the {len(rows)} rows, not {len(groups)}")
        numbers: dict[Hashable, int] = {}
        index = np.array([numbers.setdefault(group, len(numbers)) for group in groups])
        sizes = np.bincount(index).astype(np.float64)
        sums = np.zeros((len(sizes), rows.shape[1]))
        np.add.at(sums, index, rows)
    draws = (counts.astype(np.float64) for counts in _draws(len(sizes), resamples, seed))
    return np.concatenate([(counts @ sums) / (counts @ sizes)[:, None] for counts in draws])


@lru_cache(maxsize=16)  # the tables of a report need the same draws
def _draws(groups: int, resamples: int, seed: int) -> tuple[NDArray[np.uint8], ...]:
    """How often each group is drawn: a row per resample, a column per group, in blocks of rows."""
    generator, block = np.random.default_rng(seed), max(1, _COUNTS_AT_ONCE // groups)
    blocks = (min(block, resamples - first) for first in range(0, resamples, block))
    return tuple(generator.multinomial(groups, [1 / groups] * groups, size=rows).astype(np.uint8) for rows in blocks)


def resampled(
    runs: Sequence[NDArray[np.floating]],
    statistic: Callable[..., NDArray[np.float64]],
    *,
    resamples: int = 1000,
    gain: bool = False,
) -> Estimate:
    """A statistic of means over cases and training seeds, with its 95% percentiles under resampling of both, a
    hierarchical bootstrap. With one seed it is for other cases alone.

    Args:
        runs: The values of each run, (N, its seeds, K); the N cases are the same, and drawn for all runs alike.
        statistic: Function from the means of each run, (R, K), to R values. A resample without a value (nan) is left
            out.
        resamples: Number of resamples, at least 1.
        gain: Whether the statistic is a gain, which has a p: (1 + resamples whose gain is at most 0) /
            (1 + resamples). The observed sample counts as one of them, because a finite number of resamples can't show
            that p is 0; the paper doesn't say how it counts.
    """
    columns = np.hstack([np.reshape(run, (len(run), -1)) for run in runs])
    means = np.vstack([columns.mean(axis=0), bootstrap_means(columns, resamples=resamples)])
    generator, of_runs, end = np.random.default_rng(1), [], 0  # not that of the cases, which would draw alike
    for run in runs:
        _, seeds, values = run.shape
        drawn = generator.multinomial(seeds, [1 / seeds] * seeds, size=resamples)
        weights = np.vstack([np.ones(seeds), drawn]) / seeds  # first the run as it is
        begin, end = end, end + seeds * values
        of_runs.append(np.einsum("rs,rsk->rk", weights, means[:, begin:end].reshape(-1, seeds, values)))
    with np.errstate(invalid="ignore"):
        value, *others = statistic(*of_runs)
    low, high = np.nanquantile(others, [0.025, 0.975])
    # A tie is no gain, and the means of two runs that tie may differ in their last bit.
    p = (1 + int((np.array(others) <= 1e-12).sum())) / (1 + len(others)) if gain else None
    return Estimate(float(value), float(low), float(high), len(columns), runs[0].shape[1], p)


def paired_difference(
    scores: NDArray[np.floating],
    baseline: NDArray[np.floating],
    *,
    resamples: int = 1000,
) -> Estimate:
    """Compare two runs on the same problems (paper, "Confidence Intervals and Difficulty-wise Analysis").

    Problems are resampled, each with both runs' scores, and of each run the seeds (`resampled`, which also says what p
    is). With one seed it is, as in the paper, for other problems alone.

    Args:
        scores: (N,) or (N, seeds), N problems.
        baseline: (N,) or (N, seeds), the same problems in the same order; it may have other seeds, and fewer.
        resamples: Number of resamples, at least 1; 1,000 in the paper.

    Raises:
        ValueError: The runs differ in their number of problems, there are none, or a score isn't finite.
    """
    if len(scores) != len(baseline) or not len(scores):
        raise ValueError(f"both runs need scores of the same problems, not of {len(scores)} and {len(baseline)}")
    runs = [np.reshape(run, (len(run), -1, 1)).astype(np.float64) for run in (scores, baseline)]
    return resampled(runs, lambda own, other: (own - other)[:, 0], resamples=resamples, gain=True)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several tests by Holm's correction: below 5% with at most a 5% risk of any wrong one among them."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
