"""The report's three charts, lines, bars and a histogram, as SVG in the page's colours and type.

Of a user's text only names get into an SVG, as plain text.
"""

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise
from math import inf, isfinite, nan
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ani.results.sections import BASELINE, PALE, Bars, Histogram, Line, Lines
from ani.results.statistics import Estimate

# matplotlib writes hexadecimal colours; these stand for the page's CSS variables, which follow its light or
# dark mode, and are replaced in the finished SVG.
INK, RULE, PAPER = "#010203", "#040506", "#070809"
SERIES = tuple(f"#0a0b0{index}" for index in range(6))
CSS = {INK: "--ink-soft", RULE: "--rule", PAPER: "--paper"} | {
    colour: f"--series-{index}" for index, colour in enumerate(SERIES)
}
# Colour, marker and line of each style, so that colour is never the only difference; and its sign in the legend.
LOOKS = [
    *zip(SERIES, "os^Dvp", ("-", "--", "-", ":", "-", "--"), "●■▲◆▼⬟", strict=True),
    (SERIES[4], "", (0, (3, 2)), "╌"),
    (RULE, "", "-", "─"),
]
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
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titley": 1.0,  # or every label is measured, to keep a title off it
    "errorbar.capsize": 2.5,
    "figure.facecolor": "none",
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "hatch.color": PAPER,
    "lines.linewidth": 1.6,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
PERCENT = PercentFormatter(xmax=1, decimals=0)


class Key(NamedTuple):
    """A legend's entry: the sign, the CSS variable of its colour, and its name."""

    sign: str
    colour: str
    name: str


class Chart(NamedTuple):
    """A figure as the page takes it; a wide one has a row to itself."""

    svg: Markup
    description: str
    """Its text alternative."""
    legend: Sequence[Key]
    wide: bool


Drawing = tuple[Figure, str, Sequence[str], Sequence[Key]]
"""A figure, its description, what it shows in words, and its legend."""


