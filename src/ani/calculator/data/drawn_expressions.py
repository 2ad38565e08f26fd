"""Random written expressions with exact values, such as `(12 + 3.5) * 4`."""

import math
import operator
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial, reduce
from itertools import count as counted
from typing import NamedTuple

from ani.calculator.reader.calculations import calculation_before

TIGHT = 0.15
"""The share of expressions that are written without spaces."""
_PLACES = 6
"""The most decimal places of a result."""

_COMPUTE: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 3}
_ATOM = 4
_TYPOGRAPHIC = str.maketrans("*/-", "×÷−")
_LETTER_X = str.maketrans("*", "x")


class Expression(NamedTuple):
    """An expression before it is written."""

    parts: tuple[str, ...]
    """Literals, operators as in Python (but `^` for powers), parentheses."""
    value: Fraction
    precedence: int
    """Precedence of the operator that is applied last."""
    key: str
    """Identifies the expression: equal for both orders of each sum and product."""

    def written(self, way: float, currency: str = "") -> str:
        """Writes the expression in one of the usual ways, most often as `12 * 3`; a number from 0 to 1 chooses the way.

        A currency sign precedes every term of a sum, but only the first factor of a product.
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
    """Returns the expression that is one literal."""
    return Expression((literal,), Fraction(literal), _ATOM, literal)


def combined(symbol: str, left: Expression, right: Expression) -> Expression:
    """Joins two expressions by an operator, with parentheses where they are needed.

    Raises:
        ZeroDivisionError: The right side of a division is zero.
    """
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
    rng: random.Random, operands: int, digits: int, symbol: str, symbols: Sequence[str], decimals: bool = False
) -> Expression | None:
    """Draws an expression that applies `symbol` last and operators of `symbols` before; None if it divides by zero.

    The longest operand has `digits` digits (a dividend, which is a product of the divisor, may be longer). With
    `decimals` operands may have a fraction.
    """
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
        if symbol == "/":  # the dividend is a product of the divisors and the quotient
            chain = rng.random() < 0.5
            divisors = [literal() for _ in range(size - 1)] if chain else [tree(size - 1, rng.choice(symbols))]
            dividend = math.prod((abs(each.value) for each in divisors), start=literal().value)
            return reduce(partial(combined, "/"), divisors, leaf(plain(dividend)))
        right = 1 if rng.random() < 0.6 else rng.randint(1, size - 1)
        return combined(symbol, tree(size - right, rng.choice(symbols)), tree(right, rng.choice(symbols)))

    try:
        return tree(operands, symbol)
    except ZeroDivisionError:
        return None


def plain(value: Fraction | int) -> str:
    """Writes out a decimal fraction."""
    places = next(places for places in counted() if (value * 10**places).denominator == 1)
    digits = str(int(abs(value) * 10**places)).rjust(places + 1, "0")
    return "-" * (value < 0) + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def exact_result(text: str) -> str | None:
    """Writes the exact result of the calculation at the end of a text that ends with an equals sign and perhaps a
    currency sign; None if there is no calculation, or its result has more than 6 decimal places.

    An amount of money that is no integer is written to the cent.
    """
    head, sign, tail = text.rpartition("=")
    found = calculation_before(text, len(head)) if sign and not tail.strip(" $€£") else None
    value = found and found.value.rational
    if found is None or value is None or (value * 10**_PLACES).denominator != 1:
        return None
    whole, point, fraction = plain(value).partition(".")
    return whole + point + (fraction.ljust(2, "0") if point and (tail.strip() or found.currency) else fraction)
