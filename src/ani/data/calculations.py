"""Written calculations with exact results: expressions of several operands, all four operations, parentheses and
decimals, such as `(12 + 3.5) * 4`.
"""

import math
import operator
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial, reduce
from itertools import count as counted
from itertools import cycle, islice, product
from typing import NamedTuple, get_args

from ani.calculator.reader.calculations import calculation_before
from ani.data.arithmetic import SYMBOLS, Operation, check_drawn, split_of
from ani.data.split import Split, add_new
from ani.errors import InputError

MOST_DIGITS = 30
"""Of an operand."""
MOST_OPERANDS = 8
_PLACES = 6
"""Behind the point of a result, at most."""
_ATTEMPTS = 5000
"""Drawings in vain after which there is taken to be nothing new."""

_OPERATIONS = {symbol: operation for operation, symbol in SYMBOLS.items()}
_COMPUTE: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 3}
_ATOM = 4
TIGHT = 0.15
"""The share of expressions that are written without blanks."""
_TYPOGRAPHIC = str.maketrans("*/-", "×÷−")
_LETTER_X = str.maketrans("*", "x")


class CalculationProblem(NamedTuple):
    """A written expression and its exact result; its completion is `f" {answer}"`."""

    expression: str
    """As it is written, without the equals sign."""
    answer: str
    """The exact result as it is written, such as `-12.5`."""
    operations: tuple[Operation, ...]
    """Those that occur, each once."""
    digits: int
    """Of the longest operand, dividends aside: they are products of what they are divided by and the quotient."""
    operands: int
    parentheses: bool
    """Whether there are any."""
    decimals: bool
    """Whether an operand or the result has a fraction."""

    @property
    def prompt(self) -> str:
        """The question, such as `Calculate (3 + 4) * 5 =`, without a trailing space."""
        return f"Calculate {self.expression} ="


def calculation_problems(
    count: int,
    *,
    operations: Sequence[Operation] = get_args(Operation),
    digits: Sequence[int] = (2, 3, 4, 5),
    operands: Sequence[int] = (2, 3, 4),
    parentheses: bool = True,
    decimals: bool = True,
    split: Split,
    seed: int = 0,
) -> list[CalculationProblem]:
    """Draws `count` distinct problems, spread evenly (to within one) over numbers of operands, lengths and operations,
    in random order.

    The list depends on the arguments alone. As in `arithmetic_problems`, whose problems count among these, a hash of
    the problem, the same for both orders of a sum's or product's operands, decides whether it belongs to train (about
    nine of ten) or test. Raises InputError if an argument is out of its domain, or there are too few problems of one
    kind.

    `digits` are lengths of the longest operand, each 1 to `MOST_DIGITS`; `operands` how many there are, each 2 to
    `MOST_OPERANDS`. A problem with several operators has one of its share of `operations`; the others are drawn.
    `parentheses` may occur where they are needed; with `decimals` every fourth problem draws operands with a fraction.
    """
    numbers = {"digits": (digits, range(1, MOST_DIGITS + 1)), "operands": (operands, range(2, MOST_OPERANDS + 1))}
    check_drawn(count, split, **numbers, operations=(operations, SYMBOLS))
    rng = random.Random(f"calculations {split} {seed}")
    symbols = [SYMBOLS[operation] for operation in operations]
    found: dict[str, CalculationProblem] = {}

    def drawn(number: int, length: int, symbol: str) -> tuple[str, CalculationProblem] | None:
        fractions = decimals and rng.random() < 0.25
        each = drawn_expression(rng, number, length, symbol, symbols, parentheses, fractions)
        if each is None or each.key in found or split_of(each.key) != split:
            return None
        written = each.written(rng.random())
        answer = exact_result(f"{written} =")
        if answer is None:  # too long, or more places than are exact
            return None
        done = tuple(_OPERATIONS[part] for part in dict.fromkeys(each.parts) if part in _OPERATIONS)
        fraction = "." in answer or any("." in part for part in each.parts)
        return each.key, CalculationProblem(written, answer, done, length, number, "(" in each.parts, fraction)

    for number, length, symbol in islice(cycle(product(operands, digits, symbols)), count):
        if not add_new(found, partial(drawn, number, length, symbol), _ATTEMPTS):
            raise InputError(
                f"count={count} asks for more {_OPERATIONS[symbol]}s of {number} operands and {length} digits than the "
                f"{split} split has, or than a written calculation can hold: lower count, or leave out what is so short"
                " or long"
            )
    problems = list(found.values())
    rng.shuffle(problems)
    return problems


