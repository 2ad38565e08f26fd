from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader.calculations import (
    LOOK_BEHIND,
    MAX_QUESTION,
    Calculation,
    calculation_asked,
    calculation_before,
    calculation_mentioned,
)
from tests.properties import examples


def before(text: str) -> Calculation | None:
    """What stands before the last equals sign."""
    return calculation_before(text, text.rindex("="))


def asked(text: str) -> Calculation | None:
    return calculation_asked(text, len(text))


CALCULATIONS: dict[str, int | Fraction] = {
    # operators and what comes first
    "3 – 5 =": -2, "3 -5 =": -2, "12⋅2∙3∗4 =": 288, "2^-2 =": Fraction(1, 4), "17 // 5 =": 3, "17 mod 5 =": 2,
    "17%5=": 2, "[2 + 3] * {4} =": 20, "2 * 3^2 =": 18, "5 - 2^2 =": 1, "1e-7 * 1 =": Fraction(1, 10**7),
    # x, signs, literals
    "3 x 4 =": 12, "3x4=": 12, "2 x (3 + 4) =": 14, "-5 + 3 =": -2, "3 * -5 =": -15, "3 - -5 =": 8,
    "-(3 + 4) * 2 =": -14, "1,234 + 1 =": 1235, "1'000 + 5 =": 1005, "12,34,567 + 1 =": 1234568,
    "1\u2009234\u202f567 + 1 =": 1234568, ".5 * 3 =": Fraction(3, 2),
    "2e3 * 3 =": 6000, "1 1/2 + 2 1/4 =": Fraction(15, 4), f"{10**29 + 1} * {10**29} =": (10**29 + 1) * 10**29,
    # after an operand
    "10² + 2³ =": 108, "10¹² =": 10**12, "√16 + 9 =": 13, "2√9 =": 6, "2(3)(4) =": 24, "⌊7/2⌋ =": 3, "log10(1000) =": 3,
    # currency, percent, units
    "-$3 + $4 =": 1, "€2.50 * 3 =": Fraction(15, 2), "3€ + 4€ =": 7, "¥300 - ¥120 =": 180, "20% * 40 =": 8,
    "25% of 80 =": 20, "100% - 40% =": 60, "5 / 20 * 100% =": 25, "60 / 20% =": 300,
    # words
    "three plus 4 =": 7, "the sum of 1/2 and 1/4 =": Fraction(3, 4), "the product of 2, 3 and 4 =": 24,
    "2/3 of 30 =": 20, "3 times the sum of 4 and 5 =": 27, "Multiply 3 by (4 + 5) =": 27, "Subtract 3 from 4 * 5 =": 17,
}  # fmt: skip
"""All of a text but the sign, and its value."""
WITHIN_TEXT = [
    # x, signs, literals
    ("is -5 + 3 =", "-5 + 3", -2), ("Room 007: 3 + 4 =", "3 + 4", 7),
    # currency, percent, units
    ("a total of $2.5*3=", "$2.5*3", Fraction(15, 2)), ("So he knew 7300*2 =", "7300*2", 14600),
    ("At last she ended with 55 + 23 =", "55 + 23", 78), ("His weight jumped to 87+24 =", "87+24", 111),
    ("It travels in a group of 1 + 2 =", "1 + 2", 3),
    ("He has 5 jars, so the second shelf-mate brings in 4 * 8 =", "4 * 8", 32),
    ("3 + 4 = 7.\nIn the end Angela wins 2 * $31 =", "2 * $31", 62),
    # LaTeX
    (r"$\frac{3}{4} + \frac18 =", r"\frac{3}{4} + \frac18", Fraction(7, 8)),
    ("Add:\n- \\(9 + 9 =", "9 + 9", 18), ("is \\(4\\)\n * \\[7 + 2 =", "7 + 2", 9),  # bullets
    (r"$(2\sqrt{3})^2 =", r"(2\sqrt{3})^2", 12), (r"so \$1.50 + \$0.50 =", r"\$1.50 + \$0.50", 2),
    (r"$1{,}234 + 1,\!000 \cdot 1 =", r"1{,}234 + 1,\!000 \cdot 1", 2234),
    (r"$8\frac12 \cdot 2 =", r"8\frac12 \cdot 2", 17), (r"$180^\circ - 30^\circ =", r"180^\circ - 30^\circ", 150),
    (r"$20\% \cdot 50 =", r"20\% \cdot 50", 10), ("\\begin{align*}\nx &= 3 + 4 \\\\\n&=", "3 + 4", 7),
    # which expression
    ("3 + 4 = 7 * 2 =", "7 * 2", 14), ("(3 + 4 =", "3 + 4", 7), ("2 * (3 + 4 =", "3 + 4", 7), ("a=3+4=", "3+4", 7),
    ("The sum of all is 3 + 4 =", "3 + 4", 7),
    # what may stand before
    ("What is 3 + 4 =", "3 + 4", 7), ("That's 3 + 4 =", "3 + 4", 7), ("comes to 3 + 4 =", "3 + 4", 7),
    ("1. 3 + 4 =", "3 + 4", 7), ("1) 3 + 4 =", "3 + 4", 7), ("Then:\n  a) 3 + 4 =", "3 + 4", 7),
    ("• 3 + 4 =", "3 + 4", 7), ("ok\n* 3 + 4 =", "3 + 4", 7), ("Step 2: 3 + 4 =", "3 + 4", 7),
    ("In 2020, 3 + 4 =", "3 + 4", 7), ("<<3+4=", "3+4", 7), ("12\n3 + 4 =", "3 + 4", 7),
    ("Then:\n-3 + 4 =", "-3 + 4", 1), ("a\0" + "3 + 4 =", "3 + 4", 7), ("“3 + 4 =", "3 + 4", 7),
    ("so **3 + 4 =", "3 + 4", 7), ("Answer:3+4=", "3+4", 7), ("She walks 3 * 4 =", "3 * 4", 12),
    ("they can carry 3 * 4 =", "3 * 4", 12), ("with $8-1=7$ zeros and $9+9=", "9+9", 18),
]  # fmt: skip
"""A text, its calculation, and the value."""


