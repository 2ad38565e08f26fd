"""Pairs of sentences with the same calculation: one means its result, the other means something else.

A sentence is a text up to the equals sign of a calculation, and what follows the sign. In `The tickets cost 12 * 4 =`
the result is meant; in `In base 5, 12 * 4 =` or `The pupil wrote 12 * 4 =` something else follows. Both sentences of a
pair write the same expression in the same way, so that neither numbers nor operations show what is meant. Meant
calculations also follow words that announce another meaning ("In base 10, not in base 5,"), so that no keyword does.
"""

import math
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np

from ani.calculator.data.drawn_expressions import (
    TIGHT,
    Expression,
    combined,
    drawn_expression,
    exact_result,
    leaf,
    plain,
)
from ani.calculator.data.drawn_text import DrawnText
from ani.data.arithmetic import split_of
from ani.data.diagnostic import ENDLESS, rounds
from ani.data.split import Split, check_split, read_templates

_ATTEMPTS = 300
"""The number of draws after which two templates are considered not to fit together."""


def sentences(count: int, *, split: Split, seed: int = 0) -> list[DrawnText]:
    """Draws distinct sentences, in turn one that does not mean the result and one that does.

    The list depends on the arguments alone, and a larger count only appends. The splits have neither template nor
    expression in common. Every template is tried once before any is tried twice.
    """
    check_split(split, count)
    rng = random.Random(f"calculation sentences {split} {seed}")
    found: dict[str, DrawnText] = {}
    streams = [rounds(dict.fromkeys(templates, ENDLESS), rng) for templates in _templates(split)]
    while len(found) < count:
        pair = [next(stream) for stream in streams]
        for _ in range(_ATTEMPTS):  # some templates don't fit together, such as money and powers
            drawn = _sentences(pair, split, rng)
            if drawn and not found.keys() & (texts := {each.prompt: each for each in drawn}).keys():
                found |= texts
                break
    return list(found.values())[:count]


@cache
def _templates(split: Split) -> tuple[list[str], list[str]]:
    """The templates whose last calculation is not meant, and those where it is."""
    kinds = read_templates("sentence_templates.yaml", __package__).values()
    texts = [text for splits in kinds for text in splits.get(split, [])]
    return [text for text in texts if not _MEANT.search(text)], [text for text in texts if _MEANT.search(text)]


_SLOT = re.compile(r"\{([^{}]+)\}")
_EQUATION = re.compile(r"(\{(?:\$?e|tight)[^}]*\}) =(?: (?=[$€£]?\{))?")
_MEANT = re.compile(r"= ?[$€£]?\{r\}[^=]*\Z")
_DRAWN = re.compile(r"\{(?:\$?e|(tight))(?: ([-+*/^]+))?\}")


def _sentences(pair: Sequence[str], split: Split, rng: random.Random) -> list[DrawnText] | None:
    """One sentence per template with the same expression, which the first template chooses; None if they do not
    fit."""
    template = pair[0]
    chosen = _DRAWN.search(template)
    assert chosen is not None, template
    reading = next((slot[1] for slot in _SLOT.finditer(template) if slot[1].split()[0] in _READINGS), None)
    if reading is None:
        symbols = chosen[2] or "+-*/"
        expression = _two(symbols, _numbers(1, 99))(rng, 0) if chosen[1] else _any(rng, symbols)
    else:
        name, _, number = reading.partition(" ")
        expression = _READINGS[name].draw(rng, int(number or 0))
    if split_of(expression.key) != split:
        return None
    way = TIGHT / 2 if chosen[1] else rng.random()
    found = []
    for template in pair:
        if (sentence := _filled(template, expression, way, split, rng)) is None:
            return None
        found.append(sentence)
    return found


