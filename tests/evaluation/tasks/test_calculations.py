from typing import Any, ClassVar

import pytest

from ani.data.calculation_sentences import CalculationSentence
from ani.evaluation.backend import TransformersBackend
from ani.evaluation.tasks.calculations import CalculationAnswer, Calculations
from ani.injection.methods import METHODS
from ani.results.files import Run
from ani.values.calculations import number_behind
from tests.answers import answers_of
from tests.tiny import pair

TASK = Calculations(count=6, digits=[2, 3], operands=[2])


class Scripted(TransformersBackend):
    """Writes what it is told to."""

    outputs: ClassVar[dict[str, str]] = {}

    def texts(self, prompts: Any, max_new_tokens: int, read_as: Any = None) -> list[str]:
        return [self.outputs.get(prompt, "") for prompt in prompts]


def answers(answerer: TransformersBackend, questions: Any) -> list[CalculationAnswer]:
    records = answers_of(TASK, answerer, questions)
    assert len(records) == len(questions)
    return records


def test_problems_are_asked_and_then_sentences_of_both_roles() -> None:
    questions = TASK.questions(seed=0)
    assert questions == TASK.questions(seed=0) != TASK.questions(seed=1)
    records = answers(Scripted(*pair("llama")), questions)
    assert [record.prompt for record in records] == [question.prompt for question in questions]
    for record in records[:6]:
        assert (record.kind, record.role, record.result) == (None, "quantitative", record.answer)
        assert record.digits in (2, 3) and record.operands == 2
    assert {record.role for record in records[6:]} == {"nominal", "quantitative"}


def test_forced_values_are_right_where_a_number_is_written() -> None:
    """What is measured of the method that decodes so, whatever the model: it can't leave a calculation alone."""
    model, tokenizer = pair("mistral")
    records = answers(TransformersBackend(model, tokenizer, METHODS["forced"]), TASK.questions(seed=0))
    for record in records:
        assert number_behind(record.output) is None or record.calculated  # None: it wrote blanks only
    assert any(record.calculated for record in records)


@pytest.mark.parametrize(
    ("role", "completion", "output", "prediction", "correct", "calculated"),
    [
        ("quantitative", " 12", " 12 figs", "12", True, True),
        ("quantitative", " $12", " $12.00.", "12.00", True, True),
        ("quantitative", "12", "\nThat is 12", "12", True, False),
        ("quantitative", "12", "120", "120", False, False),
        ("quantitative", "12", "?", None, False, False),
        ("nominal", " 1100.", " 1100, in base 2", "1100", True, False),
        ("nominal", " 1100.", " 12, in base 2", "12", False, True),
        ("nominal", " 1100.", " 11001", "11001", False, False),
        ("nominal", " 1:30", " 1", "1", False, False),
        ("nominal", " twelve", "", None, False, False),
    ],
)
def test_what_is_written_is_judged(
    role: Any, completion: str, output: str, prediction: str | None, correct: bool, calculated: bool
) -> None:
    sentence = CalculationSentence("In all 5 + 7 =", completion, role, "kind", "template", (role, role), "12")
    answerer = Scripted(*pair("mistral"))
    answerer.outputs[sentence.prompt] = output
    (record,) = answers(answerer, [sentence])
    assert (record.prediction, record.correct, record.calculated) == (prediction, correct, calculated)
    assert record.told_apart == (correct if role == "quantitative" else not calculated)


def test_tables_of_a_comparison() -> None:
    def problem(run: str, seed: int | None, i: int, right: bool, **more: Any) -> CalculationAnswer:
        facts = {"prompt": f"{i} + 1 =", "result": "5", "answer": "5", "output": "", "calculated": right, **more}
        return CalculationAnswer(run=run, seed=seed, correct=right, **facts)

    def both(run: str, seed: int | None, right: list[bool], told: list[bool], **more: Any) -> list[CalculationAnswer]:
        facts: Any = {"operations": ["addition"], "digits": 2, "operands": 2, **more}
        problems = [problem(run, seed, i, each, **facts) for i, each in enumerate(right)]
        roles = ["quantitative", "nominal"] * 2
        sentences = [
            problem(run, seed, 9 + i, each, role=role, kind=role[:4], template=f"{i}")
            for i, (role, each) in enumerate(zip(roles, told, strict=True))
        ]
        return [*problems, *sentences]

    base = both("base", None, [True, False, False, False], [True, True, False, True])
    ours = [
        *both("ours", 0, [True] * 4, [True, False] * 2),
        *both("ours", 1, [True, True, False, False], [True, False] * 2),
    ]
    exact, gained, sentences = Calculations.tables([*base, *ours], "base")
    rows = {tuple(cell.text for cell in row[:2]): [cell.text for cell in row[2:]] for row in exact.rows}
    assert rows["all", "base"] == ["25.0%"] * 2 and rows["addition", "ours"] == ["75.0%"] * 2
    assert set(name for name, _ in rows) == {"all", "addition", "2 operands"}
    gains = {row[0].text: row[2].text for row in gained.rows}
    assert (
        gains["all"] == "+50.0" and gains["meant: answered"] == "+50.0" and gains["not meant: left alone"] == "+100.0"
    )
    assert [[cell.text for cell in row] for row in sentences.rows] == [
        ["base", "50.0%", "0.0%", "25.0%", "100.0%"],
        ["ours", "100.0%", "100.0%", "100.0%", "0.0%"],
    ]
    single = both("model", None, [True] * 4, [True, False] * 2)
    assert Calculations.summary(single)["sentences"]["mean of both"]["share"] == 1
    section = Calculations.section(single, Run())
    assert [each.name for each in section.headlines] == ["Calculations, all", "Calculations told apart"]
    assert gained.caption.endswith("(of sentences: templates resampled as wholes)")
    pairs = Calculations.pairs([*base, *ours], "base")
    assert pairs is not None and pairs.facts["calculations"]["all"]["all"]["value"] == 0.5


def test_sentences_of_one_template_are_no_more_than_one_in_differences() -> None:
    def asked(run: str, right: list[bool], copies: int) -> list[CalculationAnswer]:
        return [
            CalculationAnswer(
                run=run,
                prompt=f"{i}: {copy} + 1 =",
                result="5",
                answer="5",
                output="",
                correct=each,
                calculated=each,
                role="quantitative",
                kind="money",
                template=f"{i}",
            )
            for i, each in enumerate(right)
            for copy in range(copies)
        ]

    right = [True] * 7 + [False] * 3
    (once,), (often,) = (
        Calculations.differences([*asked("base", [False] * 10, copies), *asked("ours", right, copies)], "base")
        for copies in (1, 20)
    )
    assert often.overall == pytest.approx(once.overall._replace(cases=200))
