"""The charts of tables: their texts, and their points in Matplotlib."""

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import pytest
from matplotlib.axes import Axes

from ani.report import charts
from ani.results.statistics import Estimate
from ani.results.tables import Cell, Table


def share(value: float) -> Cell:
    return Cell(f"{value:.0%}", estimate=Estimate(value, value / 2, (1 + value) / 2, 10))


def table(chart: Any, header: Sequence[str], *rows: Sequence[Any], labels: int = 1) -> Table:
    """A table whose numbers are shares."""
    cells = [[Cell(cell) if isinstance(cell, str) else share(cell) for cell in row] for row in rows]
    return Table("Caption & more", tuple(header), tuple(map(tuple, cells)), labels, chart)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The names of the lines and bars that Matplotlib draws, and their numbers."""
    found: list[tuple[str, Any]] = []
    errorbar, barh, bar = Axes.errorbar, Axes.barh, Axes.bar

    def draw_line(axes: Axes, xs: Any, ys: Any, **more: Any) -> Any:
        if more["label"] != "_nolegend_":  # not the intervals of bars
            found.append((f"{axes.get_title(loc='left')}:{more['label']}", dict(zip(xs, ys, strict=True))))
        return errorbar(axes, xs, ys, **more)

    def draw_bars(axes: Axes, places: Any, values: Any, **more: Any) -> Any:
        found.append((axes.get_title(loc="left"), values))
        return barh(axes, places, values, **more)

    def draw_histogram(axes: Axes, *places_and_values: Any, **more: Any) -> Any:
        if places_and_values:  # not those of barh
            found.append((more["label"], places_and_values[1]))
        return bar(axes, *places_and_values, **more)

    monkeypatch.setattr(Axes, "errorbar", draw_line)
    monkeypatch.setattr(Axes, "barh", draw_bars)
    monkeypatch.setattr(Axes, "bar", draw_histogram)
    return found


HEADER = ("Operation", "Run", "All", "2 digits", "12 digits")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (
            table("lines", HEADER, ("+", "sft", 0.4, 0.5, 0.3), ("+", "ani", 0.5, 0.75, "–"), labels=2),
            [("+:sft", {2: 0.5, 12: 0.3}), ("+:ani", {2: 0.75})],
        ),
        (
            table("lines", HEADER, ("+", "model", 0.4, 0.5, 0.3), ("-", "model", 0.5, 0.75, 0.25), labels=2),
            [(":+", {2: 0.5, 12: 0.3}), (":-", {2: 0.75, 12: 0.25})],
        ),
        (
            table("lines", ("Layer", "Held out", "Mark"), ("0", 0.5, ""), ("9", 0.75, "chosen")),
            [(":Held out", {0: 0.5, 9: 0.75})],
        ),
        (
            table("bars", ("Run", "GSM8K", "MATH"), ("sft", 0.25, 0.5), ("ani", "–", 0.75)),
            [("GSM8K", [0.25]), ("MATH", [0.5, 0.75])],
        ),
        (
            table("histogram", ("Role", "0–0.5", "0.5–1"), ("nominal", 0.75, 0.25), ("quantitative", 0.0, 1.0)),
            [("nominal", [0.75, 0.25]), ("quantitative", [0.0, 1.0])],
        ),
    ],
)
def test_the_chart_of_a_table(shown: Table, expected: list[Any], drawn: list[tuple[str, Any]]) -> None:
    image = charts.chart(shown)
    assert drawn == expected
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
