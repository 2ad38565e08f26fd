"""Say which characters of a text are a written calculation, what it comes to, and what of that is still to be written.

Knows nothing about tokens, tokenizers or models; what a literal is, grammar.py says.

The grammar
===========

A calculation is an expression that ends at an equals sign. Whatever its characters up to there leave in doubt is no
calculation, because a wrong result does harm and a missing one does none; what only the sense of the words tells, as of
the range ``90-100 =``, is left to a gate::

    calculation = expression "="
    expression  = operand (operator operand)+
    operand     = [sign] ([currency] literal | "(" (expression | operand) ")") | currency sign literal
    operator    = "+" | "-" | "−" | "*" | "×" | "·" | "/" | "÷" | "^" | "x"

Literals
    Those of `find_numbers` without their signs: whether a sign is an operator is seen here from both sides. One with a
    needless 0 at its beginning makes a date or a code of all of it (``2024-01-15``, ``007 - 3``).
Blanks
    Up to `MAX_BLANKS` of them between any two parts: more make a column of a table. A line break ends the expression.
Operators
    At least one: ``x = 5`` asks for nothing. Powers come before products and quotients, these before sums and
    differences, and equals go from left to right. Chained powers are doubtful (``2^3^2`` is 512 in mathematics, 64 in a
    spreadsheet), and so is a negated base (``-2^2``). ``**`` is none: in prose it is Markdown's bold type. Nor does
    juxtaposition multiply: ``2(3 + 4)`` may be a function or a label.
The letter x
    Multiplies with blanks on both sides and no sign behind it (``3 x 4``), or between two literals alone (``3x4``).
    Elsewhere it is a variable (``2x + 3``, ``3x -4``), and ``0x10`` is a hexadecimal number.
Signs
    Directly before an operand, and not directly after another sign: ``3 * -5``, ``-(3 + 4)``; ``3--5`` has a dash.
Currency
    ``$``, ``€`` or ``£`` directly before a literal, the same one everywhere: ``$3 + €4`` needs an exchange rate. It
    changes no value, so that a dollar sign that opens TeX does no harm. After a literal it is a unit.
Percent
    Never. ``8 * 5%`` is written 0.4 by some and 40% by others: of GSM8K's equations with a percent sign a third give
    their result in percent, and nothing in the expression tells which.
Equals sign
    One ``=`` directly after the expression, blanks apart: in ``==``, ``<=``, ``>=``, ``!=``, ``:=`` and ``+=`` the sign
    does not follow an operand, and what makes ``==`` or ``=>`` of it afterwards contradicts any result.
Which expression
    The longest that ends at the sign. In a chain (``3 + 4 = 7 * 2 =``) that is the last link, as no expression holds a
    ``=``; in an open bracket (``(3 + 4 =``) what stands in it.
What stands before
    Only what cannot belong to it: the start of the text, a line break, a boundary, an opening bracket, a relation
    (``a=3+4=`` is 7 whatever a is), a dollar sign, a bullet; a quotation mark, unless after a digit (``1'000 + 5`` has
    thousands, ``5'10 + 2`` feet); a word or ``, . ! ? :`` with blanks; a colon without, unless after a digit (``10:30 +
    15`` is a clock). So neither an operator or operand (``x + 2 + 3``,
    ``1,2 + 3``, ``5 kg + 3 + 4``), nor a variable or name (a letter that follows none, ``a3 + 4``, ``f(3) + 4``), nor a
    word or TeX command that computes (``sin``, ``half of``, ``\\times``), nor a line that ends in an operator.

The value
=========

Exact, in rationals. A division by zero has none, nor a power whose exponent is no integer. A result that is not exact
within the fraction digits (``10 / 3``) is none either: what stands behind such a sign is a rounding, to 2 places or to
4, up or down, so that neither its last digit nor its end is known.

The expression has at most `MAX_LENGTH` characters, its result `MAX_RESULT`, each number on the way `MAX_BITS` bits:
no text costs more than some hundred microseconds, and a reader of a stream knows how much context it needs. There
is room for sums of forty terms and factors of thirty digits. A longer expression is no calculation, not a shorter one.

While it is written
===================

Behind the sign may stand: blanks, a sign if the result is negative, a currency sign (the expression's, or any if it has
none: ``5 * 2 = $10``), then the digits, with commas at all the right places so far or at none, with or without the 0
before a point. As long as the text is a beginning of that, `Remainder.upcoming` are the characters still to come: sign,
digits and point, without commas and currency signs, which are the writer's choice. It is empty when the result is
complete: the end comes next.

Amounts of money that are no integers go to cents (``$7.50``), as 19 of 20 do in GSM8K; who ends at ``$7.5`` has
contradicted nothing. Whatever else follows ends the result or contradicts it, and there is no more to say: ``7.00``
is right, but all that was known had been said at the 7.

Equations
=========

A text's equations are its calculations with the number behind the sign, if it stands there alone: in ``3 + 4 = 5 + 2``,
``= 7 * 2``, ``= 3/4``, ``= 1 1/2`` or ``= 20%`` it may not be what the left side is said to be. An equation is right if
the number's value is the result, or, written to two places or more, the result rounded to them (``0.125 * 3 = $0.38``).
"""

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, cast

