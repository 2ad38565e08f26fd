"""Cells and tables, on the terminal and in Markdown."""

from collections.abc import Iterable, Iterator
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from ani.evaluation.tasks.arithmetic import Arithmetic, ArithmeticAnswer
from ani.evaluation.tasks.benchmarks import Benchmark, BenchmarkAnswer
from ani.evaluation.tasks.gates import Gates
from ani.evaluation.tasks.language import Language
from ani.results.statistics import Estimate
from ani.results.tables import Cell, Fitted, Table, inline, leader, markdown, percent, points
from tests.evaluation.test_summaries import LOSSES, gated
from tests.results.test_scores import SOLVED


def shown(tables: Iterable[Table], width: int = 200) -> str:
    stream = StringIO()
    for table in tables:
        Console(width=width, file=stream).print(Fitted(table))
    return stream.getvalue()


def runs() -> Iterator[tuple[dict[str, Any], int, int]]:
    """Run and seed, problem, and whether it was solved."""
    for run, seeds in SOLVED.items():
        for seed, answers in enumerate(seeds):
            yield from (({"run": run, "seed": seed}, i, right) for i, right in enumerate(answers))


def table(*rows: tuple[Cell, ...]) -> Table:
    return Table("A [b]caption[/b]", ("Run", "Value"), rows, label_columns=1)


def test_cells() -> None:
    share = Estimate(0.6, 0.44, 0.74, cases=40)
    assert percent(share) == Cell("60.0%", ("44.0–74.0", "n = 40"), estimate=share)
    assert percent(share._replace(seeds=2), leader=0.6)[:3] == ("60.0%", ("44.0–74.0", "n = 40 × 2 seeds"), True)
    assert percent(share, counted=False).details == ("44.0–74.0",)
    difference = Estimate(0.375, -0.125, 0.5, cases=40, p=0.0049)
    assert points(difference) == Cell("+37.5", ("-12.5…+50.0", "p = 0.005"), estimate=difference)
    assert points(difference._replace(p=None)).details == ("-12.5…+50.0",)
    assert percent(None) == points(None) == Cell("–")
    assert inline(percent(share))[:2] == ("60.0% (44.0–74.0, n = 40)", ())
    assert leader([share, None, difference]) == 0.6
    assert leader([share, share]) is None  # no best among equals


def test_the_terminal_shows_labels_as_they_are() -> None:
    text = shown([table((Cell("[red]x[/red]"), Cell("1", ("small",))), (Cell("y"), Cell("2")))])
    assert "[red]x[/red]" in text and "small" in text


def test_markdown_escapes_what_would_break_the_table() -> None:
    lines = markdown([table((Cell("a|b\n<i>*"), Cell("0.0%", ("n = 1",), bold=True)))]).splitlines()
    assert lines[0] == "A [b]caption[/b]:" and len(lines) == 5
    assert lines[3] == "| --- | ---: |"
    assert lines[4] == r"| a\|b \<i>\* | **0.0%** (n = 1) |"


def additions() -> list[ArithmeticAnswer]:
    sums = {"operation": "+", "prediction": "1", "answer": "1", "output": "1"}
    return [
        ArithmeticAnswer(**sums, **each, digits=1 + i // 2 * 2, prompt=f"{i}", correct=bool(right))
        for each, i, right in runs()
    ]


def test_the_best_of_a_column_is_bold() -> None:
    found, _ = Arithmetic.tables(additions())
    assert found.header == ("Operation", "Run", "All", "1 digit", "3 digits")
    assert [[cell.bold for cell in row[2:]] for row in found.rows] == [[False] * 3, [True] * 3, [False] * 3]
    tied, _ = Arithmetic.tables([answer.model_copy(update={"correct": True}) for answer in additions()])
    assert not any(cell.bold for row in tied.rows for cell in row)


def test_a_comparison_on_the_terminal_and_in_markdown() -> None:
    decisions = [
        decided
        for run, seed, shift in (("ours", 0, 0.0), ("ours", 1, 0.4))
        for decided in gated(
            *((role, alpha + shift, alpha + shift > 0.5) for role, alpha in (("nominal", 0.2), ("quantitative", 0.4))),
            run=run,
            seed=seed,
        )
    ]
    tables = [*Arithmetic.tables(additions(), "base"), *Gates.tables(decisions), *Language.tables(LOSSES, "base")]
    terminal, text = shown(tables), markdown(tables)
    for part in ("62.5%", "n = 4 × 2 seeds", "seeds 50.0–75.0", "+37.5", "p = 0.", "1.000", "18.34", "–20.09"):
        assert part in terminal and part in text, part
    assert "| + | ours | **62.5%** (" in text
    assert len([cell for cell in text.split("|") if "**" in cell]) == 3


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_a_wide_table_is_cut_into_blocks_and_loses_no_word(width: int) -> None:
    header = ("Operation", "Run", "All", *(f"{digits} digits" for digits in range(2, 13)))
    share = percent(Estimate(0.24, 0.143, 0.374, cases=50))
    rows = tuple((Cell("addition"), Cell(name), *[share] * 12) for name in ("reference", "runs/a/folder/of/long/name"))
    text = shown([Table("Exact answers", header, rows, label_columns=2)], width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("24.0%") == text.count("14.3–37.4") == 24  # no share twice, none broken
    assert text.count("Exact answers") == 1
    assert all(text.count(f" {name} ┃") == 1 for name in header[2:])
    assert (text.count("addition") == 2) == (width == 300)


def judged() -> list[BenchmarkAnswer]:
    """Make answers of two runs with equal scores on GSM8K; only `base` has answered MMLU."""
    answers = [
        BenchmarkAnswer(**each, task="gsm8k", id=i, prompt_hash=f"{i}", correct=bool(right))
        for each, i, right in runs()
    ]
    return [*answers, answers[0].model_copy(update={"task": "mmlu", "group": "STEM"})]


def test_benchmarks_are_means_over_seeds_and_the_best_is_bold() -> None:
    found = Benchmark.tables(judged())[0]
    assert found.header == ("Benchmark", "Run", "All", "STEM")
    shares = [["base", "25.0%", "–"], ["ours", "62.5%", "–"], ["other", "0.0%", "–"], ["base", "100.0%", "100.0%"]]
    assert [[cell.text for cell in row[1:]] for row in found.rows] == shares
    assert [row[2].bold for row in found.rows] == [False, True, False, False]
    assert "| GSM8K | ours | +37.5 (" in markdown(Benchmark.tables(judged()[:-1], "base"))
