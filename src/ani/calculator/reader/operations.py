"""Values and units of what operators and lists join."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

from ani.calculator.reader.exact import Exact
from ani.calculator.reader.tokens import CENTS, COUNTED, OF_LISTS

SUM, PRODUCT, POWER, WHOLE = 1, 2, 3, 4
"""Levels of operators, from the weakest on."""
LEVELS = {"+": SUM, "-": SUM, "^": POWER} | dict.fromkeys(("*", "/", "//", "mod", "of", "off", "up", "down"), PRODUCT)
KEEP_UNITS = frozenset(("+", "-", "reversed -", "mean", "max", "min"))
"""Operations on a list of quantities in one unit whose result has that unit."""
_MONEY = {"$": "money:dollar", "€": "money:euro"}
"""Units of currency signs that have hundredths called cents."""


class Operand(NamedTuple):
    """A part of an expression that has been read."""

    value: Exact
    level: int = WHOLE
    """Level of the last operator outside of brackets."""
    worded: bool = False
    """True if an operator outside of brackets is a word."""
    divided: bool = False
    """True for a quotient: a factor that follows without an operator may belong to the divisor."""
    open: bool = False
    """True if the operand ends with the argument of a function without brackets: more may belong to that argument."""
    unit: str = ""
    """Unit of the value: "%", or a quantity and its unit such as "time:minute"; empty: none."""
    signed: bool = False
    """True if the operand begins with a sign."""


class Doubt(ArithmeticError):
    """The tokens are no expression, or can be read as several expressions."""


def currency_unit(sign: str) -> str:
    """The unit of an amount with a currency sign."""
    return _MONEY.get(sign, f"money:{sign}")


def currency_of(unit: str) -> str:
    """The sign of an amount of money in a unit, which is written to the hundredth; empty: it is none."""
    return next((sign for sign, name in _MONEY.items() if name == unit), "")


def in_whole_money(amount: Operand, unit: str) -> Operand:
    """An amount of cents in dollars or euros, if it is added to such an amount."""
    if amount.unit != CENTS or unit not in _MONEY.values():
        return amount
    return amount._replace(value=amount.value / _HUNDRED, unit=unit)


def unit_of(operator: str, a: str, b: str, right: Exact, left: Exact) -> tuple[str, Fraction | int]:
    """The unit of a result of operands in the units a and b, and the factor that it needs.

    Raises:
        Doubt: If quantities would have to be converted, or their units don't tell the result's.
    """
    match operator:
        case "+" | "-" if a == b:
            return a, 1
        case "off" if a == "%" != b:
            return b, Fraction(1, 100)
        case "up" | "down" if b == "%" != a:
            return a, Fraction(1, 100)
        case "*" | "of" if (a == "%") != (b == "%"):
            if b == "%" and right == _HUNDRED:  # 1/4 * 100% is 25%, and 50 * 100% is 50
                if left.rational is None or left.rational >= 2:
                    raise Doubt
                return "%", 1
            return b if a == "%" else a, Fraction(1, 100)
        case "*" | "of" if not (a and b) and not (a + b).startswith(COUNTED) and "%" not in (a, b):
            return a or b, 1
        case "/" if b == "%":
            return ("", 1) if a == "%" else (a, 100)
        case "/" if a != "%" and (a == b or (not b and not a.startswith(COUNTED))):
            return "" if b else a, 1
        case "//" | "mod" if not a and not b:
            return "", 1
    raise Doubt


_HUNDRED = Exact.of(100)
_OPERATED: dict[str, Callable[[Exact, Exact], Exact]] = {
    "+": Exact.__add__,
    "-": Exact.__sub__,
    "*": Exact.__mul__,
    "of": Exact.__mul__,
    "/": Exact.__truediv__,
    "^": Exact.__pow__,
    "off": lambda a, b: (_HUNDRED - a) * b,
    "up": lambda a, b: a * (_HUNDRED + b),
    "down": lambda a, b: a * (_HUNDRED - b),
}


def operated(operator: str, a: Exact, b: Exact) -> Exact:
    """The value of two operands; raises `Doubt` for a remainder that differs between languages."""
    if operator in _OPERATED:
        return _OPERATED[operator](a, b)
    x, y = a.rational, b.rational
    if x is None or y is None or x < 0 or y <= 0:
        raise Doubt  # what is left of a negative number differs between languages
    return Exact.of(x // y if operator == "//" else x % y)


def listed(operator: str, values: list[Exact]) -> Exact:
    """The value of an operation on a list."""
    if len(values) < 2 or (len(values) > 2 and operator not in ("+", "*", "mean", *OF_LISTS)):
        raise Doubt
    if operator in ("gcd", "lcm"):
        whole = [value.rational or Fraction(1, 2) for value in values]
        if any(number.denominator != 1 or number < 1 for number in whole):
            raise Doubt
        return Exact.of(getattr(math, operator)(*map(int, whole)))
    if operator in ("max", "min"):
        return reduce(lambda a, b: b if (a - b).decided().negative == (operator == "max") else a, values)
    if operator == "mean":
        return reduce(Exact.__add__, values) / Exact.of(len(values))
    if operator == "reversed -":
        return values[1] - values[0]
    result = reduce(lambda a, b: operated(operator, a, b), values)
    if operator == "-" and result.decided().negative:
        raise Doubt  # the difference of 3 and 5 is 2 for some
    return result


def counted(operand: Operand, most: int) -> int:
    """A whole number of at most `most`, without a unit; raises `Doubt` for anything else."""
    value = operand.value.rational
    if value is None or operand.unit or value.denominator != 1 or not 0 <= value <= most:
        raise Doubt
    return int(value)
