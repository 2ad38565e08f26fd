"""Summaries against brute force, and the tables for terminal and Markdown."""

from io import StringIO
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import binom

from ani.errors import InputError
from ani.evaluation.statistics import paired_bootstrap, wilson_interval
from ani.report import (
    accuracy_markdown,
    accuracy_table,
    comparison_markdown,
    comparison_tables,
    gating_markdown,
    gating_table,
)
from ani.report.records import Answer, BenchmarkAnswer, GateDecision, GatedText, TextLoss, as_records
from ani.report.summaries import (
    Errors,
    accuracies,
    benchmark_scores,
    differences,
    errors,
    gate_shares,
    gating,
    gating_by_run,
    perplexities,
)
from ani.report.tables import accuracy_cells, benchmark_cells

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


# --- comparisons ---

SCORES = {"base": [[1, 0, 0, 0]], "ours": [[1, 1, 1, 0], [1, 1, 0, 0]], "other": [[0, 0, 0, 0], [0, 0, 0, 0]]}
"""Run: for each seed, which of four problems it solved; the first two have one digit, the others three."""


def compared() -> list[dict[str, object]]:
    return [
        {"run": run, "seed": seed, "operation": "+", "digits": 1 + problem // 2 * 2, "prompt": f"problem {problem}"}
        | {"correct": bool(solved), "prediction": "1"}
        for run, seeds in SCORES.items()
        for seed, answers in enumerate(seeds)
        for problem, solved in enumerate(answers)
    ]


LOSSES: list[dict[str, object]] = [
    {"run": run, "seed": seed, "kind": "plain", "text": text, "tokens": tokens, "loss": loss}
    for run, seed, texts in (
        ("base", None, {"short": (1, 2.0), "long": (10, 30.0)}),
        ("ours", 0, {"short": (1, 1.5), "long": (10, 28.0)}),
        ("ours", 1, {"long": (10, 30.0), "short": (1, 2.5)}),
        ("other", 0, {"short": (2, 5.0), "long": (10, 31.0)}),
    )
    for text, (tokens, loss) in texts.items()
]


def losses_of(records: list[dict[str, object]]) -> list[TextLoss]:
    return [TextLoss.model_validate(record) for record in records]


def answers_of(records: list[dict[str, object]]) -> list[Answer]:
    return [Answer.model_validate(record) for record in records]


def test_shares_are_means_over_seeds() -> None:
    base, ours, _ = accuracies(answers_of(compared()))
    assert (ours.overall, ours.by_digits) == ((2.5, 4), {1: (2, 2), 3: (0.5, 2)})
    assert ours.by_seed == ((3, 4), (2, 4)) and base.by_seed == ((1, 4),)
    # Of problems, not of answers: a second seed doesn't narrow it. Rounded outward between 2 and 3 of 4.
    estimate = ours.overall.estimate
    assert estimate == (0.625, wilson_interval(2, 4)[0], wilson_interval(3, 4)[1])
    assert base.overall.estimate == (0.25, *wilson_interval(1, 4))


def test_differences_pair_the_problems() -> None:
    # Another order of the records is the same comparison.
    for records in (compared(), compared()[::-1]):
        ours = next(row for row in differences(answers_of(records), "base") if row.run == "ours")
        assert ours.overall.value == 0.375
        assert {digits: found.value for digits, found in ours.by_digits.items()} == {1: 0.5, 3: 0.25}
    ours, other = differences(answers_of(compared()), "base")
    assert (ours.run, other.run) == ("ours", "other")
    assert ours.overall == pytest.approx(
        paired_bootstrap(np.array(SCORES["ours"]).T, np.array(SCORES["base"]).T), abs=1e-12
    )
    assert ours.overall.p < 0.5 < other.overall.p


def test_the_best_of_a_column_is_bold() -> None:
    table = accuracy_cells(accuracies(answers_of(compared())))
    assert [[cell.bold for cell in row[2:]] for row in table.rows] == [
        [False, False, False],
        [True, True, True],
        [False, False, False],
    ]
    tied = [record | {"correct": True} for record in compared()]
    assert not any(cell.bold for row in accuracy_cells(accuracies(answers_of(tied))).rows for cell in row)


def judged() -> list[dict[str, object]]:
    """The same scores on GSM8K; MMLU only of `base`."""
    answers: list[dict[str, object]] = [
        {"run": run, "seed": seed, "task": "gsm8k", "id": i, "prompt_hash": f"{i}", "correct": bool(solved)}
        for run, seeds in SCORES.items()
        for seed, scores in enumerate(seeds)
        for i, solved in enumerate(scores)
    ]
    return [*answers, {**answers[0], "task": "mmlu", "group": "STEM"}]


def test_benchmarks_are_means_over_seeds_and_the_best_is_bold() -> None:
    table = benchmark_cells(benchmark_scores(as_records(judged(), BenchmarkAnswer)))
    assert table.header == ("Run", "GSM8K", "MMLU")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["base", "25.0%", "100.0%"],
        ["ours", "62.5%", "–"],
        ["other", "0.0%", "–"],
    ]
    assert [[cell.bold for cell in row[1:]] for row in table.rows] == [[False, False], [True, False], [False, False]]
    assert table.rows[1][1].details[-1] == "n = 4 × 2 seeds"
    with pytest.raises(InputError, match="run 'other': its seeds 0, 1 were not asked the same problems"):
        benchmark_scores(as_records(judged()[:-2], BenchmarkAnswer))
    markdown = comparison_markdown([], [], [], judged()[:-1], "base")
    assert "| ours | **62.5%** (" in markdown and "| GSM8K | all | +37.5 (" in markdown


