from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.data.value_problems import FORMS, Form, ValueProblem, comparing_problems, modulo_problems
from ani.numbers import find_numbers
from ani.numbers.calculations import remainder
from tests.properties import examples
from tests.refusals import refused

SEEDS = st.integers(0, 10**6)


def asked(problem: ValueProblem) -> list[Fraction]:
    """The prompt's two numbers, as the scanner reads them."""
    left, right = (Fraction(number.value) for number in find_numbers(problem.prompt))
    return [left, right]


def form(text: str) -> str:
    return "scientific" if "e" in text else "grouped" if "," in text else "plain"


@examples(30)
@given(SEEDS, st.lists(st.sampled_from(FORMS), min_size=1, unique=True))
def test_comparing_is_right_in_every_form(seed: int, forms: list[Form]) -> None:
    problems = comparing_problems(4 * len(forms), forms=forms, split="train", seed=seed)
    assert Counter((each.part, each.answer) for each in problems) == {
        (part, answer): 2 for part in forms for answer in ("first", "second")
    }
    for problem in problems:
        left, right = asked(problem)
        assert left != right and (problem.answer == "first") == (left > right)
        assert min(left, right) >= 1000 and max(left, right) < 10**9
        texts = [number.text for number in find_numbers(problem.prompt)]
        assert [Fraction(text.replace(",", "")) for text in texts] == [left, right]  # Python reads the same
        written = {form(text) for text in texts}
        assert len(written) == 2 if problem.part == "mixed" else written == {problem.part}
        assert problem.task == "comparing" and not problem.prompt[-1].isspace()


@examples(30)
@given(SEEDS, st.lists(st.integers(2, 1000), min_size=1, max_size=4, unique=True))
def test_remainders_are_right(seed: int, moduli: list[int]) -> None:
    problems = modulo_problems(3 * len(moduli), digits=[3, 5, 15], moduli=moduli, split="test", seed=seed)
    assert Counter((each.task, each.part) for each in problems) == {
        (f"modulo {m}", n): 1 for m in moduli for n in (3, 5, 15)
    }
    for problem in problems:
        modulus = int(problem.task.removeprefix("modulo "))
        numbers = asked(problem)
        numbers.remove(Fraction(modulus))
        (divided,) = numbers
        assert len(str(divided)) == problem.part
        quotient = (divided - int(problem.answer)) / modulus
        assert 0 <= int(problem.answer) < modulus and quotient.denominator == 1
        assert remainder(problem.prompt) is None  # "modulo 7 =" is no written calculation


@pytest.mark.parametrize(("draw", "arguments"), [(comparing_problems, {"forms": FORMS}), (modulo_problems, {})])
def test_splits_share_no_numbers(draw: Any, arguments: dict[str, Any]) -> None:
    """Whatever their order, form, modulus and seeds."""
    train, test = (
        {
            frozenset(asked(each)) if each.task == "comparing" else max(asked(each))
            for seed in range(3)
            for each in draw(300, **arguments, split=split, seed=seed)
        }
        for split in ("train", "test")
    )
    assert len(train) > 500 and len(test) > 200 and not train & test
    once = draw(300, **arguments, split="train", seed=1)
    assert once == draw(300, **arguments, split="train", seed=1) != draw(300, **arguments, split="train", seed=2)
    assert len({each.prompt for each in once}) == 300


def test_what_can_not_be_drawn_is_refused() -> None:
    refused(
        lambda: comparing_problems(1, forms=[], split="train"), "forms must be distinct names among ['plain', 'grouped'"
    )
    refused(lambda: comparing_problems(1, forms=["plain"] * 2, split="train"), "forms must be distinct")
    refused(lambda: comparing_problems(-1, split="train"), "count must not be negative")
    refused(lambda: modulo_problems(1, digits=[16], split="train"), "digits must be distinct numbers of 1 to 15")
    refused(lambda: modulo_problems(1, moduli=[1], split="train"), "moduli must be distinct numbers of 2 to 1000")
    few = "count=500 asks for more problems of the kind '7 1' than the test split has"
    refused(lambda: modulo_problems(500, digits=[1], moduli=[7], split="test"), few)