def _filled(template: str, expression: Expression, way: float, split: Split, rng: random.Random) -> DrawnText | None:
    """A template with this expression; None if it does not fit."""
    head, _, tail = (_EQUATION.sub(r"\1=", template) if way < TIGHT else template).rpartition("=")
    other: Expression | None = None
    text = result = prompt = ""
    for part in (head + "=", tail):
        for index, piece in enumerate(_SLOT.split(part)):
            name, _, number = piece.partition(" ") if index % 2 else ("", "", "")
            written: str | None = piece
            if name in ("e", "tight"):
                written = expression.written(way)
            elif name == "$e":
                written = None if expression.value < 0 or "^" in expression.parts else expression.written(way, "$")
            elif name == "f":
                while other is None or split_of(other.key) != split:
                    other = _any(rng, "+-*/")
                written = other.written(1)
            elif name in ("r", "F"):
                written = exact_result(text) or result or None
            elif name:
                written = _READINGS[name].write(expression, int(number or 0), rng)
            if written is None or (name in _READINGS and written == exact_result(text)):
                return None
            text += written
        if not prompt:
            prompt, found = text, exact_result(text)
            if found is None:
                return None
            result = found
    meant = _MEANT.search(template) is not None
    return DrawnText(prompt, result, template, meant, raw=True, completion=text[len(prompt) :])


def _any(rng: random.Random, symbols: str) -> Expression:
    while True:
        operands = 2 if rng.random() < 0.8 else 3
        digits, decimals = rng.randint(1, 4), rng.random() < 0.1
        if found := drawn_expression(rng, operands, digits, rng.choice(symbols), symbols, decimals=decimals):
            return found


_Draw = Callable[[random.Random, int], Expression]
_DrawNumber = Callable[[random.Random, int], int]


class _Reading(NamedTuple):
    """A meaning of an expression other than its decimal result; both functions get the number that the slot names."""

    draw: _Draw
    """Draws an expression that may have this meaning."""
    write: Callable[[Expression, int, random.Random], str | None]
    """Writes what then follows the equals sign; None if the expression does not fit."""


def _numbers(low: int, high: int) -> _DrawNumber:
    """Draws from a range; the length is drawn first, because a uniform value would nearly always be long."""

    def draw(rng: random.Random, _: int) -> int:
        length = rng.randint(len(str(low)), len(str(high)))
        return rng.randint(max(low, 10 ** (length - 1)), min(high, 10**length - 1))

    return draw


def _two(symbols: str, left: _DrawNumber, right: _DrawNumber | None = None) -> _Draw:
    """Draws expressions of two operands."""

    def draw(rng: random.Random, number: int) -> Expression:
        operands = left(rng, number), (right or left)(rng, number)
        return combined(rng.choice(symbols), *(leaf(str(operand)) for operand in operands))

    return draw


def _natural(draw: _Draw, write: Callable[[int, int], str], low: int = 1, high: int = 999_999) -> _Reading:
    """Writes the value if it is a natural number in a range."""

    def written(expression: Expression, number: int, _: random.Random) -> str | None:
        fits = expression.value.denominator == 1 and low <= expression.value <= high
        return write(int(expression.value), number) if fits else None

    return _Reading(draw, written)


def _of_operands(draw: _Draw, write: Callable[[int, int], str | None]) -> _Reading:
    """Writes something of the two operands."""
    return _Reading(draw, lambda expression, *_: write(int(expression.parts[0]), int(expression.parts[2])))


def _digits_of_base(rng: random.Random, base: int) -> int:
    below = min(base, 10)
    return int("".join(str(rng.randrange(place == 0, below)) for place in range(rng.randint(2, 5 if below > 2 else 7))))


def _based(expression: Expression, base: int, _: random.Random) -> str | None:
    left, symbol, right = expression.parts
    value = combined(symbol, *(leaf(str(int(each, base))) for each in (left, right))).value
    return np.base_repr(int(value), base).lower() if value >= 0 else None


_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ROMAN = {
    "M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5, "IV": 4,
    "I": 1,
}  # fmt: skip


