"""Random calculations for chats, and the ways to write one in symbols, TeX and words."""

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from ani.calculator.data.drawn_expressions import combined, drawn_expression, leaf, plain
from ani.data.arithmetic import SYMBOLS, Operation
from ani.data.split import read_templates

CHATS = "chat_templates.yaml"
_MOST_DIGITS = 8
_MOST_QUOTED_DIGITS = 6


class Calculation(NamedTuple):
    """A drawn calculation before it is written."""

    operation: str
    """Such as `addition` or `root`; `several`: of three operands."""
    parts: tuple[str, ...]
    """Operands; for the four operations and `several` also the operators and parentheses."""
    value: Fraction
    """The exact result; for a root, 12 decimal places of it."""
    key: str
    """Identifies the calculation: equal for both orders of a sum's or product's operands."""
    currency: str = ""

    @property
    def operands(self) -> list[str]:
        return [part for part in self.parts if part[-1].isdigit()]


def number(rng: random.Random, digits: int) -> int:
    """Draws a natural number of so many digits."""
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def drawn_calculation(rng: random.Random) -> Calculation:
    """Draws a calculation of any kind; three of four are one of the four operations on whole numbers."""
    (draw,) = rng.choices(tuple(_DRAWS), tuple(_DRAWS.values()))
    return draw(rng)


def quoted_calculation(rng: random.Random) -> Calculation:
    """Draws one of the four operations on whole numbers, with a whole result."""
    return _plain(rng, _MOST_QUOTED_DIGITS)


def _of_two(operation: Operation, left: Fraction | int, right: Fraction | int, currency: str = "") -> Calculation:
    found = combined(SYMBOLS[operation], leaf(plain(left)), leaf(plain(right)))
    return Calculation(operation, found.parts, found.value, found.key, currency)


def _plain(rng: random.Random, most: int = _MOST_DIGITS) -> Calculation:
    operation = rng.choice(tuple(SYMBOLS))
    digits, others = rng.randint(1, most), rng.randint(1, most)
    if operation in ("addition", "subtraction") and rng.random() < 0.7:
        others = digits
    left, right = number(rng, digits), number(rng, others)
    if rng.random() < 0.3:
        left, right = (value if rng.random() < 0.5 else -value for value in (left, right))
    if operation == "division":
        right = right or 3
        if most < _MOST_DIGITS or rng.random() < 0.8:  # exact; the dividend has at most 12 digits
            left = right * number(rng, rng.randint(1, min(most, 12 - len(str(abs(right))))))
    return _of_two(operation, left, right)


def _decimal(rng: random.Random) -> Calculation:
    operation = rng.choice(tuple(SYMBOLS))
    left, right = (Fraction(number(rng, rng.randint(2, 6)), 10 ** rng.randint(0, 2)) for _ in range(2))
    if operation == "division":
        right = right or Fraction(5, 2)
        left = right * number(rng, rng.randint(1, 4))
    return _of_two(operation, left, right)


def _money(rng: random.Random) -> Calculation:
    operation = rng.choice(tuple(SYMBOLS))
    left, right = (Fraction(number(rng, rng.randint(3, 6)), rng.choice((1, 100, 100))) for _ in range(2))
    if operation == "subtraction":
        left, right = max(left, right), min(left, right)
    elif operation != "addition":
        right = Fraction(rng.randint(2, 40))
        if operation == "division":
            left = right * left
    return _of_two(operation, left, right, rng.choice("$$$€£"))


def _several(rng: random.Random) -> Calculation:
    while True:
        symbols = tuple(SYMBOLS.values())
        found = drawn_expression(rng, 3, rng.randint(1, 4), rng.choice(symbols), symbols)
        if found:
            return Calculation("several", found.parts, found.value, found.key)


def _power(rng: random.Random) -> Calculation:
    found = combined("^", leaf(str(rng.randint(2, 30))), leaf(str(rng.randint(2, 6))))
    return Calculation("power", (found.parts[0], found.parts[2]), found.value, found.key)


def _square(rng: random.Random) -> Calculation:
    found = combined("^", leaf(str(number(rng, rng.randint(1, 4)))), leaf("2"))
    return Calculation("square", found.parts[:1], found.value, found.key)


def _root(rng: random.Random) -> Calculation:
    radicand = number(rng, rng.randint(1, 3)) ** 2 if rng.random() < 0.7 else number(rng, rng.randint(1, 5))
    value = Fraction(math.isqrt(radicand * 10**24), 10**12)
    return Calculation("root", (str(radicand),), value, f"sqrt {radicand}")


