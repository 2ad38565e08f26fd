"""Generates texts by rule, with the values that an answer to each may have: the oracle of `test_no_wrong_value`.

A text is built from operands whose values are known, so the oracle parses nothing and shares no list with the code.
"""

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple


class Operand(NamedTuple):
    """A written quantity."""

    text: str
    value: Fraction
    kind: str = ""
    """What it measures: "" a pure number, "usd", "time", …; quantities of two kinds have no sum."""
    unit: str = ""
    """Unit of `value`: only quantities in the same unit are added without a conversion."""


class Text(NamedTuple):
    """A message and the values that an answer may have."""

    message: str
    right: frozenset[Fraction]
    """Empty: nothing may be written."""


# fmt: off
_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = {
    "hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "lakh": 5, "crore": 7, "k": 3, "K": 3,
    "M": 6, "bn": 9, "mn": 6, "grand": 3, "quadrillion": 15, "lakhs": 5, "millions": 6,
}
_UNREAD = (
    "dozen", "score", "gross", "zillion", "per mille", "bits", "ish",
    "or so",
    "tenths", "halves", "thirds", "fifths", "hundredths", "baker's dozen", "pairs", "myriad", "to the fourth", "bp",
    "sixths", "quarters", "choose 2", "double", "squares", "in hex", "base 8", "apiece", "tens", "times as many",
)
# fmt: on