from ani.numbers.grammar import BLANKS, BOUNDARY, MAX_BLANKS, decimal_value, number_spans

MAX_LENGTH = 200
"""Characters of an expression, with the blanks before the equals sign."""
MAX_RESULT = 100
"""Characters of a result, with commas, without sign."""
MAX_BITS = 1000
"""Of every numerator and denominator on the way."""
FRACTION_DIGITS = 6

_CONTEXT = 64  # characters before the expression that say whether it is whole
LOOK_BEHIND = MAX_LENGTH + _CONTEXT
"""Characters before an equals sign that are looked at."""

_B = rf"[{BLANKS}]"
_SIGNS = "+\\-−"
_SIGN = rf"(?:(?<![{_SIGNS}])[{_SIGNS}])"
_MONEY = "$€£"
_OPERATOR = rf"[{_SIGNS}*×·/÷^]"
_CLOSINGS = rf"(?P<closings>(?:{_B}{{0,{MAX_BLANKS}}}\))*)"
_OPENINGS = rf"(?P<openings>(?:{_SIGN}?\({_B}{{0,{MAX_BLANKS}}})*)(?P<prefix>{_SIGN}?[{_MONEY}]?|[{_MONEY}]{_SIGN})"
_BETWEEN = re.compile(
    rf"{_CLOSINGS}(?:{_B}{{0,{MAX_BLANKS}}}(?P<operator>{_OPERATOR}){_B}{{0,{MAX_BLANKS}}}"
    rf"|{_B}{{1,{MAX_BLANKS}}}x{_B}{{1,{MAX_BLANKS}}}(?![{_SIGNS}])|(?P<tight>(?<=[0-9])x\Z)){_OPENINGS}"
)
_BEGINNING = re.compile(rf"{_OPENINGS}\Z")
_ENDING = re.compile(rf"{_CLOSINGS}{_B}{{0,{MAX_BLANKS}}}")
_OPENING = re.compile(rf"([{_SIGNS}]?)\(")
_LETTER = r"[^\W\d_]"
_SEPARATE = re.compile(
    rf"(?:[{BOUNDARY}\n\r(\[{{（=<>≈≤≥≠→;$•：，。]{_B}{{0,{MAX_BLANKS}}}"
    rf"|(?<![0-9])[\"'“‘`]{_B}{{0,{MAX_BLANKS}}}"
    rf"|(?<![{BLANKS}])[,.!?:]{_B}{{1,{MAX_BLANKS}}}|(?<![0-9{BLANKS}]):"
    rf"|{_LETTER}['’]?{_LETTER}{_B}{{1,{MAX_BLANKS}}}|{_B}{{{MAX_BLANKS + 1}}})\Z"
)
_COMPUTES = re.compile(
    rf"(?:\\[a-z]+|(?<!{_LETTER})(?:plus|minus|times|over|(?:multiplied|divided) by|negative|mod|modulo|twice|double"
    r"|triple|half|sin|cos|tan|ln|log|exp|sqrt|abs)|(?:[0-9%]|percent|half|thirds?|quarters?|fourths?|fifths?|tenths?"
    rf"|roots?|squares?|cubes?){_B}{{1,{MAX_BLANKS}}}of){_B}{{1,{MAX_BLANKS}}}\Z"
    rf"|[0-9){BLANKS}]{_OPERATOR}{_B}{{0,{MAX_BLANKS}}}[\r\n]+{_B}{{0,{MAX_BLANKS}}}\Z",
    re.IGNORECASE,
)
_WRITTEN = re.compile(
    rf"{_B}{{0,{MAX_BLANKS}}}(?P<prefix>[{_MONEY}][-−]|[-−]?[{_MONEY}]?)(?P<number>[0-9.,]{{0,{MAX_RESULT}}})"
)
_BEHIND = re.compile(rf"{_B}{{0,{MAX_BLANKS}}}(?:[{_MONEY}](?P<later>[-−])|(?P<sign>[-−])?[{_MONEY}]?)")
_GOES_ON = re.compile(
    rf"{_B}{{0,{MAX_BLANKS}}}(?:%|{_OPERATOR}{_B}{{0,{MAX_BLANKS}}}[{_MONEY}(.]?[0-9]|(?<={_B})[0-9])"
)
WRITING = (BLANKS + _MONEY + "-−0123456789.,").encode()
"""The bytes that may stand between an equals sign and the end of a result."""
MAX_WRITING = 2 * MAX_BLANKS + 6 + MAX_RESULT
"""How many of them at most."""

