"""Task `rivals`: the arithmetic tests of other papers, with new numbers by the same rules.

OccamLLM (arXiv 2406.06576), NUPA (arXiv 2411.03766), BIG-bench's `arithmetic` (arXiv 2206.04615), and raw equations of
one to three digits, as in MathLLM's test.
"""

import math
import random
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, Literal, NamedTuple

from pydantic import Field

from ani.calculator.tasks.stated import stated_numbers
from ani.data.arithmetic import SYMBOLS, Operation
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, Measured
from ani.numbers import NumberText
from ani.results.scores import TaskRecord
from ani.results.statistics import Estimate, grouped_share

ROOM = 32
"""Maximum number of new tokens of an answer."""
_DIGITS = 3, 5, 7
"""OccamLLM's operands are below 10 to the power of one of these."""
_EXACT = Context(prec=60)

Test = Literal["occam", "nupa", "bigbench", "mathllm"]
Rng = random.Random
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
    """True if the result is among the answer's numbers that are no operands. OccamLLM's rule: to as many decimal places
    as the number has, but at least two and at most five."""


class Rivals(Measured):
    """The tests of OccamLLM, NUPA, BIG-bench and MathLLM, with new numbers."""

    name = "rivals"
    title = "The tests of other papers"
    note = (
        "New numbers by the rules of each paper's test. An answer is right if the result is among its numbers that "
        "are no operands; in OccamLLM's test, where results may have infinitely many digits, to as many decimal places "
        "as are written, at least two and at most five. 95% intervals: Wilson's, with training seeds resampled."
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
            for operation, (text, draw, compute) in operations.items():
                wanted = len(found) + self.count
                while len(found) < wanted:
                    digits = _DIGITS[len(found) % len(_DIGITS)] if test == "occam" and operation in _RANGED else None
                    operands = draw(rng, digits or 0)
                    facts: dict[str, Any] = {"operation": operation, "digits": digits, "prompt": text.format(*operands)}
                    facts["result"] = f"{round(compute(*operands), 12).normalize(_EXACT):f}"
                    found.setdefault((test, facts["prompt"]), RivalQuestion(test=test, **facts))
        return [*found.values()]

    def answer(self, engine: Engine, questions: Sequence[RivalQuestion]) -> Answers:
        """Asks greedily."""
        prompts = [
            each.prompt if each.test in ("bigbench", "mathllm") else [{"role": "user", "content": each.prompt}]
            for each in questions
        ]
        for place, (question, output) in enumerate(zip(questions, engine.texts(prompts, ROOM), strict=True)):
            numbers, result = stated_numbers(output), Decimal(question.result)
            right = any(_is_right(number, result, question.test) for number in numbers)
            yield place, [RivalAnswer(**question.model_dump(exclude_unset=True), output=output, right=right)]

    @classmethod
    def measures(cls, records: Sequence[RivalAnswer]) -> dict[str, tuple[str, Estimate | None]]:
        found: dict[str, tuple[str, Estimate | None]] = {}
        for test, operations in _TESTS.items():
            of_test = [record for record in records if record.test == test]
            groups = {operation: [r for r in of_test if r.operation == operation] for operation in operations}
            if test == "occam":
                groups["multiplication of 7 digits"] = [r for r in groups["multiplication"] if r.digits == max(_DIGITS)]
            for group, answers in {"": of_test, **groups}.items():
                share = grouped_share((record.identity, record.seed, record.right) for record in answers)
                found[f"{test}_{group}" if group else test] = ", ".join(filter(None, (_NAMES[test], group))), share
        return {key: measure for key, measure in found.items() if measure[1] is not None}


def _is_right(number: NumberText, result: Decimal, test: Test) -> bool:
    if test != "occam":
        return number.value == result
    places = min(max(2, len(f"{number.value:f}".partition(".")[2])), 5)
    return abs(number.value - result) < Decimal(10) ** -places


# --- questions ---


class Problems(NamedTuple):
    """Questions of one operation."""

    text: str
    """Has a place for each operand."""
    draw: Callable[[Rng, int], Sequence[Decimal]]
    """Draws the operands; the argument is the number of digits, 0 in tests without groups of digits."""
    compute: Callable[..., Decimal]


_WORDS: dict[Operation, str]
_WORDS = {"addition": "plus", "subtraction": "minus", "multiplication": "times", "division": "divided by"}
_VERBS: dict[Operation, str] = {"addition": "Add", "subtraction": "Subtract", "multiplication": "Multiply"}
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


def _natural(rng: Rng, digits: int) -> Decimal:
    return Decimal(rng.randrange(10 ** (digits - 1), 10**digits))


def _angle(rng: Rng, _: int) -> list[Decimal]:
    return [Decimal(f"{rng.uniform(-math.tau, math.tau):.2f}")]


def _signed(rng: Rng, digits: int) -> list[Decimal]:
    return [Decimal(rng.randint(-(10**digits), 10**digits) or 7) for _ in range(2)]


def _occam(symbol: str) -> Problems:
    return Problems(
        f"{'Give the answer in decimals. ' * (symbol == '/')}{{}} {symbol} {{}} =", _signed, _COMPUTE[symbol]
    )


def _nupa(verb: str, symbol: str, decimals: int = 0) -> Problems:
    """Two natural numbers of 2 to 8 digits, or with up to `decimals` decimal places; a divisor is no longer than its
    dividend."""

    def draw(rng: Rng, _: int) -> Sequence[Decimal]:
        digits = rng.randint(2, 8)
        pair = _natural(rng, digits), _natural(rng, rng.randint(1, digits) if symbol in ("%", "//") else digits)
        if not decimals:
            return pair
        places = [rng.randint(1, decimals) for _ in pair]
        return [each + _natural(rng, n).scaleb(-n) for each, n in zip(pair, places, strict=True)]

    kind, example = ("a float", "10.4") if decimals else ("an integer", "123")
    ask = f"Directly return the answer as {kind} without any comma separator, like {example} ."
    return Problems(f"{ask} {verb} {{}} {symbol} {{}} =", draw, _COMPUTE[symbol])


def _simple(text: str, symbol: str, digits: int) -> Problems:
    """Two natural numbers of up to `digits` digits; quotients are whole."""

    def draw(rng: Rng, _: int) -> Sequence[Decimal]:
        length = rng.randint(1, digits)
        left, right = _natural(rng, length), _natural(rng, length)
        return (left * right if symbol == "/" else left), right

    return Problems(text, draw, _COMPUTE[symbol])


_TESTS: dict[Test, dict[str, Problems]] = {
    "occam": {
        **{operation: _occam(symbol) for operation, symbol in SYMBOLS.items()},
        "sqrt": Problems("sqrt({:.2f}) =", lambda rng, n: [Decimal(rng.randint(1, 10 ** (n + 2))) / 100], _EXACT.sqrt),
        "sin": Problems("sin({} rad) =", _angle, lambda angle: Decimal(math.sin(angle))),
        "cos": Problems("cos({} rad) =", _angle, lambda angle: Decimal(math.cos(angle))),
        "ln": Problems("ln({}) =", lambda rng, _: [Decimal(f"{math.exp(rng.uniform(-5, 5)):.7f}")], _EXACT.ln),
        "exp": Problems("exp({}) =", lambda rng, _: [Decimal(f"{rng.uniform(-5, 5):.6f}")], _EXACT.exp),
    },
    "nupa": {
        **{
            f"{operation}{kind}": _nupa(f"{verb} two numbers:", SYMBOLS[operation], decimals)
            for kind, decimals in (("", 0), (" of decimals", 3))
            for operation, verb in _VERBS.items()
        },
        "floor division": _nupa("Divide two numbers and return the result as an integer.", "//"),
        "remainder": _nupa("Divide two numbers and return the remainder.", "%"),
        "maximum": _nupa("Get the maximal number:", "and"),
    },
    "bigbench": {
        operation: _simple(f"Q: What is {{}} {word} {{}}? A:", SYMBOLS[operation], 5)
        for operation, word in _WORDS.items()
    },
    "mathllm": {operation: _simple(f"{{}}{symbol}{{}}=", symbol, 3) for operation, symbol in SYMBOLS.items()},
}
