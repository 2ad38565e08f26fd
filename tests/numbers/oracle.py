"""A second parser for the number grammar, written from its prose; shares no code with `ani.numbers`.

It asks at each character whether a number begins there, where the library joins runs of digits.
"""

from decimal import Decimal
from itertools import product

DIGITS = "0123456789"
CONTINUATIONS = ["".join(letters) for length in range(1, 5) for letters in product("0.,e+ aé", repeat=length)]
"""Every way to go on that the grammar could tell apart: digits (it looks at no more than four, nor at which, once the
text before has said whether a 0 is first), each character that can be within a number, and what can't."""
ZEROS = ["0", "00", "000"]
"""Enough of them: a number that isn't over goes on with a digit after it or its dot, comma or exponent, or is broken
up by one (a fraction's second dot), or is joined by a group of three (`test_grammar` tries the others)."""
BLANK = " \t\xa0"
CLOSERS = ")]}）"
MAY_PRECEDE_SIGN = "\0\n\r([{=<>*/^,:;|&~!?\"'`$#@\\“‘«（：，＝×÷·≤≥≠≈→"


def numbers(text: str) -> list[tuple[int, int, Decimal]]:
    """(start, end, value) of every number."""
    found = []
    i = 0
    while i < len(text):
        j = i + 1 if text[i] in "+-" and sign_belongs(text, i) else i
        end = number_end(text, j)
        if end is None:
            i += 1
            continue
        found.append((i, end, value(text[i:end])))
        i = end
    return found


def ended(text: str, continuations: list[str] = ZEROS) -> list[tuple[int, int, Decimal]]:
    """Those of `numbers` that the text leaves as they are, however it goes on."""
    found = numbers(text)
    for continuation in continuations:
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
    negative = literal[0] == "-"
    body = literal.lstrip("+-").replace(",", "").lower()
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


def number_end(text: str, i: int) -> int | None:
    """The end of the number whose mantissa begins at i, None if none does."""
    if at(text, i) == "." and at(text, i + 1) in DIGITS:
        end = digits_end(text, i + 1)
        if not opens_fraction(text, i) or chain_goes_on(text, end):
            return None
        return exponent_end(text, end)
    if at(text, i) not in DIGITS:
        return None
    end = digits_end(text, i)
    if at(text, i - 1) == "." and (at(text, i - 2) in DIGITS or opens_fraction(text, i - 1)):
        return end  # a part of a dotted chain
    if end - i <= 3 and text[i] != "0":
        while at(text, end) == "," and digits_end(text, end + 1) == end + 4:
            end += 4
    if chain_goes_on(text, end):
        fraction = digits_end(text, end + 1)
        if chain_goes_on(text, fraction):
            return end
        end = fraction
    if at(text, i - 1).isalpha() or at(text, i - 1) == "_":
        return end
    return exponent_end(text, end)


def chain_goes_on(text: str, i: int) -> bool:
    return at(text, i) == "." and at(text, i + 1) in DIGITS


def exponent_end(text: str, i: int) -> int:
    """The end of the exponent at i, or i."""
    if at(text, i) not in "eE":
        return i
    first = i + 2 if at(text, i + 1) in "+-" else i + 1
    end = digits_end(text, first)
    return end if 1 <= end - first <= 3 and not at(text, end).isalpha() and not at(text, end).isdigit() else i


def sign_belongs(text: str, sign: int) -> bool:
    """Whether the sign can be neither an operator nor a hyphen."""
    if sign == 0 or text[sign - 1] in MAY_PRECEDE_SIGN:
        return True
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
