"""What a part of the report's page holds, as data: notes, charts, tables; knows nothing about HTML or drawing."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
    value, details, _ = percent(found, counted=counted)
    return Headline(name, value, ", ".join(details))


class Curves(NamedTuple):
    """Shares over a whole number, such as digits, with their intervals; a line a run."""

    label: str
    """Of the axis."""
    description: str
    """What is drawn, in words."""
    runs: Mapping[str, Mapping[int, Estimate]]
    baseline: str | None = None


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
    chart: Any
    """`Curves`, `Bars` or `Histogram`, or another one that `ani.report.figures.draw` knows."""


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