def test_gate_shares_go_from_the_greatest_to_the_least() -> None:
    def text(source: str, group: str | None, *injected: bool) -> dict[str, object]:
        return {"source": source, "group": group, "numbers": [{"injected": each} for each in injected]}

    texts = [
        text("b", "closed", False),
        text("b", "empty"),
        text("b", "half", True, False),
        text("a", "only", True),
        text("b", "open", True, True),
        text("b", "half", False, False, False, True),
    ]
    shares = gate_shares(as_records(texts, GatedText))
    assert [(share.source, share.group, share.texts) for share in shares] == [
        ("b", None, 5),
        ("b", "open", 1),
        ("b", "half", 2),
        ("b", "closed", 1),
        ("b", "empty", 1),
        ("a", None, 1),
    ]
    whole, half = shares[0], shares[2]
    assert (whole.numbers["right"], whole.numbers["total"], whole.texts_open["right"], whole.texts_open["total"]) == (
        4,
        9,
        3,
        4,
    )
    # Two texts with 1 of 2 and 1 of 4: resamples of whole texts reach no further than either's share.
    assert (half.numbers["share"], half.numbers["low"], half.numbers["high"]) == (2 / 6, 0.25, 0.5)
    assert shares[4].numbers["share"] is None


def test_comparison_in_terminal_and_markdown() -> None:
    decisions = [
        {"run": run, "seed": seed, "role": role, "alpha": alpha, "injected": alpha > 0.5}
        for run, seed, shift in (("ours", 0, 0.0), ("ours", 1, 0.4), ("other", 0, 0.0), ("other", 1, 0.0))
        for role, alpha in (("nominal", 0.2 + shift), ("quantitative", 0.4 + shift))
    ]
    terminal = "".join(shown(table) for table in comparison_tables(compared(), decisions, LOSSES, baseline="base"))
    markdown = comparison_markdown(compared(), decisions, LOSSES, baseline="base")
    for text in (
        "62.5%",
        "n = 4 × 2 seeds",
        "seeds 50.0–75.0",
        "+37.5",
        "p = 0.",
        "Quantitative open",
        "1.000",
        "18.34",
        "–20.09",
    ):
        assert text in terminal and text in markdown, text
    assert "| + | ours | **62.5%** (" in markdown
    assert "compared to base" in terminal
    assert "compared to" not in comparison_markdown(compared(), decisions, LOSSES)
    assert comparison_markdown([], decisions, []).count("| --- |") == 1
    page_bold = [cell for cell in markdown.split("|") if "**" in cell]
    assert len(page_bold) == 3


