"""A second parser for the number grammar, written from its prose; shares no code with `ani.numbers`.

It asks at each character whether a number begins there, where the library joins runs of digits.
"""

import re
from decimal import Decimal

DIGITS = "0123456789"
DIGIT = re.compile("[0-9]")
SIGN = re.compile(r"[+\-−](\\?[$€£¥₹])?")
JOINED = re.compile(r"([0-9]([.'’_\u2009\u202f]|,(\\! ?)?|\{,\}|[eE][+\-−]?)|\.)\Z")
INDIAN = re.compile(r"[1-9][0-9]?(,[0-9]{2}){1,3},[0-9]{3}(?![0-9])")
DECIMAL_COMMA = re.compile(
    r"[1-9][0-9]{0,2}(?=(['’._\u2009\u202f]))(\1[0-9]{3}){1,3},[0-9]+(?![0-9]|[.,'’_\u2009\u202f][0-9])"
)
THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?=(\{,\}|,\\! ?|[,'’_\u2009\u202f]))(\1[0-9]{3}(?![0-9]))+")
BRACED = re.compile(r"\{,\}[0-9]+(?![0-9]|[.,'’_\u2009\u202f][0-9])")
ZEROS = ["0", "00", "000", " 000", ",}0", "}0", "\\!000", "\\! 000", "!000", "! 000", ",0", "0,0", "00,0", "000,0"]
"""Enough ways to go on: a number that isn't over goes on with a digit after it or its dot, separator or exponent, is
broken up by one (a fraction's second dot), is joined by a group of three, or becomes part of an unread literal. (All
texts of up to three of 16 such characters and separators tell no other numbers apart.)"""
BLANK = " \t\xa0"
CLOSERS = ")]}）"
MAY_PRECEDE_SIGN = "\0\n\r([{=<>*/^,:;|&~!?\"'`$€£¥₹#@\\“‘«（：，＝×÷·≤≥≠≈→"


def numbers(text: str) -> list[tuple[int, int, Decimal]]:
    """(start, end, value) of every number."""
    found = []
    i = 0
    while i < len(text):
        signed = SIGN.match(text, i)
        j = signed.end() if signed and sign_belongs(text, i) else i
        literal = number_end(text, j)
        if literal is None:
            i += 1
            continue
        end, read = literal
        if read:
            found.append((i, end, value(text[i:end])))
        i = end
    return found


def ended(text: str) -> list[tuple[int, int, Decimal]]:
    """Those of `numbers` that the text leaves as they are, however it goes on."""
    found = numbers(text)
    for continuation in ZEROS:
        found = [number for number in found if number in numbers(text + continuation)]
    return found


def known(text: str) -> list[tuple[int, int, int]]:
    """(start, end, length of the shortest prefix that shows the number to be over) of every number that is."""
    shown: dict[tuple[int, int], int] = {}
    for length in range(len(text) + 1):
        for start, end, _ in ended(text[:length]):
            shown.setdefault((start, end), length)
    return [(*place, length) for place, length in shown.items()]


def value(literal: str) -> Decimal:
    """sign · digits · 10^k, put together from integers."""
    body = re.sub(r"[^0-9.eE+\-]", "", literal.replace("−", "-"))
    negative, body = body[0] == "-", body.lstrip("+-").lower()
    mantissa, _, exponent = body.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = tuple(int(digit) for digit in whole + fraction)
    return Decimal((int(negative), digits, int(exponent or 0) - len(fraction)))


def at(text: str, i: int) -> str:
    return text[i] if 0 <= i < len(text) else "\0"


def digits_end(text: str, i: int) -> int:
    while at(text, i) in DIGITS:
        i += 1
    return i


def opens_fraction(text: str, dot: int) -> bool:
    """A dot with digits after it and nothing before it that it could belong to."""
    before = at(text, dot - 1)
    return not (before.isalnum() or before in "_." or before in CLOSERS)


def number_end(text: str, i: int) -> tuple[int, bool] | None:
    """The end of the literal whose mantissa begins at i, and True if it is read; None if none begins there."""
    if at(text, i) == "." and at(text, i + 1) in DIGITS:
        end = digits_end(text, i + 1)
        if not opens_fraction(text, i) or chain_goes_on(text, end):
            return None
        return braced_end(text, exponent_end(text, end))
    if at(text, i) not in DIGITS:
        return None
    if not JOINED.search(text[:i]):
        if match := INDIAN.match(text, i):
            return fraction_end(text, i, match.end())
        if match := DECIMAL_COMMA.match(text, i):
            return match.end(), False
    end = digits_end(text, i)
    if at(text, i - 1) == "." and (at(text, i - 2) in DIGITS or opens_fraction(text, i - 1)):
        return end, True  # a part of a dotted chain
    if match := THOUSANDS.match(text, i):
        end = match.end()
    return fraction_end(text, i, end)


def fraction_end(text: str, i: int, end: int) -> tuple[int, bool]:
    """The end of a literal whose integer part is `text[i:end]`."""
    if chain_goes_on(text, end):
        fraction = digits_end(text, end + 1)
        if chain_goes_on(text, fraction):
            return end, True
        end = fraction
    return braced_end(text, end if at(text, i - 1).isalpha() or at(text, i - 1) == "_" else exponent_end(text, end))


def braced_end(text: str, end: int) -> tuple[int, bool]:
    """The end of a literal with what follows it after a comma in braces, which is never read."""
    read = True
    while match := BRACED.match(text, end):
        end, read = match.end(), False
    return end, read


def chain_goes_on(text: str, i: int) -> bool:
    return at(text, i) == "." and at(text, i + 1) in DIGITS


def exponent_end(text: str, i: int) -> int:
    """The end of the exponent at i, or i."""
    if at(text, i) not in "eE":
        return i
    first = i + 2 if at(text, i + 1) in "+-−" else i + 1
    end = digits_end(text, first)
    return end if 1 <= end - first <= 3 and not at(text, end).isalpha() and not at(text, end).isdigit() else i


def sign_belongs(text: str, sign: int) -> bool:
    """Whether the sign can be neither an operator nor a hyphen."""
    if sign == 0 or text[sign - 1] in MAY_PRECEDE_SIGN:
        between_prices = re.match(r"[$€£¥₹].[$€£¥₹]", text[max(0, sign - 1) :])
        return not (text[:sign].endswith("+/") or between_prices)
    blanks = 0
    while at(text, sign - 1 - blanks) in BLANK and blanks < 8:
        blanks += 1
    if blanks == 0:
        return False
    operand = at(text, sign - 1 - blanks)
    if operand in BLANK:
        return True
    if operand.isdigit() or operand == "%" or operand in CLOSERS:
        return False
    return not operand.isalpha() or at(text, sign - 2 - blanks).isalpha()
