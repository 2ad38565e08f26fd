from typing import Any

import pytest

from ani.data.value_problems import FORMS
from ani.results.files import Run
from ani.tasks.answering import Answerer
from ani.tasks.task import Task
from ani.tasks.value_problems import Comparing, Modulo, ValueAnswer
from tests.tiny import pair

TASKS: list[tuple[Task, list[str], list[str]]] = [
    (Comparing(count=6), ["comparing"], sorted(FORMS)),
    (Modulo(count=4, digits=[3, 11]), ["modulo 7", "modulo 11", "modulo 13"], ["3 digits", "11 digits"]),
]
tasks = pytest.mark.parametrize(("task", "names", "parts"), TASKS, ids=["comparing", "modulo"])


class Knowing(Answerer):
    """Answers right, in an own way of writing it."""

    task: Task
    way = " {},"

    def greedy_texts(self, prompts: Any, max_new_tokens: int, *, add_special_tokens: bool = True) -> list[str]:
        answers = {question.prompt: question.answer for question in self.task.questions(seed=0)}
        return [self.way.format(answers[prompt]) for prompt in prompts]


def answered(task: Task, way: str) -> list[ValueAnswer]:
    answerer = Knowing(*pair("qwen3"))
    answerer.task, answerer.way = task, way
    return list(task.run(answerer, task.questions(seed=0), lambda _: None))


@tasks
def test_answers_are_judged_by_their_first_word(task: Task, names: list[str], parts: list[str]) -> None:
    for way, share in [(" {},", 1), ("{} and", 1), (" {0}.\n{0}", 1), (" the {}", 0), (" {},000", 0), (" {}st", 0)]:
        records = answered(task, way)
        assert {name: facts["all"]["share"] for name, facts in task.summary(records).items()} == dict.fromkeys(
            names, share
        )
    assert {record.prediction for record in answered(task, "…")} == {None}
    assert [record.identity for record in records] == [question.prompt for question in task.questions(seed=0)]


@tasks
def test_tables_have_a_column_a_part(task: Task, names: list[str], parts: list[str]) -> None:
    records = [
        ValueAnswer.model_validate_json(record.model_copy(update={"run": run, "seed": 0}).model_dump_json())
        for run, way in (("sft", " -{}"), ("ani", " {}"))
        for record in answered(task, way)
    ]
    shares, gained = task.tables(records, "sft")
    assert shares.header == ("Task", "Run", "All", *parts) == gained.header
    assert [[cell.text for cell in row] for row in shares.rows] == [
        [name, run, *[f"{share}.0%"] * (1 + len(parts))] for name in names for run, share in (("sft", 0), ("ani", 100))
    ]
    pairs = task.pairs(records, "sft")
    assert pairs is not None and pairs.tables == [gained]
    assert {name: facts["all"]["value"] for name, facts in pairs.facts[task.name].items()} == dict.fromkeys(names, 1)
    assert task.section(records, Run()).notes == (task.note,)
