from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest

from ani.calculator.tasks.meant import Meant, MeantAnswer
from ani.calculator.tasks.stated import stated_numbers
from ani.evaluation.engines import TransformersEngine
from tests.answers import answers_of
from tests.evaluation.tasks.test_arithmetic import Scripted
from tests.tokenizers import qwen


def test_each_kind_and_operation_has_its_share_and_its_results_are_right() -> None:
    task = Meant.asked(limit=5)
    questions = task.questions(seed=0)
    counts = Counter((question.kind, question.operation) for question in questions)
    assert counts.pop(("unasked", "")) == 15 and counts.pop(("asked otherwise", "")) == 10
    assert set(counts.values()) == {5} and len(counts) == 2 * 4 + 2
    assert {question.kind for question in questions if not question.meant} == {"unasked", "other sentence"}
    assert questions == task.questions(seed=0) != task.questions(seed=1)


def test_results_are_looked_for_and_other_answers_must_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Meant.asked(limit=2)
    questions = task.questions(seed=0)
    results = {question.prompt: question for question in questions}
    said: list[str] = []
    answers = {
        "unasked": lambda _: f"That is number {len(said)}.",
        "sentence": lambda result: f" {result}.",
        "raw": lambda result: f"1{result}",
        "other sentence": lambda result: f"1{result}",
    }

    def answer(prompt: str) -> str:
        question = next(each for text, each in results.items() if text in prompt)
        said.append(prompt)
        return answers.get(question.kind, lambda result: f"It is {int(result):,}, I think.")(question.result)

    monkeypatch.setattr("ani.injection.inspection.without_adapter", nullcontext)
    model: Any = Scripted(qwen(), answer)
    records = answers_of(task, TransformersEngine(model, model.tokenizer), questions)
    for record in records:
        assert record.right == (record.kind in ("asked", "asked otherwise", "sentence", "other sentence"))
    summary = task.summary(records)
    assert summary["asked"]["share"] == summary["asked_otherwise"]["share"] == 1
    assert summary["raw"]["share"] == summary["unasked"]["share"] == 0 and "unasked_addition" not in summary
    assert summary["sentence"]["total"] == summary["other_sentence"]["total"] == 2
    (table,) = task.tables(records)
    assert len(table.rows) == len(summary)


@pytest.mark.parametrize(
    ("answer", "stated"),
    [
        ("1.375 + 5 = 6.375", ["6.375"]),
        ("\\(1.375 \\times 5\\) is 6.375.", ["6.375"]),
        ("$7 * $3 = $21, or 7 times 3.", ["21"]),
        ("(2 + 3) - 1 = 4 x 5 = -20", ["-20"]),
        ("7 divided by 2 is 3.5; 3.5 / 1", ["3.5"]),
        ("It is 7. 5 people, 3-digit numbers, and -2", ["7", "5", "3", "-2"]),
        ("-53\n-79", ["-53", "-79"]),
    ],
)
def test_operands_of_an_answer_are_no_results(answer: str, stated: list[str]) -> None:
    assert [number.text for number in stated_numbers(answer)] == stated


def test_sentences_of_one_template_are_no_more_than_one() -> None:
    def asked(copies: int) -> list[MeantAnswer]:
        facts: Any = {"kind": "sentence", "meant": True, "operation": "", "result": "5", "output": ""}
        return [
            MeantAnswer(template=str(i), prompt=f"{i}: {copy} + 1 =", right=i < 7, **facts)
            for i in range(10)
            for copy in range(copies)
        ]

    once, often = (Meant.measures(asked(copies))["sentence"][1] for copies in (1, 20))
    assert once is not None and often is not None and once.value == often.value == 0.7
    assert often.high - often.low > 0.9 * (once.high - once.low)  # of 200 by themselves it would be a quarter
