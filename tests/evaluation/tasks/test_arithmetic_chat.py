from typing import Any

import pytest

from ani.data.arithmetic import SYMBOLS, Operation, arithmetic_problems
from ani.evaluation.backend import TransformersBackend
from ani.evaluation.tasks.arithmetic import ArithmeticInChat
from tests.answers import answers_of
from tests.evaluation.tasks.test_arithmetic import Scripted
from tests.tokenizers import qwen


def test_worked_problems_of_the_same_kind_stand_before_the_question() -> None:
    prompts: list[str] = []

    def steps(prompt: str) -> str:
        prompts.append(prompt)
        left, symbol, right = prompt.split("Calculate ")[-1].split(".")[0].split()
        result = int(left) + int(right) if symbol == "+" else int(left) * int(right)
        return f"First {left}, then {right}:\n\n{left} {symbol} {right} = {result}."

    operations: list[Operation] = ["addition", "multiplication"]
    task = ArithmeticInChat.asked(limit=3, operations=operations)
    problems = task.questions(seed=0)
    model: Any = Scripted(qwen(), steps)
    records = answers_of(task, TransformersBackend(model, model.tokenizer), problems)
    assert all(record.correct for record in records) and len(records) == len(problems) == len(prompts)
    assert [record.prompt for record in records] == [problem.prompt for problem in problems]
    for prompt, problem in zip(prompts, problems, strict=True):
        *shots, question = prompt.split("Calculate ")[1:]
        assert question.startswith(f"{problem.left} {problem.operation} {problem.right}.")
        worked = [shot.split("assistant")[1].strip().splitlines()[0] for shot in shots]
        operation = next(name for name, symbol in SYMBOLS.items() if symbol == problem.operation)
        known = arithmetic_problems(2, digits=[problem.digits], operations=[operation], split="train")
        assert worked == [f"{each.left} {each.operation} {each.right} = {each.answer}" for each in known]


@pytest.mark.parametrize(
    ("text", "right"),
    [("12, no: {}", True), ("{} or 12", False), ("I can't say", False), ("step by step " * 30 + "{}", True)],
)
def test_the_last_number_is_judged_and_there_is_room_for_it(text: str, right: bool) -> None:
    task = ArithmeticInChat.asked(limit=1)
    (problem,) = [each for each in task.questions(seed=0) if each.digits == 2]
    model: Any = Scripted(qwen(), lambda _: text.format(problem.answer))
    (record,) = answers_of(task, TransformersBackend(model, model.tokenizer), [problem])
    assert record.correct == right and (record.prediction is None) == ("can't" in text)
