"""Data model of the report: sections, charts, tables."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ani.results.decisions import DecidedText
from ani.results.statistics import Estimate
from ani.results.tables import Table, percent


class Headline(NamedTuple):
    """A number to see first: what it is, the number, and its interval."""

    name: str
    value: str
    detail: str


def headline(name: str, found: Estimate, *, counted: bool = False) -> Headline:
    """Of a share; `counted`: with the number of cases."""
    value, details, *_ = percent(found, counted=counted)
    return Headline(name, value, ", ".join(details))


NEUTRAL, BASELINE, PALE = 4, 6, 7
"""Styles of lines: 0 to 5 are series (4: of what is no series), each with its own colour, marker and line; the other
two stand behind another line of a panel, and are not told in words."""
MOST_LINES = 6
"""Runs that one pair of axes can hold apart; more have a panel each."""


class Line(NamedTuple):
    """A quantity over another one; a single point is a mark."""

    name: str
    """In the legend; empty: what the panel's title says."""
    points: Sequence[tuple[int | Estimate, float | Estimate]]
    """(x, y); an estimate is drawn with its interval."""
    style: int = 0
    labels: Sequence[str] = ()
    """Of the points, which are then not joined."""


class Lines(NamedTuple):
    """Lines in panels, each under its title; a single one needs none."""

    description: str
    """What is drawn, in words."""
    x: str
    """Label of the axis."""
    panels: Mapping[str, Sequence[Line]]
    y: str = ""
    percent: bool = False
    """y is a share."""
    limits: tuple[float, float] | None = None
    """Of the y axis; None: of what is drawn."""


def shares_over(
    x: str, description: str, runs: Mapping[str, Mapping[int, Estimate]], baseline: str | None = None
) -> Lines:
    """Shares over a whole number, such as digits, a line a run; more than `MOST_LINES` runs have a panel each, before
    the others' lines and that of the baseline."""
    lines = {run: Line(run, list(points.items()), style) for style, (run, points) in enumerate(runs.items())}
    panels: dict[str, Sequence[Line]] = {"": list(lines.values())}
    if len(runs) > MOST_LINES:
        behind = {
            run: line._replace(style=BASELINE) if run == baseline else Line("the others", line.points, PALE)
            for run, line in lines.items()
        }
        panels = {
            run: [*(other for name, other in behind.items() if name != run), Line("", line.points)]
            for run, line in lines.items()
        }
    return Lines(description, x, panels, percent=True, limits=(0, 1))


class Bars(NamedTuple):
    """Shares with their intervals, a bar each."""

    description: str
    bars: Mapping[str, Estimate]


class Histogram(NamedTuple):
    """α of numbers by role."""

    alphas: Mapping[str, Sequence[float]]


class Figure(NamedTuple):
    """A chart under its heading."""

    title: str
    chart: Lines | Bars | Histogram


class Section(NamedTuple):
    """A part of the page. `folded` tables stand behind a click (and are open in print)."""

    anchor: str
    title: str
    notes: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()
    sentences: tuple[DecidedText, ...] = ()
    headlines: tuple[Headline, ...] = ()
