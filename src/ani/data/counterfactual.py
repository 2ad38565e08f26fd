"""Sums and differences whose numbers are taken to be others than the text says; knows nothing about tokens or models.

The text's digits still tell each digit of the answer but for its carries: these follow from the other numbers.
"""

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import NamedTuple

from ani.data.arithmetic import COMPUTE, ArithmeticProblem
from ani.data.sources import Example, problem_example
from ani.errors import InputError

_ATTEMPTS = 20
"""Drawings after which the answer is taken to be the text's whatever the others are, as that of 4 + 5."""


class Counterfactual(NamedTuple):
    """Other numbers than a problem's, and the answer that is right by them."""

    values: tuple[tuple[str, ...], ...]
    """Of each operand, at each of its digits from the left on, the number of as many digits that stands for it there
    (`Example.values`)."""
    answer: int


def counterfactual(problem: ArithmeticProblem, random: Random, *, by_place: bool) -> Counterfactual:
    """Draws other numbers, with another answer if there is any.

    Args:
        problem: A sum or difference.
        random: To draw with.
        by_place: At each digit the digits below it are others, drawn for this place alone, so that the places' carries
            contradict each other too. Else each operand is one other number, and in every place the two make the same
            digit as the text's, modulo 10: `345 + 678` may be taken to be `512 + 401`, but not `512 + 402`.

    Raises:
        InputError: It is of another operation.
    """
    if problem.operation not in ("+", "-"):
        raise InputError(f"counterfactual data is for addition and subtraction, not for {problem.operation!r}")
    draw = _places if by_place else _numbers
    for _ in range(_ATTEMPTS):
        operands = draw(problem, random)
        answer = _answer(problem, *operands)
        if answer != problem.answer:
            break
    return Counterfactual(tuple(tuple(map(str, reversed(operand))) for operand in operands), answer)


def counterfactual_example(problem: ArithmeticProblem, random: Random, *, by_place: bool) -> Example:
    """The problem's example, with other values and the answer by them."""
    values, answer = counterfactual(problem, random, by_place=by_place)
    return problem_example(problem)._replace(completion=f" {answer}", values=values)


def _places(problem: ArithmeticProblem, random: Random) -> list[list[int]]:
    """Of each operand, from the last place on, the operand with other digits below the place."""
    places = [10**place for place in range(problem.digits)]
    return [[each - each % p + random.randrange(p) for p in places] for each in (problem.left, problem.right)]


def _numbers(problem: ArithmeticProblem, random: Random) -> list[list[int]]:
    """Of each operand, for every place the same other number."""
    compute = COMPUTE[problem.operation]
    drawn: list[tuple[int, ...]] = []
    for pair in zip(*(map(int, str(each)) for each in (problem.left, problem.right)), strict=True):
        lowest = 1 if not drawn and problem.digits > 1 else 0
        others = product(range(lowest, 10), repeat=2)
        drawn.append(random.choice([other for other in others if (compute(*other) - compute(*pair)) % 10 == 0]))
    return [[int("".join(map(str, digits)))] * problem.digits for digits in zip(*drawn, strict=True)]


def _answer(problem: ArithmeticProblem, left: Sequence[int], right: Sequence[int]) -> int:
    """What each place's own operands, from the last place on, make of its digit, and those of the first of the rest."""
    top = problem.digits - 1
    if problem.operation == "-" and left[top] < right[top]:
        return -_answer(problem, right, left)
    made = [COMPUTE[problem.operation](*pair) // 10**place for place, pair in enumerate(zip(left, right, strict=True))]
    return int("".join(map(str, [made[top], *(made[place] % 10 for place in reversed(range(top)))])))