def draw(what: Lines | Bars | Histogram, name: str) -> Chart:
    """Draw what a section's figure holds; `name` makes its identifiers unique in a page."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the page's reader has it
        match what:
            case Lines():
                figure, description, said, legend = _line_chart(what)
            case Bars():
                figure, description, said, legend = _bar_chart(what)
            case Histogram():
                figure, description, said, legend = _histogram(what)
        return Chart(_as_svg(figure, name), f"{description}. {'; '.join(said)}.", legend, len(figure.axes) > 1)


def _as_svg(figure: Figure, name: str) -> Markup:
    """The SVG element alone, its identifiers unique in a page by `name`, scaling with its container."""
    stream = StringIO()
    figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = stream.getvalue()
    start, _, rest = svg[svg.index("<svg") :].partition(">")
    start = re.sub(r' (?:xmlns(?::xlink)?|width|height|version)="[^"]*"', "", start)
    svg = (
        start.replace("<svg", '<svg aria-hidden="true" focusable="false"') + ">" + rest.replace("xlink:href=", "href=")
    )
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, variable in CSS.items():
        svg = svg.replace(colour, f"var({variable})")
    return Markup(svg)


def _axes(
    panels: int = 1, size: tuple[float, float] = (5.6, 2.6), left: float = 0.7, top: float = 0.12
) -> tuple[Figure, list[Axes]]:
    """An empty figure of up to three columns, and the axes of its panels row by row; a panel's width and height, and
    what its labels and title have of that, in inches. Measuring them takes Matplotlib as long as drawing."""
    columns, (width, height) = min(3, panels), size
    rows, right, bottom = -(-panels // columns), 0.12, 0.45
    wide, high = width * columns, height * rows
    figure = Figure(figsize=(wide, high))
    figure.subplots_adjust(left / wide, bottom / high, 1 - right / wide, 1 - top / high)
    between = {"wspace": (left + right) / (width - left - right), "hspace": (bottom + top) / (height - bottom - top)}
    grid = list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=between).flat)
    for axes in grid[panels:]:
        axes.set_axis_off()
    return figure, grid[:panels]


def _values(found: Sequence[float | Estimate]) -> tuple[list[float], list[tuple[float, ...]] | None]:
    """What is drawn, and the lengths of error bars down and up, if they are estimates."""
    values = [each.value if isinstance(each, Estimate) else each if isfinite(each) else nan for each in found]
    # Rounding can put a limit a hair inside the estimate at 0% and 100%.
    bars = [(max(0.0, e.value - e.low), max(0.0, e.high - e.value)) for e in found if isinstance(e, Estimate)]
    return values, list(zip(*bars, strict=True)) or None


NAME_LENGTH = 36
"""Characters of a bar's or panel's name that are shown."""


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


def _line_chart(what: Lines) -> Drawing:
    several = len(what.panels) > 1
    size, top = (3.0, 2.2) if several else (5.6, 2.6), 0.26 if any(what.panels) else 0.12
    figure, grid = _axes(len(what.panels), size, top=top)
    said: list[str] = []
    keys: dict[str, Key] = {}
    for axes, (title, lines) in zip(grid, what.panels.items(), strict=True):
        _draw_lines(axes, lines)
        axes.set_title(_short(title), parse_math=False)
        axes.set(xlabel=what.x, ylabel=what.y)
        axes.xaxis.set_major_locator(MaxNLocator(4 if several else 8, integer=_is_whole(lines), min_n_ticks=1))
        if not _is_whole(lines):
            axes.xaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_major_formatter(PERCENT if what.percent else "{x:g}")  # no power of ten above, at the title
        if what.limits is not None:
            low, high = what.limits
            axes.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
        told = [line for line in lines if line.style < BASELINE]
        said += [f"{f'{title} {line.name}'.strip()}: {_course(line, what)}" for line in told]
        looks = {line.name: LOOKS[line.style] for line in lines if line.name}
        keys |= {name: Key(sign, CSS[colour], name) for name, (colour, _, _, sign) in looks.items()}
    return figure, what.description, said, [*keys.values()]


def _is_whole(lines: Sequence[Line]) -> bool:
    return all(isinstance(x, int) for line in lines for x, _ in line.points)


def _draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    barred = [line for line in lines if line.style < BASELINE and isinstance(line.points[0][1], Estimate)]
    places = sorted({x for line in barred for x, _ in line.points if isinstance(x, int)})
    # Shifted a little, so that bars at the same place can be told apart.
    shift = min(0.09, 0.5 / max(1, len(barred))) * min((b - a for a, b in pairwise(places)), default=1)
    for line in lines:
        (xs, x_bars), (ys, y_bars) = (_values(each) for each in zip(*line.points, strict=True))
        if line in barred:
            xs = [x + shift * (barred.index(line) - (len(barred) - 1) / 2) for x in xs]
        colour, marker, dashes, _ = LOOKS[line.style]
        behind = line.style >= BASELINE
        axes.errorbar(
            xs,
            ys,
            yerr=None if behind else y_bars,
            xerr=x_bars,
            color=colour,
            marker=marker,
            markersize=8 if len(xs) == 1 else 4.5,
            markeredgecolor=PAPER if len(xs) == 1 else colour,
            markevery=max(1, len(xs) // 8),
            linestyle="" if line.labels else dashes,
            linewidth=0.9 if behind else None,
            elinewidth=1,
            zorder=1 if line.style == PALE else None,
        )
        for label, at in zip(line.labels, zip(xs, ys, strict=True), strict=False):
            axes.annotate(label, at, xytext=(4, 4), textcoords="offset points", color=INK, parse_math=False)


MOST_TOLD = 8
"""Points of a line; of a longer one the first, the last and the highest are told."""


def _course(line: Line, what: Lines) -> str:
    def told(point: tuple[int | Estimate, float | Estimate]) -> str:
        x, y = (each.value if isinstance(each, Estimate) else each for each in point)
        place = f"{x:.1%}" if isinstance(point[0], Estimate) else str(x)
        return f"{y:.1%} at {what.x} {place}" if what.percent else f"{y:.3g} at {what.x} {place}"

    shown = [told(point) for point in line.points]
    if line.labels:
        shown = [f"{label}: {point}" for label, point in zip(line.labels, shown, strict=True)]
    elif len(shown) > MOST_TOLD:
        values = [value if isfinite(value) else -inf for value in _values([y for _, y in line.points])[0]]
        shown = [shown[0], shown[-1], f"highest {shown[values.index(max(values))]}"]
    return ", ".join(shown)


def _bar_chart(what: Bars) -> Drawing:
    """From the top down."""
    names, (values, bars) = [_short(bar) for bar in what.bars], _values(list(what.bars.values()))
    left = 0.2 + 0.07 * max(map(len, names), default=0)
    figure, (axes,) = _axes(size=(5.6, 0.7 + 0.24 * len(names)), left=left)
    axes.barh(range(len(names)), values, xerr=bars, height=0.62, color=SERIES[0], error_kw={"color": INK})
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.03))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.xaxis.set_major_formatter(PERCENT)
    return figure, what.description, [f"{bar}: {found.value:.1%}" for bar, found in what.bars.items()], ()


BINS = 10


def _histogram(what: Histogram) -> Drawing:
    """Each role's as a share of its numbers."""
    figure, (axes,) = _axes()
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
        said.append(f"{role}: {sum(alpha > 0.5 for alpha in alphas)} of {len(alphas)} above 0.5")
        legend.append(Key("▨" if role == "nominal" else "■", CSS[SERIES[index]], role))
    axes.axvline(0.5, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set(xlabel="α", ylabel="share of the role's numbers", xlim=(0, 1))
    axes.yaxis.set_major_formatter(PERCENT)
    return figure, "Histogram of α by role", said, legend
