from typing import Any, cast

import pytest

from ani.data.arithmetic import COMPUTE, ArithmeticProblem
from ani.evaluation.engines import Engine, TransformersEngine
from ani.evaluation.task import answers_to
from ani.evaluation.tasks.reading import Reading, ReadingProblem
from ani.injection.model_parts import ani_module, number_locator
from ani.numbers import find_numbers
from tests.answers import answers_of
from tests.tiny import attached, pair

TASK = Reading(count=12, digits=[2, 5])
OPENED = {"layer": 2, "gate": "open", "encoders": ["fourier"], "fraction_digits": 6}


class Reader(TransformersEngine):
    """Answers by the numbers that are injected, and says 0 where none is; the signs it reads in
    the text."""

    def texts(self, prompts: Any, max_new_tokens: int) -> list[str]:
        if ani_module(cast(Any, self.model)).forced is False:
            return ["0"] * len(prompts)
        locator = number_locator(cast(Any, self.model))
        answers = []
        for prompt in prompts:
            ids = cast(Any, self.tokenizer)(prompt)["input_ids"]
            values = cast(Any, locator.encoder).decode(locator.batch([ids]).features)
            digits = len(find_numbers(prompt)[0].text)
            if locator.policy in ("digitwise", "running"):  # a token a digit here
                left, right = values[digits - 1], values[2 * digits - 1]
            else:
                left, right = values[:2]
            minus = not any(word in prompt for word in (" + ", " more", " up by", "both", "moved", "all", "Together"))
            answers.append(f" {int(left - right if minus else left + right)}")
        return answers


class Ignorant(TransformersEngine):
    """Answers by the text alone."""

    def texts(self, prompts: Any, max_new_tokens: int) -> list[str]:
        answers = {question.prompt: question.problem.answer for question in TASK.questions(seed=0)}
        return [f" {answers[prompt]:,} in all" for prompt in prompts]


def shares(engine: Engine) -> dict[str, float]:
    questions = TASK.questions(seed=0)
    records = answers_of(TASK, engine, questions)
    assert [record.prompt for record in records] == [question.prompt for question in questions]
    assert len(records) == 24
    return {name: facts["all"]["share"] for name, facts in Reading.summary(records).items()}


MEASURES = ["right values", "other values", "no values", "follow rate"]


@pytest.mark.parametrize("policy", ["terminal", "digitwise", "running", "after"])
def test_one_that_reads_follows_and_one_that_does_not_does_not(policy: str) -> None:
    model, tokenizer = attached("qwen3", **OPENED, policy=policy)
    read, ignored = shares(Reader(model, tokenizer)), shares(Ignorant(model, tokenizer))
    for kind in ("sums", "word problems"):
        names = [f"{kind}, {name}" for name in MEASURES]
        assert [read[name] for name in names] == [1, 0, 0, 1]
        assert [ignored[name] for name in names] == [1, 1, 1, 0]
    assert ani_module(model).forced is None


@pytest.mark.parametrize(("family", "policy"), [("qwen3", "running"), ("llama", "after")])
def test_other_values_reach_generation(family: str, policy: str) -> None:
    """A random module's answers are others with other values, and with none; llama has tokens of three digits."""
    engine = TransformersEngine(*attached(family, **OPENED, policy=policy))
    records = answers_of(TASK, engine, TASK.questions(seed=0))
    assert sum(record.output != record.others_output for record in records if record.by_others) > 6
    assert sum(record.output != record.closed_output for record in records) > 6
    assert {record.by_others == record.answer for record in records} == {False}
    assert not any(record.followed for record in records)


def test_questions_are_those_of_the_seed() -> None:
    questions = TASK.questions(seed=0)
    assert questions == TASK.questions(seed=0) != TASK.questions(seed=1)
    for kind, prompt, problem, other_prompt, other in questions:
        assert (prompt == problem.prompt) == (kind == "sums") and not prompt[-1].isspace()
        for text, asked in ((prompt, problem), (other_prompt, other)):
            assert [int(number.value) for number in find_numbers(text)] == [asked.left, asked.right]
        assert other.answer != problem.answer and other[:2] == problem[:2]
        compute = COMPUTE[problem.operation]
        places, others = (zip(str(each.left), str(each.right), strict=True) for each in (problem, other))
        for (a, b), (c, d) in zip(places, others, strict=True):
            assert (compute(int(a), int(b)) - compute(int(c), int(d))) % 10 == 0


def test_numbers_whose_answer_carries_nothing() -> None:
    """What follows the others is what follows the text: such a problem says nothing about reading."""
    engine = TransformersEngine(*attached("qwen3", **OPENED))
    problem = ArithmeticProblem(1, "+", 0, 0)
    question = ReadingProblem(
        "sums",
        "Calculate 3 + 5 =",
        problem._replace(left=3, right=5),
        "Calculate 4 + 4 =",
        problem._replace(left=4, right=4),
    )
    (record,) = answers_of(TASK, engine, [question])
    assert (record.by_others, record.followed) == (None, None)
    assert [record.closed_output] == answers_to(TransformersEngine(*pair("qwen3")), [question.prompt], ["8"])
