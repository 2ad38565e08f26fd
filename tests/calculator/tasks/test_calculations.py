import re
from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.data.drawn_expressions import exact_result
from ani.calculator.tasks.calculations import Calculations
from ani.data.arithmetic import SYMBOLS
from tests.calculator.data.test_sentences import plain, value
from tests.properties import examples

OPERATIONS = {symbol: operation for operation, symbol in SYMBOLS.items()}


@examples(30)
@given(
    count=st.integers(1, 60),
    digits=st.lists(st.integers(3, 12), min_size=1, max_size=3, unique=True),
    operands=st.lists(st.integers(2, 4), min_size=1, max_size=3, unique=True),
    seed=st.integers(-5, 10**9),
)
def test_problems_are_exact_and_described_correctly(
    count: int, digits: list[int], operands: list[int], seed: int
) -> None:
    problems = Calculations(count=count, digits=digits, operands=operands).questions(seed)
    assert len({problem.prompt for problem in problems}) == count
    for problem in problems:
        expression = plain(problem.prompt.removeprefix("Calculate ").removesuffix("="))
        assert Fraction(problem.answer) == value(expression) and exact_result(problem.prompt) == problem.answer
        assert set(problem.operations) == {OPERATIONS[symbol] for symbol in set(expression) & set(OPERATIONS)}
        literals = re.findall(r"[0-9.]+", expression)
        assert problem.operands == len(literals)
        if "division" not in problem.operations and "." not in expression:
            assert problem.digits == max(map(len, literals))
    cells = Counter((problem.operands, problem.digits) for problem in problems)
    assert all(abs(number - count / (len(digits) * len(operands))) <= 4 for number in cells.values())