_OPENING_CHARACTERS = BLANKS + _MONEY + "(+-−"
_OPERAND_ENDS = frozenset("0123456789)")
_CANONICAL = {"−": "-", "×": "*", "·": "*", "x": "*", "÷": "/"}
_PRECEDENCE = {"(": 0, ")": 1, "+": 2, "-": 2, "*": 3, "/": 3, "^": 4, "negate": 5}

_Rational = int | Fraction  # integers are themselves, as they are many times faster


class Calculation(NamedTuple):
    """A written calculation with its exact result."""

    text: str
    """The expression as it is written, without the equals sign."""
    value: Decimal
    currency: str
    """The sign that its literals bear, or nothing."""

    def upcoming(self, written: str) -> str | None:
        """What is still to be written of the result; None if the text behind the sign is no beginning of it."""
        match = _WRITTEN.fullmatch(written)
        if match is None:
            return None
        prefix, number = match["prefix"].replace("−", "-"), match["number"]
        currency = prefix.replace("-", "") or self.currency
        if self.currency not in ("", currency):
            return None
        sign = "-" if self.value < 0 else ""
        if "-" in prefix:
            if not sign:
                return None
            sign = ""
        elif sign and number:
            return None
        whole, _, fraction = format(self.value.copy_abs(), "f").partition(".")
        if fraction:
            fraction = "." + (fraction.ljust(2, "0") if currency else fraction)
        forms = [whole + fraction, f"{int(whole):,}" + fraction]
        if whole == "0" and fraction:
            forms.append(fraction)
        for form in forms:
            if form.startswith(number):
                return sign + form[len(number) :].replace(",", "")
        return None


class Remainder(NamedTuple):
    """What is still to be written of a calculation's result at the end of a text."""

    calculation: Calculation
    upcoming: str
    """The characters to come: sign, digits and point. Empty: the result is complete."""


