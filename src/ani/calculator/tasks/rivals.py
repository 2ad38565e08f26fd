"""Task `rivals`: the arithmetic tests of other papers, with new numbers by the same rules.

OccamLLM (arXiv 2406.06576), NUPA (arXiv 2411.03766), BIG-bench's `arithmetic` (arXiv 2206.04615), and raw equations of
one to three digits, as in MathLLM's test.
"""

import math
import random
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ani.data.arithmetic import SYMBOLS, Operation
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, Measured
from ani.numbers import NumberText, find_numbers
from ani.results.scores import TaskRecord
from ani.results.statistics import Estimate, resampled, share

ROOM = 32
"""Maximum number of new tokens of an answer."""
_DIGITS = 3, 5, 7
"""OccamLLM's operands are below 10 to the power of one of these."""
_EXACT = Context(prec=60)

Test = Literal["occam", "nupa", "bigbench", "mathllm"]
Rng = random.Random
Draw = Callable[[Rng, int], tuple[str, Decimal]]
"""Draws a prompt and its result; the argument is the number of digits, 0 in tests without groups of digits."""
_NAMES: dict[Test, str] = {
    "occam": "OccamLLM",
    "nupa": "NUPA",
    "bigbench": "BIG-bench `Q: … A:`",
    "mathllm": "MathLLM `a+b=`",
}


class RivalQuestion(TaskRecord):
    """A prompt of another paper's test."""

    known_by = "test", "prompt"

    test: Test
    operation: str
    """Such as `addition`."""
    digits: int | None
    """The operands are below 10 to the power of this; null in tests without groups of digits."""
    prompt: str
    """The user's message, or the raw text."""
    result: str
    """The exact result, rounded to 12 decimal places."""


class RivalAnswer(RivalQuestion):
    """An answer to a question, a line of `rivals.jsonl`."""

    output: str
    right: bool
    """Whether the result is among the answer's numbers. OccamLLM's rule: to as many decimal places as the number has,
    but at least two and at most five."""
    digits_right: float | None
    """NUPA: share of the result's digits that the answer's first number has at the same place."""
    length_right: bool | None
    """NUPA: whether the answer's first number has as many digits as the result."""


class Rivals(Measured):
    """The tests of OccamLLM, NUPA, BIG-bench and MathLLM, with new numbers."""

    name = "rivals"
    title = "The tests of other papers"
    note = (
        "New numbers by the rules of each paper's test. An answer is right if the result is among its numbers; in "
        "OccamLLM's test, where results may have infinitely many digits, to as many decimal places as are written, at "
        "least two and at most five. Wilson 95% intervals; for NUPA's digits, bootstrap."
    )
    unit = "prompts"
    record = RivalAnswer

    count: int = Field(default=100, ge=1, le=1000)
    """Prompts per test and operation."""

    def questions(self, seed: int) -> list[RivalQuestion]:
        """Distinct questions, equally many per operation; OccamLLM's ranges alternate."""
        rng = random.Random(f"rivals {seed}")
        found: dict[tuple[Test, str], RivalQuestion] = {}
        for test, operations in _TESTS.items():
            for operation, draw in operations.items():
                wanted = len(found) + self.count
                while len(found) < wanted:
                    digits = _DIGITS[len(found) % len(_DIGITS)] if test == "occam" and operation in _RANGED else None
                    prompt, exact = draw(rng, digits or 0)
                    facts: dict[str, Any] = {"test": test, "operation": operation, "digits": digits, "prompt": prompt}
                    facts["result"] = f"{round(exact, 12).normalize(_EXACT):f}"
                    found.setdefault((test, prompt), RivalQuestion(**facts))
        return [*found.values()]

    def answer(self, engine: Engine, questions: Sequence[RivalQuestion]) -> Answers:
        """Asks greedily."""
        prompts = [
            each.prompt if each.test in ("bigbench", "mathllm") else [{"role": "user", "content": each.prompt}]
            for each in questions
        ]
        for place, (question, output) in enumerate(zip(questions, engine.texts(prompts, ROOM), strict=True)):
            numbers, result = find_numbers(output), Decimal(question.result)
            facts: dict[str, Any] = {"digits_right": None, "length_right": None}
            if question.test == "nupa":
                expected, written = _places(result), _places(numbers[0].value) if numbers else {}
                same = sum(written.get(power) == digit for power, digit in expected.items())
                facts = {"digits_right": same / len(expected), "length_right": len(written) == len(expected)}
            right = any(_is_right(number, result, question.test) for number in numbers)
            yield place, [RivalAnswer(**question.model_dump(exclude_unset=True), output=output, right=right, **facts)]

    @classmethod
    def measures(cls, records: Sequence[RivalAnswer]) -> dict[str, tuple[str, Estimate | None]]:
        found: dict[str, tuple[str, Estimate | None]] = {}
        for test, operations in _TESTS.items():
            of_test = [record for record in records if record.test == test]
            for operation in ("", *operations):
                right = [record.right for record in of_test if operation in ("", record.operation)]
                found["_".join(filter(None, (test, operation)))] = (_title(test, operation), share(right))
            if test == "occam":
                long = [r.right for r in of_test if r.operation == "multiplication" and r.digits == max(_DIGITS)]
                found["occam_multiplication_7"] = (_title(test, "multiplication of 7 digits"), share(long))
        nupa = [record for record in records if record.digits_right is not None]
        digits = np.array([[record.digits_right] for record in nupa], dtype=np.float64)
        mean = resampled(digits, lambda means: means[:, 0]) if nupa else None
        found["nupa_digits"] = (_title("nupa", "digits right"), mean)
        found["nupa_length"] = (_title("nupa", "length right"), share(bool(r.length_right) for r in nupa))
        return {key: measure for key, measure in found.items() if measure[1] is not None}


