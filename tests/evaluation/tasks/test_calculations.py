from typing import Any, ClassVar

import pytest

from ani.calculator.reader.calculations import number_behind
from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks.calculations import CalculationAnswer, Calculations
from ani.injection.methods import METHODS
from ani.results.records import Run
from tests.answers import answers_of
from tests.tiny import pair

TASK = Calculations(count=12, digits=[2, 3], operands=[2])


class Scripted(TransformersEngine):
    """Writes what it is told to."""

    outputs: ClassVar[dict[str, str]] = {}

    def texts(self, prompts: Any, max_new_tokens: int, read_as: Any = None) -> list[str]:
        return [self.outputs.get(prompt, "") for prompt in prompts]


def test_problems_are_asked_the_shortest_results_first() -> None:
    questions = TASK.questions(seed=0)
    assert questions == TASK.questions(seed=0) != TASK.questions(seed=1)
    records = answers_of(TASK, Scripted(*pair("llama")), questions)
    assert [record.prompt for record in records] == [question.prompt for question in questions]
    assert [len(record.answer) for record in records] == sorted(len(question.answer) for question in questions)
    assert {record.digits for record in records} == {2, 3} and {record.operands for record in records} == {2}


def test_forced_values_are_right_where_a_number_is_written() -> None:
    """What is measured of the method that decodes so, whatever the model."""
    model, tokenizer = pair("mistral")
    records = answers_of(TASK, TransformersEngine(model, tokenizer, METHODS["forced"]), TASK.questions(seed=0))
    for record in records:
        assert number_behind(record.output) is None or record.correct  # None: it wrote blanks only
    assert any(record.correct for record in records)


@pytest.mark.parametrize(
    ("written", "prediction", "correct"),
    [
        (" {} figs", "{}", True),
        (" ${}.00.", "{}.00", True),
        ("\nThat is {}", "{}", True),
        ("{}0", "{}0", False),
        ("?", None, False),
    ],
)
def test_what_is_written_is_judged(written: str, prediction: str | None, correct: bool) -> None:
    problem = next(each for each in TASK.questions(seed=0) if each.answer.isdigit())
    answerer = Scripted(*pair("mistral"))
    answerer.outputs[problem.prompt] = written.format(problem.answer)
    (record,) = answers_of(TASK, answerer, [problem])
    assert record.prediction == (prediction and prediction.format(problem.answer)) and record.correct == correct


def test_tables_of_a_comparison() -> None:
    def answers(run: str, seed: int | None, right: list[bool]) -> list[CalculationAnswer]:
        facts: Any = {"answer": "5", "output": "", "operations": ["addition"], "digits": 2, "operands": 2}
        return [
            CalculationAnswer(run=run, seed=seed, prompt=f"{i} + 1 =", correct=each, **facts)
            for i, each in enumerate(right)
        ]

    base = answers("base", None, [True, False, False, False])
    ours = [*answers("ours", 0, [True] * 4), *answers("ours", 1, [True, True, False, False])]
    exact, gained = Calculations.tables([*base, *ours], "base")
    rows = {tuple(cell.text for cell in row[:2]): [cell.text for cell in row[2:]] for row in exact.rows}
    assert rows["all", "base"] == ["25.0%"] * 2 and rows["addition", "ours"] == ["75.0%"] * 2
    assert set(name for name, _ in rows) == {"all", "addition", "2 operands"}
    assert {row[0].text: row[2].text for row in gained.rows}["all"] == "+50.0"
    section = Calculations.section(answers("model", None, [True] * 4), Run())
    assert [each.name for each in section.headlines] == ["Calculations, all"]
    assert not Calculations.section([*base, *ours], Run()).headlines
    pairs = Calculations.pairs([*base, *ours], "base")
    assert pairs is not None and pairs.facts["calculations"]["all"]["all"]["value"] == 0.5
