"""The registry of evaluation tasks.

`ani eval`, `ani compare`, `ani diff` and `ani report` know every task of `TASKS`. `ani eval` offers the tasks whose
settings all have defaults. A new task is a subclass of `Task`: register it in `TASKS`, or list it in an entry point of
the group `ani.tasks`, whose value is a list of task classes.
"""

import difflib
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import accumulate

from ani.errors import InputError, one_line
from ani.evaluation.task import Task
from ani.evaluation.tasks.arithmetic import Arithmetic, ArithmeticInChat
from ani.evaluation.tasks.gates import Gates
from ani.evaluation.tasks.gsm8k import Gsm8k, Gsm8kChat
from ani.evaluation.tasks.language import Language
from ani.evaluation.tasks.math import Math, MathChat
from ani.evaluation.tasks.mmlu import Mmlu
from ani.evaluation.tasks.reading import Reading
from ani.evaluation.tasks.routing import Routing

GROUP = "ani.tasks"
"""The entry point group of task lists. A module that lists tasks must not import this package while it is loading."""


def installed_tasks() -> Iterator[type[Task]]:
    """Yield the tasks that installed packages list under `GROUP`; an entry point whose module is missing is skipped."""
    for entry in entry_points(group=GROUP):
        if all(find_spec(package) for package in accumulate(entry.module.split("."), "{}.{}".format)):
            yield from entry.load()


OWN_TASKS: list[type[Task]] = [
    Arithmetic,
    ArithmeticInChat,
    Reading,
    Gsm8k,
    Gsm8kChat,
    Math,
    MathChat,
    Mmlu,
    Gates,
    Routing,
    Language,
]
TASKS = {task.name: task for task in [*OWN_TASKS, *installed_tasks()]}
"""Every task by its name, in the order of tables and of the report."""


def task_class(name: str) -> type[Task]:
    """The task of a name; raises InputError if there is none."""
    if name not in TASKS:
        near = difflib.get_close_matches(name[:80], TASKS, n=1, cutoff=0)
        raise InputError(f"unknown task {one_line(name, 80)}; did you mean {near[0]}? known are {', '.join(TASKS)}")
    return TASKS[name]


def evaluated_tasks() -> dict[str, type[Task]]:
    """The tasks of `ani eval`: those whose settings all have defaults."""
    return {name: task for name, task in TASKS.items() if not any(f.is_required() for f in task.model_fields.values())}
