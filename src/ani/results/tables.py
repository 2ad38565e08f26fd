"""Tables of plain text cells, written for the terminal and as Markdown."""

import re
from collections.abc import Iterable, Iterator
from math import ceil
from typing import Literal, NamedTuple

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from ani.results.statistics import Estimate

MISSING = "–"
WIDEST, NARROW = 10_000, 24
"""Characters: more than any terminal has, and of a row's name where the columns don't fit beside each other."""


class Cell(NamedTuple):
    """A table's cell: its text, lines of small print (an interval, a count) under it, and whether it is bold (the
    column's best)."""

    text: str
    details: tuple[str, ...] = ()
    bold: bool = False
    estimate: Estimate | float | None = None
    """Number in the text, for charts; a float has no interval."""


Chart = Literal["lines", "bars", "histogram"]
"""A chart of a table's estimates. `lines`: a line per row, over the whole numbers that begin the names of the other
columns; or, where whole numbers name the rows, a line per column over these. `bars`: a panel per column with a bar per
row. `histogram`: a group of bars per column with a bar per row."""


class Table(NamedTuple):
    """A table of plain text; the first `label_columns` cells of a row name it."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    label_columns: int
    chart: Chart | None = None
    """Chart in the report; None: the table alone."""


def percent(found: Estimate | None, *, counted: bool = True, leader: float | None = None) -> Cell:
    """Return a share such as "60.0%" above "44.0–74.0" and, if `counted`, "n = 100"; bold if it is the leader's."""
    if found is None:
        return Cell(MISSING)
    details = [f"{100 * found.low:.1f}–{100 * found.high:.1f}"]
    if counted:
        details.append(count(found))
    return Cell(f"{found.value:.1%}", tuple(details), found.value == leader, found)


def count(found: Estimate) -> str:
    """Return the number of cases and seeds of a mean."""
    return f"n = {found.cases}" if found.seeds == 1 else f"n = {found.cases} × {found.seeds} seeds"


def points(found: Estimate | None, corrected: float | None = None) -> Cell:
    """Return a difference of shares in percentage points, with its p if it has one, also `corrected`."""
    if found is None:
        return Cell(MISSING)
    value, low, high = (f"{100 * number:+.1f}" for number in found[:3])
    p = [] if found.p is None else [f"p = {found.p:.3f}"]
    p += [] if corrected is None else [f"Holm: {corrected:.3f}"]
    return Cell(value, (f"{low}…{high}", *p), estimate=found)


def inline(cell: Cell) -> Cell:
    """Return the cell with its details in brackets, for tables of many rows."""
    return cell._replace(text=f"{cell.text} ({', '.join(cell.details)})", details=())


def leader(shares: Iterable[Estimate | None]) -> float | None:
    """Return the highest of several shares; None if all are equal."""
    values = {share.value for share in shares if share is not None}
    return max(values) if len(values) > 1 else None


class Fitted(NamedTuple):
    """A table for the terminal, by rich; one that is too wide is cut into blocks of columns."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable]:
        labels, columns = self.table.label_columns, len(self.table.header)
        for narrow, count in ((False, 1), *((True, count) for count in range(1, columns - labels + 1))):
            most = ceil((columns - labels) / count)
            starts = range(labels, columns, most)
            blocks = [_block(self.table, range(start, min(start + most, columns)), narrow) for start in starts]
            needed = (Measurement.get(console, options.update(width=WIDEST), block).maximum for block in blocks)
            if max(needed) <= options.max_width:
                break
        yield from blocks


def _block(table: Table, columns: range, narrow: bool) -> RichTable:
    """Return the label columns, `narrow` or in full width, and some other columns; no text is cut off."""
    labels = range(table.label_columns)
    tall = len(table.rows) > 1 and any(cell.details for row in table.rows for cell in row)
    first = columns.start == table.label_columns
    rich = RichTable(title=table.caption if first else None, title_justify="left", show_lines=tall)
    for index in labels:
        rich.add_column(Text(table.header[index]), overflow="fold", max_width=NARROW if narrow else None)
    for index in columns:
        rich.add_column(Text(table.header[index]), overflow="fold", justify="right")
    for row in table.rows:
        cells = (row[index] for index in (*labels, *columns))
        # Text, not str: a run's name may look like rich's markup.
        rich.add_row(
            *(
                Text.assemble((text, "bold" * bold), *(f"\n{line}" for line in details))
                for text, details, bold, _ in cells
            )
        )
    return rich


def markdown(tables: Iterable[Table]) -> str:
    """Return tables in Markdown, each after its caption."""
    return "\n".join(f"{table.caption}:\n\n{_markdown(table)}" for table in tables)


def _markdown(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    def plain(cell: Cell) -> str:
        text = escaped(cell.text)
        if cell.bold:
            text = f"**{text}**"
        return f"{text} ({escaped(', '.join(cell.details))})" if cell.details else text

    def escaped(text: str) -> str:
        return re.sub(r"[\\|<&`*_[]", r"\\\g<0>", " ".join(text.split()))

    rules = ("---" if index < table.label_columns else "---:" for index in range(len(table.header)))
    return "\n".join([line(table.header), line(rules), *(line(map(plain, row)) for row in table.rows)]) + "\n"
