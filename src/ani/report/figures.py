"""The report's figures as SVG to be put into a page: drawn in the page's colours and type.

Knows nothing about files, tables or the page around them; of a user's text only names get into an SVG, as plain text.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from io import StringIO
from itertools import pairwise
from math import isfinite, nan
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ani.results.sections import Bars, Curves, Histogram
from ani.results.statistics import Estimate

# matplotlib writes hexadecimal colours; these stand for the page's CSS variables, which follow its light or
# dark mode, and are replaced in the finished SVG.
INK, RULE, PAPER = "#010203", "#040506", "#070809"
SERIES = tuple(f"#0a0b0{index}" for index in range(6))
CSS = {INK: "--ink-soft", RULE: "--rule", PAPER: "--paper"} | {
    colour: f"--series-{index}" for index, colour in enumerate(SERIES)
}
NEUTRAL = 4
"""The colour of what is no series."""
# Every series also has its own marker and line, so that colour is never the only difference.
MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"))
LINES = ("-", "--", "-", ":")

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titley": 1.0,  # or every label is measured, to keep a title off it
    "figure.facecolor": "none",
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "hatch.color": PAPER,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Key(NamedTuple):
    """A legend's entry: the marker as a character, the index of its colour, and its name."""

    marker: str
    colour: int
    name: str


class Drawing(NamedTuple):
    """A figure, what it shows in words, and its legend; a wide one has a row to itself."""

    figure: Figure
    title: str
    said: Sequence[str]
    legend: Sequence[Key] = ()
    wide: bool = False


class Chart(NamedTuple):
    """A drawing as the page takes it."""

    svg: Markup
    description: str
    """Its text alternative."""
    legend: Sequence[Key]
    wide: bool


class Line(NamedTuple):
    """A quantity over steps, and the index of its colour, marker and line: a role looks the same in every figure."""

    name: str
    points: Sequence[tuple[int, float]]
    style: int


class Lines(NamedTuple):
    """Quantities over steps in one pair of axes."""

    description: str
    lines: Sequence[Line]
    shares: bool = False
    """The axis is that of shares."""


class Panels(NamedTuple):
    """Small multiples, each with its title."""

    description: str
    panels: Mapping[str, Sequence[Line]]


def draw(what: Any, name: str) -> Chart:
    """Draw what a section's figure holds; `name` makes its identifiers unique in a page."""
    with matplotlib.rc_context(STYLE):
        figure, title, said, legend, wide = drawing(what)
        return Chart(_as_svg(figure, name), f"{title}. {'; '.join(said)}.", legend, wide)


@singledispatch
def drawing(what: Any) -> Drawing:
    """How a kind of figure is drawn, in the page's style."""
    raise TypeError(f"{type(what).__name__} is no chart")


def legend_key(index: int, name: str) -> Key:
    """The entry of a series."""
    return Key(MARKERS[index % len(MARKERS)][1], index % len(SERIES), name)


def _as_svg(figure: Figure, name: str) -> Markup:
    """The SVG element alone, its identifiers unique in a page by `name`, scaling with its container."""
    stream = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the page's reader has it
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", metadata=metadata)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = (
        re.sub(r' (?:xmlns(?::xlink)?|width|height|version)="[^"]*"', "", svg[: svg.index(">")]) + svg[svg.index(">") :]
    )
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, variable in CSS.items():
        svg = svg.replace(colour, f"var({variable})")
    return Markup(svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1))


TITLE = 0.26
"""A panel's title takes so many inches."""


