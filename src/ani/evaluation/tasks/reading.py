"""Does a model use what is injected? Sums and word problems with the right values, others and none; knows nothing about
training."""

from collections.abc import Sequence
from importlib import resources
from itertools import cycle
from random import Random
from typing import Any, Literal, NamedTuple, cast

import yaml
from pydantic import Field

from ani.data.arithmetic import SYMBOLS, ArithmeticProblem, Operation, arithmetic_problems
from ani.data.counterfactual import Counterfactual, counterfactual
from ani.data.sources import Example
from ani.evaluation.backend import MAX_LENGTH, Backend, TransformersBackend
from ani.evaluation.scored import PromptAnswer, Scored, answers_to, first_number
from ani.evaluation.task import Answers
from ani.results.files import Integer, Run
from ani.results.scores import ONE_MODEL, Score, scores
from ani.results.sections import Bars, Figure, Section, headline
from ani.results.tables import Table

Kind = Literal["sums", "word problems"]
FOLLOWED = "follow rate"
_MEASURES = {"right values": "correct", "other values": "kept", "no values": "shut", FOLLOWED: "followed"}
"""What was injected, and the record's key that says whether the answer was exact."""


class ReadingAnswer(PromptAnswer):
    """A problem, answered up to three times, a line of `reading.jsonl`. The second and third time are missing where
    nothing can be injected otherwise: the model has no module or one for results alone, or vLLM answered."""

    kind: Kind
    digits: Integer
    """Of each of its two numbers."""
    by_others: str | None = None
    """The right answer by the other values; missing where it is the same."""
    others_output: str | None = None
    """What the model wrote when these were injected."""
    kept: bool | None = None
    """Whether that was right by the text."""
    followed: bool | None = None
    """Whether that was right by the other values."""
    shut_output: str | None = None
    """What the model wrote when nothing was injected."""
    shut: bool | None = None
    """Whether that was right."""


class ReadingProblem(NamedTuple):
    """A sum, or a word problem with the same numbers and answer."""

    kind: Kind
    prompt: str
    problem: ArithmeticProblem


