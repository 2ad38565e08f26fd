"""The report's table of task accuracy and probe accuracy by layer (paper, Figure "Layer Sensitivity Analysis")."""

from collections.abc import Mapping, Sequence
from typing import Any

from ani.evaluation.task import Task
from ani.evaluation.tasks.arithmetic import Arithmetic
from ani.evaluation.tasks.math import Math
from ani.probing.curve import LayerPoint
from ani.results.records import Run
from ani.results.scores import scores
from ani.results.tables import Cell, Table, percent

FEWEST_LAYERS = 3
"""Number of layers from which on task accuracy and probe accuracy are compared."""


def effects_table(
    results: Mapping[type[Task], Sequence[Any]], run: Run, curve: Sequence[LayerPoint]
) -> tuple[list[str], Table] | None:
    """Notes, and a table with a row per run: right answers to MATH (else to arithmetic), the mean over seeds, and the
    held-out accuracy of the untrained model's probe at the run's layer of injection.

    None where fewer than three such layers were probed, or two runs inject at one layer and so differ in more than it.
    """
    layers = {each.variant: each.layer for each in run.runs if each.layer is not None}
    probes = {point.layer: point.estimate("held_out") for point in curve}
    task = Math if results.get(Math) else Arithmetic
    found = scores(results.get(task, ()), task=lambda _: task.name, part=lambda _: None)
    rows = sorted((layers[row.run], row.run, row.overall) for row in found if layers.get(row.run) in probes)
    if len(rows) < FEWEST_LAYERS or len({layer for layer, *_ in rows}) < len(rows):
        return None
    notes = [_correlation([probes[layer].value for layer, *_ in rows], [right.value for *_, right in rows])]
    notes += [f"Layer {layer} was not probed." for layer in sorted({*layers.values()} - {*probes})]
    cells = tuple(
        (Cell(str(layer)), Cell(name), percent(right), percent(probes[layer], counted=False))
        for layer, name, right in rows
    )
    header = ("Layer", "Run", f"Right answers, {task.name}", "Probe, held out")
    return notes, Table("Task accuracy and probe accuracy by layer, with 95% intervals", header, cells, 1, "lines")


def _correlation(probes: Sequence[float], shares: Sequence[float]) -> str:
    from scipy.stats import pearsonr, spearmanr

    if len(set(probes)) == 1 or len(set(shares)) == 1:
        return "Task and probe accuracy have no correlation: one of them is the same at all layers."
    pearson, spearman = pearsonr(probes, shares), spearmanr(probes, shares)
    low, high = pearson.confidence_interval(0.95)
    return (
        f"Over {len(probes)} layers: Pearson's r = {pearson.statistic:+.2f} (95% interval {low:+.2f} to {high:+.2f}, "
        f"p = {pearson.pvalue:.3f}), Spearman's ρ = {spearman.statistic:+.2f} (p = {spearman.pvalue:.3f}). The "
        "uncertainty of the points is not included."
    )