def new_figure(
    panels: int = 1,
    columns: int = 1,
    size: tuple[float, float] = (5.6, 2.6),
    left: float = 0.7,
    top: float = 0.12,
    **settings: Any,
) -> tuple[Figure, list[Axes]]:
    """An empty one, and the axes of its panels row by row; a panel's width and height, and what its labels and title
    have of that, in inches. Measuring them takes Matplotlib as long as drawing."""
    rows, (width, height) = -(-panels // columns), size
    right, bottom, wide, high = 0.12, 0.45, width * columns, height * rows
    figure = Figure(figsize=(wide, high))
    figure.subplots_adjust(left / wide, bottom / high, 1 - right / wide, 1 - top / high)
    between = {"wspace": (left + right) / (width - left - right), "hspace": (bottom + top) / (height - bottom - top)}
    grid = list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=between, **settings).flat)
    for axes in grid[panels:]:
        axes.set_axis_off()
    return figure, grid[:panels]


def look(style: int) -> dict[str, Any]:
    """A series' colour, marker and line."""
    marker, line = MARKERS[style % len(MARKERS)][0], LINES[style % len(LINES)]
    return {"color": SERIES[style], "marker": marker, "linestyle": line}


def show_percent(*axes: Axis) -> None:
    """Label shares as whole percentages."""
    for axis in axes:
        axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def error_bars(estimates: Iterable[Estimate]) -> list[tuple[float, ...]]:
    """The lengths of error bars, down and up."""
    # Rounding can put a limit a hair inside the estimate at 0% and 100%.
    lengths = [(max(0.0, e.value - e.low), max(0.0, e.high - e.value)) for e in estimates]
    return list(zip(*lengths, strict=True))


MOST_LINES = len(SERIES)
"""Runs that one pair of axes can hold apart; more have a panel each."""
PANEL_COLUMNS = 4


@drawing.register
def _curves(what: Curves) -> Drawing:
    """More than `MOST_LINES` runs have a panel each, before the others' lines and that of the baseline."""
    runs = what.runs
    ticks = sorted({x for run in runs.values() for x in run})
    step = min((b - a for a, b in pairwise(ticks)), default=1)
    if len(runs) <= MOST_LINES:
        figure, panels = new_figure()
        for index, run in enumerate(runs.values()):
            # Shifted a little, so that bars at the same place can be told apart.
            estimates_over(panels[0], run, index, (index - (len(runs) - 1) / 2) * min(0.09, 0.5 / len(runs)) * step)
        panels[0].set(xlabel=what.label)
        legend = [legend_key(index, run) for index, run in enumerate(runs)]
    else:
        figure, panels = new_figure(len(runs), PANEL_COLUMNS, (3.0, 1.8), 0.5, TITLE, sharey=True)
        for axes, (title, run) in zip(panels, runs.items(), strict=True):
            for other, points in runs.items():
                values = [estimate.value for estimate in points.values()]
                if other == what.baseline:
                    axes.plot(list(points), values, color=SERIES[NEUTRAL], linestyle=(0, (3, 2)), linewidth=1)
                else:
                    axes.plot(list(points), values, color=RULE, linewidth=0.8, zorder=1)
            estimates_over(axes, run, 0)
            axes.set_title(_short(title), loc="left", parse_math=False)
        figure.supxlabel(what.label, fontsize=9)
        legend = [legend_key(0, "the panel's run")]
        legend += [Key("╌", NEUTRAL, run) for run in runs if run == what.baseline]
        legend.append(Key("─", NEUTRAL, "the others (pale)"))
    for axes in panels:
        axes.set(ylim=(-0.03, 1.03), xticks=ticks)
        axes.set_xlim(ticks[0] - 0.5 * step, ticks[-1] + 0.5 * step)
        show_percent(axes.yaxis)
    said = [
        f"{run}: {', '.join(f'{x}: {estimate.value:.1%}' for x, estimate in points.items())}"
        for run, points in runs.items()
    ]
    return Drawing(figure, what.description, said, legend, wide=len(runs) > MOST_LINES)


def estimates_over(axes: Axes, points: Mapping[int, Estimate], style: int, shift: float = 0) -> None:
    """A line with error bars."""
    xs, values = [x + shift for x in points], [estimate.value for estimate in points.values()]
    axes.errorbar(xs, values, yerr=error_bars(points.values()), **look(style), capsize=2.5, elinewidth=1)


