"""Builds the report, one self-contained HTML page, of the sections of tasks, layers and training."""

import json
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from ani.errors import InputError
from ani.evaluation.evaluate import presented, read_results
from ani.evaluation.tasks import TASKS
from ani.files import replacing_file
from ani.report.figures import draw
from ani.report.layers import effects_section, layers_section, read_curve, read_selection
from ani.report.published import published_section
from ani.report.training import TrainingStep, training_section
from ani.results.decisions import marked_html
from ani.results.records import LAYERS, REPORT, RUN, TRAINING_LOG, Run, read_records, read_run
from ani.results.sections import Section


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("ani.report").joinpath("template.html").read_text(encoding="utf-8")
    return environment.from_string(source)


def _provenance(run: Run) -> dict[str, dict[str, str]]:
    facts = {
        "Model": run.model,
        "Layer": run.layer,
        "Policy": run.policy,
        "Adapter": run.adapter,
        "Engine": None if run.model is None or run.runs else run.backend,  # a comparison's notes say it
        "Decoding": "writes exact results after written calculations" if run.forced else None,
        "Commit": run.commit,
        "Command": run.command,
        "Date": run.date,
    }
    groups = {
        "Run": {name: str(value) for name, value in facts.items() if value is not None},
        "Settings": {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in run.settings.items()
        },
        "Packages": dict(sorted(run.packages.items())),
    }
    return {title: entries for title, entries in groups.items() if entries}


def _sections(folder: Path, run: Run) -> list[Section]:
    results = read_results(folder)
    sections = [task.section(records, run) for task, records in presented(results)]
    if beside := published_section(results, run.published, run.baseline):
        sections.insert(0, beside)
    if curve := read_curve(folder):
        sections.append(layers_section(curve, read_selection(folder, curve)))
        if effects := effects_section(results, run, curve):
            sections.append(effects)
    log = folder / TRAINING_LOG
    if log.exists() and (steps := read_records(log, TrainingStep)):
        sections.append(training_section(steps))
    return sections


def build_report(folder: Path) -> Path:
    """Writes `report.html` in `folder` from the result files found there, and returns its path. Raises InputError if
    there is none, or one is malformed (file and line are named).

    Reads `run.json`, the file of every task, the probes' and the training log, all optional; a section appears only if
    its file exists and holds a record, and that on layer sensitivity if a comparison's runs inject at three of the
    probed layers or more. The page loads nothing, runs no script, and replaces an older one in one step.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that `ani train` or `ani eval` wrote to")
    found = read_run(folder)
    run = found or Run()
    sections = _sections(folder, run)
    if not sections and found is None:
        files = [RUN, *(f"{task}.jsonl" for task in TASKS), LAYERS, TRAINING_LOG]
        raise InputError(
            f"{folder} holds no results (none of {', '.join(files)}, or only empty ones); `ani demo`, `ani train`, "
            "`ani eval --out`, `ani probe --out` and `ani compare` write them"
        )
    page = folder / REPORT
    charts = {
        (section.anchor, index): draw(figure.chart, f"{section.anchor}-{index}")
        for section in sections
        for index, figure in enumerate(section.figures)
    }
    text = _template().render(
        run=run,
        sections=sections,
        charts=charts,
        marked=lambda text, numbers: Markup(marked_html(text, numbers)),
        headlines=[headline for section in sections for headline in section.headlines],
        provenance=_provenance(run) if found is not None else {},
    )
    with replacing_file(page) as file:
        file.write(text)
    return page
