"""Task `reading`: does the model use injected values? Problems with the right values, with others, and with none."""

from collections.abc import Sequence
from importlib import resources
from itertools import cycle, product
from operator import attrgetter
from random import Random
from typing import Any, Literal, NamedTuple, cast

import yaml
from pydantic import Field

from ani.data.arithmetic import COMPUTE, SYMBOLS, ArithmeticProblem, Operation, arithmetic_problems
from ani.evaluation.engines import Engine, TransformersEngine
from ani.evaluation.task import Answers, PromptAnswer, Scored, answers_to, first_number, judged
from ani.results.records import Integer
from ani.results.scores import ONE_MODEL, Score, scores
from ani.results.tables import Table

Kind = Literal["sums", "word problems"]
FOLLOWED = "follow rate"
_MEASURES = {"right values": "correct", "other values": "kept", "no values": "closed", FOLLOWED: "followed"}
"""Injected values, and the record's key of whether the answer is exact."""
_ATTEMPTS = 20
"""Number of draws after which all other numbers are taken to give the same answer, as for 4 + 5."""


class ReadingAnswer(PromptAnswer):
    """A problem, answered up to three times, a line of `reading.jsonl`. The second and third answers are missing where
    nothing else can be injected: without a module, or in vLLM."""

    kind: Kind
    digits: Integer
    """Number of digits of each of the two numbers."""
    by_others: str | None = None
    """Right answer by the other values; missing where it is the same."""
    others_output: str | None = None
    """Output with the other values injected."""
    kept: bool | None = None
    """True if `others_output` is right by the text."""
    followed: bool | None = None
    """True if `others_output` is right by the other values."""
    closed_output: str | None = None
    """Output with every gate closed."""
    closed: bool | None = None
    """True if `closed_output` is right."""


class ReadingProblem(NamedTuple):
    """A sum or difference, or a word problem with its numbers and answer."""

    kind: Kind
    prompt: str
    problem: ArithmeticProblem
    other_prompt: str
    """The same text with the other problem's numbers."""
    other: ArithmeticProblem


class Reading(Scored):
    """Sums and word problems, with the right values injected, with others, and with none."""

    name = "reading"
    title = "Reading"
    note = (
        "Does the model use what is injected? The same problems with the values that the text says, with those of "
        "other numbers, and with every gate closed; exact is what is right by the text. Follow rate: answers that are "
        "exact by the other numbers, whose carries contradict the text."
    )
    unit = "problems"
    record = ReadingAnswer
    what = "Exact answers to sums and word problems"
    heading, kinds = "Problems", (attrgetter("kind"),)

    count: int = Field(default=100, ge=1)
    """Number of sums, and of word problems; equally many per length."""
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

        def asked(kind: Kind, problem: ArithmeticProblem, text: str | None = None) -> ReadingProblem:
            def write(problem: ArithmeticProblem) -> str:
                return problem.prompt if text is None else text.format(a=problem.left, b=problem.right)

            other = _other(problem, Random(write(problem)))
            return ReadingProblem(kind, write(problem), problem, write(other), other)

        return [
            *(asked("sums", problem) for problem in drawn(["addition"])),
            *(asked("word problems", problem, next(texts[problem.operation])) for problem in drawn(list(templates))),
        ]

    def answer(self, engine: Engine, questions: Sequence[ReadingProblem]) -> Answers:
        """Answer greedily, with the right values, others and none."""
        expected = [f"{number:,}" for each in questions for number in (each.problem.answer, each.other.answer)]
        outputs = answers_to(engine, [question.prompt for question in questions], expected)
        again: dict[ReadingProblem, tuple[str, str]] = {}
        if askable := _askable(engine, questions):
            from ani.injection.inspection import forced_gates, injected_as

            prompts, model = [question.prompt for question in askable], cast(Any, engine).model
            others = {tuple(engine.ids(question.prompt)): engine.ids(question.other_prompt) for question in askable}
            with injected_as(model, others):
                followed = answers_to(engine, prompts, expected)
            with forced_gates(model, False):
                closed = answers_to(engine, prompts, expected)
            again = dict(zip(askable, zip(followed, closed, strict=True), strict=True))
        for place, (question, output) in enumerate(zip(questions, outputs, strict=True)):
            right, facts = question.problem.answer, dict[str, Any]()
            if question in again:
                by_others, without = again[question]
                facts |= {"closed_output": without, "closed": first_number(without) == right}
                if (other := question.other.answer) != right:
                    found = first_number(by_others)
                    facts |= {"by_others": str(other), "others_output": by_others}
                    facts |= {"kept": found == right, "followed": found == other}
            facts |= {"kind": question.kind, "prompt": question.prompt, "digits": question.problem.digits}
            facts |= {"answer": str(right), **judged(output, first_number(output), right)}
            yield place, [ReadingAnswer(run=ONE_MODEL, **facts)]

    @classmethod
    def scores(cls, records: Sequence[ReadingAnswer]) -> list[Score]:
        """Return the shares by kind of problem and injected values; the parts are digits."""

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
        twice = {record.run for record in records if record.closed is not None}
        if left_out := [run for run in dict.fromkeys(record.run for record in records) if run not in twice]:
            why = "without a module, or in vLLM, nothing else can be injected"
            exact = exact._replace(caption=f"{exact.caption} ({', '.join(left_out)} asked once: {why})")
        return [exact, *others]


def _other(problem: ArithmeticProblem, random: Random) -> ArithmeticProblem:
    """Return numbers of the same length whose digits give the same digit in each place, modulo 10, so only the carries
    differ, and with them the answer, if possible. `345 + 678` may become `512 + 401`, but not `512 + 402`."""
    compute = COMPUTE[problem.operation]
    for _ in range(_ATTEMPTS):
        drawn: list[tuple[int, ...]] = []
        for pair in zip(*(map(int, str(each)) for each in (problem.left, problem.right)), strict=True):
            digits = product(range(0 if drawn or problem.digits == 1 else 1, 10), repeat=2)
            drawn.append(random.choice([each for each in digits if (compute(*each) - compute(*pair)) % 10 == 0]))
        left, right = (int("".join(map(str, digits))) for digits in zip(*drawn, strict=True))
        other = problem._replace(left=left, right=right)
        if other.answer != problem.answer:
            break
    return other


def _askable(engine: Engine, questions: Sequence[ReadingProblem]) -> list[ReadingProblem]:
    """Return the problems whose other values can be injected: they differ from the prompt's, at the same tokens."""
    import torch

    from ani.injection.model_parts import is_attached, number_locator

    if not isinstance(engine, TransformersEngine) or not is_attached(engine.model):
        return []
    locator = number_locator(engine.model)

    def differ(prompt: str, other: str) -> bool:
        rows = [engine.ids(text) for text in (prompt, other)]
        own, others = (locator.batch([locator.whole_text(row)]).features for row in rows)
        return len(rows[0]) == len(rows[1]) and not torch.equal(own, others)

    return [question for question in questions if differ(question.prompt, question.other_prompt)]