NAME_LENGTH = 36
"""Characters of a bar's or panel's name that are shown."""


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


@drawing.register
def _bar_chart(what: Bars) -> Drawing:
    """From the top down."""
    bars = what.bars
    longest = max((len(_short(bar)) for bar in bars), default=0)
    figure, (axes,) = new_figure(size=(5.6, 0.7 + 0.24 * len(bars)), left=0.2 + 0.07 * longest)
    estimates = list(bars.values())
    axes.barh(
        range(len(bars)),
        [estimate.value for estimate in estimates],
        xerr=error_bars(estimates),
        height=0.62,
        color=SERIES[0],
        error_kw={"color": INK, "ecolor": INK, "elinewidth": 1, "capsize": 2},
    )
    axes.set_yticks(range(len(bars)), [_short(bar) for bar in bars])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.03))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    show_percent(axes.xaxis)
    return Drawing(figure, what.description, [f"{bar}: {estimate.value:.1%}" for bar, estimate in bars.items()])


def _draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    for line in lines:
        steps, values = zip(*line.points, strict=True)
        drawn = [value if isfinite(value) else nan for value in values]
        axes.plot(steps, drawn, markevery=max(1, len(steps) // 8), **look(line.style))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_formatter("{x:g}")  # not a power of ten above the axis, where a title stands


def _course(line: Line, name: str) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    return f"{name}: {start:.3g} at step {first}, {end:.3g} at step {last}"


@drawing.register
def _line_chart(what: Lines) -> Drawing:
    figure, (axes,) = new_figure()
    _draw_lines(axes, what.lines)
    axes.set(xlabel="step")
    if what.shares:
        axes.set_ylim(-0.03, 1.03)
        show_percent(axes.yaxis)
    legend = [legend_key(line.style, line.name) for line in what.lines]
    return Drawing(figure, what.description, [_course(line, line.name) for line in what.lines], legend)


@drawing.register
def _panels(what: Panels) -> Drawing:
    columns = min(3, len(what.panels))
    figure, grid = new_figure(len(what.panels), columns, (5.6, 2.6) if columns == 1 else (3.0, 2.3), top=TITLE)
    said: list[str] = []
    keys: dict[str, int] = {}
    for axes, (title, lines) in zip(grid, what.panels.items(), strict=True):
        _draw_lines(axes, lines)
        axes.set_title(title, loc="left", parse_math=False)
        axes.locator_params(nbins=4)
        said += [_course(line, f"{title} {line.name}".strip()) for line in lines]
        keys |= {line.name: line.style for line in lines if line.name}
    legend = [legend_key(style, key) for key, style in keys.items()]
    return Drawing(figure, what.description, said, legend, wide=True)


BINS = 10


@drawing.register
def _histogram(what: Histogram) -> Drawing:
    """Each role's as a share of its numbers."""
    figure, (axes,) = new_figure()
    said, legend = [], []
    for index, (role, alphas) in enumerate(what.alphas.items()):
        if not alphas:
            continue
        counts = Counter(min(int(alpha * BINS), BINS - 1) for alpha in alphas)
        axes.bar(
            [(bin_ + 0.3 + 0.4 * index) / BINS for bin_ in range(BINS)],
            [counts[bin_] / len(alphas) for bin_ in range(BINS)],
            width=0.37 / BINS,
            color=SERIES[index],
            hatch="////" if role == "nominal" else None,
            linewidth=0,
        )
        above = sum(alpha > 0.5 for alpha in alphas)
        said.append(f"{role}: {above} of {len(alphas)} above 0.5")
        legend.append(Key("▨" if role == "nominal" else "■", index, role))
    axes.axvline(0.5, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set(xlabel="α", ylabel="share of the role's numbers", xlim=(0, 1))
    show_percent(axes.yaxis)
    return Drawing(figure, "Histogram of α by role", said, legend)
