"""Result records of probing: accuracies by layer, and the chosen layer; and their table."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ani.results.records import LAYERS, SELECTION, Integer, Probability, Record, read_object, read_records
from ani.results.statistics import Estimate
from ani.results.tables import Cell, Table, inline, percent, points
from ani.roles import RoleName

NOTE = (
    "A linear probe reads a number's role (quantitative or nominal) from the hidden state after a layer (0: the "
    "embedding output). Random split: the paper's measure, on sentences like the training sentences. Held out: "
    "domains, templates and number values that the probe has not seen. Control task: roles shuffled among number "
    "values; a probe can only memorize them. Selectivity: the random split's accuracy minus the control task's on the "
    "same numbers, in percentage points. Intervals: 95%, bootstrapped over templates."
)
"""Meaning of the columns of `layers_table`."""

Gain = Annotated[float, Field(ge=-1, le=1)]


class LayerPoint(Record):
    """One layer of the curve, a line of `layers.jsonl`. Intervals are 95%, bootstrapped over templates."""

    layer: Integer = Field(ge=0)
    random_split: Probability
    """Accuracy on a random split of the sentences: the paper's measure."""
    random_split_low: Probability
    random_split_high: Probability
    held_out: Probability
    """Accuracy on domains, templates and numbers that the probe has not seen."""
    held_out_low: Probability
    held_out_high: Probability
    control: Probability
    """Accuracy in the control task, on the numbers where it can be learnt."""
    selectivity: Gain
    """Accuracy of the random split on the same numbers, minus `control`."""
    selectivity_low: Gain
    selectivity_high: Gain
    deficit_high: float
    """One-sided 95% upper bound of how far the smoothed held-out accuracy is below the best layer's."""
    strength: float
    """C of the logistic regression."""

    def estimate(self, name: str) -> Estimate:
        """`random_split`, `held_out` or `selectivity` with its interval."""
        value, low, high = (getattr(self, f"{name}{end}") for end in ("", "_low", "_high"))
        return Estimate(value, low, high, cases=0)


class ProbedNumber(Record):
    """A number of a labelled sentence, a line of `probe_*.jsonl`. The lists have an entry per layer: 1 where the probe
    read the number's role."""

    sentence: Integer
    """Index of the sentence."""
    position: Integer
    """Index of the token that is read: the last one at which the policy injects the number."""
    value: Decimal
    """The number's absolute value."""
    role: RoleName
    domain: str
    template: str
    seen: bool | None = None
    """True if the random split's training part contains the value, so that the control task can be learnt."""
    random_split: list[int] | None = None
    control: list[int] | None = None
    held_out: list[int] | None = None


class LayerSelection(Record):
    """The layer chosen, and why; `selection.json` has it without the curve."""

    layer: Integer
    stretch: tuple[Integer, Integer]
    """First and last layer of the stretch that `layer` is the first of."""
    best: Integer
    """Layer of the greatest held-out accuracy, smoothed."""
    argmax: Integer
    """The paper's rule: the layer of the greatest accuracy on a random split."""
    reason: str
    curve: tuple[LayerPoint, ...] = Field(default=(), exclude=True)


def read_curve(folder: Path) -> list[LayerPoint]:
    """The curve of a folder by ascending layer; empty if there is none."""
    path = folder / LAYERS
    return sorted(read_records(path, LayerPoint) if path.exists() else [], key=lambda point: point.layer)


def read_selection(folder: Path) -> LayerSelection | None:
    """The choice in a folder, or None."""
    path = folder / SELECTION
    return read_object(path, LayerSelection) if path.exists() else None


def layers_table(curve: Sequence[LayerPoint], selection: LayerSelection | None) -> Table:
    """One row per layer; with a selection, a last column that marks its layers."""
    caption = "Accuracy of linear probes for numbers' roles by layer, with 95% intervals"
    header: tuple[str, ...] = ("Layer", "Random split", "Held out", "Control", "Selectivity")
    rows: list[tuple[Cell, ...]] = [
        (
            Cell(str(point.layer)),
            inline(percent(point.estimate("random_split"), counted=False)),
            inline(percent(point.estimate("held_out"), counted=False)),
            Cell(f"{point.control:.1%}", estimate=point.control),
            inline(points(point.estimate("selectivity")))._replace(estimate=None),
        )
        for point in curve
    ]
    if selection is not None:
        caption += "; best held out: smoothed over neighbours; the paper's random split: 93% at layer 24 of Qwen3-8B"
        header += ("Mark",)
        marks = {"chosen": selection.layer, "paper's rule": selection.argmax, "best held out": selection.best}
        for index, point in enumerate(curve):
            rows[index] += (Cell(", ".join(mark for mark, layer in marks.items() if layer == point.layer)),)
    return Table(caption, header, tuple(rows), 1, "lines")
