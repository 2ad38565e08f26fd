"""The numbers that tables, figures and the page show, each computed here and nowhere else.

Knows nothing about files or how anything is displayed.
"""

from collections.abc import Iterable, Sequence
from math import hypot
from typing import NamedTuple

from scipy.stats import rankdata

from ani.evaluation.statistics import wilson_interval
from ani.report.records import Answer, GateDecision


class Estimate(NamedTuple):
    """A share in [0, 1] with its 95% interval [low, high]."""

    value: float
    low: float
    high: float


class Share(NamedTuple):
    """`successes` of `total` cases, total > 0."""

    successes: int
    total: int

    @property
    def estimate(self) -> Estimate:
        """The share with its Wilson 95% interval."""
        return Estimate(self.successes / self.total, *wilson_interval(self.successes, self.total))


def _share(cases: Iterable[bool]) -> Share | None:
    cases = list(cases)
    return Share(sum(cases), len(cases)) if cases else None


class Accuracy(NamedTuple):
    """Exact-match accuracy of one run on one operation."""

    operation: str
    run: str
    by_digits: dict[int, Share]
    overall: Share
    unreadable: int
    """Answers that held no number (`prediction` null); they count as wrong or right as recorded."""


def accuracies(answers: Sequence[Answer]) -> list[Accuracy]:
    """One entry an operation and run, both in order of appearance; digits ascending."""
    groups: dict[str, dict[str, list[Answer]]] = {}
    for answer in answers:
        groups.setdefault(answer.operation, {}).setdefault(answer.run, []).append(answer)
    result = []
    for operation, runs in groups.items():
        for run, group in runs.items():
            correct: dict[int, list[bool]] = {}
            for answer in group:
                correct.setdefault(answer.digits, []).append(answer.correct)
            result.append(
                Accuracy(
                    operation,
                    run,
                    {digits: Share(sum(correct[digits]), len(correct[digits])) for digits in sorted(correct)},
                    Share(sum(answer.correct for answer in group), len(group)),
                    sum(answer.prediction is None for answer in group),
                )
            )
    return result


class Gating(NamedTuple):
    """How well the gate tells roles apart. None where a role (or, for `auc`, an alpha) is missing."""

    nominal_closed: Share | None
    quantitative_open: Share | None
    auc: float | None

    @property
    def balanced_accuracy(self) -> Estimate | None:
        """Mean of the two shares, its 95% interval combined from theirs.

        Square-and-add (Newcombe 1998; MOVER, Zou & Donner 2008): the distances from the estimate to the
        limits of independent intervals add in quadrature. Stays within [0, 1], unlike a normal interval.
        """
        if self.nominal_closed is None or self.quantitative_open is None:
            return None
        a, b = self.nominal_closed.estimate, self.quantitative_open.estimate
        value = (a.value + b.value) / 2
        return Estimate(
            value,
            value - hypot(a.value - a.low, b.value - b.low) / 2,
            value + hypot(a.high - a.value, b.high - b.value) / 2,
        )


def gating(decisions: Sequence[GateDecision]) -> Gating:
    """Summary over all decisions.

    `auc` is P(α of a quantitative number > α of a nominal one) + P(equal)/2, the rank statistic: what any
    threshold could reach, where the shares are for the threshold in use.
    """
    by_role = {
        role: [decision for decision in decisions if decision.role == role] for role in ("nominal", "quantitative")
    }
    nominal, quantitative = (
        [decision.alpha for decision in group if decision.alpha is not None] for group in by_role.values()
    )
    auc = None
    if nominal and quantitative and len(nominal) + len(quantitative) == len(decisions):
        ranks = rankdata([*quantitative, *nominal])[: len(quantitative)]
        pairs = len(nominal) * len(quantitative)
        auc = (float(ranks.sum()) - len(quantitative) * (len(quantitative) + 1) / 2) / pairs
    return Gating(
        _share(decision.right for decision in by_role["nominal"]),
        _share(decision.right for decision in by_role["quantitative"]),
        auc,
    )


def gating_by_domain(decisions: Sequence[GateDecision]) -> dict[str, Gating]:
    """The same a domain, in alphabetical order; decisions without a domain are left out."""
    groups: dict[str, list[GateDecision]] = {}
    for decision in decisions:
        if decision.domain is not None:
            groups.setdefault(decision.domain, []).append(decision)
    return {domain: gating(groups[domain]) for domain in sorted(groups)}
