"""Values of made texts, in symbols, LaTeX and words, against sympy."""

import re
from collections.abc import Callable
from fractions import Fraction

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader.calculations import Calculation, calculation_asked, calculation_before, calculation_mentioned
from tests.properties import examples

Made = tuple[str, sympy.Expr, int]
"""A text, its value, and how firmly it holds together: 0 a sum, 1 a product, 2 a power, 3 whole."""


def agrees(found: Calculation, value: sympy.Expr) -> bool:
    if value.is_Rational and found.value.rational is not None:
        return bool(found.value.rational == Fraction(int(value.p), int(value.q)))
    near = Fraction(str(sympy.N(value, 200)))
    return abs(Fraction(found.value.rounded(60)) - near) < Fraction(1, 10**60)


def has_digits(value: sympy.Expr) -> bool:
    """Whether a value is real, not too large, and none that balls can't decide."""
    tail = str(sympy.N(abs(value) % 1 + 1, 100))[52:90]
    return bool(value.is_Rational) or len(set(tail)) > 1


def drawn(draw: st.DrawFn, notation: "Notation", depth: int, values: list[sympy.Expr]) -> Made:
    """An expression in a notation: each is a function that joins made parts. Their values are added to `values`."""
    if not depth or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(notation.leaves))(draw)
    make = draw(st.sampled_from(notation.joins))
    made = make(draw, lambda: drawn(draw, notation, depth - 1, values))
    values.append(made[1])
    return made


def too_hard(expression: str, value: sympy.Expr, parts: list[sympy.Expr]) -> bool:
    """Whether the rules leave a value out: of many terms; of a part that is computed and has over 100 digits before the
    point; where a factor stands beside a quotient (``8 / 2(3)``), which is read in two ways; and of a fraction with
    a root of a root among its parts, as no digit shows that it is one."""
    large = any(part.is_real and not part.is_Rational and abs(part) >= 10**100 for part in parts)
    nested = any(
        power.exp.is_Rational and power.exp.q % 2 == 0 and (power.exp.q > 2 or not power.base.is_Rational)
        for part in parts
        for power in part.atoms(sympy.Pow)
    )
    doubtful = re.search(r"(?:/|÷|\\div).*[0-9.]\(", expression) is not None
    many = len(expression) > 60 or re.search(r"log.*\^", expression) is not None
    return many or large or doubtful or (nested and bool(value.is_Rational))


class Notation:
    def __init__(self, leaves: list[Callable[[st.DrawFn], Made]], joins: list[Callable[..., Made]]) -> None:
        self.leaves, self.joins = leaves, joins


def held(made: Made, level: int, brackets: tuple[str, str] = ("(", ")")) -> str:
    text, _, firm = made
    return text if firm >= level and not text.startswith("-") else brackets[0] + text + brackets[1]


def integer(draw: st.DrawFn) -> Made:
    number = draw(st.integers(0, 10**4) | st.integers(0, 20))
    return (f"{number:,}" if draw(st.booleans()) else str(number)), sympy.Integer(number), 3


def decimal(draw: st.DrawFn) -> Made:
    number = draw(st.integers(1, 9999))
    return f"{number // 100}.{number % 100:02}", sympy.Rational(number, 100), 3


def infix(operators: dict[str, tuple[str, int]], blank: str = " ") -> Callable[..., Made]:
    def make(draw: st.DrawFn, part: Callable[[], Made]) -> Made:
        sign = draw(st.sampled_from(sorted(operators)))
        kind, level = operators[sign]
        left, right = part(), part()
        a, b = left[1], right[1]
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b != 0 else sympy.nan}[kind]
        return held(left, level) + blank + sign + blank + held(right, level + 1), value, level

    return make


def negated(draw: st.DrawFn, part: Callable[[], Made]) -> Made:
    inner = part()
    return f"(-{held(inner, 3)})", -inner[1], 3


def power(write: Callable[[str, int], str]) -> Callable[..., Made]:
    def make(draw: st.DrawFn, part: Callable[[], Made]) -> Made:
        inner, exponent = part(), draw(st.integers(1, 4))
        return write(held(inner, 3), exponent), inner[1] ** exponent, 2

    return make


def prefix(write: Callable[[str], str], value: Callable[[sympy.Expr], sympy.Expr]) -> Callable[..., Made]:
    def make(draw: st.DrawFn, part: Callable[[], Made]) -> Made:
        inner = part()
        return write(inner[0]), value(inner[1]), 3

    return make