class Equation(NamedTuple):
    """A written calculation and the number behind its equals sign."""

    calculation: Calculation
    written: Decimal

    @property
    def right(self) -> bool:
        """Whether the number is the result, or the result rounded to its two places or more."""
        places = -cast(int, self.written.as_tuple().exponent)
        error = abs(self.written - self.calculation.value)
        return not error or (places >= 2 and error <= Decimal(5).scaleb(-places - 1))


def equations(text: str) -> list[Equation]:
    """The written equations of a text, from left to right."""
    numbers = _unsigned(text)
    found = []
    for sign in re.finditer("=", text):
        value, end = _number_at(text, sign.end(), numbers)
        if value is None or _GOES_ON.match(text, end):
            continue
        if calculation := calculation_before(text, sign.start()):
            found.append(Equation(calculation, value))
    return found


def number_behind(text: str) -> Decimal | None:
    """The number with which a text behind an equals sign begins, as in an equation; None: with something else."""
    return _number_at(text, 0, _unsigned(text))[0]


def _unsigned(text: str) -> dict[int, int]:
    """Where numbers begin and end without their signs."""
    return {start + (text[start] in "+-"): end for start, end in number_spans(text).items()}


def _number_at(text: str, begin: int, numbers: dict[int, int]) -> tuple[Decimal | None, int]:
    """The number directly behind an equals sign, and its end."""
    behind = _BEHIND.match(text, begin)
    end = numbers.get(behind.end(), 0) if behind else 0
    if behind is None or not end:
        return None, 0
    value = decimal_value(text[behind.end() : end])
    return -value if behind["sign"] or behind["later"] else value, end


def remainder(text: str, fraction_digits: int = FRACTION_DIGITS) -> Remainder | None:
    """What is still to be written of a result at the end of a text; None where no result is being written.

    Args:
        text: no more than its last `LOOK_BEHIND` + 1 + `MAX_WRITING` characters are looked at.
        fraction_digits: a result that has more is none.
    """
    equals = text.rfind("=", max(0, len(text) - MAX_WRITING - 1))
    if equals < 0 or _WRITTEN.fullmatch(text, equals + 1) is None:
        return None
    calculation = calculation_before(text, equals, fraction_digits)
    if calculation is None:
        return None
    upcoming = calculation.upcoming(text[equals + 1 :])
    return None if upcoming is None else Remainder(calculation, upcoming)


def writing_end(text: str, begin: int) -> int:
    """How far the text from `begin` on, the character after an equals sign, may be a result's writing."""
    match = _WRITTEN.match(text, begin)
    return match.end() if match else begin


def calculation_before(text: str, equals: int, fraction_digits: int = FRACTION_DIGITS) -> Calculation | None:
    """The calculation whose equals sign stands at `equals`, if there is one."""
    first = max(0, equals - LOOK_BEHIND)
    first = max(first, text.rfind("=", first, equals))  # no expression holds a sign
    return _calculation_at_end(text[first:equals] if first else BOUNDARY + text[:equals], fraction_digits)


@lru_cache(maxsize=256)  # each token of a result asks again
def _calculation_at_end(window: str, fraction_digits: int) -> Calculation | None:
    if window.rstrip(BLANKS)[-1:] not in _OPERAND_ENDS:
        return None
    parsed = _parsed(window)
    if parsed is None:
        return None
    start, tokens, currency = parsed
    before = window[max(0, start - _CONTEXT) : start]
    if len(window) - start > MAX_LENGTH or not _SEPARATE.search(before) or _COMPUTES.search(before):
        return None
    value = _value(tokens)
    if value is None:
        return None
    scaled = value * 10**fraction_digits
    if scaled.denominator != 1:
        return None
    digits = str(abs(scaled.numerator)).rjust(fraction_digits + 1, "0")
    whole, fraction = digits[: len(digits) - fraction_digits], digits[len(digits) - fraction_digits :].rstrip("0")
    if len(whole) * 4 // 3 + len(fraction) > MAX_RESULT - 2:  # a point, and a 0 that fills up to cents
        return None
    result = Decimal(f"{'-' * (value < 0)}{whole}{'.' * bool(fraction)}{fraction}")
    return Calculation(window[start:].rstrip(BLANKS), result, currency)


