import operator
from decimal import Decimal
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.data.arithmetic import ArithmeticProblem
from ani.data.counterfactual import counterfactual, counterfactual_example
from ani.data.sources import problem_example
from tests.refusals import refused

COMPUTE = {"+": operator.add, "-": operator.sub}


@st.composite
def problems(draw: st.DrawFn) -> ArithmeticProblem:
    digits = draw(st.integers(1, 15))
    operand = st.integers(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)
    return ArithmeticProblem(digits, draw(st.sampled_from(["+", "-"])), draw(operand), draw(operand))


@given(problems(), st.integers(0, 10**6))
def test_other_numbers_make_other_carries_alone(problem: ArithmeticProblem, seed: int) -> None:
    (left, right), answer = counterfactual(problem, Random(seed), by_place=False)
    assert len({*left}) == len({*right}) == 1 and len(left) == len(right) == problem.digits
    assert [len(str(int(each))) for each in (left[0], right[0])] == [problem.digits] * 2
    compute = COMPUTE[problem.operation]
    assert answer == compute(int(left[0]), int(right[0]))
    for a, b, x, y in zip(str(problem.left), str(problem.right), left[0], right[0], strict=True):
        assert compute(int(a), int(b)) % 10 == compute(int(x), int(y)) % 10


def by_hand(problem: ArithmeticProblem, left: tuple[str, ...], right: tuple[str, ...]) -> int:
    """Digit by digit: that of the text, and a carry where the two fractions make 1 or fall below 0."""
    sign, (a, x), (b, y) = 1, (str(problem.left), left), (str(problem.right), right)
    if problem.operation == "-" and x[0] < y[0]:
        sign, a, x, b, y = -1, b, y, a, x
    written = ""
    for place in range(problem.digits):
        one, other = (Decimal(f"0.{values[place][place + 1 :]}0") for values in (x, y))
        compute = COMPUTE[problem.operation]
        carry = -(one < other) if problem.operation == "-" else one + other >= 1
        digit = compute(int(a[place]), int(b[place])) + carry
        written += str(digit if place == 0 else digit % 10)
    return sign * int(written)


@given(problems(), st.integers(0, 10**6))
def test_places_carry_by_fractions_of_their_own(problem: ArithmeticProblem, seed: int) -> None:
    (left, right), answer = counterfactual(problem, Random(seed), by_place=True)
    for text, values in ((str(problem.left), left), (str(problem.right), right)):
        assert [value[: place + 1] for place, value in enumerate(values)] == [
            text[: place + 1] for place in range(len(text))
        ]
        assert {*map(len, values)} == {len(text)}
    assert answer == by_hand(problem, left, right)


@pytest.mark.parametrize("by_place", [False, True])
def test_the_answer_is_another_if_there_is_one(by_place: bool) -> None:
    random = Random(0)
    for left, right in ((12, 21), (45, 53), (123456, 654321)):
        problem = ArithmeticProblem(len(str(left)), "+", left, right)
        example = counterfactual_example(problem, random, by_place=by_place)
        assert int(example.completion) != problem.answer
        assert example._replace(completion=f" {problem.answer}", values=None) == problem_example(problem)
    assert counterfactual(ArithmeticProblem(1, "+", 4, 5), random, by_place=by_place).answer == 9
    product = ArithmeticProblem(2, "*", 12, 12)
    refused(lambda: counterfactual(product, random, by_place=by_place), "addition and subtraction, not for '*'")