def _in_words(value: int) -> str:
    if value < 20:
        return _ONES[value]
    if value < 100:
        return _TENS[value // 10 - 2] + (f"-{_ONES[value % 10]}" if value % 10 else "")
    unit, name = (100, "hundred") if value < 1000 else (1000, "thousand")
    return f"{_in_words(value // unit)} {name}" + (f" {_in_words(value % unit)}" if value % unit else "")


def _roman(value: int, _: int) -> str:
    text = ""
    for letters, worth in _ROMAN.items():
        text += letters * (value // worth)
        value %= worth
    return text


def _wrong(expression: Expression, _: int, rng: random.Random) -> str | None:
    """Writes a result with a mistake in one digit."""
    value = expression.value + rng.choice((-1, 1)) * rng.choice((1, 1, 2, 9, 10, 10, 20, 90, 100))
    fits = (value * 10**6).denominator == 1 and value * expression.value >= 0
    return plain(value) if fits else None


def _nearest(expression: Expression, unit: int, _: random.Random) -> str | None:
    return None if expression.value < 0 else str(int(expression.value / unit + Fraction(1, 2)) * unit)


def _floats(expression: Expression, *_: object) -> str | None:
    left, symbol, right = expression.parts
    written = repr({"+": float.__add__, "-": float.__sub__, "*": float.__mul__}[symbol](float(left), float(right)))
    return written if "e" not in written and len(written) > 12 else None


def _tenths(rng: random.Random, _: int) -> Expression:
    left, right = (leaf(plain(Fraction(rng.randint(1, 9999), 10 ** rng.randint(1, 2)))) for _ in "ab")
    return combined(rng.choice("+-*"), left, right)


def _same(rng: random.Random, number: int) -> Expression:
    operand = leaf(str(_numbers(2, 400)(rng, number)))
    return combined("+", operand, operand)


def _as_fraction(left: int, right: int) -> str | None:
    value = Fraction(left, right)
    return str(value) if value.denominator not in (1, right) else None


def _mixed(left: int, right: int) -> str | None:
    whole, rest = divmod(left, right)
    return f"{whole} {Fraction(rest, right)}" if whole and rest else None


def _factored(left: int, right: int) -> str | None:
    common = math.gcd(left, right)
    return f"{common} * ({left // common} + {right // common})" if common > 1 else None


def _divisor(rng: random.Random, _: int) -> int:
    return rng.choice((2, 4, 5, 8, 10, 16, 20, 25, 40, 50))


_medium = _numbers(2, 9999)
_up_to_99, _up_to_999 = _two("+-*", _numbers(1, 99)), _two("+-*", _numbers(1, 999))
_READINGS = {
    "base": _Reading(_two("+-*", _digits_of_base), _based),
    "to": _natural(_up_to_99, lambda value, base: np.base_repr(value, base).lower()),
    "mod": _natural(_up_to_999, lambda value, number: str(value % number)),
    "clock": _natural(_two("+", lambda rng, n: rng.randint(1, n), _numbers(1, 99)), lambda v, n: str((v - 1) % n + 1)),
    "minutes": _natural(_two("+-*", _numbers(2, 400)), lambda v, _: f"{v // 60}:{v % 60:02d}", 60, 6000),
    "joined": _of_operands(_two("+", _medium), lambda left, right: f"{left}{right}"),
    "repeated": _of_operands(_two("*", _medium, lambda rng, _: rng.randint(2, 5)), lambda left, n: str(left) * n),
    "wrong": _Reading(lambda rng, _: _any(rng, "+-*/"), _wrong),
    "floor": _of_operands(_two("/", _medium, _divisor), lambda left, right: str(left // right)),
    "xor": _of_operands(_two("^", _numbers(2, 99), lambda rng, _: rng.randint(2, 4)), lambda left, n: str(left ^ n)),
    "floats": _Reading(_tenths, _floats),
    "same": _of_operands(_same, lambda left, _: str(left)),
    "decibels": _of_operands(_same, lambda left, _: str(left + 3)),
    "less": _natural(_two("+", _numbers(20, 900)), lambda value, _: str(value * 97 // 100)),
    "nearest": _Reading(lambda rng, _: _any(rng, "+-*/"), _nearest),
    "words": _natural(_up_to_999, lambda value, _: _in_words(value), 0),
    "roman": _natural(_up_to_999, _roman, 1, 3999),
    "fraction": _of_operands(_two("/", _numbers(2, 99), _divisor), _as_fraction),
    "mixed": _of_operands(_two("/", _numbers(2, 999), _divisor), _mixed),
    "percent": _of_operands(
        _two("/", _numbers(1, 49), _divisor),
        lambda left, n: f"{100 * left // n}%" if left < n and not 100 * left % n else None,
    ),
    "feet": _natural(_two("+", _numbers(2, 99)), lambda value, _: f"{value // 12} ft {value % 12} in", 12),
    "swapped": _Reading(_two("+*", _medium), lambda e, *_: " ".join(reversed(e.parts))),
    "regrouped": _of_operands(_two("+", _medium), lambda left, right: f"{left - 1} + {right + 1}"),
    "factored": _of_operands(_two("+", lambda rng, _: 6 * rng.randint(1, 200)), _factored),
}