def _parsed(window: str) -> tuple[int, list[str | _Rational], str] | None:
    """Where the longest expression that ends a text begins, its tokens, and its currency sign."""
    # The sign of a literal is read with what stands between it and the one before.
    spans = [(start + (window[start] in "+-"), end) for start, end in number_spans(window).items()]
    if not spans:
        return None
    ending = _ENDING.fullmatch(window, spans[-1][1])
    if ending is None:
        return None
    depth = ending["closings"].count(")")
    tokens: list[str | _Rational] = [")"] * depth  # from the last to the first
    currency = ""
    operators = 0
    for index in reversed(range(len(spans))):
        begin, end = spans[index]
        literal = window[begin:end]
        if literal[0] == "0" and literal[1:2].isdigit():
            return None
        tokens.append(int(literal) if literal.isdigit() else Fraction(decimal_value(literal)))
        before = spans[index - 1][1] if index else 0
        between = _BETWEEN.fullmatch(window, before, begin) if index else None
        # An x between literals makes a hexadecimal number of a single 0.
        if between and between["tight"] and window[spans[index - 1][0] : before] == "0":
            return None
        match = between or _BEGINNING.search(
            window, before + len(window[before:begin].rstrip(_OPENING_CHARACTERS)), begin
        )
        if match is None:
            return None
        prefix = match["prefix"]
        sign = prefix.strip(_MONEY)
        if money := prefix.strip("+-−"):
            if currency not in ("", money):
                return None
            currency = money
        if sign and sign != "+":
            tokens.append("negate")
        start = match.start("prefix")
        openings = list(_OPENING.finditer(match["openings"]))
        closed = openings[len(openings) - depth :] if depth < len(openings) else openings
        for opening in reversed(closed):
            tokens.append("(")
            if opening[1] not in ("", "+"):
                tokens.append("negate")
            start = match.start("openings") + opening.start()
        depth -= len(closed)
        if between is None or len(closed) < len(openings):
            break
        tokens.append(_CANONICAL.get(between["operator"] or "x", between["operator"]))
        operators += 1
        closings = between["closings"].count(")")
        tokens += [")"] * closings
        depth += closings
    return (start, tokens[::-1], currency) if operators and not depth else None


def _value(tokens: list[str | _Rational]) -> _Rational | None:
    """The value of an expression; None if it has none, or a doubtful one, or one out of bounds."""
    values: list[_Rational] = []
    waiting: list[str] = []  # operators and opened brackets
    for token in [*tokens, ")"]:
        if not isinstance(token, str):
            if _bits(token) > MAX_BITS:
                return None
            values.append(token)
        elif token in ("(", "negate"):
            waiting.append(token)
        else:
            if token == "^" and waiting and waiting[-1] in ("^", "negate"):
                return None
            while waiting and _PRECEDENCE[waiting[-1]] >= _PRECEDENCE[token]:
                if (result := _applied(waiting.pop(), values)) is None:
                    return None
                values.append(result)
            if token != ")":
                waiting.append(token)
            elif waiting:
                waiting.pop()
    return values[0]


def _applied(operator: str, values: list[_Rational]) -> _Rational | None:
    """The operator's result on the last values, which it takes."""
    right = values.pop()
    if operator == "negate":
        return -right
    left = values.pop()
    match operator:
        case "+":
            result: _Rational = left + right
        case "-":
            result = left - right
        case "*":
            result = left * right
        case "/":
            if not right:
                return None
            result = Fraction(left, right)
        case _:
            if right.denominator != 1 or (not left and right <= 0) or abs(right.numerator) * _bits(left) > MAX_BITS:
                return None
            result = Fraction(left) ** right.numerator
    return result if _bits(result) <= MAX_BITS else None


def _bits(value: _Rational) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
