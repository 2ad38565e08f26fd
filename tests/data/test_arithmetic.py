import operator
import re
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.data.arithmetic import ArithmeticProblem, Operation, arithmetic_problems, chained_sums
from ani.numbers import find_numbers
from tests.properties import examples

ALL: tuple[Operation, ...] = ("addition", "subtraction", "multiplication", "division")


def unordered(problem: ArithmeticProblem) -> tuple[str, int, int]:
    left, right = problem.left, problem.right
    return problem.operation, *(sorted((left, right)) if problem.operation in ("+", "*") else (left, right))


@examples(60)
@given(
    count=st.integers(0, 100),
    digits=st.lists(st.integers(4, 40), min_size=1, max_size=5, unique=True),
    operations=st.lists(st.sampled_from(ALL), min_size=1, max_size=4, unique=True),
    split=st.sampled_from(("train", "test")),
    seed=st.integers(-5, 10**9),
)
def test_problems_are_exact_distinct_and_evenly_spread(count, digits, operations, split, seed) -> None:
    problems = arithmetic_problems(count, digits=digits, operations=operations, split=split, seed=seed)
    assert len(problems) == len(set(problems)) == count
    calculate = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}
    for problem in problems:
        other = problem.answer if problem.operation == "/" else problem.left
        assert len(str(other)) == len(str(problem.right)) == problem.digits
        word, left, symbol, right, equals = problem.prompt.split(" ")
        assert word.isalpha()  # no number at the very first token
        assert (equals, problem.answer) == ("=", calculate[symbol](int(left), int(right)))
    symbols = ["+-*/"[ALL.index(operation)] for operation in operations]
    lengths = Counter(problem.digits for problem in problems)
    used = Counter(problem.operation for problem in problems)
    cells = Counter((problem.digits, problem.operation) for problem in problems)
    assert max(lengths[d] for d in digits) - min(lengths[d] for d in digits) <= 1
    assert max(used[s] for s in symbols) - min(used[s] for s in symbols) <= 1
    assert max(cells.values(), default=0) - min((cells[d, s] for d in digits for s in symbols), default=0) <= 1
    assert set(lengths) <= set(digits) and set(used) <= set(symbols)


WRITTEN = {
    "plain": r"\d+",
    "negative": r"-?\d+",
    "decimal": r"\d+\.\d+",
    "separators": r"\d{1,3}(,\d{3})+",
    "scientific": r"\d(\.\d+)?e\d+",
}


