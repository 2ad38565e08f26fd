"""Runs evaluation tasks on a model. Records are written as they come, so an interrupted evaluation resumes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from rich.console import Console

from ani.errors import InputError, first_problem, one_line
from ani.evaluation.engines import Engine
from ani.evaluation.task import Task
from ani.evaluation.tasks import TASKS
from ani.files import replacing_file
from ani.provenance import data_names, digests, provenance
from ani.results.records import (
    RUN,
    Run,
    read_records,
    read_run,
    record_json,
    task_file,
    write_json,
    write_records,
)
from ani.results.scores import TaskRecord
from ani.results.tables import Fitted, markdown
from ani.terminal import counting

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


Answered = dict[int, Sequence[TaskRecord]]
"""The place of a question, and its records."""
SHARE = ".share-"
"""Begins the name of the folder, in that of the results, of a process that answers a share of the questions."""


class LoadedTask(NamedTuple):
    """A task and its questions."""

    task: Task
    questions: Sequence[Any]
    how: Mapping[str, Any] = {}
    """What `run.json` says of how it is asked."""


def task_class(name: str) -> type[Task]:
    """The task of a name; raises InputError if there is none."""
    if name not in TASKS:
        near = difflib.get_close_matches(name[:80], TASKS, n=1, cutoff=0)
        raise InputError(f"unknown task {one_line(name, 80)}; did you mean {near[0]}? known are {', '.join(TASKS)}")
    return TASKS[name]


def evaluated_tasks() -> dict[str, type[Task]]:
    """The tasks of `ani eval`: those that need no settings that have no option."""
    return {name: task for name, task in TASKS.items() if not any(f.is_required() for f in task.model_fields.values())}


def with_options(names: Sequence[str], data: Mapping[str, str], **options: Any) -> list[Task]:
    """Tasks with those of the command line's options that each has; `data` is by task. Raises InputError if there is
    data for a task that takes none or isn't asked, or an option has a wrong value."""
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
    """The questions of every task; raises InputError for all that can be told before the model is asked."""
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
    """Ask a model tasks; one JSON-lines file a task in `out`, and a table on the console. Returns per task, for
    scripts, counts and shares with 95% intervals (None where nothing was counted). Raises InputError if a task's data
    can't be read, the model lacks what a task needs, or `out` holds another's results.

    Args:
        tasks: With their settings.
        engine: The model; with a gate for tasks that need one, with a chat template for those that chat.
        out: Directory; earlier results of the same tasks are replaced, those of others, of the same model, are kept.
        seed: Of problems, sentences and the choice of queries and questions; problems and sentences never stand in
            training data, whatever the seed.
        console: For progress and tables.
        facts: What `run.json` says of the model (`ModelSpec.facts`). With a `fingerprint`, what the same model has
            answered is not asked again.
    """
    # All bad input is met before the first file is touched.
    loaded = load_tasks(tasks, engine.tokenizer, engine.config, seed)
    refuse_another_model(out, facts or {})
    return shown(answer(loaded, lambda: engine, out, seed=seed, console=console, facts=facts), console)


def shown(answered: Iterable[tuple[Task, list[Any]]], console: Console) -> dict[str, Any]:
    """Print each task's tables; returns what `evaluate` does."""
    results: dict[str, Any] = {}
    for task, records in answered:
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
    """Each task and its records, in the order of `loaded`, once its file is in the folder.

    `load` gives the model, and is called when there is something to ask; `facts` are as for `evaluate`; `name`, the
    model's, stands beside the progress.
    """
    load = cache(load)
    for each in loaded:
        task, file = each.task, task_file(folder, each.task.name)
        if not begin(each, folder, seed, facts or {}):
            yield task, read_records(file, task.record)
            continue
        part, found = collected(each, folder)
        ask(each, load, part, found, range(len(each.questions)), console, name)
        written = write_records(file, (record for _, records in sorted(found.items()) for record in records))
        part.unlink()
        yield task, written


def begin(loaded: LoadedTask, folder: Path, seed: int | None, facts: Mapping[str, Any]) -> bool:
    """Prepare a result folder for a task; returns whether the task is still to be asked. Answers of another model, or
    to other questions, are deleted, and `run.json` names the task."""
    model, name = dict(facts), loaded.task.name
    fingerprint = model.pop("fingerprint", None)
    own, settings = task_settings(loaded, seed, fingerprint), known_settings(folder)
    if fingerprint is None or settings.get(name) != own:
        for old in [*folder.glob(f"{name}.*"), *folder.glob(f"{SHARE}*/{name}.*")]:
            old.unlink()
    if task_file(folder, name).is_file():
        return False
    settings[name] = own
    # Before the results, so that those of a killed run are never taken for another model's.
    title = f"Results: {', '.join(settings)}"
    write_json(folder / RUN, {"title": title, "settings": settings, **model, **provenance()})
    return True


def known_settings(folder: Path) -> dict[str, Any]:
    """What `run.json` says of the tasks of which a folder holds results or answers."""
    known = (read_run(folder) or Run()).settings
    return {task: settings for task, settings in known.items() if any(folder.glob(f"{task}.*"))}


