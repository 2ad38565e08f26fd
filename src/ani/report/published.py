"""The page's section that lays published values beside measured ones."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ani.evaluation.task import Task
from ani.evaluation.tasks.arithmetic import Arithmetic, ArithmeticAnswer
from ani.evaluation.tasks.benchmarks import BenchmarkAnswer, Gsm8k, Math, Mmlu
from ani.results.scores import differences, scores
from ani.results.sections import Section
from ani.results.tables import MISSING, Cell, Table, percent, points

NOTE = "The published value stands beneath each measured one. Intervals are of the measured ones."
GAIN = " gain"
"""Ends a column of differences to the baseline, of the questions that it begins with: `levels 4–5 gain`, of MATH."""


def published_section(
    results: Mapping[type[Task], Sequence[Any]],
    published: Mapping[str, Mapping[str, float]],
    baseline: str | None = None,
) -> Section | None:
    """One row a run, one column a published value; None where none of them was measured. `published` has, by run, a
    column (a benchmark, digits of additions such as "12 digits", or a `GAIN` over the baseline): percent, or points."""
    answers = [answer for task in (Math, Gsm8k, Mmlu, Arithmetic) for answer in results.get(task, ())]
    found = {
        (row.run, row.task): percent(row.overall, counted=False) for row in scores(answers, _column, lambda _: None)
    }
    if baseline is not None and Math in results:
        gains = differences(results[Math], baseline, _column, lambda answer: answer.part)
        found |= {(row.run, f"{part}{GAIN}"): points(gain) for row in gains for part, gain in row.parts.items()}
    measured = {column for _, column in found}
    columns = [column for column in dict.fromkeys(chain.from_iterable(published.values())) if column in measured]
    if not columns:
        return None
    rows = []
    for run in dict.fromkeys(run for run, _ in found):
        cells = [found.get((run, column), Cell(MISSING)) for column in columns]
        told = [published.get(run, {}).get(column) for column in columns]
        rows.append((Cell(run), *map(_with_published, cells, columns, told)))
    table = Table(
        "Right answers, measured (with 95% intervals) and published",
        ("Run", *(column.upper() if " " not in column else column for column in columns)),
        tuple(rows),
        label_columns=1,
    )
    return Section("published", "Beside the published values", (NOTE,), tables=(table,))


def _column(answer: BenchmarkAnswer | ArithmeticAnswer) -> str | None:
    if isinstance(answer, BenchmarkAnswer):
        return answer.task
    return f"{answer.digits} digits" if answer.operation == "+" else None


def _with_published(cell: Cell, column: str, value: float | None) -> Cell:
    if value is None:
        return cell
    shown = f"{value:+.1f}" if column.endswith(GAIN) else f"{value:.1f}%"
    return cell._replace(details=(*cell.details, f"published {shown}"))
