"""The page's section about training: every quantity of the log."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, Field

from ani.results.records import Integer, Record
from ani.results.sections import NEUTRAL, Figure, Line, Lines, Section

LEFT_OUT = frozenset({"epoch"})
"""Of the log, not drawn: it is the step in another unit."""
_LOSS = {"loss": ("loss", 2)}
_GATES = {
    "gate_open": ("all numbers", 2),
    "gate_open_quantitative": ("quantitative", 0),
    "gate_open_nominal": ("nominal", 1),
}
_PANELS: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "gate logit |z|": {"gate_logit_quantitative": ("quantitative", 0), "gate_logit_nominal": ("nominal", 1)},
    "undecided gates: mean α(1 − α)": {"gate_undecided": ("", NEUTRAL)},
    "saturated gates: share with |z| > 6": {"gate_saturated": ("", NEUTRAL)},
    "‖αe‖ / ‖h‖": {"embedding_ratio": ("", NEUTRAL)},
    "RMS of e, in the hidden state's": {"embedding_rms": ("", NEUTRAL)},
    "gradient norm": {"grad_norm": ("", NEUTRAL)},
    "learning rate": {"learning_rate": ("", NEUTRAL)},
    "tokens per second": {"tokens_per_second": ("", NEUTRAL)},
}


class TrainingStep(Record):
    """One line of `training_log.jsonl`: what was logged at a step."""

    model_config = ConfigDict(extra="allow")

    step: Integer = Field(ge=0)

    @property
    def logged(self) -> dict[str, Any]:
        """All but the step, by its key."""
        return self.model_extra or {}

    def quantities(self) -> dict[str, float]:
        """The numbers among it that can be drawn."""
        return {
            key: float(value)
            for key, value in self.logged.items()
            if type(value) is float or (type(value) is int and abs(value) <= 2**53)
        }


def training_section(log: Sequence[TrainingStep]) -> Section:
    """Every logged quantity is drawn; those that nobody here knows have a panel of their own."""
    steps = {record.step: record.quantities() for record in log}
    logged = {key: None for quantities in steps.values() for key in quantities}

    def lines(series: Mapping[str, tuple[str, int]]) -> list[Line]:
        return [
            Line(name, [(step, steps[step][key]) for step in sorted(steps) if key in steps[step]], style)
            for key, (name, style) in series.items()
            if key in logged
        ]

    known = {key for series in (_LOSS, _GATES, *_PANELS.values()) for key in series} | LEFT_OUT
    others = {key: {key: ("", NEUTRAL)} for key in logged if key not in known}
    panels = {title: found for title, series in {**_PANELS, **others}.items() if (found := lines(series))}
    drawn = {
        "Training loss": Lines("Training loss over steps", "step", {"": lines(_LOSS)}),
        "Open gates": Lines("Share of open gates over steps", "step", {"": lines(_GATES)}, percent=True, limits=(0, 1)),
        "Further quantities": Lines("Further quantities over steps", "step", panels),
    }
    figures = [Figure(title, chart) for title, chart in drawn.items() if any(chart.panels.values())]
    notes = [f"{len(steps)} logged steps, {min(steps)} to {max(steps)}."]
    if left_out := sorted({key for record in log for key in record.logged} - (logged.keys() - LEFT_OUT)):
        notes.append(f"Logged, but not drawn: {', '.join(left_out)}.")
    return Section("training", "Training", tuple(notes), tuple(figures))