def beside(draw: st.DrawFn, part: Callable[[], Made]) -> Made:
    left, right = draw(st.integers(2, 9)), part()
    return f"{left}({right[0]})", left * right[1], 2


def root(degree: int) -> Callable[[sympy.Expr], sympy.Expr]:
    return lambda value: sympy.real_root(value, degree) if value.is_real and (degree % 2 or value >= 0) else sympy.nan


SUPERSCRIPTS = "⁰¹²³⁴"
SIGNS = {"+": ("+", 0), "-": ("-", 0), "−": ("-", 0), "–": ("-", 0), "*": ("*", 1), "×": ("*", 1), "·": ("*", 1)}
SYMBOLS = Notation(
    [integer, integer, decimal, lambda draw: (lambda n: (f"exp({n})", sympy.exp(n), 3))(draw(st.integers(0, 99)))],
    [
        infix(SIGNS | {"⋅": ("*", 1), "x": ("*", 1), "/": ("/", 1), "÷": ("/", 1)}),
        infix(SIGNS | {"∗": ("*", 1), "/": ("/", 1)}, ""),
        negated,
        power(lambda base, n: f"{base}^{n}"),
        power(lambda base, n: f"{base}**{n}"),
        power(lambda base, n: base + SUPERSCRIPTS[n]),
        prefix("[{}]".format, lambda value: value),
        prefix("√({})".format, root(2)),
        prefix("sqrt({})".format, root(2)),
        prefix("|{}|".format, abs),
        beside,
    ],
)
LATEX = Notation(
    [
        integer,
        integer,
        decimal,
        lambda draw: (r"\pi", sympy.pi, 3),
        lambda draw: (lambda n: (rf"\sqrt{{{n}}}", sympy.sqrt(n), 3))(draw(st.integers(1, 30))),
        lambda draw: (lambda n: (f"{n}!", sympy.factorial(n), 2))(draw(st.integers(0, 9))),
        lambda draw: (lambda n, k: (rf"\binom{{{n}}}{{{k}}}", sympy.binomial(n, k), 3))(
            draw(st.integers(0, 12)), draw(st.integers(0, 12))
        ),
        lambda draw: (lambda n, b: (rf"\log_{{{b}}} {n}", sympy.log(n) / sympy.log(b), 1))(
            draw(st.integers(1, 1000)), draw(st.integers(2, 12))
        ),
        lambda draw: (lambda n: (rf"\sin {n}^\circ", sympy.sin(sympy.pi * n / 180), 1))(draw(st.integers(0, 90))),
        lambda draw: (lambda n: (rf"\cos \frac{{\pi}}{{{n}}}", sympy.cos(sympy.pi / n), 1))(draw(st.integers(1, 8))),
    ],
    [
        infix({"+": ("+", 0), "-": ("-", 0), r"\cdot": ("*", 1), r"\times": ("*", 1), r"\div": ("/", 1)}),
        lambda draw, part: (
            lambda name, a, b: (rf"\{name}{{{a[0]}}}{{{b[0]}}}", a[1] / b[1] if b[1] != 0 else sympy.nan, 3)
        )(draw(st.sampled_from(["frac", "dfrac", "tfrac"])), part(), part()),
        power(lambda base, n: f"{base}^{{{n}}}"),
        power(lambda base, n: rf"{base}^{n}"),
        prefix(r"\sqrt{{{}}}".format, root(2)),
        prefix(r"\sqrt[3]{{{}}}".format, root(3)),
        prefix(r"\left({}\right)".format, lambda value: value),
        prefix(r"\left|{}\right|".format, abs),
        prefix(
            r"\left\lfloor {} \right\rfloor".format,
            lambda value: sympy.floor(value) if value.is_Rational else sympy.nan,
        ),
        negated,
        beside,
    ],
)
WORDS = {
    "{} plus {}": lambda a, b: a + b,
    "{} minus {}": lambda a, b: a - b,
    "{} times {}": lambda a, b: a * b,
    "{} multiplied by {}": lambda a, b: a * b,
    "{} divided by {}": lambda a, b: a / b,
    "{} over {}": lambda a, b: a / b,
    "{} mod {}": sympy.Mod,
    "the sum of {} and {}": lambda a, b: a + b,
    "the difference of {} and {}": lambda a, b: a - b,
    "the product of {} and {}": lambda a, b: a * b,
    "the quotient of {} and {}": lambda a, b: a / b,
    "the average of {} and {}": lambda a, b: (a + b) / 2,
    "the gcd of {} and {}": sympy.gcd,
    "the least common multiple of {} and {}": sympy.lcm,
    "the maximum of {} and {}": sympy.Max,
    "the smaller of {1} and {0}": sympy.Min,
    "max({0}, {1}, 7)": lambda a, b: sympy.Max(a, b, 7),
    "the maximal number: {1} and {0}": sympy.Max,
    "the remainder of {} divided by {}": sympy.Mod,
    "the remainder when {} is divided by {}": sympy.Mod,
    "{}% of {}": lambda a, b: a * b / 100,
    "{} percent of {}": lambda a, b: a * b / 100,
    "twice the sum of {} and {}": lambda a, b: 2 * (a + b),
    "half of the product of {} and {}": lambda a, b: a * b / 2,
    "{} times the square of {}": lambda a, b: a * b**2,
    "{} plus the square root of {}": lambda a, b: a + sympy.sqrt(b),
    "the sum of {} and the square of {}": lambda a, b: a + b**2,
    "{} squared minus {}": lambda a, b: a**2 - b,
    "{0} to the power of 3": lambda a, b: a**3,
    "{0} cubed": lambda a, b: a**3,
    "the average of {0}, {1}, {0} and 7": lambda a, b: (2 * a + b + 7) / 4,
}
ORDERS = {
    "Add {} to {}": lambda a, b: a + b,
    "Add {} and {}": lambda a, b: a + b,
    "Subtract {} from {}": lambda a, b: b - a,
    "Multiply {} by {}": lambda a, b: a * b,
    "Divide {} by {}": lambda a, b: a / b,
}