@pytest.mark.parametrize("form", WRITTEN)
@examples(30)
@given(digits=st.integers(4, 30), operation=st.sampled_from(ALL), seed=st.integers(0, 10**9))
def test_forms_write_the_same_digits_and_have_exact_answers(form, digits, operation, seed) -> None:
    calculate = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
    for plain in arithmetic_problems(5, digits=[digits], operations=[operation], split="test", seed=seed):
        problem = plain.in_form(form)
        _, left, symbol, right, _ = problem.prompt.split(" ")
        assert all(re.fullmatch(WRITTEN[form], each) for each in (left, right))
        assert (form == "negative") == ("-" in left[0] + right[0])
        values = [Decimal(each.replace(",", "")) for each in (left, right)]
        assert [number.value for number in find_numbers(problem.prompt)] == values
        exact = calculate[symbol](*map(Fraction, values))
        assert Fraction(problem.answer) == exact and Fraction(f"{problem.answer:f}") == exact
        assert [each.as_tuple().digits[-digits:] for each in values] == [
            tuple(map(int, str(each)))[-digits:] for each in (plain.left, plain.right)
        ]
        places = {len(each.partition(".")[2]) for each in (left, right)}
        assert form != "decimal" or places == {digits // 2}


def test_train_and_test_never_meet_whatever_the_seeds() -> None:
    train, test = (
        {
            unordered(problem)
            for seed in seeds
            for problem in arithmetic_problems(1200, digits=(2, 3), operations=ALL, split=split, seed=seed)
        }
        for split, seeds in (("train", range(3)), ("test", range(3, 6)))
    )
    assert not train & test


@pytest.mark.parametrize("operation", ["addition", "division"])
def test_both_splits_together_are_the_whole_space(operation: Operation) -> None:
    def available(split):
        with pytest.raises(ValueError, match=r"2-digit .* has \d+ at most") as caught:
            arithmetic_problems(8101, digits=(2,), operations=(operation,), split=split)
        return int(str(caught.value).split(" at most")[0].split()[-1])

    train, test = available("train"), available("test")
    assert train + test == 90 * 90
    assert 0.08 < test / 8100 < 0.12
    everything = arithmetic_problems(train, digits=(2,), operations=(operation,), split="train")
    everything += arithmetic_problems(test, digits=(2,), operations=(operation,), split="test")
    assert len({(problem.left, problem.right) for problem in everything}) == 8100


def travelled(left: int, right: int) -> int:
    """The longest run of places that make 9 and into which all the lower places together carry."""
    places = [10**place for place in range(len(str(max(left, right))))]
    through = [left // p % 10 + right // p % 10 == 9 and left % p + right % p >= p for p in places]
    return max(map(len, "".join("x" if each else " " for each in through).split(" ")))


@given(st.integers(0, 10**15), st.integers(0, 10**15), st.integers(0, 10**15))
def test_carries_travel_through_places_that_make_nine(left: int, right: int, complement: int) -> None:
    # With its complement to nines a number makes a chain as long as itself, once something is added.
    for a, b in ((left, right), (left, int("0" + "".join(str(9 - int(d)) for d in str(left))) + complement)):
        assert ArithmeticProblem(1, "+", a, b).chain == travelled(a, b)
    assert ArithmeticProblem(1, "-", left, right).chain is None


@examples(30)
@given(
    count=st.integers(0, 60),
    digits=st.lists(st.integers(7, 30), min_size=1, max_size=3, unique=True),
    chains=st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True),
    split=st.sampled_from(("train", "test")),
    seed=st.integers(0, 10**9),
)
def test_chains_are_drawn_on_purpose(count, digits, chains, split, seed) -> None:
    arguments = {"digits": digits, "chains": chains, "split": split, "seed": seed}
    problems = chained_sums(count, **arguments)
    assert problems == chained_sums(count, **arguments)
    assert len(set(problems)) == count and {problem.operation for problem in problems} <= {"+"}
    assert all(len(str(each)) == problem.digits for problem in problems for each in (problem.left, problem.right))
    drawn = Counter((problem.digits, travelled(problem.left, problem.right)) for problem in problems)
    wanted = {(length, chain) for length in digits for chain in chains}
    assert set(drawn) <= wanted
    assert max(drawn.values(), default=0) - min((drawn[cell] for cell in wanted), default=0) <= 1


def test_one_digit_operands_include_zero_but_no_divisor_does() -> None:
    problems = arithmetic_problems(80, digits=(1,), split="train")
    assert {problem.left for problem in problems} == set(range(10))
    quotients = arithmetic_problems(75, digits=(1,), operations=("division",), split="train")
    assert {problem.right for problem in quotients} == set(range(1, 10))
    assert {problem.answer for problem in quotients} == set(range(10))


def test_bad_input_is_named() -> None:
    change: dict[str, Any]
    for change, named in (
        ({"count": -1}, "-1"),
        ({"digits": (0, 2)}, r"\(0, 2\)"),
        ({"digits": (2, 2)}, r"\(2, 2\)"),
        ({"operations": ("power",)}, "power"),
        ({"split": "validation"}, "validation"),
    ):
        with pytest.raises(ValueError, match=named):
            arithmetic_problems(**{"count": 3, "digits": (3,), "split": "train", **change})
    with pytest.raises(ValueError, match="more 2-digit additions with a carry chain of 1 than the test split has"):
        chained_sums(400, digits=[2], chains=[1], split="test")
    with pytest.raises(ValueError, match=r"chains must be distinct numbers of 0 to 1, not \[0, 2\]"):
        chained_sums(4, digits=[2, 8], chains=[0, 2], split="test")
