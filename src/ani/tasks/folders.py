"""Result folders of one model: `ani eval` and `ani gate-shares` fill one, `ani diff` compares two; knows no task."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ani.errors import InputError
from ani.launch import ONE_PROCESS, Processes
from ani.provenance import provenance
from ani.results.files import RUN, Run, read_run, task_file, write_json
from ani.results.scores import Answer
from ani.results.tables import Fitted, Table
from ani.tasks import TASKS, ask, clear_answers, pose, presented, read_results
from ani.tasks.answering import Answerer
from ani.tasks.task import Task
from ani.untrusted.text import one_line


def evaluated_tasks() -> dict[str, type[Task]]:
    """The tasks of `ani eval`: those that need no settings that have no option."""
    return {name: task for name, task in TASKS.items() if not any(f.is_required() for f in task.model_fields.values())}


def with_options(names: Sequence[str], data: Mapping[str, str], **options: Any) -> list[Task]:
    """Tasks with those of the command line's options that each has; `data` is by task.

    Raises:
        InputError: There is data for a task that takes none or isn't asked, or an option has a wrong value.
    """
    known = evaluated_tasks()
    takers = [name for name, task in known.items() if "data" in task.model_fields]
    for name in data:
        if name not in takers:
            raise InputError(f"the task {name} takes no data; those that do are {', '.join(takers)}")
        if name not in names:
            raise InputError(f"data for {name}, which is not among the tasks {', '.join(names)}")
    return [known[name].asked(data=data.get(name), **options) for name in names]


def evaluate(
    tasks: Sequence[Task],
    answerer: Answerer,
    out: Path,
    *,
    seed: int = 0,
    console: Console,
    facts: Mapping[str, Any] | None = None,
    processes: Processes = ONE_PROCESS,
) -> dict[str, Any]:
    """Ask a model tasks; one JSON-lines file a task in `out`, and a table on the console.

    Benchmarks keep each answer as it comes: the same call after an interruption goes on with them.

    Args:
        tasks: With their settings.
        answerer: The model; with a gate for tasks that need one, with a chat template for those that chat.
        out: Directory; earlier results of the same tasks are replaced, those of others, of the same model, are kept.
        seed: Of problems, sentences and the choice of queries and questions; problems and sentences never stand in
            training data, whatever the seed.
        console: For progress and tables.
        facts: What `run.json` says of the model.
        processes: Those that share the work, all calling this; the main one writes and prints.

    Returns:
        For scripts: per task, counts and shares with 95% intervals (None where nothing was counted).

    Raises:
        InputError: A task's data can't be read, the model lacks what a task needs, or `out` holds another's results.
    """
    # All bad input is met before the first file is touched.
    posed = pose(tasks, answerer.tokenizer, answerer.model.config, seed)
    model = dict(facts or {})
    if processes.main:
        settings = {task.name: {**task.facts(questions), "seed": seed} for task, questions in posed}
        every = _earlier_settings(out, model) | settings
        for name in settings:
            task_file(out, name).unlink(missing_ok=True)
        # Before the results, so that those of a killed run are never taken for another model's.
        write_json(out / RUN, {"title": f"Results: {', '.join(every)}", "settings": every, **model, **provenance()})
    results: dict[str, Any] = {}

    def show(task: type[Task], records: list[Any]) -> None:
        for table in task.tables(records):
            console.print(Fitted(table))
        results[task.name] = task.summary(records)

    ask(posed, answerer, out, console=console, processes=processes, done=show)
    if processes.main:
        clear_answers(out, tasks)
    return processes.from_main(lambda: results)


def _earlier_settings(out: Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the folder's results by task; raises InputError if they are another model's."""
    run = read_run(out)
    if run is None:
        return {}
    found = {task: settings for task, settings in run.settings.items() if task_file(out, task).is_file()}
    if found and (run.model, run.adapter, run.backend, run.forced) != (
        model.get("model"),
        model.get("adapter"),
        model.get("backend", Run().backend),
        model.get("forced", False),
    ):
        forced = ", with results forced" * run.forced
        raise InputError(
            f"{out} holds results of the model {run.model}, adapter {run.adapter}, by {run.backend}{forced}; name "
            "another output, or remove it"
        )
    return found


def compare_folders(run: Path, baseline: Path) -> tuple[list[Table], dict[str, Any]]:
    """Compare one model's results to another's on the same problems (paper, "Confidence Intervals and Difficulty-wise
    Analysis"), in all and by digits, level, group and subject.

    Args:
        run: Folder with the results of one model to tasks that are judged question by question.
        baseline: Another one. Operations and benchmarks that only one of them has are left out.

    Returns:
        Tables; and for scripts, per task and part the difference of the shares of right answers, its 95% interval and
        the one-sided p of no gain.

    Raises:
        InputError: A folder has no such results or those of several models, the two have none in common, or their
            problems, prompts or settings of generation (`run.json`) differ.
    """
    if run.resolve() == baseline.resolve():
        raise InputError(f"{run} would be compared to itself; name two folders")
    found = [_judged(folder) for folder in (run, baseline)]
    both: dict[type[Task], list[Any]] = {}
    for task in found[0]:
        if task in found[1]:
            _same_generation(task.name, run, baseline)
            both[task] = [
                record.model_copy(update={"run": str(folder)})
                for folder, results in zip((run, baseline), found, strict=True)
                for record in _one_model(task_file(folder, task.name), results[task])
            ]
    pairs = [pair for task, records in presented(both) if (pair := task.pairs(records, str(baseline)))]
    if not pairs:
        ours, theirs = (", ".join(task.name for task in results) for results in found)
        raise InputError(f"{run} has {ours}, and {baseline} has {theirs}: no operation or benchmark in common")
    return [table for pair in pairs for table in pair.tables], {k: v for pair in pairs for k, v in pair.facts.items()}


def _judged(folder: Path) -> dict[type[Task], list[Any]]:
    judged = [task for task in TASKS.values() if issubclass(task.record, Answer)]
    results = {task: records for task, records in read_results(folder).items() if task in judged}
    if not results:
        files = ", ".join(task_file(Path(), task.name).name for task in judged)
        raise InputError(f"{folder} holds none of {files}, or only empty ones; `ani eval --out` writes them")
    return results


def _same_generation(task: str, run: Path, baseline: Path) -> None:
    """A shorter answer may be wrong for being cut off. Folders without such settings in `run.json` are let pass."""
    known = [(read_run(folder) or Run()).settings.get(task) for folder in (run, baseline)]
    found = [settings.get("generation") if isinstance(settings, dict) else None for settings in known]
    if None not in found and found[0] != found[1]:
        ours, theirs = (one_line(json.dumps(generation), 200) for generation in found)
        raise InputError(
            f"{task}: answers were generated with {ours} for {run} and {theirs} for {baseline}, by their run.json; "
            "evaluate both with the same --max-new-tokens"
        )


def backends_differ(run: Path, baseline: Path) -> str | None:
    """A sentence to show beside a comparison whose two folders were answered by different backends; else None."""
    ours, theirs = ((read_run(folder) or Run()).backend for folder in (run, baseline))
    if ours == theirs:
        return None
    return f"{run} was answered by {ours}, {baseline} by {theirs}: rounding differs, and is part of the differences"


def _one_model(path: Path, records: list[Any]) -> list[Any]:
    models = {(record.run, record.seed) for record in records}
    if len(models) > 1:
        raise InputError(
            f"{path} holds the answers of {len(models)} models; name the folder of one, such as cells/NAME/seed-0"
        )
    return records
