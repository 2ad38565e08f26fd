"""The report's tables, once as plain text cells, and from those for the terminal and for Markdown.

Knows nothing about files or HTML.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table as RichTable
from rich.text import Text

from ani.report.records import Answer, GateDecision, as_records
from ani.report.summaries import Accuracy, Estimate, Gating, Share, accuracies, gating

MISSING = "–"


class Cell(NamedTuple):
    """A table's cell: what it says, and lines of small print (an interval, a count) beneath."""

    text: str
    details: tuple[str, ...] = ()


class Table(NamedTuple):
    """A table of plain text; the first `label_columns` cells of a row name it."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    label_columns: int


def percent(estimate: Estimate) -> Cell:
    """`Estimate(0.6, 0.44, 0.74)` as "60.0%" above "44.0–74.0"."""
    return Cell(f"{estimate.value:.1%}", (f"{100 * estimate.low:.1f}–{100 * estimate.high:.1f}",))


def _counted(estimate: Estimate, total: int) -> Cell:
    text, details = percent(estimate)
    return Cell(text, (*details, f"n = {total}"))


def _share(share: Share | None) -> Cell:
    return Cell(MISSING) if share is None else _counted(share.estimate, share.total)


def accuracy_cells(rows: Sequence[Accuracy]) -> Table:
    """One row an operation and run, one column a digit count, and all of them together."""
    digits = sorted({digit for row in rows for digit in row.by_digits})
    return Table(
        "Exact answers by number of digits, with Wilson 95% intervals",
        ("Operation", "Run", *(f"{d} digit{'s' if d > 1 else ''}" for d in digits), "All"),
        tuple(
            (
                Cell(row.operation),
                Cell(row.run),
                *(_share(row.by_digits.get(digit)) for digit in digits),
                _share(row.overall),
            )
            for row in rows
        ),
        label_columns=2,
    )


def gating_cells(summary: Gating) -> Table:
    """One row a measure: both shares, balanced accuracy, AUC."""
    numbers = sum(share.total for share in summary[:2] if isinstance(share, Share))
    rows = [
        ("Nominal numbers left alone (gate closed)", _share(summary.nominal_closed)),
        ("Quantitative numbers injected (gate open)", _share(summary.quantitative_open)),
    ]
    balanced = summary.balanced_accuracy
    if balanced is not None:
        rows.append(("Balanced accuracy", _counted(balanced, numbers)))
    if summary.auc is not None:
        rows.append(("AUC of α", Cell(f"{summary.auc:.3f}", (f"n = {numbers}",))))
    return Table(
        "How well the gate tells the roles apart, with 95% intervals",
        ("Measure", "Value"),
        tuple((Cell(name), value) for name, value in rows),
        label_columns=1,
    )


def gating_domain_cells(summaries: Mapping[str, Gating]) -> Table:
    """One row a domain."""
    return Table(
        "The gate by domain, with Wilson 95% intervals",
        ("Domain", "Nominal closed", "Quantitative open"),
        tuple(
            (Cell(domain), _share(summary.nominal_closed), _share(summary.quantitative_open))
            for domain, summary in summaries.items()
        ),
        label_columns=1,
    )


def _rich(table: Table) -> RichTable:
    rich = RichTable(title=table.caption, title_justify="left", show_lines=len(table.rows) > 1)
    for index, name in enumerate(table.header):
        rich.add_column(Text(name), justify="left" if index < table.label_columns else "right")
    for row in table.rows:
        # Text, not str: a run's name may look like rich's markup.
        rich.add_row(*(Text("\n".join((cell.text, *cell.details))) for cell in row))
    return rich


def _markdown(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    def plain(cell: Cell) -> str:
        text = f"{cell.text} ({', '.join(cell.details)})" if cell.details else cell.text
        text = " ".join(text.split())
        for character in "\\|<&`*_[":
            text = text.replace(character, "\\" + character)
        return text

    rules = ("---" if index < table.label_columns else "---:" for index in range(len(table.header)))
    return "\n".join([line(table.header), line(rules), *(line(map(plain, row)) for row in table.rows)]) + "\n"


def accuracy_table(records: Iterable[Mapping[str, Any]]) -> RichTable:
    """Accuracy by run and digits for the terminal.

    Args:
        records: as in `arithmetic.jsonl`: run, operation, digits, correct, and more that is not shown.

    Raises:
        InputError: a record lacks a key or holds a wrong type.
    """
    return _rich(accuracy_cells(accuracies(as_records(records, Answer))))


def accuracy_markdown(records: Iterable[Mapping[str, Any]]) -> str:
    """The same table in Markdown."""
    return _markdown(accuracy_cells(accuracies(as_records(records, Answer))))


def gating_table(records: Iterable[Mapping[str, Any]]) -> RichTable:
    """How well the gate tells roles apart, for the terminal.

    Args:
        records: as in `gating.jsonl`: role, alpha, injected, and more that is not shown.

    Raises:
        InputError: a record lacks a key or holds a wrong type.
    """
    return _rich(gating_cells(gating(as_records(records, GateDecision))))


def gating_markdown(records: Iterable[Mapping[str, Any]]) -> str:
    """The same table in Markdown."""
    return _markdown(gating_cells(gating(as_records(records, GateDecision))))
