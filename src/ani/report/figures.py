"""The report's figures as SVG to be put into a page: drawn in the page's colours and type.

Knows nothing about files, tables or the page around them; of a user's text only names get into an SVG, as plain text.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import pairwise
from math import isfinite, nan
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ani.report.records import GateDecision, SelectedLayer, TrainingStep
from ani.report.summaries import Accuracy, Estimate, LayerEffect, LayerProbe

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
    "figure.facecolor": "none",
    "figure.constrained_layout.hspace": 0.08,
    "figure.constrained_layout.use": True,
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


class Chart(NamedTuple):
    """An SVG, what it shows in words (its text alternative), and its legend."""

    svg: Markup
    description: str
    legend: tuple[Key, ...]


def _key(index: int, name: str) -> Key:
    return Key(MARKERS[index % len(MARKERS)][1], index % len(SERIES), name)


def _svg(figure: Figure, name: str) -> Markup:
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


def _figure(columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.6, 2.6) if columns == 1 else (3.0 * columns, 2.3 * rows))
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.flat)


def _bars(estimates: Iterable[Estimate]) -> list[tuple[float, ...]]:
    """The lengths of error bars, down and up."""
    # Rounding can put a limit a hair inside the estimate at 0% and 100%.
    lengths = [(max(0.0, value - low), max(0.0, high - value)) for value, low, high in estimates]
    return list(zip(*lengths, strict=True))


MOST_LINES = len(SERIES)
"""Runs that one pair of axes can hold apart; more have a panel each."""
PANEL_COLUMNS = 4


@matplotlib.rc_context(STYLE)
def accuracy_chart(rows: Sequence[Accuracy], name: str, baseline: str | None = None) -> Chart:
    """Accuracy over digits for the runs of one operation, with Wilson 95% intervals as bars.

    More than `MOST_LINES` runs have a panel each, before the others' lines and that of the `baseline`.
    """
    digits = sorted({digit for row in rows for digit in row.by_digits})
    step = min((b - a for a, b in pairwise(digits)), default=1)
    if len(rows) <= MOST_LINES:
        figure, (axes,) = _figure()
        for index, row in enumerate(rows):
            # Shifted a little, so that bars at the same digits can be told apart.
            shift = (index - (len(rows) - 1) / 2) * min(0.09, 0.5 / len(rows)) * step
            _accuracy_line(axes, row, index, shift)
        axes.set(xlabel="digits")
        panels = [axes]
        legend = [_key(index, row.run) for index, row in enumerate(rows)]
    else:
        lines = -(-len(rows) // PANEL_COLUMNS)
        figure = Figure(figsize=(12, 1.8 * lines))
        grid = list(figure.subplots(lines, PANEL_COLUMNS, sharey=True).flat)
        panels = grid[: len(rows)]
        for axes, row in zip(panels, rows, strict=True):
            for other in rows:
                values = [share.estimate.value for share in other.by_digits.values()]
                if other.run == baseline:
                    axes.plot(list(other.by_digits), values, color=SERIES[NEUTRAL], linestyle=(0, (3, 2)), linewidth=1)
                else:
                    axes.plot(list(other.by_digits), values, color=RULE, linewidth=0.8, zorder=1)
            _accuracy_line(axes, row, 0, 0)
            axes.set_title(_short(row.run), loc="left", parse_math=False)
        for axes in grid[len(rows) :]:
            axes.set_axis_off()
        figure.supxlabel("digits", fontsize=9)
        legend = [_key(0, "the panel's run")]
        legend += [Key("╌", NEUTRAL, row.run) for row in rows if row.run == baseline]
        legend.append(Key("─", NEUTRAL, "the others (pale)"))
    for axes in panels:
        axes.set(ylim=(-0.03, 1.03), xticks=digits)
        axes.set_xlim(digits[0] - 0.5 * step, digits[-1] + 0.5 * step)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    said = (
        f"{row.run}: {', '.join(f'{d}: {share.estimate.value:.1%}' for d, share in row.by_digits.items())}"
        for row in rows
    )
    return Chart(_svg(figure, name), f"Share of exact answers by number of digits. {'; '.join(said)}.", tuple(legend))


def _accuracy_line(axes: Axes, row: Accuracy, style: int, shift: float) -> None:
    estimates = [share.estimate for share in row.by_digits.values()]
    axes.errorbar(
        [digit + shift for digit in row.by_digits],
        [estimate.value for estimate in estimates],
        yerr=_bars(estimates),
        color=SERIES[style],
        marker=MARKERS[style % len(MARKERS)][0],
        linestyle=LINES[style % len(LINES)],
        capsize=2.5,
        elinewidth=1,
    )


NAME_LENGTH = 36
"""Characters of a bar's or panel's name that are shown."""


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


@matplotlib.rc_context(STYLE)
def bar_chart(bars: Mapping[str, Estimate], name: str, title: str) -> Chart:
    """Shares with their 95% intervals, a bar each, from the top down."""
    figure = Figure(figsize=(5.6, 0.7 + 0.24 * len(bars)))
    axes = figure.subplots()
    estimates = list(bars.values())
    axes.barh(
        range(len(bars)),
        [estimate.value for estimate in estimates],
        xerr=_bars(estimates),
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
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    said = "; ".join(f"{bar}: {estimate.value:.1%}" for bar, estimate in bars.items())
    return Chart(_svg(figure, name), f"{title}. {said}.", ())


# The index of each field's colour, marker and line: a role looks the same in every figure.
FIELD_STYLES = {
    "gate_open_quantitative": 0,
    "gate_logit_quantitative": 0,
    "gate_open_nominal": 1,
    "gate_logit_nominal": 1,
    "loss": 2,
    "cross_entropy": 3,
}


def _lines(axes: Axes, log: Sequence[TrainingStep], series: Mapping[str, str]) -> list[str]:
    """Draws the given fields of the log (field → name); returns the fields that were logged."""
    drawn = []
    for field in series:
        points = [(record.step, getattr(record, field)) for record in log]
        points = [(step, value) for step, value in points if value is not None]
        if not points:
            continue
        style = FIELD_STYLES.get(field, NEUTRAL)
        axes.plot(
            [step for step, _ in points],
            [value if isfinite(value) else nan for _, value in points],
            color=SERIES[style],
            marker=MARKERS[style][0],
            markevery=max(1, len(points) // 8),
            linestyle=LINES[style % len(LINES)],
        )
        drawn.append(field)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return drawn


def _course(log: Sequence[TrainingStep], field: str, name: str) -> str:
    values = [(record.step, value) for record in log if (value := getattr(record, field)) is not None]
    (first, start), (last, end) = values[0], values[-1]
    return f"{name}: {start:.3g} at step {first}, {end:.3g} at step {last}"


def _line_chart(
    log: Sequence[TrainingStep], name: str, title: str, series: Mapping[str, str], *, shares: bool = False
) -> Chart | None:
    figure, (axes,) = _figure()
    drawn = _lines(axes, log, series)
    if not drawn:
        return None
    axes.set(xlabel="step")
    if shares:
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    courses = "; ".join(_course(log, field, series[field]) for field in drawn)
    legend = tuple(_key(FIELD_STYLES[field], series[field]) for field in drawn)
    return Chart(_svg(figure, name), f"{title}. {courses}.", legend)


@matplotlib.rc_context(STYLE)
def loss_chart(log: Sequence[TrainingStep], name: str) -> Chart | None:
    """Loss and cross-entropy over steps; None if neither was logged."""
    series = {"loss": "loss", "cross_entropy": "cross-entropy"}
    return _line_chart(log, name, "Training loss over steps", series)


@matplotlib.rc_context(STYLE)
def gate_chart(log: Sequence[TrainingStep], name: str) -> Chart | None:
    """Share of open gates by role over steps; None if neither was logged."""
    series = {"gate_open_quantitative": "quantitative", "gate_open_nominal": "nominal"}
    return _line_chart(log, name, "Share of open gates by role over steps", series, shares=True)


# The panels of small multiples: title → field → name of the line, "" where a panel has only one.
SIGNALS: Mapping[str, Mapping[str, str]] = {
    "gate logit z": {"gate_logit_quantitative": "quantitative", "gate_logit_nominal": "nominal"},
    "‖αe‖ / ‖h‖": {"embedding_ratio": ""},
    "gate penalty": {"penalty": ""},
    "learning rate": {"learning_rate": ""},
    "tokens per second": {"tokens_per_second": ""},
}


@matplotlib.rc_context(STYLE)
def signals_chart(log: Sequence[TrainingStep], name: str) -> Chart | None:
    """Small multiples of everything else in the log; None if there is nothing else."""
    present = {field for record in log for field in record.model_dump(exclude_none=True)}
    panels = {title: series for title, series in SIGNALS.items() if present & series.keys()}
    if not panels:
        return None
    columns = min(3, len(panels))
    figure, grid = _figure(columns, -(-len(panels) // columns))
    said = []
    for axes, (title, series) in zip(grid, panels.items(), strict=False):
        drawn = _lines(axes, log, series)
        axes.set_title(title, loc="left")
        said += [_course(log, field, f"{title} {series[field]}".strip()) for field in drawn]
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    legend = tuple(_key(index, role) for index, role in enumerate(("quantitative", "nominal")))
    return Chart(
        _svg(figure, name),
        f"Further quantities over steps. {'; '.join(said)}.",
        legend if "gate logit z" in panels else (),
    )


BINS = 10


@matplotlib.rc_context(STYLE)
def alpha_chart(decisions: Sequence[GateDecision], name: str) -> Chart | None:
    """Histogram of α by role, each as a share of its role's numbers; None without any α."""
    figure, (axes,) = _figure()
    said, legend = [], []
    for index, role in enumerate(("quantitative", "nominal")):
        alphas = [d.alpha for d in decisions if d.role == role and d.alpha is not None]
        if not alphas:
            continue
        counts = [0] * BINS
        for alpha in alphas:
            counts[min(int(alpha * BINS), BINS - 1)] += 1
        axes.bar(
            [(bin_ + 0.3 + 0.4 * index) / BINS for bin_ in range(BINS)],
            [count / len(alphas) for count in counts],
            width=0.37 / BINS,
            color=SERIES[index],
            hatch="////" if role == "nominal" else None,
            linewidth=0,
        )
        above = sum(alpha > 0.5 for alpha in alphas)
        said.append(f"{role}: {above} of {len(alphas)} above 0.5")
        legend.append(Key("▨" if role == "nominal" else "■", index, role))
    if not legend:
        return None
    axes.axvline(0.5, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set(xlabel="α", ylabel="share of the role's numbers", xlim=(0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    return Chart(_svg(figure, name), f"Histogram of α by role. {'; '.join(said)}.", tuple(legend))


# The probes' colours, markers and lines: held out looks the same in every figure.
RANDOM_SPLIT, HELD_OUT, TASK = 0, 1, 2
RULE_MARK, PEAK_MARK = 3, 5
BOTTOM = 0.45
"""Of the axis of probe accuracy, a little below chance; lower only where something is."""


def _probe_line(axes: Axes, layers: Sequence[int], estimates: Sequence[Estimate], style: int) -> None:
    """A curve over layers in its 95% band."""
    axes.fill_between(
        layers,
        [estimate.low for estimate in estimates],
        [estimate.high for estimate in estimates],
        color=SERIES[style],
        alpha=0.18,
        linewidth=0,
    )
    axes.plot(
        layers,
        [estimate.value for estimate in estimates],
        color=SERIES[style],
        marker=MARKERS[style][0],
        markevery=max(1, len(layers) // 8),
        linestyle=LINES[style],
    )


@matplotlib.rc_context(STYLE)
def layers_chart(curve: Sequence[LayerProbe], selection: SelectedLayer | None, name: str) -> Chart:
    """Accuracy of linear probes over layers in 95% bands, and the layers of the selection (paper, Figure 3)."""
    figure, (axes,) = _figure()
    layers = [probe.layer for probe in curve]
    random_split, held_out = [probe.random_split for probe in curve], [probe.held_out for probe in curve]
    control = [probe.control for probe in curve]
    axes.plot(layers, control, color=SERIES[NEUTRAL], linestyle=(0, (3, 2)), linewidth=0.9)
    legend = [_key(RANDOM_SPLIT, "random split (the paper's measure)"), _key(HELD_OUT, "held out")]
    legend.append(Key("╌", NEUTRAL, "control task"))
    said = []
    for style, label, estimates in (
        (RANDOM_SPLIT, "random split", random_split),
        (HELD_OUT, "held out", held_out),
    ):
        _probe_line(axes, layers, estimates, style)
        peak, at = max((estimate.value, -layer) for layer, estimate in zip(layers, estimates, strict=True))
        said.append(
            f"{label}: {estimates[0].value:.1%} at layer {layers[0]}, {estimates[-1].value:.1%} at layer "
            f"{layers[-1]}, highest {peak:.1%} at layer {-at}"
        )
    said.append(f"control task: {min(control):.1%} to {max(control):.1%}")
    if selection is not None:
        axes.axvline(selection.layer, color=INK, linewidth=1.2, zorder=1)
        legend.append(Key("│", NEUTRAL, f"chosen: layer {selection.layer}"))
        said.append(f"chosen: layer {selection.layer}")
        for colour, marker, character, what, layer in (
            (RULE_MARK, "D", "◆", "the paper's rule", selection.argmax),
            (PEAK_MARK, "v", "▼", "early peak", selection.early_peak),
        ):
            if layer is None:
                continue
            axes.plot(
                layer,
                random_split[layers.index(layer)].value,
                color=SERIES[colour],
                marker=marker,
                markersize=8,
                markeredgecolor=PAPER,
                linestyle="none",
            )
            legend.append(Key(character, colour, f"{what}: layer {layer}"))
            said.append(f"{what}: layer {layer}")
    lowest = min(BOTTOM, *control, *(estimate.low for estimate in (*random_split, *held_out)))
    axes.set(xlabel="layer", ylim=(lowest - 0.005, 1.01))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    return Chart(_svg(figure, name), f"Accuracy of linear probes by layer. {'; '.join(said)}.", tuple(legend))


@matplotlib.rc_context(STYLE)
def layer_effects_chart(effects: Sequence[LayerEffect], curve: Sequence[LayerProbe], name: str) -> Chart:
    """Right answers by layer of injection, above the probes' curve (paper, Figure "Layer Sensitivity Analysis")."""
    figure, (axes,) = _figure()
    _probe_line(axes, [probe.layer for probe in curve], [probe.held_out for probe in curve], HELD_OUT)
    tasks = [effect.task.estimate for effect in effects]
    axes.errorbar(
        [effect.layer for effect in effects],
        [task.value for task in tasks],
        yerr=_bars(tasks),
        color=SERIES[TASK],
        marker=MARKERS[TASK][0],
        linestyle=LINES[TASK],
        capsize=2.5,
        elinewidth=1,
    )
    axes.set(xlabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    said = "; ".join(
        f"layer {effect.layer}: {task.value:.1%} right, probe {effect.probe.value:.1%}"
        for effect, task in zip(effects, tasks, strict=True)
    )
    return Chart(
        _svg(figure, name),
        f"Right answers and held-out probe accuracy by layer. {said}.",
        (_key(TASK, "right answers"), _key(HELD_OUT, "probe, held out")),
    )


@matplotlib.rc_context(STYLE)
def task_over_probe_chart(effects: Sequence[LayerEffect], name: str) -> Chart:
    """Right answers over held-out probe accuracy, a point a layer with its 95% intervals."""
    figure, (axes,) = _figure()
    tasks, probes = [effect.task.estimate for effect in effects], [effect.probe for effect in effects]
    axes.errorbar(
        [probe.value for probe in probes],
        [task.value for task in tasks],
        xerr=_bars(probes),
        yerr=_bars(tasks),
        color=SERIES[TASK],
        marker=MARKERS[TASK][0],
        linestyle="none",
        elinewidth=0.8,
    )
    for effect, task in zip(effects, tasks, strict=True):
        axes.annotate(
            str(effect.layer),
            (effect.probe.value, task.value),
            xytext=(4, 4),
            textcoords="offset points",
            color=INK,
        )
    axes.set(xlabel="held-out probe accuracy", ylabel="right answers")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1))
    said = "; ".join(
        f"layer {effect.layer}: {task.value:.1%} at {effect.probe.value:.1%}"
        for effect, task in zip(effects, tasks, strict=True)
    )
    return Chart(
        _svg(figure, name),
        f"Right answers over held-out probe accuracy. {said}.",
        (_key(TASK, "a run, with the layer that it injects at"),),
    )
