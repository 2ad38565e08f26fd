"""Summaries against brute force, and the tables for terminal and Markdown."""

from io import StringIO
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import binom

from ani.errors import InputError
from ani.report import accuracy_markdown, accuracy_table, gating_markdown, gating_table
from ani.report.records import Answer, GateDecision
from ani.report.summaries import accuracies, gating

ANSWERS = st.lists(
    st.builds(
        Answer,
        run=st.sampled_from(["before", "after"]),
        operation=st.sampled_from(["addition", "product"]),
        digits=st.integers(1, 12),
        correct=st.booleans(),
    )
)
DECISIONS = st.lists(
    st.builds(
        GateDecision,
        role=st.sampled_from(["nominal", "quantitative"]),
        alpha=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
        injected=st.booleans(),
        domain=st.none(),
    )
)


def shown(table: object) -> str:
    stream = StringIO()
    Console(width=200, file=stream).print(table)
    return stream.getvalue()


@given(ANSWERS)
def test_accuracies_partition_the_answers(answers: list[Answer]) -> None:
    rows = accuracies(answers)
    assert len({(row.operation, row.run) for row in rows}) == len(rows)
    for row in rows:
        assert list(row.by_digits) == sorted(row.by_digits)
        for digits, share in row.by_digits.items():
            cases = [a.correct for a in answers if (a.operation, a.run, a.digits) == (*row[:2], digits)]
            assert share == (sum(cases), len(cases))
        assert row.overall == tuple(map(sum, zip(*row.by_digits.values(), strict=True)))
    assert sum(row.overall.total for row in rows) == len(answers)


@given(DECISIONS)
def test_gating_equals_counting_pairs(decisions: list[GateDecision]) -> None:
    summary = gating(decisions)
    alphas = {
        role: [d.alpha for d in decisions if d.role == role and d.alpha is not None]
        for role in ("nominal", "quantitative")
    }
    pairs = list(product(alphas["quantitative"], alphas["nominal"]))
    if not pairs:
        assert summary.auc is None and summary.balanced_accuracy is None
        return
    assert summary.auc == pytest.approx(sum((q > n) + (q == n) / 2 for q, n in pairs) / len(pairs))
    closed = [not d.injected for d in decisions if d.role == "nominal"]
    opened = [d.injected for d in decisions if d.role == "quantitative"]
    estimate = summary.balanced_accuracy
    assert estimate is not None
    assert estimate.value == pytest.approx((sum(closed) / len(closed) + sum(opened) / len(opened)) / 2)
    assert -1e-9 <= estimate.low <= estimate.value <= estimate.high <= 1 + 1e-9


def test_balanced_interval_covers_as_promised() -> None:
    """Exact coverage by summing the binomials: close to 95% (never under 93% at these rates)."""
    n = 20
    for p, q in ((0.9, 0.7), (0.5, 0.95), (0.8, 0.8)):
        covered = 0.0
        for a, b in product(range(n + 1), repeat=2):
            decisions = [GateDecision(role="nominal", injected=i >= a) for i in range(n)]
            decisions += [GateDecision(role="quantitative", injected=i < b) for i in range(n)]
            estimate = gating(decisions).balanced_accuracy
            assert estimate is not None
            if estimate.low <= (p + q) / 2 <= estimate.high:
                covered += float(binom.pmf(a, n, p) * binom.pmf(b, n, q))
        assert 0.93 < covered < 0.985


def test_auc_needs_every_alpha() -> None:
    decisions = [
        GateDecision(role="nominal", alpha=0.1, injected=False),
        GateDecision(role="quantitative", alpha=0.9, injected=True),
        GateDecision(role="quantitative", alpha=None, injected=True),
    ]
    assert gating(decisions).auc is None
    assert gating(decisions[:2]).auc == 1.0


def test_terminal_table_shows_labels_as_they_are() -> None:
    record = {"operation": "addition", "digits": 2, "correct": True, "answer": "3"}
    text = shown(accuracy_table([{**record, "run": "[red]x[/red]"}, {**record, "run": "y", "digits": 1}]))
    assert "[red]x[/red]" in text and "1 digit " in text and "2 digits" in text
    assert "100.0%" in text and "20.7–100.0" in text and "n = 1" in text


def test_gating_table_and_markdown_agree() -> None:
    records = [
        {"role": "nominal", "alpha": 0.2, "injected": False},
        {"role": "quantitative", "alpha": 0.9, "injected": True},
    ]
    terminal, markdown = shown(gating_table(records)), gating_markdown(records)
    for text in ("Balanced accuracy", "AUC of α", "1.000", "100.0%", "n = 2"):
        assert text in terminal and text in markdown


def test_markdown_escapes_what_would_break_the_table() -> None:
    record = {"run": "a|b\n<i>*", "operation": "addition", "digits": 2, "correct": False}
    lines = accuracy_markdown([record]).splitlines()
    assert len(lines) == 3
    assert lines[1] == "| --- | --- | ---: | ---: |"
    assert r"a\|b \<i>\*" in lines[2]


def test_bad_record_is_named() -> None:
    good = {"run": "x", "operation": "addition", "digits": 2, "correct": True}
    with pytest.raises(InputError, match="record 1: correct"):
        accuracy_table([good, {**good, "correct": "yes"}])