@pytest.mark.parametrize(
    ("text", "expression", "value"),
    [*((text, text.removesuffix("=").rstrip(), value) for text, value in CALCULATIONS.items()), *WITHIN_TEXT],
)
def test_calculations(text: str, expression: str, value: int | Fraction) -> None:
    found = before(text)
    assert found is not None
    assert (found.text, found.value.rational) == (expression, value)
    assert text[found.start :].startswith(expression)


def test_the_currency_of_a_result() -> None:
    expected = {"$3 + $4 =": "$", r"\$3 \cdot 2 =": "$", "3€ * 2 =": "€", r"so $\frac12 + 2 =": "", "$10 / $3 =": ""}
    expected |= {"£10 / £3 * £2 =": "£", "€4.50 / €9 + 1 =": ""}
    assert {text: getattr(before(text), "currency", None) for text in expected} == expected


NO_CALCULATIONS = [
    # nothing to work out
    "=", "x = 5 =", "7 =", "(-7) =", r"\pi =", "20% =", "7 apples =",
    # variables, names and functions
    "2x + 3 =", "3x -4 =", "3 x -4 =", "2x(3 + 4) =", "0x10 + 5 =", "x + 3 + 4 =", "10m - 7 =", "3ab + 4 =", "a3 + 4 =",
    "COVID-19 + 3 =", "#3 + 4 =", "f(3) + 4 =", "f(3 + 4) =", "a[3 + 4] =", r"$x_1 + 3 =", r"$x_{1} + 3 =",
    r"$2ab + 3 =", r"\sum 3 + 4 =", r"$5 \pm 3 + 4 =", r"\{3 + 4\} =", r"$101_2 + 11_2 =",
    # what stands before may belong to it
    "5 • (3 + 4) =", "100\n-30 + 5 =", "12 + 5\n+3 + 4 =", "12 +\n3 + 4 =", "12\n* 3 + 4 =", "x *3 + 4 =",
    "x **3 + 4 =", "(x) 3 + 4 =", "f(x) 3 + 4 =", "3 +" + " " * 9 + "4 + 5 =", "10 apples -3 * 2 =", "apples -3 * 2 =",
    "log₂ (4 + 4) =", "x² -3 + 4 =", "12 m² (3 + 4) =", "floor (7 / 2) =", "floor 7 / 2 =", "lg 3 + 4 =",
    "lg (3 + 4) =", "cbrt (7 + 20) =", "cosh (1 + 2) =", "arctan 1 + 2 =", "to cosh 1 + 2 =",
    "absolute value of 3 - 5 =", "absolute value of (3 - 5) =", "Multiply 3 by 4 + 5 =", "Multiply 5 with 3 + 4 =",
    "Add five apples to 3 + 4 =", "thrice 3 + 4 =", "reciprocal of 3 + 4 =", "3 lots of 4 + 5 =", "3 lots of (4 + 5) =",
    "3 groups of 4 + 5 =", "four piles of 24 / 4 =", "60 percent (20 + 5) =", "5 ft 3 + 4 =", "five inches 3 + 4 =",
    "round up 7 / 2 =", "20 increased by 3 + 4 =", "twice as much as 3 + 4 =", "half the sum of 3 and 4 =",
    "half of 3 + 4 =", "10% of 3 + 4 =", "50 of 3 + 4 =", "10 more than 3 + 4 =", "negative 3 + 4 =", "3!! + 1!! =",
    r"$\&(15 \&) = \&(7 - 15) =", "the sech 3 + 4 =", "this is the reciprocal 3 + 4 =",
    "we multiply all of it by 3 + 4 =", "we can take it away from 3 + 4 =", "the product of it and 3 + 4 =",
    "in the end the 5 odd frogs quit 3 + 4 =", "in the end x falls to 3 + 4 =",
    "in the end the volcano erupts -3 + 4 =", "in the end the volcano (3 + 4) =", "Entonces ella canta bien 3 + 4 =",
    "1,2 + 3 =", "10:30 + 15 =", "5 3 + 4 =", "(a) 3 + 4 =", "5'10 + 2 =", "1.2.3 + 4 =",
    "1 + 2 + ... + 9 + 10 =", r"$2 \times$ $3 + 4 =", "- 5 + 3 =",
    # doubtful
    "2024-01-15 =", "007 - 3 =", "3--5 =", "3+-5 =", "2^3^2 =", "-2^2 =", "8/2(4) =", "8 / 1/2 =", "5 **3 =", "4 ² =",
    "3 != =", "2 * 3!=", "7 apples! =", "3 plus 4 times 5 =", "2 times 3 squared =", "12 divided by 3 times 2 =",
    "half of 10 plus 4 =", "square root of 16 + 9 =", "the difference of 3 and 5 =", "the sum of 3 and 4 times 2 =",
    "40 + 5% =", "5% * 10% =", "50 * 100% =", "$3 + €4 =", "$3 + 4 =",
    # a word next to an operand that is not known
    "3 apples * $2 per apple =", "She has 5 red pens + 3 blue ones =", "12 floors / 3 floors/gate =", "5 kg + 3 + 4 =",
    "20 M&Ms / 2 =", "Last year the volcano erupted 3 * 2 =", "10ft * 12ft =", "30 miles / 2 hours =",
    "It takes Tom 3 * 4 =", "3 zillion + 4 =", "736 335 / 8.7 =", "R$3 + 4 =", "90-100 + 3 =", "5/6/2020 + 3 =",
    "2 hours + 30 minutes =", "5 feet / 6 inches =", "3 dozen + 4 =", "4 halved + 1 =", r"$12 \text{ dozen} + 3 =",
    r"5 \text{ squared} + 1 =", "sin(2) =", "log(100) =", r"$\sin^{-1} 1 =", "-7 mod 3 =", "50% 20 =", "10 % 3% =",
    r"5 - \(9 + 9 =", "5\n-\\(9 + 9 =", r"$\cos 2 \pi + i \sin 2 \pi =",
    r"\(2^10 =", r"$\sqrt 16 =", r"$3\quad\frac12 \cdot =", r"$2\frac54 =", r"$2\sqrt3 \frac12 =",
    r"$\frac12 \frac12 =", r"$80\frac{1}{2}\frac{1}{5} =",
    # not written as one
    "3 + 4) =", "3 + 4] * 2 =", '"12" + "3" =', "3 +\n4 =", "3 + 4\n=", "3 +\0" + "4 =", "3 + 4" + " " * 9 + "=",
    "3" + " " * 9 + "+ 4 =", "3 + 4 <=", "3 + 4 :=", "3 + 4 +=",
    # no value
    "1 / 0 =", "1 / (2 - 2) =", "0^0 =", "√(-4) =", "9^9^9 =", "9^99999999999 =", "2^999 =", "1e999 * 1 =", "ln(0) =",
    "1/3 + 2/7 =", "the sum of 1/2 and 1/3 =", r"$2\pi \cdot 7 =", r"$\sqrt{32} =",
    r"$\tan 90^\circ =", "1 + " * 50 + "1 =", "(" * 30 + "1 + 2" + ")" * 30 + " =",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_CALCULATIONS)
