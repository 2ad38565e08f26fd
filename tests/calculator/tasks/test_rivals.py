import math
import re
from collections import Counter
from typing import Any

import pytest

from ani.calculator.tasks.rivals import RivalQuestion, Rivals
from ani.evaluation.engines import TransformersEngine
from tests.answers import answers_of
from tests.evaluation.tasks.test_arithmetic import Scripted
from tests.tokenizers import qwen

FUNCTIONS: dict[str, Any] = {name: getattr(math, name) for name in ("sqrt", "sin", "cos", "exp")} | {"ln": math.log}


def test_each_operation_has_its_share_and_its_results_are_right() -> None:
    task = Rivals.asked(limit=6)
    questions = task.questions(seed=0)
    assert len({(question.test, question.prompt) for question in questions}) == len(questions)
    counts = Counter((question.test, question.operation) for question in questions)
    assert set(counts.values()) == {6}
    assert Counter(test for test, _ in counts) == {"occam": 9, "nupa": 9, "bigbench": 4, "mathllm": 4}
    assert questions == task.questions(seed=0) != task.questions(seed=1)
    for question in questions:
        text = question.prompt
        for words, symbol in (("plus", "+"), ("minus", "-"), ("times", "*"), ("divided by", "/")):
            text = text.replace(f" {words} ", f" {symbol} ")
        text = re.sub(r"(\d+) and (\d+) =", r"max(\1, \2) =", text.replace(" rad)", ")"))
        *_, expression = re.findall(r"(?:(?<= )|^)(?:\w+\(.*?\)|-?[\d.]+ ?[-+*/%]+ ?-?[\d.]+)", text)
        expected = eval(expression, FUNCTIONS)
        assert float(question.result) == pytest.approx(expected, rel=1e-9, abs=1e-9), text
        if question.digits:
            assert all(abs(float(each)) <= 10**question.digits for each in re.findall(r"[\d.]*\d", expression))


def answered(*outputs: str, test: Any, result: str) -> list[Any]:
    facts: Any = {"test": test, "operation": "sqrt", "result": result, "digits": None}
    questions = [RivalQuestion(prompt=f"{i}:", **facts) for i in range(len(outputs))]
    model: Any = Scripted(qwen(), lambda prompt: outputs[int(re.findall(r"\d+(?=:)", prompt)[0])])
    return answers_of(Rivals(), TransformersEngine(model, model.tokenizer), questions)


def test_right_is_what_is_right_to_the_decimals_that_are_written() -> None:
    right = ["It is 26.264424608.", "26.26", "26.27", "So 5 and 26.2644."]
    wrong = ["26", "26.3", "26.28", "26.26446.", "nothing"]
    records = answered(*right, *wrong, test="occam", result="26.264424608203")
    assert [record.right for record in records] == [True] * len(right) + [False] * len(wrong)
    records = answered("26", "26.00", "26.000001", "26 + 5 = 31", test="mathllm", result="26")
    assert [record.right for record in records] == [True, True, False, False]
    assert Rivals.summary(records)["mathllm"]["right"] == 2
