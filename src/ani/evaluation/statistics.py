"""Intervals for the rates in the paper's tables.

Knows nothing about tasks, models or result files.
"""

from scipy.stats import binomtest


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