def test_no_calculations(text: str) -> None:
    assert before(text) is None


QUESTIONS = [
    ("Add 12 to 30.", "Add 12 to 30", 42), ("Calculate 5 * 3", "5 * 3", 15),
    ("How much is the product of 4 and 5?", "product of 4 and 5", 20), ("What is 5!?", "5!", 120),
    ("What is two and a half times 2?", "two and a half times 2", 5), ("3/4 + 1/8", "3/4 + 1/8", Fraction(7, 8)),
    ("What is $5M - $250k?", "$5M - $250k", 4_750_000), ("Please calculate 5*3. Thanks!", "5*3", 15),
    ("gcd(12, 18)?", "gcd(12, 18)", 6), ("Hi! sqrt(16)", "sqrt(16)", 4),
    ("Give me the integer, like 123 . Add two numbers: 5 + 7 =", "5 + 7", 12), ("-948 + -856 =", "-948 + -856", -1804),
    ("Q: What is 132 plus 762?", "132 plus 762", 894), ("What is 15% of 80?", "15% of 80", 12),
    ("30 percent off of 9 =", "30 percent off of 9", Fraction(63, 10)), ("a\n12 * 12\n", "12 * 12", 144),
    ("What is 3 million reduced by 5%?", "3 million reduced by 5%", 2_850_000),
    ("What is 10 / 4, to two decimal places?", "10 / 4", Fraction(5, 2)), ("Hello! 5 + 3 = ?", "5 + 3", 8),
    ("What is 5 apples plus 3 apples?", "5 apples plus 3 apples", 8), ("I have 5 apples. What is 3 + 4?", "3 + 4", 7),
    ("Take 3 away from 10.", "Take 3 away from 10", 7), ("What does 5 + 3 equal?", "5 + 3", 8),
    ("I do not know what is 5 + 3", "5 + 3", 8), ("f = lambda: {\nWhat is 5 + 3?", "5 + 3", 8),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expression", "value"), QUESTIONS)
def test_questions(text: str, expression: str, value: int | Fraction) -> None:
    found = asked(text)
    assert found is not None
    assert (found.text, found.value.rational) == (expression, value)
    assert text[found.start :].startswith(expression)


NO_QUESTIONS = [
    "", "What is 5?", "What is x + 5?", "Is 5 + 3 8?", "If I have 3 + 4 apples, how many are left?",
    "What is 3 + 4 times the number of cats?", "What is 10 + 5 in Roman numerals?", "What is 10 + 5 in binary?",
    "What is 10/4 as a fraction?", "What is 3 + 4 in words?", "Multiply 12 by 30, then tell me a joke.",
    "Find the square root: 16 + 9", "Convert to binary: 12 + 5", "Mix it and add 2 to 3 cups of water.",
    "What is 2024-11-15?", "2024-11-15", "555-1234", "3-2", "Calculate 3 + 4!", "What is 3 plus 4 times 5?",
    "What is 3 + 4\0", "What is 3 + 4? Write 200 words.", "What is 20 off 80?", "What is 80 increased by 5?",
    "Please do not compute 3 + 4.", "Refuse politely to calculate 3 + 4.", "Don't just solve 3 + 4",
    "What is 10% off 20%?", "What is 20% off 80 plus 5?",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_QUESTIONS)
def test_no_questions(text: str) -> None:
    assert asked(text.rstrip("\0") + "\0 and more" if "\0" in text else text) is None


def test_only_the_text_up_to_the_place_counts() -> None:
    text = "What is 3 + 4? It is 3 + 4 = 7 = 7"
    assert calculation_asked(text, 14) == Calculation("3 + 4", 8, calculation_before("3 + 4", 5).value, "")  # type: ignore[union-attr]
    assert calculation_before(text, 27) == calculation_asked(text, 14)._replace(start=21)  # type: ignore[union-attr]


_PIECES = (
    r"3 4 12 0 007 1,234 .5 2.5 1e3 1.2.3 + - − – * × · / ÷ ^ x ( ( ) ) [ ] | = = $ € % , . : ; ' \ { } < > ! ? 7 1 2"
    r" # •"
    r" is of by sin half twice times plus sum and to add apples hours ft divided a s é 数 ² √ ** // \frac \sqrt{ ^{ } }"
    r" \cdot \left( \right) \pi ^\circ \text{a} \\ & \$ \% 5! 2(3 what calculate percent squared \binom{5}{2}"
)
pieces = st.sampled_from(
    [*_PIECES.split(), *[" "] * 8, " + ", " x ", " * ", " - ", "\n", "\0", "\xa0", " " * 9, "3+4", "="]
)
texts = st.lists(pieces, max_size=24).map("".join)


@given(texts, st.text(max_size=LOOK_BEHIND), st.text(max_size=20))
@examples(50)
def test_only_the_end_of_a_text_is_looked_at(text: str, between: str, start: str) -> None:
    length = max(LOOK_BEHIND, MAX_QUESTION)
    context = (between * length)[:length] or "a" * length
    for find in (calculation_before, calculation_asked, calculation_mentioned):
        one, other = (find(head + context + text, len(head + context + text)) for head in (start, "b"))
        assert (one and one._replace(start=one.start - len(start))) == (other and other._replace(start=other.start - 1))


@pytest.mark.parametrize(
    "unit", ["(", "-(", "1+", "1e9^", "9^", "√", "{", "|", "1,", "and ", "the sum of ", "3 a ", "\\frac"]
)
def test_long_texts_cost_no_more_than_short_ones(unit: str) -> None:
    """Each of these takes minutes if a sign makes all of the text be read."""
    long = unit * (200_000 // len(unit))
    for end in range(len(long) - 50, len(long)):
        calculation_before(long, end)
        calculation_asked(long, end)
        calculation_mentioned(long, end)
