"""The report's tables of a training log: a table with its chart for each group of logged quantities."""

from collections.abc import Mapping, Sequence

from pydantic import ConfigDict, Field

from ani.results.records import Integer, Record
from ani.results.tables import MISSING, Cell, Table

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Share of open gates": {
        "gate_open": "all numbers",
        "gate_open_quantitative": "quantitative",
        "gate_open_nominal": "nominal",
    },
    "Gate logit |z|": {"gate_logit_quantitative": "quantitative", "gate_logit_nominal": "nominal"},
}
"""Titles of tables with several quantities, and the names of these. Every other quantity has its own table."""


class TrainingStep(Record):
    """One line of `training_log.jsonl`: the quantities logged at a step."""

    model_config = ConfigDict(extra="allow")

    step: Integer = Field(ge=0)

    def quantities(self) -> dict[str, float]:
        """The logged numbers by name. Left out: other values, and the epoch, which is the step in another unit."""
        logged = (self.model_extra or {}).items()
        return {
            key: float(value)
            for key, value in logged
            if key != "epoch" and (type(value) is float or (type(value) is int and abs(value) <= 2**53))
        }


def training_tables(log: Sequence[TrainingStep]) -> list[Table]:
    """One table per group of quantities, one row per step; a step that is logged twice counts as it was last logged."""
    steps = {record.step: record.quantities() for record in log}
    logged = dict.fromkeys(key for quantities in steps.values() for key in quantities)
    known = {key for group in GROUPS.values() for key in group}
    alone = {key.replace("_", " "): {key: key} for key in logged if key not in known}
    tables = []
    for title, names in {**alone, **GROUPS}.items():
        keys = [key for key in names if key in logged]
        rows = tuple((Cell(str(step)), *(_cell(steps[step].get(key)) for key in keys)) for step in sorted(steps))
        if keys:
            tables.append(Table(title, ("Step", *(names[key] for key in keys)), rows, 1, "lines"))
    return tables


def _cell(value: float | None) -> Cell:
    return Cell(MISSING) if value is None else Cell(f"{value:.4g}", estimate=value)
