"""The figures about layers: what probes read after each, and what injecting there gains; knows nothing about files."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ani.probing.curve import LayerPoint, SelectedLayer
from ani.report.figures import (
    INK,
    NEUTRAL,
    PAPER,
    SERIES,
    Drawing,
    Key,
    drawing,
    error_bars,
    estimates_over,
    legend_key,
    look,
    new_figure,
    show_percent,
)
from ani.results.statistics import Estimate


class LayerCurve(NamedTuple):
    """Accuracy of linear probes over layers in 95% bands, and the layers of the selection (paper, Figure 3)."""

    curve: Sequence[LayerPoint]
    selection: SelectedLayer | None


class LayerEffect(NamedTuple):
    """What a run gains from the layer that it injects at, beside what a probe reads there."""

    layer: int
    run: str
    task: Estimate
    """Right answers, the mean over seeds."""
    probe: Estimate
    """Held-out accuracy."""


class EffectsByLayer(NamedTuple):
    """Right answers by layer of injection, above the probes' curve (paper, Figure "Layer Sensitivity Analysis")."""

    effects: Sequence[LayerEffect]
    curve: Sequence[LayerPoint]


class TaskOverProbe(NamedTuple):
    """Right answers over held-out probe accuracy, a point a layer with its 95% intervals."""

    effects: Sequence[LayerEffect]


# The probes' colours, markers and lines: held out looks the same in every figure.
RANDOM_SPLIT, HELD_OUT, TASK = 0, 1, 2
RULE_MARK, PEAK_MARK = 3, 5
BOTTOM = 0.45
"""Of the axis of probe accuracy, a little below chance; lower only where something is."""


def _probe_line(axes: Axes, layers: Sequence[int], estimates: Sequence[Estimate], style: int) -> None:
    """A curve over layers in its 95% band."""
    lows, highs = [estimate.low for estimate in estimates], [estimate.high for estimate in estimates]
    axes.fill_between(layers, lows, highs, color=SERIES[style], alpha=0.18, linewidth=0)
    values = [estimate.value for estimate in estimates]
    axes.plot(layers, values, markevery=max(1, len(layers) // 8), **look(style))


@drawing.register
def _layer_curve(what: LayerCurve) -> Drawing:
    curve, selection = what
    figure, (axes,) = new_figure()
    layers = [probe.layer for probe in curve]
    random_split, held_out = ([probe.estimate(key) for probe in curve] for key in ("random_split", "held_out"))
    control = [probe.control for probe in curve]
    axes.plot(layers, control, color=SERIES[NEUTRAL], linestyle=(0, (3, 2)), linewidth=0.9)
    legend = [legend_key(RANDOM_SPLIT, "random split (the paper's measure)"), legend_key(HELD_OUT, "held out")]
    legend.append(Key("╌", NEUTRAL, "control task"))
    said = []
    for style, label, estimates in ((RANDOM_SPLIT, "random split", random_split), (HELD_OUT, "held out", held_out)):
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
        for colour, marker, character, which, layer in (
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
            legend.append(Key(character, colour, f"{which}: layer {layer}"))
            said.append(f"{which}: layer {layer}")
    lowest = min(BOTTOM, *control, *(estimate.low for estimate in (*random_split, *held_out)))
    axes.set(xlabel="layer", ylim=(lowest - 0.005, 1.01))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    show_percent(axes.yaxis)
    return Drawing(figure, "Accuracy of linear probes by layer", said, legend)


@drawing.register
def _effects_by_layer(what: EffectsByLayer) -> Drawing:
    effects, curve = what
    figure, (axes,) = new_figure()
    _probe_line(axes, [probe.layer for probe in curve], [probe.estimate("held_out") for probe in curve], HELD_OUT)
    estimates_over(axes, {effect.layer: effect.task for effect in effects}, TASK)
    axes.set(xlabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    show_percent(axes.yaxis)
    said = [f"layer {each.layer}: {each.task.value:.1%} right, probe {each.probe.value:.1%}" for each in effects]
    legend = [legend_key(TASK, "right answers"), legend_key(HELD_OUT, "probe, held out")]
    return Drawing(figure, "Right answers and held-out probe accuracy by layer", said, legend)


@drawing.register
def _task_over_probe(what: TaskOverProbe) -> Drawing:
    figure, (axes,) = new_figure()
    tasks, probes = [effect.task for effect in what.effects], [effect.probe for effect in what.effects]
    axes.errorbar(
        [probe.value for probe in probes],
        [task.value for task in tasks],
        xerr=error_bars(probes),
        yerr=error_bars(tasks),
        **{**look(TASK), "linestyle": "none"},
        elinewidth=0.8,
    )
    for layer, _, task, probe in what.effects:
        at = (probe.value, task.value)
        axes.annotate(str(layer), at, xytext=(4, 4), textcoords="offset points", color=INK)
    axes.set(xlabel="held-out probe accuracy", ylabel="right answers")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1))
    said = [f"layer {each.layer}: {each.task.value:.1%} at {each.probe.value:.1%}" for each in what.effects]
    legend = [legend_key(TASK, "a run, with the layer that it injects at")]
    return Drawing(figure, "Right answers over held-out probe accuracy", said, legend)
