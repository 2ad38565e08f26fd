"""Questions that a number's value answers and its digits hardly do: larger or smaller in forms that weren't learnt, and
remainders. Knows nothing about training."""

import re
from collections.abc import Iterator, Sequence

from pydantic import Field

from ani.data.value_problems import FORMS, Form, ValueProblem, comparing_problems, modulo_problems
from ani.results.files import Integer
from ani.results.scores import ONE_MODEL
from ani.tasks.answering import Answerer
from ani.tasks.scored import PromptAnswer, Scored, answers_to
from ani.tasks.task import Count

_WORD = re.compile(r"[-\w.,]*\w")


class ValueAnswer(PromptAnswer):
    """An answered question, a line of `comparing.jsonl` or `modulo.jsonl`."""

    task: str
    """`comparing`, or `modulo 7`."""
    part: str | Integer
    """The form of the numbers that are compared, or how many digits the divided number has."""


class _ValueTask(Scored):
    """What the two have in common: all but their questions."""

    unit = "questions"
    record = ValueAnswer
    what = "Right answers"
    heading, kind_key, part_key = "Task", "task", "part"

    def answer(self, answerer: Answerer, questions: Sequence[ValueProblem], count: Count) -> Iterator[ValueAnswer]:
        """Answer greedily; the first word of the output, or number, must be the answer."""
        outputs = answers_to(answerer, [each.prompt for each in questions], [each.answer for each in questions])
        for question, output in zip(questions, outputs, strict=True):
            word = _WORD.search(output)
            said = None if word is None else word[0]
            facts = {**question._asdict(), "output": output, "prediction": said, "correct": said == question.answer}
            yield ValueAnswer(run=ONE_MODEL, **facts)
        count(len(questions))


class Comparing(_ValueTask):
    """Which of two numbers is larger, in each form of writing them."""

    name = "comparing"
    by = "form"
    title = "Comparing numbers"
    note = (
        "Which of two numbers is larger, the first or the second? Guessing is right half of the time. Mixed: the two "
        "are written in different forms. Wilson 95% intervals."
    )

    count: int = Field(default=100, ge=1)
    """Pairs of each form."""
    forms: list[Form] = Field(default=list(FORMS), min_length=1)
    """How the numbers are written: `plain`, `grouped`, `scientific` or `mixed`, as in training data."""

    def questions(self, seed: int) -> list[ValueProblem]:
        """None has the two values of a question in training data, in whatever form."""
        return comparing_problems(self.count * len(self.forms), forms=self.forms, split="test", seed=seed)


class Modulo(_ValueTask):
    """Remainders of whole numbers."""

    name = "modulo"
    title = "Remainders"
    note = (
        "What a whole number is modulo another; guessing is right once in so many times. With matching periods in the "
        "encoder the features all but say it: a positive control. Wilson 95% intervals."
    )

    count: int = Field(default=100, ge=1)
    """Numbers for each modulus; each length has its share."""
    digits: list[int] = Field(default=[3, 4, 5, 6])
    """Lengths of the divided numbers."""
    moduli: list[int] = Field(default=[7, 11, 13])
    """What they are divided by."""

    def questions(self, seed: int) -> list[ValueProblem]:
        """None of the divided numbers is divided in training data."""
        count = self.count * len(self.moduli)
        return modulo_problems(count, digits=self.digits, moduli=self.moduli, split="test", seed=seed)