class Reading(Scored):
    """Sums and word problems, with the right values injected, with others, and with none."""

    name = "reading"
    title = "Reading"
    note = (
        "Does the model use what is injected? The same problems with the values that the text says, with those of "
        "other numbers, and with every gate shut; exact is what is right by the text. Follow rate: answers that are "
        "exact by the other values, which contradict the text in what is carried from place to place. With other "
        "values no results of calculations are injected. Wilson 95% intervals."
    )
    unit = "problems"
    record = ReadingAnswer
    what = "Exact answers to sums and word problems"
    heading, kind_key = "Problems", "kind"

    count: int = Field(default=100, ge=1)
    """Sums, and as many word problems; each length has its share."""
    digits: list[int] = Field(default=[2, 4, 6, 8, 10, 12])
    """Lengths of the numbers."""

    def questions(self, seed: int) -> list[ReadingProblem]:
        """Sums, then word problems, the shortest first; none has the numbers of a problem in training data."""
        templates = yaml.safe_load(resources.files("ani.data").joinpath("word_problems.yaml").read_text("utf-8"))
        texts = {SYMBOLS[operation]: cycle(texts) for operation, texts in templates.items()}

        def drawn(operations: Sequence[Operation]) -> list[ArithmeticProblem]:
            problems = arithmetic_problems(
                self.count, digits=self.digits, operations=operations, split="test", seed=seed
            )
            return sorted(problems, key=lambda problem: problem.digits)

        return [
            *(ReadingProblem("sums", problem.prompt, problem) for problem in drawn(["addition"])),
            *(
                ReadingProblem(
                    "word problems", next(texts[problem.operation]).format(a=problem.left, b=problem.right), problem
                )
                for problem in drawn(list(templates))
            ),
        ]

    def answer(self, backend: Backend, questions: Sequence[ReadingProblem]) -> Answers:
        """Answer greedily, with the right values, others and none."""
        others = _others(backend, questions)
        prompts = [question.prompt for question in questions]
        expected = [f"{question.problem.answer:,}" for question in questions]
        expected += [f"{other.answer:,}" for other in others]
        outputs = answers_to(backend, prompts, expected)
        followed, shut = outputs, outputs
        if others:
            from ani.injection.inspection import forced_gates, replaced_numbers

            model = cast(Any, backend).model
            with replaced_numbers(model, _by_token(backend, questions, others)):
                followed = answers_to(backend, prompts, expected)
            with forced_gates(model, False):
                shut = answers_to(backend, prompts, expected)
        for index, (question, output) in enumerate(zip(questions, outputs, strict=True)):
            number, right = first_number(output), question.problem.answer
            facts: dict[str, Any] = {}
            if others:
                facts |= {"shut_output": shut[index], "shut": first_number(shut[index]) == right}
                if (other := others[index].answer) != right:
                    found = first_number(followed[index])
                    facts |= {"by_others": str(other), "others_output": followed[index]}
                    facts |= {"kept": found == right, "followed": found == other}
            record = ReadingAnswer(
                run=ONE_MODEL,
                kind=question.kind,
                prompt=question.prompt,
                digits=question.problem.digits,
                answer=str(right),
                output=output,
                prediction=None if number is None else str(number),
                correct=number == right,
                **facts,
            )
            yield index, [record]

    @classmethod
    def scores(cls, records: Sequence[ReadingAnswer]) -> list[Score]:
        """By kind of problem and what is injected; the parts are digits."""

        def of(kind: Kind, name: str, key: str) -> list[Score]:
            judged = [
                record.model_copy(update={"correct": getattr(record, key)})
                for record in records
                if record.kind == kind and getattr(record, key) is not None
            ]
            return scores(judged, lambda _: f"{kind}, {name}", lambda record: record.digits)

        kinds = dict.fromkeys(record.kind for record in records)
        return [row for kind in kinds for name, key in _MEASURES.items() for row in of(kind, name, key)]

    @classmethod
    def tables(cls, records: Sequence[ReadingAnswer], baseline: str | None = None) -> list[Table]:
        exact, *others = super().tables(records, baseline)
        if left_out := list(dict.fromkeys(record.run for record in records if record.shut is None)):
            why = "without a module for numbers, or in vLLM, nothing else can be injected"
            exact = exact._replace(caption=f"{exact.caption} ({', '.join(left_out)} asked once: {why})")
        return [exact, *others]

    @classmethod
    def section(cls, records: Sequence[ReadingAnswer], run: Run) -> Section:
        followed = [row for row in cls.scores(records) if row.task.endswith(FOLLOWED)]
        bars = Bars("Answers that follow other values", {f"{row.task}, {row.run}": row.overall for row in followed})
        headlines = []
        for row in followed if len({row.run for row in followed}) == 1 else ():
            headlines.append(headline(f"Reading, {row.task}", row.overall))
        figures = (Figure("Does it read?", bars),) if followed else ()
        shown = super().section(records, run)
        return shown._replace(figures=figures, headlines=tuple(headlines))


def _others(backend: Backend, questions: Sequence[ReadingProblem]) -> list[Counterfactual]:
    """Other values for the problems' numbers, always the same; none where a model's can't be replaced."""
    from ani.injection.attach import is_attached, number_locator

    if not isinstance(backend, TransformersBackend) or not is_attached(backend.model):
        return []
    locator = number_locator(backend.model)
    if locator.values == "results":
        return []
    return [
        counterfactual(question.problem, Random(question.prompt), by_place=locator.by_place) for question in questions
    ]


def _by_token(
    backend: Backend, questions: Sequence[ReadingProblem], others: Sequence[Counterfactual]
) -> dict[tuple[int, ...], Any]:
    """For `replaced_numbers`."""
    from ani.data.collator import tokenize
    from ani.injection.attach import number_locator

    locator = number_locator(cast(Any, backend).model)
    examples = [
        Example(question.prompt, "", values=other.values).written(backend.method.write)
        for question, other in zip(questions, others, strict=True)
    ]
    rows = [tokenize(example, backend.tokenizer, locator, MAX_LENGTH) for example in examples]
    return {tuple(row.input_ids[: row.prompt_length]): row.values for row in rows}
