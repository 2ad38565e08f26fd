"""The report's table of measured values next to published ones."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ani.evaluation.task import Task
from ani.evaluation.tasks.arithmetic import Arithmetic, ArithmeticAnswer
from ani.evaluation.tasks.benchmarks import BenchmarkAnswer
from ani.evaluation.tasks.gsm8k import Gsm8k
from ani.evaluation.tasks.math import Math
from ani.evaluation.tasks.mmlu import Mmlu
from ani.results.scores import differences, scores
from ani.results.tables import MISSING, Cell, Table, percent, points

GAIN = " gain"
"""Ends the name of a column of differences to the baseline on part of MATH, such as `levels 4–5 gain`."""


def published_table(
    results: Mapping[type[Task], Sequence[Any]],
    published: Mapping[str, Mapping[str, float]],
    baseline: str | None = None,
) -> Table | None:
    """One row per run, one column per published value; None where none of them was measured. `published` is by run and
    column: a benchmark, a length of additions such as "12 digits" (percent), or a `GAIN` (percentage points)."""
    answers = [answer for task in (Math, Gsm8k, Mmlu, Arithmetic) for answer in results.get(task, ())]
    found = {
        (row.run, row.task): percent(row.overall, counted=False) for row in scores(answers, _column, lambda _: None)
    }
    if baseline is not None and Math in results:
        gains = differences(results[Math], baseline, _column, lambda answer: answer.part)
        found |= {(row.run, f"{part}{GAIN}"): points(gain) for row in gains for part, gain in row.parts.items()}
    measured = {column for _, column in found}
    columns = [column for column in dict.fromkeys(chain.from_iterable(published.values())) if column in measured]
    rows = tuple(
        (
            Cell(run),
            *(_with_published(found.get((run, name), Cell(MISSING)), name, published.get(run, {})) for name in columns),
        )
        for run in dict.fromkeys(run for run, _ in found)
    )
    header = ("Run", *(column.upper() if " " not in column else column for column in columns))
    caption = "Right answers, measured (with 95% intervals) and published"
    return Table(caption, header, rows, label_columns=1) if columns else None


def _column(answer: BenchmarkAnswer | ArithmeticAnswer) -> str | None:
    if isinstance(answer, BenchmarkAnswer):
        return answer.task
    return f"{answer.digits} digits" if (answer.operation, answer.form) == ("+", "plain") else None


def _with_published(cell: Cell, column: str, published: Mapping[str, float]) -> Cell:
    if column not in published:
        return cell
    value = published[column]
    shown = f"{value:+.1f}" if column.endswith(GAIN) else f"{value:.1f}%"
    return cell._replace(details=(*cell.details, f"published {shown}"))