@st.composite
def expressions(draw: st.DrawFn, notation: Notation) -> tuple[str, sympy.Expr, list[sympy.Expr]]:
    parts: list[sympy.Expr] = []
    text, value, _ = drawn(draw, notation, draw(st.integers(1, 3)), parts)
    return text, value, parts


def check(found: Calculation | None, expression: str, value: sympy.Expr, parts: list[sympy.Expr]) -> None:
    if found:
        assert agrees(found, value), (expression, found.value, sympy.N(value, 30))
    elif not re.fullmatch(
        r"[-()\[\]]*(?:[0-9.,]+|\\pi)[)\]]*", re.sub(r"\\left|\\right", "", expression)
    ):  # nothing to work out
        assert too_hard(expression, value, parts) or not has_digits(value), expression


@pytest.mark.parametrize("notation", [SYMBOLS, LATEX], ids=["symbols", "latex"])
@given(data=st.data())
@examples(100)
def test_expressions_have_their_value(notation: Notation, data: st.DataObject) -> None:
    expression, value, parts = data.draw(expressions(notation))
    before = data.draw(
        st.sampled_from(
            [
                "",
                "It is ",
                "Then, ",
                "a\n",
                "x = ",
                *["so $\\displaystyle ", r"\begin{align*} "][: 2 * (notation is LATEX)],
            ]
        )
    )
    text = f"{before}{expression} "
    found = calculation_before(text + "=", len(text))
    if value.is_real and abs(value) < 10**90:
        check(found, expression, value, parts)


@given(st.sampled_from(sorted(WORDS | ORDERS)), st.data())
@examples(100)
def test_words_have_their_value(words: str, data: st.DataObject) -> None:
    b, a = sorted(data.draw(st.integers(1, 500)) for _ in range(2))
    value = (WORDS | ORDERS)[words](sympy.Integer(a), sympy.Integer(b))
    expression = words.format(a, b)
    ask = data.draw(
        st.sampled_from(["{}?", "What is {}?", "What's {}", "Please calculate {}. Thanks!", "Q: What is {}?"])
    )
    held = data.draw(
        st.sampled_from(["i dont get this: {} so help", "Our boss wants to know, {}, right now.", "{}? Go."])
    )
    if words in ORDERS:
        ask = data.draw(st.sampled_from(["{}.", "{}", "Please {}. Just the number.", "Can you {}?"]))
    for found in (
        calculation_before(f"{expression} =", len(expression) + 1),
        calculation_asked(ask.format(expression), len(ask.format(expression))),
        calculation_mentioned(held.format(expression), len(held.format(expression))),
    ):
        assert found is not None and agrees(found, value), (ask, expression, found)
