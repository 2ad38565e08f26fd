import hashlib
import operator
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.data.arithmetic import ArithmeticProblem, Operation, arithmetic_problems
from tests.properties import examples

OPERATIONS: tuple[Operation, ...] = ("addition", "subtraction", "multiplication")


def unordered(problem: ArithmeticProblem) -> tuple[str, int, int]:
    left, right = problem.left, problem.right
    return problem.operation, *((left, right) if problem.operation == "-" else sorted((left, right)))


def test_prompt_and_answer() -> None:
    assert ArithmeticProblem(3, "+", 123, 456).prompt == "Calculate 123 + 456 ="
    assert ArithmeticProblem(2, "-", 12, 99).answer == -87
    assert ArithmeticProblem(2, "*", 12, 12).prompt == "Calculate 12 * 12 ="
    big = ArithmeticProblem(30, "*", 10**30 - 1, 10**30 - 1)
    assert str(big.answer) == "9" * 29 + "8" + "0" * 29 + "1"


@examples(60)
@given(
    count=st.integers(0, 100),
    digits=st.lists(st.integers(4, 40), min_size=1, max_size=5, unique=True),
    operations=st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=3, unique=True),
    split=st.sampled_from(("train", "test")),
    seed=st.integers(-5, 10**9),
)
def test_problems_are_exact_distinct_and_evenly_spread(count, digits, operations, split, seed) -> None:
    problems = arithmetic_problems(count, digits=digits, operations=operations, split=split, seed=seed)
    assert len(problems) == len(set(problems)) == count
    calculate = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    for problem in problems:
        assert len(str(problem.left)) == len(str(problem.right)) == problem.digits
        word, left, symbol, right, equals = problem.prompt.split(" ")
        assert word.isalpha()  # no number at the very first token
        assert (equals, problem.answer) == ("=", calculate[symbol](int(left), int(right)))
    symbols = ["+-*"[OPERATIONS.index(operation)] for operation in operations]
    lengths = Counter(problem.digits for problem in problems)
    used = Counter(problem.operation for problem in problems)
    cells = Counter((problem.digits, problem.operation) for problem in problems)
    assert max(lengths[d] for d in digits) - min(lengths[d] for d in digits) <= 1
    assert max(used[s] for s in symbols) - min(used[s] for s in symbols) <= 1
    assert max(cells.values(), default=0) - min((cells[d, s] for d in digits for s in symbols), default=0) <= 1
    assert set(lengths) <= set(digits) and set(used) <= set(symbols)


def test_train_and_test_never_meet_whatever_the_seeds() -> None:
    def draw(split, seeds):
        return [
            problem
            for seed in seeds
            for problem in arithmetic_problems(1200, digits=(2, 3), operations=OPERATIONS, split=split, seed=seed)
        ]

    train = {unordered(problem) for problem in draw("train", range(5))}
    test = {unordered(problem) for problem in draw("test", range(5, 10))}
    assert not train & test


@pytest.mark.parametrize("operation", OPERATIONS)
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


def test_the_count_named_in_the_error_is_available() -> None:
    with pytest.raises(ValueError, match="lower count to") as caught:
        arithmetic_problems(6000, digits=(2, 5), operations=OPERATIONS, split="test")
    count = int(str(caught.value).split("lower count to ")[1].split()[0])
    assert len(arithmetic_problems(count, digits=(2, 5), operations=OPERATIONS, split="test")) == count


def test_one_digit_operands_include_zero() -> None:
    problems = arithmetic_problems(80, digits=(1,), split="train")
    assert {problem.left for problem in problems} == set(range(10))


def test_the_draw_follows_the_seed_and_is_pinned_for_every_platform() -> None:
    arguments = {"digits": (2, 4, 12), "operations": OPERATIONS, "split": "test"}
    first = arithmetic_problems(300, **arguments, seed=7)
    assert first == arithmetic_problems(300, **arguments, seed=7)
    assert first != arithmetic_problems(300, **arguments, seed=8)
    text = "\n".join(f"{problem.left} {problem.operation} {problem.right} = {problem.answer}" for problem in first)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "dbcaa0bc92350279"
    # Shuffled: the first tenth is not all of one length.
    assert len({problem.digits for problem in first[:30]}) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"count": -1}, "-1"),
        ({"digits": ()}, r"\(\)"),
        ({"digits": (0, 2)}, r"\(0, 2\)"),
        ({"digits": (2, 2)}, r"\(2, 2\)"),
        ({"operations": ()}, r"\(\)"),
        ({"operations": ("power",)}, "power"),
        ({"operations": "addition"}, "addition"),
        ({"split": "validation"}, "validation"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], named: str) -> None:
    arguments: dict[str, object] = {"count": 3, "digits": (3,), "split": "train", **change}
    with pytest.raises(ValueError, match=named):
        arithmetic_problems(arguments.pop("count"), **arguments)