def task_settings(loaded: LoadedTask, seed: int | None, fingerprint: str | None) -> dict[str, Any]:
    """What `run.json` says of a task: equal where one model was asked the same, of data files with equal content."""
    files = digests(data_names(loaded.task.model_dump(mode="json")))
    known: dict[str, Any] = {"files": files} if files else {}
    known |= {} if fingerprint is None else {"fingerprint": fingerprint}
    return {**loaded.task.facts(loaded.questions), **loaded.how, "seed": seed, **known}


def answers_file(folder: Path, task: Task) -> Path:
    """Of a task's answers until all are there: a line each, the question's place and its records."""
    return folder / f"{task.name}.answers.jsonl"


def collected(loaded: LoadedTask, folder: Path) -> tuple[Path, Answered]:
    """The file of a task's answers so far (`answers_file`), and these: of a run that was killed, and of processes that
    shared the questions (`ani.evaluation.shares`), whose files are put into it."""
    part = answers_file(folder, loaded.task)
    shares = [*folder.glob(f"{SHARE}*/{part.name}")]
    found = {place: records for each in [part, *shares] for place, records in read_answers(each, loaded).items()}
    with replacing_file(part) as kept:
        kept.writelines(_line(place, records) for place, records in found.items())
    for each in shares:
        each.unlink()
    return part, found


def ask(
    loaded: LoadedTask,
    load: Callable[[], Engine],
    part: Path,
    found: Answered,
    places: Sequence[int],
    console: Console,
    name: str = "",
) -> None:
    """Ask those questions of a task at `places` that aren't in `found`, and add the answers to it and to the file."""
    task, questions, _ = loaded
    missing = [place for place in places if place not in found]
    what = f"{task.name}, {task.unit}" + (f", {name}" if name else "")
    with (
        counting(console, what, len(places)) as count,
        part.open("a", encoding="utf-8", newline="\n") as kept,
    ):
        count(len(places) - len(missing))
        for first in range(0, len(missing), task.together):
            asked = missing[first : first + task.together]
            for position, records in task.answer(load(), [questions[place] for place in asked]):
                found[asked[position]] = records
                kept.write(_line(asked[position], records))
                kept.flush()
                count(1)


def _line(place: int, records: Sequence[TaskRecord]) -> str:
    return f"[{place}, [{', '.join(map(record_json, records))}]]\n"


def read_answers(part: Path, loaded: LoadedTask) -> Answered:
    """The answers in a file, by the place of their question."""
    record: Any = loaded.task.record
    line = TypeAdapter[Any](tuple[Annotated[int, Field(ge=0, lt=len(loaded.questions))], tuple[record, ...]])
    *whole, _ = part.read_bytes().split(b"\n") if part.is_file() else [b""]  # the last one was being written
    try:
        return dict(map(line.validate_json, whole))
    except ValidationError as error:
        raise InputError(f"{part}: {first_problem(error)}; delete the file to answer anew") from error


def refuse_another_model(out: Path, model: Mapping[str, Any]) -> None:
    """Raise InputError if a folder holds results of another model than `model` says, or by another backend."""
    run = read_run(out)
    if run is None or not any(task_file(out, task).is_file() for task in run.settings):
        return
    if (run.model, run.adapter, run.backend, run.forced) != (
        model.get("model"),
        model.get("adapter"),
        model.get("backend", Run().backend),
        model.get("forced"),
    ):
        forced = f", {run.forced}" if run.forced else ""
        raise InputError(
            f"{out} holds results of the model {run.model}, adapter {run.adapter}, by {run.backend}{forced}; name "
            "another output, or remove it"
        )


def read_results(folder: Path) -> dict[type[Task], list[Any]]:
    """The records of a folder, by task; raises InputError if a file is malformed."""
    files = {task: task_file(folder, name) for name, task in TASKS.items()}
    found = {task: read_records(file, task.record) for task, file in files.items() if file.exists()}
    return {task: records for task, records in found.items() if records}


def presented(results: Mapping[type[Task], Sequence[TaskRecord]]) -> list[tuple[type[Task], list[Any]]]:
    """Results by section: tasks of one title, such as the benchmarks, share an entry."""
    groups: dict[str, tuple[type[Task], list[Any]]] = {}
    for task in TASKS.values():
        if records := results.get(task):
            groups.setdefault(task.title, (task, []))[1].extend(records)
    return list(groups.values())


def results_markdown(folder: Path) -> str:
    """The tables of a folder's results, as a model card has them; raises InputError where there are none."""
    run = read_run(folder) or Run()
    results = presented(read_results(folder))
    if not results:
        raise InputError(f"{folder} holds no results; give the folder that ani eval --out or ani compare wrote to")
    facts = (f"`{run.command}`" if run.command else None, f"commit {run.commit}" if run.commit else None, run.date)
    told = ", ".join(fact for fact in facts if fact)
    parts = [
        f"### {task.title}\n\n{markdown([*task.tables(found, run.baseline), *task.details(found, run.baseline)])}"
        for task, found in results
    ]
    return "\n".join([f"Measured by {told}.\n"] * bool(told) + parts)