def test_gates_are_summarised_a_run_and_seed() -> None:
    # Each seed tells its roles apart perfectly, at another threshold: pooling them would hide it.
    decisions = [
        GateDecision(run="ours", seed=seed, role=role, alpha=alpha + 0.3 * seed, injected=alpha + 0.3 * seed > 0.5)
        for seed in (0, 1)
        for role, alpha in (("nominal", 0.2), ("nominal", 0.3), ("quantitative", 0.4))
    ]
    summary = gating_by_run(decisions)["ours"]
    assert summary.auc == 1.0
    assert gating(decisions).auc != 1.0
    assert summary.nominal_closed == (1.5, 2) and summary.quantitative_open == (0.5, 1)


def test_runs_that_were_asked_different_problems_are_refused() -> None:
    records = compared()
    with pytest.raises(InputError, match="run 'other': its seeds 0, 1 were not asked the same problems"):
        accuracy_table(records[:-1])
    with pytest.raises(InputError, match="runs 'ours' and 'base' were asked different problems"):
        comparison_tables(records[1:], [], [], baseline="base")
    with pytest.raises(InputError, match="lacks its prompt"):
        comparison_tables(
            [{key: record[key] for key in record if key != "prompt"} for record in records],
            [],
            [],
            baseline="base",
        )


def test_perplexity_weighs_tokens_and_pairs_texts() -> None:
    # Another order of the records is the same comparison, but for which text is drawn when.
    for records in (LOSSES, LOSSES[::-1]):
        found = {run: kinds["plain"] for run, kinds in perplexities(losses_of(records), "base").items()}
        base, ours, other = (found[run] for run in ("base", "ours", "other"))
        assert (base.texts, base.seeds, ours.texts, ours.seeds) == (2, 1, 2, 2)
        # Of two texts, a quarter of the resamples hold the first alone and a quarter the second: the interval's ends.
        assert base.value == pytest.approx(np.exp([32 / 11, 2, 3]))
        assert ours.value == pytest.approx(np.exp([31 / 11, 2, 2.9]))
        assert base.difference is None
        # The same resamples for both runs: 2 - 2 with the short text alone, 2.9 - 3 with the long one alone.
        assert ours.difference == pytest.approx((-1 / 11, -0.1, 0), abs=1e-12)
        # Each run has its own tokens: 36/12 - 32/11 with both texts, 2.5 - 2 and 3.1 - 3 with one alone.
        assert other.difference == pytest.approx((1 / 11, 1 / 11, 0.5), abs=1e-12)
    assert all(kinds["plain"].difference is None for kinds in perplexities(losses_of(LOSSES)).values())


def test_losses_on_different_texts_are_refused() -> None:
    with pytest.raises(InputError, match="run 'ours': its seeds 0, 1 were not asked the same problems"):
        perplexities(losses_of([record for record in LOSSES if record["loss"] != 2.5]))
    with pytest.raises(InputError, match="plain texts: runs 'other' and 'base' were given different ones"):
        perplexities(losses_of(LOSSES[:-1]), "base")
    with pytest.raises(InputError, match="plain texts: runs 'base' and 'gone' were given different ones"):
        perplexities(losses_of(LOSSES), "gone")


@pytest.mark.parametrize(
    ("right", "given", "kind"),
    [
        ("1298444902467", "1398444902467", "carries"),
        ("9", "0", "carries"),
        ("-190", "-217", "digits"),
        ("-190", "-280", "carries"),
        ("46", "48", "digits"),
        ("46", "57", "carries"),
        ("46", "58", "digits"),
        ("46", "460", "length"),
        ("-46", "146", "length"),
        ("46", None, "length"),
        ("46", "4.", "length"),
        ("100000", "1E+5", "length"),
    ],
)
def test_wrong_answers_are_sorted(right: str, given: str | None, kind: str) -> None:
    facts = {"run": "a", "operation": "+", "digits": 2, "answer": right, "prediction": given}
    answers = [Answer(**facts, correct=False), Answer(**{**facts, "prediction": right}, correct=True)]
    counts = {"carries": 0, "digits": 0, "length": 0, kind: 1}
    assert errors(answers) == [Errors("+", "a", 2, **counts)]
    records = [{**answer.model_dump(), "prompt": f"{answer.correct}"} for answer in answers]
    assert "50.0% (1 of 2)" in comparison_markdown(records, [], [])


def test_answers_without_the_right_one_have_no_kinds() -> None:
    assert errors([Answer(run="a", operation="+", digits=2, correct=False)]) == []