class Expression(NamedTuple):
    """An expression before it is written."""

    parts: tuple[str, ...]
    """Literals, operators as in Python (but `^`), parentheses."""
    value: Fraction
    precedence: int
    """Of the operator that is applied last."""
    key: str
    """The same for both orders of each sum and product."""

    def written(self, way: float, currency: str = "") -> str:
        """In one of the usual ways, which a number of 0 to 1 chooses, most often as `12 * 3`.

        A currency sign stands before all terms of a sum, but before the first factor only.
        """
        parts = list(self.parts)
        if currency:
            literals = [i for i, part in enumerate(parts) if part[0].isdigit()]
            for i in literals[:1] if set("*/") & set(parts) else literals:
                whole, point, fraction = parts[i].partition(".")
                parts[i] = currency + whole + (point and f".{fraction:0<2}")
        if way < TIGHT:
            return "".join(parts)
        text = " ".join(parts).replace("( ", "(").replace(" )", ")")
        return text.translate(_TYPOGRAPHIC if way < 0.3 else _LETTER_X if way < 0.37 else {})


def leaf(literal: str) -> Expression:
    """A literal by itself."""
    return Expression((literal,), Fraction(literal), _ATOM, literal)


def combined(symbol: str, left: Expression, right: Expression) -> Expression:
    """The two with an operator between them, in parentheses where they need them; raises ZeroDivisionError if there is
    no result."""
    precedence = _PRECEDENCE[symbol]
    parts = (*_inside(left, precedence), symbol, *_inside(right, precedence + 1))
    ordered = (left, right)
    if symbol in "+*":
        ordered = (left, right) if (left.value, left.key) < (right.value, right.key) else (right, left)
    key = symbol.join(each.key if each.precedence == _ATOM else f"({each.key})" for each in ordered)
    return Expression(parts, _COMPUTE[symbol](left.value, right.value), precedence, key)


def _inside(operand: Expression, precedence: int) -> tuple[str, ...]:
    return operand.parts if operand.precedence >= precedence else ("(", *operand.parts, ")")


def drawn_expression(
    rng: random.Random,
    operands: int,
    digits: int,
    symbol: str,
    symbols: Sequence[str],
    parentheses: bool = True,
    decimals: bool = False,
) -> Expression | None:
    """A drawn expression that applies `symbol` last and others of `symbols` before; None if it came out unfit."""
    lengths = [digits, *(rng.randint(1, digits) for _ in range(operands - 1))]
    rng.shuffle(lengths)

    def literal() -> Expression:
        length = lengths.pop()
        places = rng.randint(0, min(2, length - 1)) if decimals else 0
        steps = rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
        if places and steps % 10 == 0:  # such a literal would be shorter
            steps += 1
        return leaf(plain(Fraction(steps, 10**places)))

    def tree(size: int, symbol: str) -> Expression:
        if size == 1:
            return literal()
        if symbol == "/":  # the dividend is made from what it is divided by
            chain = not parentheses or rng.random() < 0.5
            divisors = [literal() for _ in range(size - 1)] if chain else [tree(size - 1, rng.choice(symbols))]
            dividend = math.prod((abs(each.value) for each in divisors), start=literal().value)
            return reduce(partial(combined, "/"), divisors, leaf(plain(dividend)))
        behind = 1 if rng.random() < 0.6 else rng.randint(1, size - 1)
        return combined(symbol, tree(size - behind, rng.choice(symbols)), tree(behind, rng.choice(symbols)))

    try:
        found = tree(operands, symbol)
    except ZeroDivisionError:
        return None
    return found if parentheses or "(" not in found.parts else None


def plain(value: Fraction) -> str:
    """A decimal fraction, written out."""
    places = next(places for places in counted() if (value * 10**places).denominator == 1)
    digits = str(value.numerator * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


def exact_result(text: str) -> str | None:
    """The exact result of the calculation at whose equals sign, and perhaps a currency sign, a text ends, written out;
    None: there is none of at most `_PLACES` places. Amounts of money that are no integers go to cents."""
    head, sign, tail = text.rpartition("=")
    found = calculation_before(text, len(head)) if sign and not tail.strip(" $€£") else None
    value = found and found.value.rational
    if found is None or value is None or (value * 10**_PLACES).denominator != 1:
        return None
    whole, point, fraction = plain(abs(value)).partition(".")
    if tail.strip() or found.currency:
        fraction = point and fraction.ljust(2, "0")
    return "-" * (value < 0) + whole + point + fraction
