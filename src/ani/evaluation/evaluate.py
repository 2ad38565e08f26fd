"""The run of evaluation tasks on a model. Answers are appended to a file, so an interrupted evaluation continues."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from rich.console import Console

from ani.errors import InputError, first_problem
from ani.evaluation.engines import Engine
from ani.evaluation.task import Task
from ani.evaluation.tasks import TASKS, evaluated_tasks
from ani.provenance import provenance
from ani.results.records import RUN, Run, read_records, read_run, record_json, task_file, write_json, write_records
from ani.results.scores import TaskRecord
from ani.results.tables import Fitted, markdown
from ani.terminal import counting

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

Answered = dict[int, Sequence[TaskRecord]]
"""Records by position of their question."""


class LoadedTask(NamedTuple):
    """A task and its questions."""

    task: Task
    questions: Sequence[Any]
    how: Mapping[str, Any] = {}
    """Further facts for `run.json`, such as the engine's settings."""

    def facts(self, seed: int | None, model: str | None) -> dict[str, Any]:
        """Return the task's entry in `run.json`. Its `hash` is equal where the same model was asked the same questions
        with the same settings; `model` identifies the model's files and settings."""
        facts = {**self.task.facts(self.questions), **self.how, "seed": seed}
        identity = [self.task.name, self.task.model_dump(mode="json"), facts, self.questions, model]
        return {**facts, "hash": hashlib.sha256(json.dumps(identity, default=repr).encode()).hexdigest()[:16]}


def with_options(names: Sequence[str], data: Mapping[str, str], **options: Any) -> list[Task]:
    """Return the tasks, each with those command-line options that it has; `data` is by task. Raises InputError if
    `data` names a task that takes no data or isn't among `names`, or an option has a wrong value."""
    known = evaluated_tasks()
    takers = [name for name, task in known.items() if "data" in task.model_fields]
    for name in data:
        if name not in takers:
            raise InputError(f"the task {name} takes no data; those that do are {', '.join(takers)}")
        if name not in names:
            raise InputError(f"data for {name}, which is not among the tasks {', '.join(names)}")
    return [known[name].asked(data=data.get(name), **options) for name in names]


def load_tasks(
    tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, seed: int
) -> list[LoadedTask]:
    """Return every task with its questions; raises InputError for bad input that is known before the model is asked."""
    loaded = [LoadedTask(task, task.questions(seed)) for task in tasks]
    for task, questions, _ in loaded:
        task.check(questions, tokenizer, config)
    return loaded


