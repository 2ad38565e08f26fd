"""The page's sections about layers: what probes read, and what injecting there gains."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ani.errors import InputError
from ani.evaluation.task import Task
from ani.evaluation.tasks.arithmetic import Arithmetic, ArithmeticAnswer
from ani.evaluation.tasks.benchmarks import Math
from ani.probing.curve import LayerPoint, LayerSelection, layers_table
from ani.results.records import LAYERS, SELECTION, Run, read_object, read_records
from ani.results.scores import grouped, scores
from ani.results.sections import NEUTRAL, Figure, Headline, Line, Lines, Section
from ani.results.statistics import Correlation, Estimate, correlation, mean_share
from ani.results.tables import Cell, Table, percent

PROBES_NOTE = (
    "A linear probe tells from the hidden state after a layer (0: the embedding output) whether a number is "
    "quantitative or nominal. Random split: the paper's measure; sentences like those it learnt from. Held out: "
    "domains, templates and number values that it has not seen. Control task: roles shuffled among number values, so "
    "what a probe learns by heart; selectivity: the random split's accuracy on the same numbers minus that, in "
    "percentage points. Bars and brackets: 95% intervals, bootstrapped over templates."
)
EFFECTS_NOTE = (
    "By the layer that numbers are injected at, beside the held-out accuracy of a linear probe of the untrained model "
    "there. Bars and small print: 95% intervals."
)
FEWEST_LAYERS = 3
"""That task and probe accuracy are compared over."""
WIDE = 0.5
"""Of a correlation's interval, out of 2: worth a warning."""
# Styles of the probes' lines: held out looks the same in every figure.
RANDOM_SPLIT, HELD_OUT, TASK = 0, 1, 2
CHOSEN, RULE, PEAK = 2, 3, 5
BOTTOM = 0.45
"""Of the axis of probe accuracy, a little below chance; lower only where something is."""


class LayerEffect(NamedTuple):
    """What a run gains from the layer that it injects at, beside what a probe reads there."""

    layer: int
    run: str
    task: Estimate
    """Right answers, the mean over seeds."""
    probe: Estimate
    """Held-out accuracy."""


def read_curve(folder: Path) -> list[LayerPoint]:
    """The curve of a folder, ascending; empty if there is none. Raises InputError if a layer is there twice."""
    path = folder / LAYERS
    curve = sorted(read_records(path, LayerPoint) if path.exists() else [], key=lambda point: point.layer)
    for before, after in pairwise(curve):
        if before.layer == after.layer:
            raise InputError(f"{path}: layer {after.layer} was probed twice; keep one of its records")
    return curve


def read_selection(folder: Path, curve: Sequence[LayerPoint]) -> LayerSelection | None:
    """The choice of a folder, if there is one; raises InputError if the curve lacks a layer that it names."""
    path = folder / SELECTION
    if not path.exists():
        return None
    selection = read_object(path, LayerSelection)
    known = {point.layer for point in curve}
    for layer in (selection.layer, selection.best, selection.argmax, selection.early_peak):
        if layer is not None and layer not in known:
            raise InputError(f"{path}: layer {layer} is not in {LAYERS}; `ani probe` writes both")
    return selection


def layers_section(curve: Sequence[LayerPoint], selection: LayerSelection | None) -> Section:
    """Which layer."""
    headlines = []
    if selection is not None:
        held_out = next(point.estimate("held_out") for point in curve if point.layer == selection.layer)
        value, (interval,), *_ = percent(held_out, counted=False)
        detail = f"roles read held out: {value}, {interval}"
        headlines.append(Headline("Injection layer", str(selection.layer), detail))
    return Section(
        "layers",
        "Which layer",
        (PROBES_NOTE,) if selection is None else (selection.reason, PROBES_NOTE),
        (Figure("Roles read by linear probes", _probe_lines(curve, selection)),),
        folded=(layers_table(curve, selection),),
        headlines=tuple(headlines),
    )


def _probe_lines(curve: Sequence[LayerPoint], selection: LayerSelection | None) -> Lines:
    """Accuracy over layers, and the layers of the selection as marks (paper, Figure 3)."""
    random_split, held_out = (
        {each.layer: each.estimate(key) for each in curve} for key in ("random_split", "held_out")
    )
    control = {each.layer: each.control for each in curve}
    lines = [
        Line("random split (the paper's measure)", list(random_split.items()), RANDOM_SPLIT),
        Line("held out", list(held_out.items()), HELD_OUT),
        Line("control task", list(control.items()), NEUTRAL),
    ]
    if selection is not None:
        for name, layer, of, style in (
            ("chosen", selection.layer, held_out, CHOSEN),
            ("the paper's rule", selection.argmax, random_split, RULE),
            ("early peak", selection.early_peak, random_split, PEAK),
        ):
            if layer is not None:
                lines.append(Line(f"{name}: layer {layer}", [(layer, of[layer].value)], style))
    lowest = min(BOTTOM, *control.values(), *(each.low for of in (random_split, held_out) for each in of.values()))
    return Lines("Accuracy of linear probes by layer", "layer", {"": lines}, percent=True, limits=(lowest, 1))


