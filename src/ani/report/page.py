"""The report: one self-contained HTML page with the tables of a result folder and their charts."""

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined

from ani.errors import InputError
from ani.evaluation.evaluate import presented, read_results
from ani.files import replacing_file
from ani.probing.curve import NOTE, layers_table, read_curve, read_selection
from ani.report.charts import chart
from ani.report.layers import effects_table
from ani.report.published import published_table
from ani.report.training import TrainingStep, training_tables
from ani.results.records import REPORT, TRAINING_LOG, Run, read_records, read_run
from ani.results.tables import Table


class Part(NamedTuple):
    """A section of the page: title, notes, tables, and folded tables."""

    title: str
    notes: Sequence[str]
    tables: Sequence[Table] = ()
    details: Sequence[Table] = ()


def build_report(folder: Path) -> Path:
    """Write `report.html` into a result folder and return its path.

    The page has a section for each file with records: the tasks' files, the probes' curve and the training log. It
    loads nothing and runs no script. Raises InputError if the folder has no results, or a file is malformed.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name a folder that `ani train` or `ani eval` wrote")
    found = read_run(folder)
    run = found or Run()
    parts = _parts(folder, run)
    if not parts and found is None:
        raise InputError(
            f"{folder} contains no results; `ani demo`, `ani train`, `ani eval`, `ani probe`, `ani compare` write them"
        )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = resources.files("ani.report").joinpath("template.html").read_text(encoding="utf-8")
    text = environment.from_string(template).render(run=run, parts=parts, chart=chart, facts=_facts(run))
    with replacing_file(folder / REPORT) as file:
        file.write(text)
    return folder / REPORT


def _parts(folder: Path, run: Run) -> list[Part]:
    results, parts = read_results(folder), []
    if table := published_table(results, run.published, run.baseline):
        parts.append(Part("Measured and published", (), (table,)))
    for task, records in presented(results):
        tables = task.tables(records, run.baseline)
        parts.append(Part(task.title, task.notes(records), tables, task.details(records, run.baseline)))
    if curve := read_curve(folder):
        selection = read_selection(folder)
        notes = [NOTE] if selection is None else [selection.reason, NOTE]
        parts.append(Part("Layers", notes, (layers_table(curve, selection),)))
        if effects := effects_table(results, run, curve):
            parts.append(Part("Layer sensitivity", effects[0], (effects[1],)))
    log = folder / TRAINING_LOG
    if log.exists() and (steps := read_records(log, TrainingStep)):
        parts.append(Part("Training", (), details=training_tables(steps)))
    return parts


def _facts(run: Run) -> dict[str, str]:
    """The facts of `run.json` by name, as text."""
    facts = run.model_dump(mode="json", exclude={"title", "notes", "runs", "published"}, exclude_defaults=True)
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in facts.items()
    }