def _remainder(rng: random.Random) -> Calculation:
    left, right = number(rng, rng.randint(2, 6)), rng.randint(2, 99)
    return Calculation("remainder", (str(left), str(right)), Fraction(left % right), f"{left} mod {right}")


def _percentage(rng: random.Random) -> Calculation:
    percent, of = rng.choice((5, 10, 15, 20, 25, 30, 40, 50, 75, rng.randint(1, 99))), number(rng, rng.randint(2, 5))
    return Calculation("percentage", (str(percent), str(of)), Fraction(percent * of, 100), f"{percent}% of {of}")


def _mean(rng: random.Random) -> Calculation:
    left, right = sorted(number(rng, rng.randint(1, 5)) for _ in range(2))
    return Calculation("mean", (str(right), str(left)), Fraction(left + right, 2), f"mean {left} {right}")


def _half(rng: random.Random) -> Calculation:
    of = number(rng, rng.randint(2, 6))
    return Calculation("half", (str(of),), Fraction(of, 2), f"half {of}")


_DRAWS: dict[Callable[[random.Random], Calculation], float] = {
    _plain: 75, _decimal: 6, _money: 4, _several: 4, _percentage: 3, _square: 2, _root: 2, _power: 1.5, _remainder: 1.5,
    _mean: 0.5, _half: 0.5,
}  # fmt: skip

_SIGNS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "+": ("+", ("+",)),
    "-": ("---−–", ("-",)),
    "*": ("****×××x·", (r"\times", r"\times", r"\cdot")),
    "/": ("//÷", (r"\div", "/")),
}
"""The signs of an operator in plain text and in TeX."""


class Wording:
    """The slots of `chat_templates.yaml` for one calculation; the same slot has the same text everywhere in a chat."""

    def __init__(self, calculation: Calculation, rng: random.Random) -> None:
        self.calculation, self.rng = calculation, rng
        wordings = read_templates(CHATS, __package__)["wordings"]
        self.wordings: dict[str, list[str]] = wordings.get(calculation.operation, {})
        self.grouped = not calculation.currency and rng.random() < 0.06
        self.written: dict[str, str] = {}

    @property
    def slots(self) -> set[str]:
        """The slots that this calculation has; a negative difference has no noun, which leaves the order in doubt."""
        slots = {*self.wordings, *("x" for part in self.calculation.parts if part in _SIGNS)}
        return slots - {"n"} if self.calculation.value < 0 and self.calculation.operation == "subtraction" else slots

    def write(self, slot: str) -> str:
        """Returns the text of a slot."""
        if slot not in self.written:
            if slot in self.wordings:
                text = self.rng.choice(self.wordings[slot])
                for name, part in zip("ab", self.calculation.operands, strict=False):
                    text = text.replace(f"{{{name}}}", self._operand(part))
                self.written[slot] = text
            else:
                self.written[slot] = self._tex() if slot == "t" else self._symbols()
        return self.written[slot]

    def _operand(self, literal: str, priced: bool = True) -> str:
        whole, point, fraction = literal.partition(".")
        if self.grouped and len(whole.lstrip("-")) > 3:
            whole = f"{int(whole):,}"
        if self.calculation.currency and priced:
            fraction = point and f"{fraction:0<2}"
            whole = self.calculation.currency + whole
        return whole + point + fraction

    def _symbols(self) -> str:
        way = self.rng.random()
        if way < 0.1 and not self.calculation.currency:
            tex = self._tex()
            return (f"${tex}$", f"${tex}$", rf"\({tex}\)", tex)[self.rng.randrange(4)]
        return self._joined(0, tight=way > 0.85)

    def _tex(self) -> str:
        parts = self.calculation.parts
        if self.calculation.operation == "division" and self.rng.random() < 0.3:
            return rf"\frac{{{self._operand(parts[0])}}}{{{self._operand(parts[2])}}}"
        return self._joined(1)

    def _joined(self, tex: int, tight: bool = False) -> str:
        signs = {symbol: self.rng.choice(ways[tex]) for symbol, ways in _SIGNS.items()}
        bracketed = tight or signs["*"] == "x" or self.rng.random() < 0.5  # `3 x -4` may be an equation's
        text = ""
        factors = set("*/") & set(self.calculation.parts)
        for index, part in enumerate(self.calculation.parts):
            if part in signs:
                text += signs[part] if tight else f" {signs[part]} "
            elif part in ("(", ")"):
                text += part
            else:
                operand = self._operand(part, not index or not factors)
                text += f"({operand})" if index and part[0] == "-" and bracketed else operand
        return text
