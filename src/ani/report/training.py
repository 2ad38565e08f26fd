"""The report's tables of a training log: a table with its chart for each logged quantity."""

import re
from collections.abc import Sequence

from pydantic import ConfigDict, Field

from ani.results.records import Integer, Record
from ani.results.tables import MISSING, Cell, Table

_ROLE = re.compile("_(quantitative|nominal)$")


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
    """One table per quantity, one row per step; a quantity by role is a column of the table of all numbers. A step that
    is logged twice counts as it was last logged."""
    steps = {record.step: record.quantities() for record in log}
    groups: dict[str, dict[str, None]] = {}
    for key in (key for quantities in steps.values() for key in quantities):
        groups.setdefault(_ROLE.sub("", key), {})[key] = None
    tables = []
    for title, keys in groups.items():
        rows = tuple((Cell(str(step)), *(_cell(steps[step].get(key)) for key in keys)) for step in sorted(steps))
        header = ("Step", *(key.replace("_", " ") for key in keys))
        tables.append(Table(title.replace("_", " "), header, rows, 1, "lines"))
    return tables


def _cell(value: float | None) -> Cell:
    return Cell(MISSING) if value is None else Cell(f"{value:.4g}", estimate=value)
