"""A comparison's results: one file per task with all runs, the tables, the notes above them, the report."""

from pathlib import Path
from typing import Any

from ani.compare.plan import Plan, asks_merged
from ani.evaluation.evaluate import presented
from ani.evaluation.task import Task
from ani.files import replacing_file
from ani.provenance import provenance
from ani.report import build_report
from ani.results.records import RUN, read_records, task_file, write_json, write_records
from ani.results.tables import Table, markdown


def notes_of(plan: Plan) -> list[str]:
    """A note on the precision of the answers, and one on each variant whose data or training differs from the recipe's,
    so that its row has another budget than the others. The module's learning rate and start and the tokens that are
    learnt do not count: they cost nothing, and most methods have no module."""
    computed = plan.machine.dtype if plan.base.dtype == "auto" else plan.base.dtype
    weights = "" if plan.base.quantization == "none" else f" on weights in {plan.base.quantization}"
    notes = [f"All rows are computed by transformers in {computed}{weights}."]
    if merged := [task.name for task, *_ in plan.tasks if asks_merged(task, plan.backend)]:
        others = " and ".join(dict.fromkeys(run.variant for run in plan.runs if run.why_not_vllm))
        but = f", of {others} by transformers on the same" if others else ""
        notes[0] = f"{notes[0][:-1]}; {' and '.join(merged)} by vLLM on merged weights in {plan.machine.dtype}{but}."
    if once := [name for name in plan.variants if sum(run.variant == name for run in plan.runs) == 1]:
        notes.append(f"{' and '.join(once)}: one seed, so intervals don't cover training.")
    for name, recipe in plan.variants.items():
        budget = ("data", "training", "lora", "quantization", "dtype")
        free = {key: getattr(plan.base.training, key) for key in ("module_learning_rate", "random_start", "loss_on")}
        alike = recipe.model_copy(update={"training": recipe.training.model_copy(update=free)})
        changed = [key for key in budget if getattr(alike, key) != getattr(plan.base, key)]
        if changed:
            notes.append(f"{name} has other {' and '.join(changed)} than the recipe: its budget differs.")
    return notes


def merged_tables(plan: Plan) -> list[Table]:
    """Merge the results of the finished runs into the comparison's folder, and return their tables."""
    finished = [run for run in plan.runs if run.is_finished(plan.tasks)]
    results: dict[type[Task], list[Any]] = {}
    for each in plan.tasks:
        task = each.task
        records = [
            record.model_copy(update={"run": run.variant, "seed": run.seed})
            for run in finished
            if each in run.asked(plan.tasks)
            for record in read_records(task_file(run.folder, task.name), task.record)
        ]
        if records:
            results[type(task)] = write_records(task_file(plan.folder, task.name), records)
    tables, baseline = [], plan.comparison.baseline
    for kind, records in presented(results):
        tables += kind.tables(records, baseline if baseline in {record.run for record in records} else None)
    return tables


def write_report(plan: Plan, tables: list[Table], notes: list[str]) -> Path:
    """Write `comparison.md`, `run.json` and the report; return the report's path."""
    folder, comparison = plan.folder, plan.comparison
    title = f"Comparison {folder.resolve().name}"
    with replacing_file(folder / "comparison.md") as file:
        file.write("\n\n".join([f"# {title}", *notes, markdown(tables)]))
    finished = [run for run in plan.runs if run.is_finished(plan.tasks)]
    baseline = comparison.baseline if any(run.variant == comparison.baseline for run in finished) else None
    facts: dict[str, Any] = {"title": title, "model": plan.base.model, "baseline": baseline}
    facts |= {
        "runs": [{"variant": run.variant, "seed": run.seed, **run.injection} for run in finished],
        "published": comparison.published,
        "notes": notes,
        "settings": comparison.model_dump(mode="json", exclude={"published"}),
        **provenance(),
    }
    write_json(folder / RUN, facts)
    return build_report(folder)