def evaluate(
    tasks: Sequence[Task],
    engine: Engine,
    out: Path,
    *,
    seed: int = 0,
    console: Console,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Ask a model tasks, write a file of records per task, and print the tables.

    Args:
        tasks: Tasks with their settings.
        engine: The model; with a gate or a chat template where a task needs one.
        out: Result folder; earlier results of the same tasks are replaced, those of other tasks are kept.
        seed: Draws problems, sentences and questions; none of ours occurs in training data, whatever the seed.
        console: For progress and tables.
        facts: The model's entries in `run.json` (`ModelSpec.facts`). With a `fingerprint`, questions that the same
            model has answered are not asked again.

    Returns:
        Each task's summary by its name.

    Raises:
        InputError: A task's data can't be read, the model lacks what a task needs, or `out` has another model's
            results. No file is changed then.
    """
    loaded = load_tasks(tasks, engine.tokenizer, engine.config, seed)
    refuse_another_model(out, facts or {})
    results: dict[str, Any] = {}
    for task, records in answer(loaded, lambda: engine, out, seed=seed, console=console, facts=facts):
        for table in task.tables(records):
            console.print(Fitted(table))
        results[task.name] = task.summary(records)
    return results


def answer(
    loaded: Sequence[LoadedTask],
    load: Callable[[], Engine],
    folder: Path,
    *,
    seed: int | None,
    console: Console,
    facts: Mapping[str, Any] | None = None,
    name: str = "",
) -> Iterator[tuple[Task, list[Any]]]:
    """Yield each task and its records, in the order of `loaded`, once its file is in the folder.

    `load` loads the model; it is called only if there is something to ask. `facts` are as for `evaluate`; `name` is the
    model's, for the progress line.
    """
    load = cache(load)
    for each in loaded:
        file, part = (folder / f"{each.task.name}.{ending}" for ending in ("jsonl", "answers.jsonl"))
        _begin(each, folder, seed, facts or {})
        if not file.is_file():
            found = _ask(each, load, part, console, name)
            write_records(file, (record for _, records in sorted(found.items()) for record in records))
            part.unlink()
        yield each.task, read_records(file, each.task.record)


def known_hashes(folder: Path) -> dict[str, str | None]:
    """Return the `hash` in `run.json` of each task with results or answers in a folder (`LoadedTask.facts`)."""
    settings = (read_run(folder) or Run()).settings
    return {
        task: known.get("hash") if isinstance(known, dict) else None
        for task, known in settings.items()
        if any(folder.glob(f"{task}.*"))
    }


def _begin(loaded: LoadedTask, folder: Path, seed: int | None, facts: Mapping[str, Any]) -> None:
    """Name the task in `run.json`; delete answers of another model or to other questions."""
    model, name, hashes = dict(facts), loaded.task.name, known_hashes(folder)
    fingerprint = model.pop("fingerprint", None)
    own = loaded.facts(seed, fingerprint)
    if fingerprint is not None and hashes.get(name) == own["hash"]:
        return
    for old in folder.glob(f"{name}.*"):
        old.unlink()
    settings = {task: known for task, known in (read_run(folder) or Run()).settings.items() if task in hashes}
    settings[name] = own
    # Before the results, so that those of a killed run are never taken for another model's.
    title = f"Results: {', '.join(settings)}"
    write_json(folder / RUN, {"title": title, "settings": settings, **model, **provenance()})


def _ask(loaded: LoadedTask, load: Callable[[], Engine], part: Path, console: Console, name: str) -> Answered:
    """Ask the questions that have no answer in the file `part`, append the answers to it, and return all of them."""
    task, questions, _ = loaded
    found = _answers(part, loaded)
    missing = [place for place in range(len(questions)) if place not in found]
    what = f"{task.name}, {task.unit}" + (f", {name}" if name else "")
    with counting(console, what, len(questions)) as count, part.open("a", encoding="utf-8", newline="\n") as kept:
        count(len(found))
        for first in range(0, len(missing), task.together):
            asked = missing[first : first + task.together]
            for position, records in task.answer(load(), [questions[place] for place in asked]):
                found[asked[position]] = records
                kept.write(f"[{asked[position]}, [{', '.join(map(record_json, records))}]]\n")
                kept.flush()
                count(1)
    return found


def _answers(part: Path, loaded: LoadedTask) -> Answered:
    """Return the answers in a file of an interrupted run; an incomplete last line is cut off."""
    if not part.is_file():
        return {}
    record: Any = loaded.task.record
    line = TypeAdapter[Any](tuple[Annotated[int, Field(ge=0, lt=len(loaded.questions))], tuple[record, ...]])
    *whole, torn = part.read_bytes().split(b"\n")
    os.truncate(part, part.stat().st_size - len(torn))
    try:
        return dict(map(line.validate_json, whole))
    except ValidationError as error:
        raise InputError(f"{part}: {first_problem(error)}; delete the file to answer anew") from error


def refuse_another_model(out: Path, model: Mapping[str, Any]) -> None:
    """Raise InputError if a folder has results of another model, adapter, backend or processors than `model` says."""
    run = read_run(out)
    if run is None or not any(task_file(out, task).is_file() for task in run.settings):
        return
    keys = ("model", "adapter", "backend", "processors")
    given = Run(**{key: model[key] for key in keys if key in model})
    if any(getattr(run, key) != getattr(given, key) for key in keys):
        processors = f" with {', '.join(run.processors)}" if run.processors else ""
        raise InputError(
            f"{out} contains results of the model {run.model}, adapter {run.adapter}, by {run.backend}{processors}; "
            "name another output, or remove it"
        )


def read_results(folder: Path) -> dict[type[Task], list[Any]]:
    """Return the records of a folder by task; raises InputError if a file is malformed."""
    files = {task: task_file(folder, name) for name, task in TASKS.items()}
    found = {task: read_records(file, task.record) for task, file in files.items() if file.exists()}
    return {task: records for task, records in found.items() if records}


def presented(results: Mapping[type[Task], Sequence[TaskRecord]]) -> list[tuple[type[Task], list[Any]]]:
    """Return tasks and records as they are shown: tasks of one title, such as the benchmarks, share an entry."""
    groups: dict[str, tuple[type[Task], list[Any]]] = {}
    for task in TASKS.values():
        if records := results.get(task):
            groups.setdefault(task.title, (task, []))[1].extend(records)
    return list(groups.values())


def results_markdown(folder: Path) -> str:
    """Return the tables of a folder's results for a model card; raises InputError if there are none."""
    run = read_run(folder) or Run()
    results = presented(read_results(folder))
    if not results:
        raise InputError(f"{folder} contains no results; give the folder that ani eval --out or ani compare wrote to")
    facts = (f"`{run.command}`" if run.command else None, f"commit {run.commit}" if run.commit else None, run.date)
    source = ", ".join(fact for fact in facts if fact)
    parts = [
        f"### {task.title}\n\n{markdown([*task.tables(found, run.baseline), *task.details(found, run.baseline)])}"
        for task, found in results
    ]
    return "\n".join([f"Measured by {source}.\n"] * bool(source) + parts)
