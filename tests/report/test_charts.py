"""The charts of tables: their points, and their texts."""

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import pytest

from ani.report import charts
from ani.results.statistics import Estimate
from ani.results.tables import Cell, Table


def share(value: float) -> Cell:
    return Cell(f"{value:.0%}", estimate=Estimate(value, value / 2, (1 + value) / 2, 10))


def table(chart: Any, header: Sequence[str], *rows: Sequence[Any], labels: int = 1) -> Table:
    """A table whose numbers are shares."""
    cells = [[Cell(cell) if isinstance(cell, str) else share(cell) for cell in row] for row in rows]
    return Table("Caption & more", tuple(header), tuple(map(tuple, cells)), labels, chart)


HEADER = ("Operation", "Run", "All", "2 digits", "12 digits")
RUNS = (("+", "sft", 0.4, 0.5, 0.3), ("+", "ani", 0.5, 0.75, "–"))
OPERATIONS = (("+", "model", 0.4, 0.5, 0.3), ("-", "model", 0.5, 0.75, 0.25))
LAYERS = (("0", 0.5, ""), ("9", 0.75, "chosen"))
ROLES = (("nominal", 0.75, 0.25), ("quantitative", 0.0, 1.0))


@pytest.mark.parametrize(
    ("shown", "panels"),
    [
        (table("lines", HEADER, *RUNS, labels=2), {"+": {"sft": {2: 0.5, 12: 0.3}, "ani": {2: 0.75}}}),
        (table("lines", HEADER, *OPERATIONS, labels=2), {"": {"+": {2: 0.5, 12: 0.3}, "-": {2: 0.75, 12: 0.25}}}),
        (table("lines", ("Layer", "Held out", "Mark"), *LAYERS), {"": {"Held out": {0: 0.5, 9: 0.75}}}),
        (
            table("bars", ("Run", "GSM8K", "MATH"), ("sft", 0.25, 0.5), ("ani", "–", 0.75)),
            {"GSM8K": {"": {"sft": 0.25}}, "MATH": {"": {"sft": 0.5, "ani": 0.75}}},
        ),
        (
            table("histogram", ("Role", "0–0.5", "0.5–1"), *ROLES),
            {"": {"nominal": {"0–0.5": 0.75, "0.5–1": 0.25}, "quantitative": {"0–0.5": 0.0, "0.5–1": 1.0}}},
        ),
    ],
)
def test_the_chart_of_a_table(shown: Table, panels: Any) -> None:
    read = charts.CHARTS[str(shown.chart)][0](shown)
    values = {title: {name: {x: each.value for x, each in of.items()} for name, of in series.items()}
              for title, series in read.items()}  # fmt: skip
    assert values == panels
    image = charts.chart(shown)
    assert image is not None and image.startswith(
        '<img alt="Chart: Caption &amp; more" src="data:image/svg+xml;base64,'
    )
    assert image == charts.chart(shown)  # byte by byte


@pytest.mark.filterwarnings("error")
def test_long_strange_and_single_names() -> None:
    for name in ("$\\frac$ 数", "<b>&", "_hidden", "x" * 99):
        image = charts.chart(table("bars", ("Run", "GSM8K"), (name, 1.0)))
        assert image is not None
        svg = b64decode(image.split("base64,")[1].split('"')[0]).decode()
        shortened = name if len(name) < 50 else "x" * 31 + "…"
        assert f">{shortened.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}</text>" in svg
    assert charts.chart(table("lines", ("Layer", "Held out"), ("3", 0.5))) is not None


def test_tables_without_a_chart() -> None:
    assert charts.chart(table(None, ("Run", "GSM8K"), ("ani", 1.0))) is None
    for kind in ("lines", "bars"):
        assert charts.chart(table(kind, ("Run", "1 digit"), ("ani", "–"))) is None
