"""Values of made texts: expressions against Python's own parser, words against sympy."""

from fractions import Fraction

import sympy
from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader.calculations import Calculation, calculation_asked, calculation_before, calculation_mentioned
from tests.properties import examples

SIGNS = {"+": "+", "-": "-", "−": "-", "–": "-", "*": "*", "×": "*", "·": "*", "⋅": "*", "∗": "*", "/": "/", "÷": "/"}
TEX_SIGNS = {"+": "+", "-": "-", r"\cdot": "*", r"\times": "*", r"\div": "/"}
POWERS = {False: ("{}^{}", "{}**{}"), True: ("{}^{{{}}}", "{}^{}")}
BRACKETS = {False: ("({})", "[{}]", "(-{})"), True: ("({})", r"\left({}\right)", r"(-{})")}


@st.composite
def expressions(draw: st.DrawFn, tex: bool, depth: int = 3) -> tuple[str, str, bool]:
    """Draw an expression as text, the same expression in Python, and whether it stays whole inside a larger one."""
    if not depth or draw(st.integers(0, 3)) == 0:
        number = draw(st.integers(0, 10**4) | st.decimals(0, 99, places=2).map(str))
        return (f"{number:,}" if isinstance(number, int) else number), f"Fraction('{number}')", True
    text, python, whole = draw(expressions(tex, depth - 1))
    kind = draw(st.sampled_from(["sign", "sign", "power", "(", "\\"]))
    if kind == "sign":
        right, right_python, _ = draw(expressions(tex, depth - 1))
        sign = draw(st.sampled_from(sorted(TEX_SIGNS if tex else SIGNS)))
        return f"{text} {sign} {right}", f"{python} {(TEX_SIGNS | SIGNS)[sign]} {right_python}", False
    if kind == "power" and whole:
        exponent = draw(st.integers(1, 4))
        return draw(st.sampled_from(POWERS[tex])).format(text, exponent), f"{python}**{exponent}", False
    if kind == "\\" and tex:
        below, below_python, _ = draw(expressions(tex, depth - 1))
        return rf"\frac{{{text}}}{{{below}}}", f"(({python}) / ({below_python}))", True
    shape = draw(st.sampled_from(BRACKETS[tex]))
    inner = f"({text})" if "-" in shape else text
    return shape.format(inner), f"({'-' * ('-' in shape)}({python}))", True


@given(st.data(), st.booleans(), st.sampled_from(["", "It is ", "Then, ", "a\n", "x = "]))
@examples(200)
def test_expressions_have_their_value(data: st.DataObject, tex: bool, before: str) -> None:
    expression, python, whole = data.draw(expressions(tex))
    try:
        value = eval(python, {"Fraction": Fraction})
    except ZeroDivisionError:
        value = None
    text = f"{before}{expression} "
    found = calculation_before(text + "=", len(text))
    assert found is None or found.value.rational == value, (text, found)
    if value is not None and not whole and abs(value) < 10**90 and len(expression) < 60:
        assert found is not None, text


WORDS = {
    "{} plus {}": "a + b", "{} minus {}": "a - b", "{} times {}": "a * b", "{} multiplied by {}": "a * b",
    "{} divided by {}": "a / b", "{} over {}": "a / b", "{} mod {}": "Mod(a, b)", "the sum of {} and {}": "a + b",
    "the difference of {} and {}": "a - b", "the product of {} and {}": "a * b", "the quotient of {} and {}": "a / b",
    "the average of {} and {}": "(a + b) / 2", "the gcd of {} and {}": "gcd(a, b)", "{}% of {}": "a * b / 100",
    "the least common multiple of {} and {}": "lcm(a, b)", "the maximum of {} and {}": "Max(a, b)",
    "the smaller of {1} and {0}": "Min(a, b)", "max({0}, {1}, 7)": "Max(a, b, 7)", "{0} cubed": "a**3",
    "the maximal number: {1} and {0}": "Max(a, b)", "the remainder of {} divided by {}": "Mod(a, b)",
    "the remainder when {} is divided by {}": "Mod(a, b)", "{} percent of {}": "a * b / 100",
    "twice the sum of {} and {}": "2 * (a + b)", "half of the product of {} and {}": "a * b / 2",
    "{} times the square of {}": "a * b**2", "{} plus the square root of {}": "a + sqrt(b)",
    "the sum of {} and the square of {}": "a + b**2", "{} squared minus {}": "a**2 - b",
    "{0} to the power of 3": "a**3", "the average of {0}, {1}, {0} and 7": "(2 * a + b + 7) / 4",
}  # fmt: skip
ORDERS = {
    "Add {} to {}": "a + b", "Add {} and {}": "a + b", "Subtract {} from {}": "b - a", "Multiply {} by {}": "a * b",
    "Divide {} by {}": "a / b",
}  # fmt: skip


def agrees(found: Calculation, value: sympy.Expr) -> bool:
    if value.is_Rational and found.value.rational is not None:
        return bool(found.value.rational == Fraction(int(value.p), int(value.q)))
    near = Fraction(str(sympy.N(value, 200)))
    return abs(Fraction(found.value.rounded(60)) - near) < Fraction(1, 10**60)


@given(st.sampled_from(sorted(WORDS | ORDERS)), st.data())
@examples(100)
def test_words_have_their_value(words: str, data: st.DataObject) -> None:
    b, a = sorted(data.draw(st.integers(1, 500)) for _ in range(2))
    value = sympy.sympify((WORDS | ORDERS)[words], {"a": sympy.Integer(a), "b": sympy.Integer(b)})
    expression = words.format(a, b)
    asks = ["{}?", "What is {}?", "What's {}", "Please calculate {}. Thanks!", "Q: What is {}?"]
    orders = ["{}.", "{}", "Please {}. Just the number.", "Can you {}?"]
    ask = data.draw(st.sampled_from(orders if words in ORDERS else asks))
    held = data.draw(st.sampled_from(["i dont get this: {} so help", "Our boss wants to know, {}, right now."]))
    for found in (
        calculation_before(f"{expression} =", len(expression) + 1),
        calculation_asked(ask.format(expression), len(ask.format(expression))),
        calculation_mentioned(held.format(expression), len(held.format(expression))),
    ):
        assert found is not None and agrees(found, value), (ask, expression, found)