def effects_section(
    results: Mapping[type[Task], Sequence[Any]], run: Run, curve: Sequence[LayerPoint]
) -> Section | None:
    """Of MATH as in the paper, or else of arithmetic; None where fewer than three layers can be compared."""
    layers = {each.variant: each.layer for each in run.runs if each.layer is not None}
    shares = {row.run: row.overall for row in scores(results.get(Math, ()), lambda each: each.task, lambda each: None)}
    task = "right answers to MATH" if shares else "exact answers of all operations"
    effects = layer_effects(shares or exact_shares(results.get(Arithmetic, ())), layers, curve)
    if len(effects) < FEWEST_LAYERS:
        return None
    unprobed = sorted(set(layers.values()) - {point.layer for point in curve})
    left_out = [f"Not probed, so left out: layer {layer}." for layer in unprobed]
    probes = Line("probe, held out", [(point.layer, point.estimate("held_out")) for point in curve], HELD_OUT)
    right = Line("right answers", [(effect.layer, effect.task) for effect in effects], TASK)
    over_probe = Line(
        "a run, with the layer that it injects at",
        [(effect.probe, effect.task) for effect in effects],
        TASK,
        [f"layer {effect.layer}" for effect in effects],
    )
    by_layer = Lines("Right answers and held-out probe accuracy by layer", "layer", {"": [right, probes]}, percent=True)
    scattered = Lines(
        "Right answers over held-out probe accuracy",
        "held-out probe accuracy",
        {"": [over_probe]},
        "right answers",
        percent=True,
    )
    table = Table(
        "Right answers by layer of injection, and the held-out accuracy of a linear probe there, with 95% intervals",
        ("Layer", "Run", "Right answers", "Probe, held out"),
        tuple(
            (Cell(str(layer)), Cell(name), percent(of_task._replace(seeds=1)), percent(read, counted=False))
            for layer, name, of_task, read in effects
        ),
        label_columns=2,
    )
    found = correlation([effect.probe.value for effect in effects], [effect.task.value for effect in effects])
    return Section(
        "layer-effects",
        "Layer sensitivity",
        (f"Task accuracy: {task}. {EFFECTS_NOTE}", _correlation_note(found), *left_out),
        (Figure("By layer", by_layer), Figure("Task over probe", scattered)),
        (table,),
    )


def layer_effects(
    shares: Mapping[str, Estimate], layers: Mapping[str, int], curve: Sequence[LayerPoint]
) -> list[LayerEffect]:
    """One entry a run whose layer was probed, by layer; empty where two runs share a layer, so differ in more. `shares`
    and `layers` are by run; the curve is of the model before training."""
    probes = {point.layer: point.estimate("held_out") for point in curve}
    effects = [
        LayerEffect(layers[run], run, share, probes[layers[run]])
        for run, share in shares.items()
        if layers.get(run) in probes
    ]
    if len({effect.layer for effect in effects}) < len(effects):
        return []
    return sorted(effects, key=lambda effect: effect.layer)


def exact_shares(answers: Sequence[ArithmeticAnswer]) -> dict[str, Estimate]:
    """Run: exact answers of all operations, the mean over seeds. Raises InputError as `Arithmetic.scores`."""
    return {
        run: mean_share(
            [
                (sum(round(each.value * each.cases) for each in of_seed), sum(each.cases for each in of_seed))
                for of_seed in zip(*(row.by_seed for row in rows), strict=True)
            ]
        )
        for run, rows in grouped(Arithmetic.scores(answers), lambda row: row.run).items()
    }


def _correlation_note(found: Correlation | None) -> str:
    if found is None:
        return "Task and probe accuracy have no correlation: one of them is the same at all layers."
    note = (
        f"Over {found.points} layers: Pearson's r = {found.pearson:+.2f} (95% interval {found.low:+.2f} to "
        f"{found.high:+.2f}, p = {found.pearson_p:.3f}), Spearman's ρ = {found.spearman:+.2f} "
        f"(p = {found.spearman_p:.3f}); p two-sided, by permutation."
    )
    if found.high - found.low > WIDE:
        note += (
            f" {found.points} layers say little: the interval is wide, {found.high - found.low:.2f} of the 2 that a "
            "correlation can span."
        )
    return f"{note} Both take the points as exact, which they are not."
