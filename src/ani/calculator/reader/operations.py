"""What an operator or a list makes of exact values and of their units."""

import math
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

from ani.calculator.reader.exact import Exact
from ani.calculator.reader.tokens import OF_LISTS

SUM, PRODUCT, POWER, WHOLE = 1, 2, 3, 4
"""Levels of operators, from the weakest on."""
LEVELS = {"+": SUM, "-": SUM, "^": POWER} | dict.fromkeys(("*", "/", "//", "mod", "of"), PRODUCT)
KEEP_UNITS = frozenset(("+", "-", "reversed -", "mean", "max", "min"))
"""What is worked out of a list of quantities in one unit, in that unit."""


class Operand(NamedTuple):
    """A part of an expression that has been read."""

    value: Exact
    level: int = WHOLE
    """Of its last operator that stands in no bracket."""
    worded: bool = False
    """Whether one of them is a word."""
    divided: bool = False
    """Whether it is a quotient, so that what multiplies it next may belong to the divisor."""
    open: bool = False
    """Whether it ends with what a function without brackets is of, so that more may belong to that."""
    unit: str = ""
    """What it is measured in: "%", or a quantity and a unit of it."""
    signed: bool = False
    """Whether it begins with a sign."""


class Doubt(ArithmeticError):
    """What is written is no expression, or may be several."""


def unit_of(operator: str, left: Operand, right: Operand) -> tuple[str, Fraction | int]:
    """The unit of a result, and what is to be multiplied to it; raises where units are to be converted before."""
    a, b = left.unit, right.unit
    percents = (a == "%") + (b == "%")
    match operator:
        case "+" | "-" if a == b or (not percents and not (a and b)):
            return a or b, 1
        case "*" | "of" if percents == 1:
            if right == Operand(Exact.of(100), unit="%"):  # 1/4 * 100% is 25%, and 50 * 100% is 50
                if left.value.rational is None or left.value.rational >= 2:
                    raise Doubt
                return "%", 1
            return b if a == "%" else a, Fraction(1, 100)
        case "*" if not percents:
            return "" if a and b else a or b, 1
        case "of" if not a:
            return b, 1
        case "/" if b == "%":
            return ("", 1) if a == "%" else (a, 100)
        case "/" if not percents and (not (a and b) or a == b or a.split(":")[0] != b.split(":")[0]):
            return "" if b else a, 1
        case "//" | "mod" if not a and not b:
            return "", 1
    raise Doubt


def operated(operator: str, a: Exact, b: Exact) -> Exact:
    """The value of two operands; raises `Doubt` for a remainder that differs between languages."""
    match operator:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*" | "of":
            return a * b
        case "/":
            return a / b
        case "^":
            return a**b
    x, y = a.rational, b.rational
    if x is None or y is None or x < 0 or y <= 0:
        raise Doubt  # what is left of a negative number differs between languages
    return Exact.of(x // y if operator == "//" else x % y)


def listed(operator: str, values: list[Exact]) -> Exact:
    """What is worked out of a list."""
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
