"""`ani diff`: two result folders in pairs, question by question."""

import json
from pathlib import Path
from typing import Any

from ani.errors import InputError, one_line
from ani.evaluation.evaluate import presented, read_results
from ani.evaluation.task import Task
from ani.evaluation.tasks import TASKS
from ani.results.records import Run, read_run, task_file
from ani.results.scores import Answer
from ani.results.tables import Table


def compare_folders(run: Path, baseline: Path) -> tuple[list[Table], dict[str, Any]]:
    """Compare two models' results on the same problems, in all and by digits, level, group and subject (paper,
    "Confidence Intervals and Difficulty-wise Analysis"). Operations and benchmarks that only one folder has are left
    out.

    Returns:
        Tables; and for JSON, per task and part, the difference of the shares of right answers, its 95% interval and the
        one-sided p of no gain.

    Raises:
        InputError: A folder has no such results or those of several models, the two have none in common, or their
            problems, prompts or settings of generation (`run.json`) differ.
    """
    if run.resolve() == baseline.resolve():
        raise InputError(f"{run} would be compared to itself; name two folders")
    found = {folder: _judged(folder) for folder in (run, baseline)}
    both: dict[type[Task], list[Any]] = {}
    for task in found[run]:
        if task in found[baseline]:
            _same_generation(task.name, run, baseline)
            both[task] = [
                each for folder, results in found.items() for each in _of_one_model(folder, task, results[task])
            ]
    pairs = [pair for task, records in presented(both) if (pair := task.pairs(records, str(baseline)))]
    if not pairs:
        ours, theirs = (", ".join(task.name for task in results) for results in found.values())
        raise InputError(f"{run} has {ours}, and {baseline} has {theirs}: no operation or benchmark in common")
    return [table for pair in pairs for table in pair.tables], {k: v for pair in pairs for k, v in pair.facts.items()}


def _judged(folder: Path) -> dict[type[Task], list[Any]]:
    judged = [task for task in TASKS.values() if issubclass(task.record, Answer)]
    results = {task: records for task, records in read_results(folder).items() if task in judged}
    if not results:
        files = ", ".join(task_file(Path(), task.name).name for task in judged)
        raise InputError(f"{folder} contains none of {files}, or only empty ones; `ani eval --out` writes them")
    return results


def _same_generation(task: str, run: Path, baseline: Path) -> None:
    """Raise InputError if `run.json` names different settings of generation: a shorter answer may be wrong because it
    is cut off."""
    known = [(read_run(folder) or Run()).settings.get(task) for folder in (run, baseline)]
    found = [settings.get("generation") if isinstance(settings, dict) else None for settings in known]
    if None not in found and found[0] != found[1]:
        ours, theirs = (one_line(json.dumps(generation), 200) for generation in found)
        raise InputError(
            f"{task}: answers were generated with {ours} for {run} and {theirs} for {baseline}, by their run.json; "
            "evaluate both with the same --max-new-tokens"
        )


def backends_differ(run: Path, baseline: Path) -> str | None:
    """Return a note if two folders were answered by different backends; else None."""
    ours, theirs = ((read_run(folder) or Run()).backend for folder in (run, baseline))
    if ours == theirs:
        return None
    return f"{run} was answered by {ours}, {baseline} by {theirs}: rounding differs, and is part of the differences"


def _of_one_model(folder: Path, task: type[Task], records: list[Any]) -> list[Any]:
    """Return the records with the folder as their run; raises InputError if they are of several models."""
    if (models := len({(record.run, record.seed) for record in records})) > 1:
        path = task_file(folder, task.name)
        raise InputError(
            f"{path} contains answers of {models} models; name the folder of one, such as runs/NAME/seed-0"
        )
    return [record.model_copy(update={"run": str(folder)}) for record in records]
