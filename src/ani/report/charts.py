"""Matplotlib charts of a table's cells: lines, bars and histogram."""

import re
import warnings
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from math import isfinite, nan
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ani.results.statistics import Estimate
from ani.results.tables import Cell, Table

NAME_LENGTH = 32
"""Maximum number of characters of a name in a chart; the table has the whole name."""
MARKERS = "os^Dvp"
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "errorbar.capsize": 2.5,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 9,
    "grid.linewidth": 0.4,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text, not outlines: a page of twenty charts remains small
    "svg.hashsalt": "ani",  # equal charts have equal bytes
    "text.parse_math": False,  # a name may contain a dollar sign
}
Number = Estimate | float
Panels = Mapping[str, Mapping[str, Mapping[Any, Number]]]
"""Panel title → series name (a line, or bars of one colour) → x (a whole number, or a bar's name) → y."""


def chart(table: Table) -> Markup | None:
    """Draw a table's chart as an HTML image with the table's caption as its alternative text; None where the table has
    no chart, or no cell with an estimate."""
    if table.chart is None:
        return None
    read, draw = CHARTS[table.chart]
    panels = read(table)
    if not panels:
        return None
    share = all("%" in cell.text for row in table.rows for cell in row if cell.estimate is not None)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's browser has it
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        bars = max(len(points) for series in panels.values() for points in series.values())
        height = 0.8 + 0.22 * bars if table.chart == "bars" else 2.6
        figure = Figure(figsize=(5.6 if columns == 1 else 4.8 * columns, height * rows))
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, (title, series) in zip(grid, panels.items(), strict=False):
            axes.set_title(_short(title))
            draw(axes, series)
            if table.chart == "lines":
                axes.set_xlabel(_x_label(table))
            if share:
                by_x = table.chart == "bars"
                (axes.xaxis if by_x else axes.yaxis).set_major_formatter(PercentFormatter(xmax=1, decimals=0))
                (axes.set_xlim if by_x else axes.set_ylim)(-0.03 if table.chart == "lines" else 0, 1.03)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        stream = BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    data = b64encode(stream.getvalue()).decode()
    return Markup('<img alt="Chart: {}" src="data:image/svg+xml;base64,{}">').format(table.caption, data)


def _lines(table: Table) -> Panels:
    """A line per column where whole numbers name the rows; else a line per row, with the lines that have the same first
    labels in a panel."""
    count, found = table.label_columns, dict[str, dict[str, dict[int, Number]]]()
    one_run = len({row[count - 1].text for row in table.rows}) == 1
    for row in table.rows:
        *first, last = (cell.text for cell in row[:count])
        for name, cell in zip(table.header[count:], row[count:], strict=True):
            if _numbers_name_rows(table):
                x, panel, line = _number(last), "", name
            elif one_run:
                x, panel, line = _number(name), "", ", ".join(first) or last
            else:
                x, panel, line = _number(name), ", ".join(first), last
            if x is not None and cell.estimate is not None:
                found.setdefault(panel, {}).setdefault(line, {})[x] = cell.estimate
    return found


def _bars(table: Table) -> Panels:
    found = {}
    for place in range(table.label_columns, len(table.header)):
        if bars := {_name(table, row): each for row in table.rows if (each := row[place].estimate) is not None}:
            found[table.header[place]] = {"": bars}
    return found


def _histogram(table: Table) -> Panels:
    bins = table.header[table.label_columns :]
    found = {_name(table, row): [cell.estimate or 0.0 for cell in row[table.label_columns :]] for row in table.rows}
    return {"": {name: dict(zip(bins, shares, strict=True)) for name, shares in found.items()}} if found else {}


def _draw_lines(axes: Axes, series: Mapping[str, Mapping[Any, Number]]) -> None:
    for index, (name, points) in enumerate(series.items()):
        ys, bars = _values([*points.values()])
        marker = MARKERS[index % len(MARKERS)]
        axes.errorbar([*points], ys, yerr=bars, label=_short(name), elinewidth=0.8, marker=marker, markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.legend()


def _draw_bars(axes: Axes, series: Mapping[str, Mapping[Any, Number]]) -> None:
    (bars,) = series.values()
    values, errors = _values([*bars.values()])
    axes.barh(range(len(bars)), values, xerr=errors, height=0.6)
    axes.set_yticks(range(len(bars)), [_short(name) for name in bars])
    axes.invert_yaxis()


def _draw_histogram(axes: Axes, series: Mapping[str, Mapping[Any, Number]]) -> None:
    width = 0.8 / len(series)
    for index, (name, bins) in enumerate(series.items()):
        places = [place - 0.4 + (index + 0.5) * width for place in range(len(bins))]
        axes.bar(places, _values([*bins.values()])[0], width=width, label=_short(name))
        axes.set_xticks(range(len(bins)), [*bins], rotation=45)
    axes.legend()


CHARTS: Mapping[str, tuple[Callable[[Table], Panels], Callable[[Axes, Any], None]]] = {
    "lines": (_lines, _draw_lines),
    "bars": (_bars, _draw_bars),
    "histogram": (_histogram, _draw_histogram),
}
"""The reader of a table's panels and the drawer of a panel, by the kind of chart."""


def _values(numbers: Sequence[Number]) -> tuple[list[float], list[tuple[float, ...]]]:
    """The values, and the lengths of their error bars down and up (0 for a number without an interval)."""
    found = [each if isinstance(each, Estimate) else Estimate(each, each, each, 1) for each in numbers]
    values = [each.value if isfinite(each.value) else nan for each in found]
    # At 0% and 100% rounding can put a limit inside the estimate.
    bars = [(max(0.0, each.value - each.low), max(0.0, each.high - each.value)) for each in found]
    return values, list(zip(*bars, strict=True))


def _numbers_name_rows(table: Table) -> bool:
    return all(_number(row[table.label_columns - 1].text) is not None for row in table.rows)


def _x_label(table: Table) -> str:
    name = table.header[table.label_columns - 1] if _numbers_name_rows(table) else table.header[-1]
    return name.lstrip("0123456789 ").lower()


def _number(text: str) -> int | None:
    """The whole number that begins a text, such as 4 of "4 digits"."""
    found = re.match(r"\d+\b", text)
    return None if found is None else int(found.group())


def _name(table: Table, row: Sequence[Cell]) -> str:
    return ", ".join(cell.text for cell in row[: table.label_columns])


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