def _title(test: Test, operation: str) -> str:
    return f"{_NAMES[test]}, {operation}" if operation else _NAMES[test]


def _is_right(number: NumberText, result: Decimal, test: Test) -> bool:
    if test != "occam":
        return number.value == result
    places = min(max(2, len(f"{number.value:f}".partition(".")[2])), 5)
    return abs(number.value - result) < Decimal(10) ** -places


def _places(value: Decimal) -> dict[int, str]:
    """The digits of a value by their place: 0 for the ones, -1 for the tenths."""
    whole, _, fraction = f"{abs(value):f}".partition(".")
    return dict(enumerate(reversed(whole))) | {-i: digit for i, digit in enumerate(fraction, 1)}


# --- questions ---

_WORDS: dict[Operation, str]
_WORDS = {"addition": "plus", "subtraction": "minus", "multiplication": "times", "division": "divided by"}
_RANGED = {*SYMBOLS, "sqrt"}
_COMPUTE: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
    "/": _EXACT.divide,
    "%": _EXACT.remainder,
    "//": _EXACT.divide_int,
    "and": max,  # NUPA joins the two numbers of a maximum by "and"
}


def _of_one(text: str, operand: Callable[[Rng, int], Decimal], compute: Callable[[Decimal], Decimal]) -> Draw:
    """Draws a function's argument; the text has one place for it."""

    def draw(rng: Rng, digits: int) -> tuple[str, Decimal]:
        drawn = operand(rng, digits)
        return text.format(drawn), compute(drawn)

    return draw


def _of_two(text: str, symbol: str, operands: Callable[[Rng, int], Sequence[Decimal]]) -> Draw:
    """Draws two operands; the text has places for the first operand, the symbol and the second operand."""

    def draw(rng: Rng, digits: int) -> tuple[str, Decimal]:
        left, right = operands(rng, digits)
        return text.format(left, symbol, right), _COMPUTE[symbol](left, right)

    return draw


def _natural(rng: Rng, digits: int) -> Decimal:
    return Decimal(rng.randrange(10 ** (digits - 1), 10**digits))


def _angle(rng: Rng, _: int) -> Decimal:
    return Decimal(f"{rng.uniform(-math.tau, math.tau):.2f}")


def _signed(rng: Rng, digits: int) -> list[Decimal]:
    return [Decimal(rng.randint(-(10**digits), 10**digits) or 7) for _ in range(2)]


def _nupa(verb: str, symbol: str, decimals: int = 0) -> Draw:
    """Draws two natural numbers of 2 to 8 digits, or with up to `decimals` decimal places; a divisor is no longer than
    its dividend."""

    def operands(rng: Rng, _: int) -> Sequence[Decimal]:
        digits = rng.randint(2, 8)
        pair = _natural(rng, digits), _natural(rng, rng.randint(1, digits) if symbol in ("%", "//") else digits)
        if not decimals:
            return pair
        places = [rng.randint(1, decimals) for _ in pair]
        return [each + _natural(rng, n).scaleb(-n) for each, n in zip(pair, places, strict=True)]

    kind, example = ("a float", "10.4") if decimals else ("an integer", "123")
    ask = f"Directly return the answer as {kind} without any comma separator, like {example} ."
    return _of_two(f"{ask} {verb} {{}} {{}} {{}} =", symbol, operands)


def _simple(text: str, symbol: str, digits: int) -> Draw:
    """Draws two natural numbers of up to `digits` digits; quotients are whole."""

    def operands(rng: Rng, _: int) -> Sequence[Decimal]:
        length = rng.randint(1, digits)
        left, right = _natural(rng, length), _natural(rng, length)
        return (left * right if symbol == "/" else left), right

    return _of_two(text, symbol, operands)


_TESTS: dict[Test, dict[str, Draw]] = {
    "occam": {
        **{
            operation: _of_two(f"{'Give the answer in decimals. ' * (symbol == '/')}{{}} {{}} {{}} =", symbol, _signed)
            for operation, symbol in SYMBOLS.items()
        },
        "sqrt": _of_one("sqrt({:.2f}) =", lambda rng, n: Decimal(rng.randint(1, 10 ** (n + 2))) / 100, _EXACT.sqrt),
        "sin": _of_one("sin({} rad) =", _angle, lambda operand: Decimal(math.sin(operand))),
        "cos": _of_one("cos({} rad) =", _angle, lambda operand: Decimal(math.cos(operand))),
        "ln": _of_one("ln({}) =", lambda rng, _: Decimal(f"{math.exp(rng.uniform(-5, 5)):.7f}"), _EXACT.ln),
        "exp": _of_one("exp({}) =", lambda rng, _: Decimal(f"{rng.uniform(-5, 5):.6f}"), _EXACT.exp),
    },
    "nupa": {
        "addition": _nupa("Add two numbers:", "+"),
        "subtraction": _nupa("Subtract two numbers:", "-"),
        "multiplication": _nupa("Multiply two numbers:", "*"),
        "addition of decimals": _nupa("Add two numbers:", "+", 3),
        "subtraction of decimals": _nupa("Subtract two numbers:", "-", 3),
        "multiplication of decimals": _nupa("Multiply two numbers:", "*", 3),
        "floor division": _nupa("Divide two numbers and return the result as an integer.", "//"),
        "remainder": _nupa("Divide two numbers and return the remainder.", "%"),
        "maximum": _nupa("Get the maximal number:", "and"),
    },
    "bigbench": {
        operation: _simple(f"Q: What is {{0}} {word} {{2}}? A:", SYMBOLS[operation], 5)
        for operation, word in _WORDS.items()
    },
    "mathllm": {operation: _simple("{}{}{}=", symbol, 3) for operation, symbol in SYMBOLS.items()},
}
