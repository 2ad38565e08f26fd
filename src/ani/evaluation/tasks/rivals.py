"""Task `rivals`: the arithmetic tests of other papers, with new numbers by the same rules.

OccamLLM (arXiv 2406.06576), NUPA (arXiv 2411.03766), BIG-bench's `arithmetic` (arXiv 2206.04615), and raw equations of
one to three digits, as MathLLM's.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from ani.data.arithmetic import SYMBOLS
from ani.data.sources import Message
from ani.evaluation.backend import Backend
from ani.evaluation.task import Answers, Measured
from ani.numbers import NumberText, find_numbers
from ani.results.scores import TaskRecord
from ani.results.statistics import Estimate, resampled, share

ROOM = 32
"""New tokens of an answer."""
_DIGITS = 3, 5, 7
"""OccamLLM's operands are below 10 to the power of one of these."""
_EXACT = Context(prec=60)

Test = Literal["occam", "nupa", "bigbench", "mathllm"]
Rng = random.Random
Drawn = tuple[str, Decimal]
"""A prompt, and its result."""


class RivalQuestion(NamedTuple):
    """A prompt of another paper's test."""

    test: Test
    operation: str
    prompt: str | list[Message]
    result: str
    digits: int | None


class RivalAnswer(TaskRecord):
    """An answer to a question, a line of `rivals.jsonl`."""

    known_by = "test", "prompt"

    test: Test
    operation: str
    """Such as `addition`."""
    digits: int | None
    """The operands are below 10 to the power of it; null where a test doesn't group by it."""
    prompt: str
    """The user's message, or the raw text."""
    result: str
    """To 12 decimals, where it has more."""
    output: str
    right: bool
    """Whether the result is among the answer's numbers. OccamLLM's rule: to as many decimals as the number has, two at
    least and five at most."""
    digits_right: float | None
    """NUPA: share of the result's digits that the answer's first number has, at the same distance from the point."""
    length_right: bool | None
    """NUPA: whether the answer's first number has as many digits as the result."""


class Rivals(Measured):
    """The tests of OccamLLM, NUPA, BIG-bench and MathLLM, with new numbers."""

    name = "rivals"
    title = "The tests of other papers"
    note = (
        "New numbers by the rules of each paper's test. An answer is right if the result is among its numbers; of "
        "OccamLLM's test, which has results without end, to as many decimals as are written, two at least and five at "
        "most. Wilson 95% intervals; of NUPA's digits, bootstrap."
    )
    caption = "The tests of other papers"
    unit = "prompts"
    record = RivalAnswer

    count: int = Field(default=100, ge=1, le=1000)
    """Prompts of each test and operation."""

    def questions(self, seed: int) -> list[RivalQuestion]:
        """Each operation's share, without repetition; OccamLLM's ranges take turns."""
        rng = random.Random(f"rivals {seed}")
        found: dict[tuple[Test, str], RivalQuestion] = {}
        for test, operations in _TESTS.items():
            for operation, draw in operations.items():
                wanted = len(found) + self.count
                while len(found) < wanted:
                    digits = _DIGITS[len(found) % len(_DIGITS)] if test == "occam" and operation in _RANGED else None
                    text, exact = draw(rng, digits or 0)
                    prompt = text if test in ("bigbench", "mathllm") else [Message(role="user", content=text)]
                    result = f"{round(exact, 12).normalize(_EXACT):f}"
                    found.setdefault((test, text), RivalQuestion(test, operation, prompt, result, digits))
        return [*found.values()]

    def answer(self, backend: Backend, questions: Sequence[RivalQuestion]) -> Answers:
        """Answer greedily."""
        outputs = backend.texts([question.prompt for question in questions], ROOM)
        for place, (question, output) in enumerate(zip(questions, outputs, strict=True)):
            prompt = question.prompt if isinstance(question.prompt, str) else question.prompt[0]["content"]
            numbers, result = find_numbers(output), Decimal(question.result)
            of_nupa = question.test == "nupa"
            record = RivalAnswer(
                **{**question._asdict(), "prompt": prompt},
                output=output,
                right=any(_is_right(number, result, question.test) for number in numbers),
                digits_right=_digits_right(numbers, result) if of_nupa else None,
                length_right=bool(numbers) and len(_places(numbers[0].value)) == len(_places(result))
                if of_nupa
                else None,
            )
            yield place, [record]

    @classmethod
    def measures(cls, records: Sequence[RivalAnswer]) -> dict[str, tuple[str, Estimate | None]]:
        found: dict[str, tuple[str, Estimate | None]] = {}
        for test, (name, operations) in ((test, (_NAMES[test], _TESTS[test])) for test in _TESTS):
            of_test = [record for record in records if record.test == test]
            for operation in ("", *operations):
                right = [record.right for record in of_test if operation in ("", record.operation)]
                found["_".join(filter(None, (test, operation)))] = (_title(name, operation), share(right))
            if test == "occam":
                long = [r.right for r in of_test if r.operation == "multiplication" and r.digits == max(_DIGITS)]
                found["occam_multiplication_7"] = (_title(name, "multiplication of 7 digits"), share(long))
        nupa = [record for record in records if record.digits_right is not None]
        found["nupa_digits"] = (_title(_NAMES["nupa"], "digits right"), _mean(record.digits_right for record in nupa))
        found["nupa_length"] = (_title(_NAMES["nupa"], "length right"), share(bool(r.length_right) for r in nupa))
        return {key: measure for key, measure in found.items() if measure[1] is not None}


