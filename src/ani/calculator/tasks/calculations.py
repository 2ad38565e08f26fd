"""Task `calculations`: exact results of raw expressions, such as `Calculate (12 + 3.5) * 4 =`."""

import random
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from itertools import cycle, islice, product
from typing import Annotated, NamedTuple

from pydantic import Field

from ani.calculator.data.drawn_expressions import drawn_expression, exact_result
from ani.calculator.reader.calculations import number_after
from ani.data.arithmetic import SYMBOLS, split_of
from ani.data.split import add_new
from ani.errors import InputError
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, PromptAnswer, Scored, answers_to, first_number
from ani.results.records import Integer

_ATTEMPTS = 5000
"""The number of draws after which there are considered to be no more problems."""
_OPERATIONS: dict[str, str] = {symbol: operation for operation, symbol in SYMBOLS.items()}


class CalculationProblem(NamedTuple):
    """A prompt with an expression, and its exact result."""

    prompt: str
    """Such as `Calculate (3 + 4) * 5 =`, without a trailing space."""
    answer: str
    """The exact result, such as `-12.5`."""
    operations: list[str]
    """The operations of the expression, each once."""
    digits: int
    """Digits of the longest operand; a dividend, which is a product of divisor and quotient, may have more."""
    operands: int


class CalculationAnswer(PromptAnswer):
    """The text that a model writes after the equals sign of a problem, a line of `calculations.jsonl`."""

    operations: list[str]
    """The operations of the expression, each once."""
    digits: Integer
    """Digits of the longest operand."""
    operands: Integer
    """Number of operands."""


class Calculations(Scored):
    """Expressions of two operands or more."""

    name = "calculations"
    title = "Calculations"
    note = "An answer is exact if every digit is right."
    unit = "questions"
    record = CalculationAnswer
    what = "Exact results"
    heading = "Calculations"
    kinds = (
        lambda record: "all",
        lambda record: record.operations[0] if len(record.operations) == 1 else "several operations",
        lambda record: f"{record.operands} operands",
    )

    count: int = Field(default=200, ge=1)
    """Number of problems."""
    digits: list[Annotated[int, Field(ge=1, le=30)]] = Field(default=[2, 4, 6, 8], min_length=1)
    """Digits of a problem's longest operand."""
    operands: list[Annotated[int, Field(ge=2, le=8)]] = Field(default=[2, 3], min_length=1)
    """Numbers of operands. Each number of operands and digits occurs equally often with each of the four operations as
    the last one. Every fourth problem may have operands with a fraction."""

    def questions(self, seed: int) -> list[CalculationProblem]:
        """Distinct problems of the test split, the shortest results first; the same seed gives the same problems.

        Raises:
            InputError: There are too few problems of a kind.
        """
        rng = random.Random(f"calculations test {seed}")
        found: dict[str, CalculationProblem] = {}
        for kind in islice(cycle(product(self.operands, self.digits, _OPERATIONS)), self.count):
            if not add_new(found, partial(_drawn, rng, *kind), _ATTEMPTS):
                operands, digits, symbol = kind
                raise InputError(
                    f"count={self.count} asks for more {_OPERATIONS[symbol]}s of {operands} operands and {digits} "
                    "digits than there are: lower count, or change digits or operands"
                )
        problems = list(found.values())
        rng.shuffle(problems)
        return sorted(problems, key=lambda problem: len(problem.answer))

    def answer(self, engine: Engine, questions: Sequence[CalculationProblem]) -> Answers:
        """Asks greedily, with room for a currency sign."""
        expected = [f"${Decimal(problem.answer):,}." for problem in questions]
        outputs = answers_to(engine, [problem.prompt for problem in questions], expected)
        for place, (problem, output) in enumerate(zip(questions, outputs, strict=True)):
            number = number_after(output)
            number = first_number(output) if number is None else number
            prediction = None if number is None else f"{number:f}"
            correct = number == Decimal(problem.answer)
            record = CalculationAnswer(**problem._asdict(), output=output, prediction=prediction, correct=correct)
            yield place, [record]


def _drawn(rng: random.Random, operands: int, digits: int, symbol: str) -> tuple[str, CalculationProblem] | None:
    """A problem by its expression's key; None if it is of the other split or its result is too long."""
    expression = drawn_expression(rng, operands, digits, symbol, [*_OPERATIONS], decimals=rng.random() < 0.25)
    if expression is None or split_of(expression.key) != "test":
        return None
    prompt = f"Calculate {expression.written(rng.random())} ="
    answer = exact_result(prompt)
    operations = [_OPERATIONS[part] for part in dict.fromkeys(expression.parts) if part in _OPERATIONS]
    if answer is None:
        return None
    return expression.key, CalculationProblem(prompt, answer, operations, digits, operands)