def spoken(number: int, hyphen: str = "-", conjunction: str = " and ") -> str:
    """An integer below 1,000,000 in English words."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (hyphen + _ONES[number % 10] if number % 10 else "")
    if number < 1000:
        rest = conjunction + spoken(number % 100, hyphen) if number % 100 else ""
        return f"{_ONES[number // 100]} hundred{rest}"
    rest = " " + spoken(number % 1000, hyphen, conjunction) if number % 1000 else ""
    return f"{spoken(number // 1000, hyphen, conjunction)} thousand{rest}"


def plain(draw: random.Random) -> Operand:
    number = draw.choice([draw.randint(2, 99), draw.randint(100, 9999)])
    if draw.random() < 0.2:
        return Operand(*_decimal(draw, number))
    return Operand(str(number), Fraction(number))


def _decimal(draw: random.Random, number: int) -> tuple[str, Fraction]:
    text = f"{number}.{draw.randint(0, 99):02}"
    return text, Fraction(text)


def scaled(draw: random.Random) -> Operand:
    word = draw.choice([*_SCALES])
    number = draw.choice([str(draw.randint(1, 40)), f"{draw.randint(1, 9)}.{draw.randint(1, 9)}"])
    gap = draw.choice(["", " "]) if len(word) < 3 else draw.choice([" ", " ", "-"])
    return Operand(f"{number}{gap}{word}", Fraction(number) * 10 ** _SCALES[word])


def worded(draw: random.Random) -> Operand:
    shape = draw.randrange(6)
    if shape == 0:
        whole, digit = draw.randint(0, 12), draw.randint(1, 9)
        return Operand(f"{_ONES[whole]} point {_ONES[digit]}", whole + Fraction(digit, 10))
    if shape == 1:
        return Operand(draw.choice(["a hundred", "one hundred"]), Fraction(100))
    if shape == 2:
        number = draw.randint(2, 9)
        return Operand(f"{_ONES[number]} and a half", number + Fraction(1, 2))
    if shape == 3:
        scale = draw.choice(["million", "billion", "thousand"])
        return Operand(f"half a {scale}", Fraction(10 ** _SCALES[scale], 2))
    number = draw.choice(
        [draw.randint(0, 99), draw.randint(21, 99), draw.randint(100, 999), draw.randint(1000, 99_999)]
    )
    return Operand(spoken(number, draw.choice(["-", " "]), draw.choice([" and ", " "])), Fraction(number))


def grouped(draw: random.Random) -> Operand:
    number = draw.randint(100_000, 99_999_999)
    digits = str(number)
    western = f"{number:,}"
    head, last = digits[:-3], digits[-3:]
    pairs = [head[max(0, end - 2) : end] for end in range(len(head), 0, -2)][::-1]
    indian = ",".join([*pairs, last])
    separator = draw.choice(["'", "’", "\u202f", "\u2009", " ", "_", "{,}", r",\!", r"\,", r",\! "])
    return Operand(draw.choice([western, indian, western.replace(",", separator)]), Fraction(number))


def money(draw: random.Random) -> Operand:
    amount = draw.choice([str(draw.randint(1, 90)), f"{draw.randint(1, 90)}.{draw.randint(10, 99)}"])
    value = Fraction(amount)
    cents = draw.randint(1, 99)
    of_sign = {"€": "eur", "£": "gbp", "Rs ": "inr", "R$": "brl", "₩": "krw"}
    of_word = {"dollars": "usd", "euros": "eur", "quid": "gbp", "CHF": "chf"}
    written = [
        *((f"${amount}", value, "usd"), (f"USD {amount}", value, "usd"), (f"${amount}k", value * 1000, "usd")),
        *((f"${amount} million", value * 10**6, "usd"), (f"{cents} pence", Fraction(cents, 100), "gbp")),
        *((f"{cents}{word}", Fraction(cents, 100), "usd") for word in (" cents", "¢")),
        *((f"{sign}{amount}", value, unit) for sign, unit in of_sign.items()),
        *((f"{amount} {word}", value, unit) for word, unit in of_word.items()),
    ]
    text, value, unit = draw.choice(written)
    return Operand(text, value, unit, unit)


_UNITS = {
    "time": ("seconds", "s", "minutes", "min", "hours", "h", "days", "weeks", "years"),
    "length": ("mm", "cm", "m", "km", "inches", "in", "ft", "feet", "yards", "miles", "mi"),
    "mass": ("g", "kg", "lb", "oz", "ounces", "pounds", "tons", "mg"),
    "energy": ("Wh", "kWh", "J", "kJ", "calories"),
    "volume": ("ml", "liters", "gallons", "cups"),
    "data": ("MB", "GB", "KB", "TB", "bytes", "kB"),
    "speed": ("km/h", "mph", "m/s"),
    "temperature": ("°C", "°F", "degrees Celsius", "K", "K"),
}


def measured(draw: random.Random) -> Operand:
    kind = draw.choice([*_UNITS])
    unit = draw.choice(_UNITS[kind])
    number = draw.choice([str(draw.randint(1, 90)), f"{draw.randint(1, 9)}.{draw.randint(1, 9)}"])
    return Operand(f"{number}{'' if unit[0] == '°' else draw.choice(['', ' '])}{unit}", Fraction(number), kind, unit)


def unread(draw: random.Random) -> Operand:
    """A number with words that change it, or may."""
    return Operand(f"{draw.randint(2, 99)} {draw.choice(_UNREAD)}", Fraction(0), "unread")


def hyphenated(draw: random.Random) -> Operand:
    a, b, c = draw.randint(2, 31), draw.randint(2, 12), draw.randint(1990, 2030)
    return Operand(
        draw.choice(
            [f"{a}-{a + b}", f"{a}-year-old", f"{a}-{b}-{c}", f"{c}-{b:02}-{a:02}", f"{b}/{a}/{c}", f"v{a}.{b}.{b}",
             f"{a}:{b + 20}", f"{a}th", f"#{a}", f"{a}–{a + b}", f"0{a}{b}", f"A{a}", f"{a}x{b}x{a}", f"{a}±{b}",
             f"{a}+/-{b}", f"~{a}", f"{a}e", f"{a}..{a + b}", f"{a}'{b}\"", f"10.{a}.{b}.1", f"{a}b{b}", f"0x{a}"]
        ),
        Fraction(0),
        "unread",
    )  # fmt: skip


_OPERATORS = {
    "+": ("+", "plus"),
    "-": ("-", "minus", "−"),
    "*": ("*", "times", "×", "multiplied by"),
    "/": ("/", "divided by", "÷"),
}
_ASKING = (
    "What is {}?", "{} =", "Calculate {}.", "How much is {}?", "what's {}", "{}", "{} = ?", "Compute {}", "{}?",
    "Please calculate {}. Just the number.", "Hi! What is {}? Thanks!", "What does {} equal?", "whats {} pls",
    "Find {}.", "Can you tell me what {} is?", "Evaluate: {}", "Work out {} for me.", "solve {}",
)  # fmt: skip
_NOT_ASKING = (
    "He earns {}.", "my homework says {} and i dont get it", "The label reads {}", "Her score was {} in the end.",
    "We met on {} or so.", "It costs {} I think", "Is {} a palindrome?", "Translate to French: {}",
    "They wrote {} on the board.", "Our code is {}", "Name a film with {} in its title.", "Call me at {}",
    "The final score was {} after extra time.", "I work {} these days", "Explain why {} is odd.", "{} people came",
    "Remember {}!", "Size {} fits me", "Chapter {} is long", "How do you spell {}?",
)  # fmt: skip
_OTHER_FORMS = ("in hours", "in minutes", "in binary", "in words", "in euros", "in Roman numerals", "in cents", "in km")


_SHARES = {
    "half of": Fraction(1, 2),
    "5% of": Fraction(1, 20),
    "a third of": Fraction(1, 3),
    "double": Fraction(2),
    "10 percent of": Fraction(1, 10),
}


def _result(operator: str, left: Operand, right: Operand) -> frozenset[Fraction]:
    """The values that an answer may have."""
    if "unread" in (left.kind, right.kind):
        return frozenset()
    a, b = left.value, right.value
    if operator in "+-":
        value = a + b if operator == "+" else a - b
        return frozenset([value]) if (left.kind, left.unit) == (right.kind, right.unit) else frozenset()
    if left.kind and right.kind:  # a ratio of two amounts in one unit is a number; a product has another unit
        return frozenset([a / b]) if operator == "/" and left.unit == right.unit and b else frozenset()
    if operator == "/" and not b:
        return frozenset()
    return frozenset([a * b if operator == "*" else a / b])


def _or_cents(right: frozenset[Fraction], *amounts: str) -> frozenset[Fraction]:
    """The right values; where every amount of money is written in cents or pence, also in these."""
    cents = [amount.endswith(("cents", "¢", "pence")) for amount in amounts if amount.endswith(_MONEY_WORDS)]
    return right | {value * 100 for value in right} if cents and all(cents) else right


_MONEY_WORDS = ("cents", "¢", "pence", "dollars", "euros", "quid", "CHF")
_DRAWN = (plain, plain, scaled, worded, grouped, money, measured, unread, hyphenated)


def texts(count: int, seed: int, *, asking: bool) -> Iterator[Text]:
    """Messages of one calculation, at least one operand of which is not a plain number."""
    draw = random.Random(seed)
    for _ in range(count):
        first, second = draw.choice(_DRAWN[2:])(draw), draw.choice(_DRAWN)(draw)
        if draw.random() < 0.5:
            first, second = second, first
        if draw.random() < 0.25 and first.kind:  # twice the same unit
            words = first.text.lstrip("0123456789.")
            if first.text[0].isdigit() and first.kind not in ("unread", "usd", "gbp"):
                number = draw.randint(2, 60)
                second = first._replace(text=f"{number}{words}", value=Fraction(number))
        operator = draw.choice([*_OPERATORS])
        sign = draw.choice(_OPERATORS[operator])
        loose = sign[0].isalpha() or "unread" in (first.kind, second.kind)  # 3-5+2 is no range
        gap = " " if loose else draw.choice([" ", " ", ""])
        right = _result(operator, first, second)
        expression = f"{first.text}{gap}{sign}{gap}{second.text}"
        if not gap and sign == "-":
            right = right if set(first.text + second.text) <= set("0123456789.,") else frozenset()
        shape = draw.random()
        if shape < 0.08:
            third = plain(draw)
            expression += f" {draw.choice(['plus', '+'])} {third.text}"
            pure = not (first.kind or second.kind) or (operator == "/" and first.unit == second.unit)
            right = frozenset(value + third.value for value in right) if pure else frozenset()
        elif shape < 0.16:
            expression += f" {draw.choice(_OTHER_FORMS)}"
            right = frozenset()
        elif shape < 0.24:
            share = draw.choice([*_SHARES.items()])
            expression = f"{share[0]} {first.text}"
            right = frozenset([first.value * share[1]]) if first.kind != "unread" else frozenset()
            second = first
        right = _or_cents(right, *{first.text, second.text})
        yield Text(draw.choice(_ASKING if asking else _NOT_ASKING).format(expression), right)


EXAMPLES = {
    "What is 3 plus 2 million?": 2_000_003, "5% of 3 thousand": 150, "half of 2 billion": 10**9, "100 + 5 k": 5100,
    "10 lakh plus 5": 1_000_005, "3 grand + 500": 3500, "What is twenty-five plus five?": 30, "twenty-one plus 3 =": 24,
    "one point five times 2": 3, "$5 + 50 cents": Fraction(11, 2), "$1 - 25 cents": Fraction(3, 4),
    "$1.50 + 50¢": 2, "$5 + €3": None, "3 * 20 minutes in hours": 1, "How many hours are 3 * 20 minutes?": 1,
    "How many minutes are in 2 1/2 hours?": 150, "3 ft + 6 in": None, "3 kWh + 200 Wh": None, "3 m * 4 cm": None,
    "60 km/h * 30 min": None, r"$11,\! 111 + 1$": 11_112, r"$2,\! 500 \cdot 4 =$": 10_000, "What is 555-1234?": None,
    "867-5309": None, "9/11": None, "24/7": None, "4-4-2": None, "What is max(3 km, 500 m)?": None,
    "He earns 3 plus 2 million": None, "How many digits does 123 * 456 have?": None, "What is 12 + 5 on a clock?": None,
    "How many hours are in 3 + 4 of them?": None, "20% off 80": 64, "80 increased by 25%": 100, "80 + 25%": None,
    "Solve 3 + 4 = x + 2 for x.": 5, r"Solve for $x$: \[\frac{2}{3} = \frac{4}{x-5}.\]": 11,
    r"Solve $\frac{3}{5} = \sqrt{\frac{y}{100}}$.": 36, r"For which $n$ is $4! \cdot 5 = n!$?": 5,
    r"For which $n$ is $\binom{6}{2} + \binom{6}{3} = \binom{7}{n}$?": 3,
    r"If $\sqrt{3 + 2 \sqrt{2}} = \sqrt{a} + \sqrt{b}$, what is $a + b$?": 3,
    "If $a*b = a^2 + b$, what is $3*2$?": 11, "Let a * b = 2a + b. So 3 * 2 =": 8,
    r"$[x]$ is the largest integer up to $x$. What is $[\pi - 4]$?": -1,
    "Which one is larger than twenty?\nA. 3 + 4\nB. 5 * 6": None, "Evaluate \\[\\frac{1 +\n11 (3 - 2)\n+ 4}{2}\\]": 8,
    r"Simplify $\sqrt{288}$.": None, r"What is $\frac{1}{3} + \frac{2}{7}$?": None, "What is 1/3 + 2/7?": None,
    "$\\log_{16}\n\\frac{1}{2} =": Fraction(-1, 4),
}  # fmt: skip
"""Texts whose value was once wrong: the right value, or None where nothing may be written."""
