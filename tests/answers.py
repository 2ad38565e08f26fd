"""Answers of a task without files, in the batches of `ani.evaluation.evaluate`."""

from collections.abc import Sequence
from typing import Any

from ani.evaluation.engines import Engine
from ani.evaluation.task import Task


def answers_of(task: Task, engine: Engine, questions: Sequence[Any]) -> list[Any]:
    """The records in the order of the questions."""
    found: dict[int, Sequence[Any]] = {}
    for first in range(0, len(questions), task.together):
        for place, records in task.answer(engine, questions[first : first + task.together]):
            assert first + place not in found
            found[first + place] = records
    assert sorted(found) == list(range(len(questions)))
    return [record for _, records in sorted(found.items()) for record in records]
