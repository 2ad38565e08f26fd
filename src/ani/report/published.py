"""The page's section that lays published values beside measured ones; knows nothing about whose they are."""

from collections.abc import Mapping, Sequence
from typing import Any

from ani.results.scores import scores
from ani.results.sections import Section
from ani.results.tables import Cell, Table, percent
from ani.tasks.arithmetic import Arithmetic, ArithmeticAnswer
from ani.tasks.benchmarks import BenchmarkAnswer, Gsm8k, Math, Mmlu
from ani.tasks.task import Task

NOTE = "The published value stands beneath each measured one. Intervals are of the measured ones."


def published_section(
    results: Mapping[type[Task], Sequence[Any]], published: Mapping[str, Mapping[str, float]]
) -> Section | None:
    """One row a run, one column a published value; None where none of them was measured.

    Args:
        results: Of a comparison.
        published: Run: column (a benchmark, or digits of additions such as "12 digits"): percent.
    """
    answers = [answer for task in (Math, Gsm8k, Mmlu, Arithmetic) for answer in results.get(task, ())]
    shares = {(row.run, row.task): row.overall for row in scores(answers, _column, lambda _: None)}
    columns = [
        column
        for column in dict.fromkeys(column for values in published.values() for column in values)
        if any(known == column for _, known in shares)
    ]
    if not columns:
        return None
    rows = []
    for run in dict.fromkeys(run for run, _ in shares):
        cells = [percent(shares.get((run, column)), counted=False) for column in columns]
        told = [published.get(run, {}).get(column) for column in columns]
        rows.append((Cell(run), *map(_with_published, cells, told)))
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


def _with_published(cell: Cell, value: float | None) -> Cell:
    return cell if value is None else cell._replace(details=(*cell.details, f"published {value:.1f}%"))
