"""Builds the report: one HTML page, whole in itself, from the result files of a folder.

Knows nothing about how results are computed or drawn (summaries, tables, figures do); it arranges them.
"""

import json
import os
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jinja2 import Environment, StrictUndefined, Template

from ani.errors import InputError
from ani.report.figures import Chart, accuracy_chart, alpha_chart, gate_chart, loss_chart, signals_chart
from ani.report.records import (
    Answer,
    GateDecision,
    InspectedSentence,
    Record,
    Run,
    TrainingStep,
    read_lines,
    read_run,
)
from ani.report.summaries import accuracies, gating, gating_by_domain
from ani.report.tables import Table, accuracy_cells, gating_cells, gating_domain_cells, percent

RUN = "run.json"
ARITHMETIC = "arithmetic.jsonl"
TRAINING = "training_log.jsonl"
GATING = "gating.jsonl"
INSPECTED = "inspected.jsonl"

R = TypeVar("R", bound=Record)


class Headline(NamedTuple):
    """A number to see first: what it is, the number, and its interval."""

    name: str
    value: str
    detail: str


class Figure(NamedTuple):
    """A chart under its heading; a wide one has a row to itself."""

    title: str
    chart: Chart
    wide: bool = False


class Section(NamedTuple):
    """A part of the page. `folded` tables stand behind a click (and are open in print)."""

    anchor: str
    title: str
    notes: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()
    sentences: tuple[InspectedSentence, ...] = ()


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("ani.report").joinpath("template.html").read_text(encoding="utf-8")
    return environment.from_string(source)


def _arithmetic(answers: Sequence[Answer]) -> tuple[Section, list[Headline]]:
    rows = accuracies(answers)
    operations = list(dict.fromkeys(row.operation for row in rows))
    notes = ["An answer is exact if every digit is right. Bars and small print: Wilson 95% intervals."]
    notes += [
        f"{row.run}, {row.operation}: {row.unreadable} of {row.overall.total} answers held no number."
        for row in rows
        if row.unreadable
    ]
    section = Section(
        "arithmetic",
        "Arithmetic",
        tuple(notes),
        tuple(
            Figure(
                f"Exact answers, {operation}",
                accuracy_chart([row for row in rows if row.operation == operation], f"accuracy-{index}"),
            )
            for index, operation in enumerate(operations)
        ),
        (accuracy_cells(rows),),
    )
    headlines = []
    for row in rows:
        value, (interval,) = percent(row.overall.estimate)
        detail = f"{interval}, n = {row.overall.total}"
        headlines.append(Headline(f"Exact answers, {row.operation}, {row.run}", value, detail))
    return section, headlines


def _gating(decisions: Sequence[GateDecision]) -> tuple[Section, list[Headline]]:
    summary = gating(decisions)
    domains = gating_by_domain(decisions)
    chart = alpha_chart(decisions, "alpha")
    section = Section(
        "gating",
        "Gate and roles",
        (
            "Held-out sentences: a quantitative number (an operand) should open the gate, a nominal one "
            "(a name) should leave it closed. Intervals take numbers as independent, which numbers of one "
            "sentence are not quite.",
        ),
        (Figure("α by role", chart),) if chart else (),
        (gating_cells(summary),),
        (gating_domain_cells(domains),) if domains else (),
    )
    headlines = []
    if summary.balanced_accuracy is not None:
        value, (interval,) = percent(summary.balanced_accuracy)
        headlines.append(Headline("Roles told apart, balanced accuracy", value, interval))
    return section, headlines


def _training(log: Sequence[TrainingStep]) -> Section:
    # A resumed run logs the steps since its checkpoint again: the later record counts.
    steps = {record.step: record for record in log}
    log = [steps[step] for step in sorted(steps)]
    charts = (
        ("Training loss", loss_chart(log, "loss"), False),
        ("Open gates by role", gate_chart(log, "gates"), False),
        ("Further quantities", signals_chart(log, "signals"), True),
    )
    return Section(
        "training",
        "Training",
        (f"{len(log)} logged steps, {log[0].step} to {log[-1].step}.",),
        tuple(Figure(title, chart, wide) for title, chart, wide in charts if chart),
    )


def _inspected(sentences: Sequence[InspectedSentence]) -> Section:
    return Section(
        "inspected",
        "Inspected sentences",
        (
            "Every number of a sentence with its gate: ● underlined, open (the number's features are "
            "injected); ○ dashed, closed (left alone).",
        ),
        sentences=tuple(sentences),
    )


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _provenance(run: Run) -> dict[str, dict[str, str]]:
    facts = {
        "Model": run.model,
        "Layer": run.layer,
        "Policy": run.policy,
        "Adapter": run.adapter,
        "Commit": run.commit,
        "Command": run.command,
        "Date": run.date,
    }
    groups = {
        "Run": {name: str(value) for name, value in facts.items() if value is not None},
        "Settings": {name: _setting(value) for name, value in run.settings.items()},
        "Packages": dict(sorted(run.packages.items())),
    }
    return {title: entries for title, entries in groups.items() if entries}


def _read(folder: Path, name: str, kind: type[R]) -> list[R]:
    path = folder / name
    return read_lines(path, kind) if path.exists() else []


def _write_whole(path: Path, text: str) -> None:
    """Writes the file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def build_report(folder: Path) -> Path:
    """Writes `report.html` in `folder` from the result files found there.

    Reads `run.json`, `arithmetic.jsonl`, `training_log.jsonl`, `gating.jsonl` and `inspected.jsonl`, all
    optional; a section appears only if its file exists and holds a record. The page loads nothing, runs no
    script, and replaces an older one in one step.

    Returns:
        The path of the page.

    Raises:
        InputError: no result file in the folder, or one is malformed (the message names file and line).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that `ani train` or `ani eval` wrote to")
    has_run = (folder / RUN).exists()
    run = read_run(folder / RUN) if has_run else Run()
    sections: list[Section] = []
    headlines: list[Headline] = []
    if answers := _read(folder, ARITHMETIC, Answer):
        section, found = _arithmetic(answers)
        sections.append(section)
        headlines += found
    if decisions := _read(folder, GATING, GateDecision):
        section, found = _gating(decisions)
        sections.append(section)
        headlines += found
    if sentences := _read(folder, INSPECTED, InspectedSentence):
        sections.append(_inspected(sentences))
    if log := _read(folder, TRAINING, TrainingStep):
        sections.append(_training(log))
    if not sections and not has_run:
        raise InputError(
            f"{folder} holds no results (none of {RUN}, {ARITHMETIC}, {GATING}, {INSPECTED}, {TRAINING}, or "
            "only empty ones); `ani demo`, `ani train` and `ani eval --out` write them"
        )
    page = folder / "report.html"
    _write_whole(
        page,
        _template().render(
            run=run, sections=sections, headlines=headlines, provenance=_provenance(run) if has_run else {}
        ),
    )
    return page
