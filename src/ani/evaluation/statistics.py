"""Intervals and tests for the rates in the paper's tables.

Knows nothing about tasks, models or result files.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

_COUNTS_AT_ONCE = 4_000_000
"""Entries of a block of the resampling matrix; int64, so 32 MB."""


def wilson_interval(successes: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a success rate, without continuity correction.

    Args:
        successes: problems solved, 0 to total.
        total: problems asked, at least 1.
        confidence: coverage, between 0 and 1.

    Returns:
        (low, high), both in [0, 1].

    Raises:
        ValueError: total is not positive, successes is outside 0..total, or confidence outside (0, 1).
    """
    if total < 1:
        raise ValueError(f"an interval needs at least one trial, but total is {total}")
    if not 0 <= successes <= total:
        raise ValueError(f"successes must lie in 0..{total} (total), not {successes}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, such as 0.95, not {confidence}")
    low, high = binomtest(successes, total).proportion_ci(confidence, method="wilson")
    return float(low), float(high)


def bootstrap_means(
    values: NDArray[np.floating],
    groups: Sequence[Hashable] | NDArray[Any] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """The mean of every column under resampling of whole groups of rows, with replacement.

    All columns of a resample are means of the same rows, so differences of columns are paired. A resample draws as
    many groups as there are; where groups differ in size, so does its number of rows, and its mean is over rows.

    Args:
        values: (N, K), finite, N at least 1.
        groups: N ids; rows that share one are drawn together. None: each row is a group.
        resamples: R, at least 1.
        seed: The same seed draws the same groups.

    Returns:
        (R, K).

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
    generator = np.random.default_rng(seed)
    shares = np.full(len(sizes), 1 / len(sizes))
    means = np.empty((resamples, rows.shape[1]))
    block = max(1, _COUNTS_AT_ONCE // len(sizes))
    for first in range(0, resamples, block):
        counts = generator.multinomial(len(sizes), shares, size=min(block, resamples - first)).astype(np.float64)
        means[first : first + len(counts)] = (counts @ sums) / (counts @ sizes)[:, None]
    return means


class PairedDifference(NamedTuple):
    """How much better one run answers the same problems than another."""

    value: float
    """Difference of the means."""
    low: float
    high: float
    p: float
    """One-sided, of no gain: small where the first run is better."""


def paired_bootstrap(
    scores: NDArray[np.floating],
    baseline: NDArray[np.floating],
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> PairedDifference:
    """Compare two runs on the same problems (paper, "Confidence Intervals and Difficulty-wise Analysis").

    Problems are resampled, each with both runs' scores; the interval is the percentiles of the resampled differences.
    A problem's score is its mean over a run's seeds, so the interval speaks of other problems, not of other seeds.
    p is (1 + resamples whose difference is at most 0) / (1 + resamples): the observed sample counts as one of them,
    because a finite number of resamples can't show that p is 0. The paper doesn't say how it counts.

    Args:
        scores: (N,) or (N, seeds), N problems.
        baseline: (N,) or (N, seeds), the same problems in the same order; it may have other seeds, and fewer.
        confidence: Coverage, between 0 and 1.
        resamples: At least 1; the paper has 1,000.
        seed: Of the resampling.

    Raises:
        ValueError: The runs differ in their number of problems, there are none, a score isn't finite, or confidence is
            outside (0, 1).
    """
    if len(scores) != len(baseline) or not len(scores):
        raise ValueError(f"both runs need scores of the same problems, not of {len(scores)} and {len(baseline)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, such as 0.95, not {confidence}")
    pair = np.stack([np.reshape(run, (len(run), -1)).mean(axis=1) for run in (scores, baseline)], axis=1)
    means = bootstrap_means(pair, resamples=resamples, seed=seed)
    differences = means[:, 0] - means[:, 1]
    low, high = np.quantile(differences, [(1 - confidence) / 2, (1 + confidence) / 2])
    # A tie is no gain, and the means of two runs that tie may differ in their last bit.
    p = (1 + int((differences <= 1e-12).sum())) / (1 + resamples)
    return PairedDifference(float((pair[:, 0] - pair[:, 1]).mean()), float(low), float(high), p)


class GroupedShare(TypedDict):
    """How many decisions are right, with a 95% interval; where there are none, all but the counts is None."""

    right: int
    total: int
    share: float | None
    low: float | None
    high: float | None


def grouped_share(right: Sequence[bool], groups: Sequence[Hashable]) -> GroupedShare:
    """The share of right decisions where those of one group, such as the numbers of a text, may depend on each other.

    The interval is the percentiles under resampling of whole groups. Where no two decisions share a group, it is
    Wilson's. Where resampling changes nothing, because there is one group or all have the same share, such as 0 or 1,
    it would say that the share is certain: the interval is then Wilson's for as many trials as there are groups, a
    fraction of a success rounded outward.

    Args:
        right: N decisions.
        groups: Their N groups.
    """
    total, hits, number = len(right), sum(right), len(set(groups))
    if not total:
        return {"right": 0, "total": 0, "share": None, "low": None, "high": None}
    if number == total:
        low, high = wilson_interval(hits, total)
    else:
        means = bootstrap_means(np.array(right, dtype=np.float64)[:, None], groups)
        low, high = (float(bound) for bound in np.quantile(means, [0.025, 0.975]))
        if np.ptp(means) < 1e-12:  # equal means may differ in their last bit
            low, _ = wilson_interval(number * hits // total, number)
            _, high = wilson_interval(-(-number * hits // total), number)
    return {"right": hits, "total": total, "share": hits / total, "low": low, "high": high}