_NAMES: dict[Test, str] = {
    "occam": "OccamLLM",
    "nupa": "NUPA",
    "bigbench": "BIG-bench `Q: … A:`",
    "mathllm": "MathLLM `a+b=`",
}


def _title(name: str, operation: str) -> str:
    return f"{name}, {operation}" if operation else name


def _is_right(number: NumberText, result: Decimal, test: Test) -> bool:
    if test != "occam":
        return number.value == result
    places = min(max(2, len(f"{number.value:f}".partition(".")[2])), 5)
    return abs(number.value - result) < Decimal(10) ** -places


def _places(value: Decimal) -> dict[int, str]:
    """The digits of a value by their place: 0 for the ones, -1 for the tenths."""
    whole, _, fraction = f"{abs(value):f}".partition(".")
    return dict(enumerate(reversed(whole))) | {-i: digit for i, digit in enumerate(fraction, 1)}


def _digits_right(numbers: Sequence[NumberText], result: Decimal) -> float:
    expected, found = _places(result), _places(numbers[0].value) if numbers else {}
    return sum(found.get(place) == digit for place, digit in expected.items()) / len(expected)


def _mean(values: Iterable[float | None]) -> Estimate | None:
    column = np.array([*values], dtype=np.float64)[:, None]
    return resampled(column, lambda means: means[:, 0]) if len(column) else None


# --- questions ---

_WRITTEN: dict[str, str] = dict(SYMBOLS.items())
_WORDS = {"addition": "plus", "subtraction": "minus", "multiplication": "times", "division": "divided by"}
_RANGED = {*_WRITTEN, "sqrt"}


_COMPUTE: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
    "/": _EXACT.divide,
    "%": _EXACT.remainder,
    "//": _EXACT.divide_int,
    "and": max,  # NUPA writes the two numbers of a maximum so
}


def _natural(rng: Rng, digits: int) -> Decimal:
    return Decimal(rng.randrange(10 ** (digits - 1), 10**digits))


def _occam(operation: str) -> Callable[[Rng, int], Drawn]:
    symbol = _WRITTEN[operation]

    def draw(rng: Rng, digits: int) -> Drawn:
        left, right = (Decimal(rng.randint(-(10**digits), 10**digits) or 7) for _ in range(2))
        start = "Give the answer in decimals. " if symbol == "/" else ""
        return f"{start}{left} {symbol} {right} =", _COMPUTE[symbol](left, right)

    return draw


def _root(rng: Rng, digits: int) -> Drawn:
    operand = Decimal(rng.randint(1, 10 ** (digits + 2))) / 100
    return f"sqrt({operand:.2f}) =", _EXACT.sqrt(operand)


def _angle(name: str, function: Callable[[float], float]) -> Callable[[Rng, int], Drawn]:
    def draw(rng: Rng, _: int) -> Drawn:
        operand = f"{rng.uniform(-math.tau, math.tau):.2f}"
        return f"{name}({operand} rad) =", Decimal(function(float(operand)))

    return draw


def _logarithm(rng: Rng, _: int) -> Drawn:
    operand = Decimal(f"{math.exp(rng.uniform(-5, 5)):.7f}")
    return f"ln({operand}) =", _EXACT.ln(operand)


def _exponential(rng: Rng, _: int) -> Drawn:
    operand = Decimal(f"{rng.uniform(-5, 5):.6f}")
    return f"exp({operand}) =", _EXACT.exp(operand)


def _nupa(verb: str, symbol: str, decimals: int = 0) -> Callable[[Rng, int], Drawn]:
    """Two natural numbers of 2 to 8 digits, or with up to `decimals` decimals; of a quotient the second is no longer
    than the first."""
    kind = "a float" if decimals else "an integer"
    example = "10.4" if decimals else "123"

    def draw(rng: Rng, _: int) -> Drawn:
        digits = rng.randint(2, 8)
        left, right = _natural(rng, digits), _natural(rng, rng.randint(1, digits) if symbol in ("%", "//") else digits)
        if decimals:
            left, right = (each + Decimal(_natural(rng, n)).scaleb(-n) for each, n in (
                (left, rng.randint(1, decimals)), (right, rng.randint(1, decimals))
            ))  # fmt: skip
        ask = f"Directly return the answer as {kind} without any comma separator, like {example} ."
        return f"{ask} {verb} {left} {symbol} {right} =", _COMPUTE[symbol](left, right)

    return draw


def _simple(operation: str, digits: int, write: Callable[[Decimal, str, Decimal], str]) -> Callable[[Rng, int], Drawn]:
    """Natural numbers of up to `digits` digits; quotients are whole."""

    def draw(rng: Rng, _: int) -> Drawn:
        length, symbol = rng.randint(1, digits), _WRITTEN[operation]
        left, right = _natural(rng, length), _natural(rng, length)
        left = left * right if symbol == "/" else left
        return write(left, operation, right), _COMPUTE[symbol](left, right)

    return draw


_TESTS: dict[Test, dict[str, Callable[[Rng, int], Drawn]]] = {
    "occam": {
        **{operation: _occam(operation) for operation in _WRITTEN},
        "sqrt": _root,
        "sin": _angle("sin", math.sin),
        "cos": _angle("cos", math.cos),
        "ln": _logarithm,
        "exp": _exponential,
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
        operation: _simple(operation, 5, lambda left, name, right: f"Q: What is {left} {_WORDS[name]} {right}? A:")
        for operation in _WORDS
    },
    "mathllm": {
        operation: _simple(operation, 3, lambda left, name, right: f"{left}{_WRITTEN[name]}{right}=")
        for operation in _WRITTEN
    },
}
