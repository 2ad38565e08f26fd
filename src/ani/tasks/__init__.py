"""What is asked of models: every task, and the one loop that asks them; knows nothing about training.

A task is one file and one line here. `TASKS` is open to tasks of one's own, which `ani eval`, `ani compare`, `ani diff`
and `ani report` then know by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from ani.errors import InputError
from ani.launch import ONE_PROCESS, Processes
from ani.progress import counting
from ani.results.files import kept_files, read_records, task_file, write_records
from ani.results.scores import Asked
from ani.tasks.answering import Answerer
from ani.tasks.arithmetic import Arithmetic
from ani.tasks.arithmetic_chat import ArithmeticInChat
from ani.tasks.benchmarks import Gsm8k, Math, Mmlu
from ani.tasks.calculations import Calculations
from ani.tasks.finer import Finer
from ani.tasks.gate_shares import GateShares
from ani.tasks.gating import Gating
from ani.tasks.inspected import Inspected
from ani.tasks.language import Language
from ani.tasks.reading import Reading
from ani.tasks.routing import Routing
from ani.tasks.task import Task
from ani.untrusted.text import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Arithmetic,
        ArithmeticInChat,
        Reading,
        Calculations,
        Gsm8k,
        Math,
        Mmlu,
        Gating,
        Routing,
        Finer,
        GateShares,
        Language,
        Inspected,
    )
}
"""Every task by its name, in the order of tables and of the report."""


class Posed(NamedTuple):
    """A task, and the questions that it asks."""

    task: Task
    questions: Sequence[Any]


def task_class(name: str) -> type[Task]:
    """The task of a name; raises InputError if there is none."""
    if name not in TASKS:
        near = difflib.get_close_matches(name[:80], TASKS, n=1, cutoff=0)
        raise InputError(f"unknown task {one_line(name, 80)}; did you mean {near[0]}? known are {', '.join(TASKS)}")
    return TASKS[name]


def pose(tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, seed: int) -> list[Posed]:
    """Get the questions of every task; raises InputError for all that can be told before the model is asked."""
    posed = [Posed(task, task.questions(seed)) for task in tasks]
    for task, questions in posed:
        task.check(questions, tokenizer, config)
    return posed


def ask(
    posed: Iterable[Posed],
    answerer: Answerer,
    folder: Path,
    *,
    console: Console,
    of: str = "",
    processes: Processes = ONE_PROCESS,
    done: Callable[[type[Task], list[Any]], None] = lambda task, records: None,
) -> None:
    """Ask a model every task; its records are then in the folder, one file a task.

    Args:
        posed: In this order.
        answerer: The model.
        folder: Answers of long tasks lie there too, in `TASK.answers`, for a killed run to go on with; whoever calls
            removes them when all is done (`clear_answers`).
        console: For progress.
        of: The model's name, beside the progress.
        processes: Those that share the work, all calling this; the main one writes.
        done: Called on the main process when a task's file is written.
    """
    for task, questions in posed:
        what = f"{task.name}, {task.unit}" + (f", {of}" if of else "")
        with counting(console if processes.main else Console(quiet=True), what, len(questions)) as count:
            made = task.run(answerer, questions, processes.counted(count), processes, _answers(folder, task))
            # What can't be written is met before the work: `made` begins when the file is open.
            records = write_records(task_file(folder, task.name), made) if processes.main else list(made)
        if processes.main:
            done(type(task), records)


def clear_answers(folder: Path, tasks: Iterable[Task]) -> None:
    """Remove what long tasks kept."""
    for task in tasks:
        for file in kept_files(_answers(folder, task)):
            file.unlink()


def _answers(folder: Path, task: Task) -> Path:
    return folder / f"{task.name}.answers"


def read_results(folder: Path) -> dict[type[Task], list[Any]]:
    """The records of a folder, by task; raises InputError if a file is malformed."""
    files = {task: task_file(folder, name) for name, task in TASKS.items()}
    found = {task: read_records(file, task.record) for task, file in files.items() if file.exists()}
    return {task: records for task, records in found.items() if records}


def presented(results: Mapping[type[Task], Sequence[Asked]]) -> list[tuple[type[Task], list[Any]]]:
    """Results by what shows them: tasks that share their tables and section, such as the benchmarks, are one entry."""
    groups: dict[str, tuple[type[Task], list[Any]]] = {}
    for task in TASKS.values():
        if records := results.get(task):
            groups.setdefault(task.title, (task, []))[1].extend(records)
    return list(groups.values())
