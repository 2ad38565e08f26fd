r"""Numbers as texts write them: which one a text ends with, and whether it equals a value or rounds it.

Being written
    The number at the end of a text, or a beginning of one, with its sign and currency sign, with commas or TeX's
    ``{,}`` or ``,\!``. How it may go on is in `spelling.py`.
Written
    A number is the value if it equals it, or its rounding to at least one place after the point. The rounding to whole
    numbers is left out: in ``10 / 3 = 3.33`` the 3 before the equals sign is another number.
"""

import re
from collections.abc import Iterator
from decimal import Decimal

from ani.calculator.reader.exact import SURE_PLACES, Exact
from ani.numbers.grammar import number_spans

MAX_WRITING = 250
"""Characters of a written number at most; a longer one is no value's."""

_PLACES = SURE_PLACES - 1  # rounding reads one more
_MONEY = "$€£¥₹"
_RUN = r"0123456789.,{}\!"
BEGINNINGS = frozenset(f"0123456789.{_MONEY}-−")
"""The characters that a written number begins with."""
_CHARACTERS = BEGINNINGS.union(_RUN)
_PREFIX = rf"(?:(?<![\w)\]}}])(?P<sign>[-−]))?(?:[{_MONEY}](?P<late>[-−])?)?"
_POINT = r"(?<![\w.)\]])\."
_DIGIT = r"[0-9](?<![0-9].)(?<![0-9][.,].)(?<!\{,\}.)(?<![0-9],\\!.)"
_SEPARATOR = r"(?:,\\!|[.,]|\{,\})"
_SEPARATOR_BEGUN = r"(?:\{,?|(?<=,)\\)"
_WRITING = re.compile(
    rf"{_PREFIX}(?P<number>(?:(?:{_POINT})?{_DIGIT}(?:[0-9]|{_SEPARATOR}){{0,{MAX_WRITING}}}+{_SEPARATOR_BEGUN}?"
    rf"|{_POINT})?)\Z"
)
WRITTEN = re.compile(
    rf"{_DIGIT}(?:[0-9]|{_SEPARATOR}(?=[0-9])){{0,{MAX_WRITING}}}+"
    r"(?=(?P<over>[^0-9.,{]|\.[^0-9]|,[^0-9\\]|,\\[^!]|,\\![^0-9]|\{[^,]|\{,[^}]|\{,\}[^0-9]))"
)
"""A run of digits and separators from its first digit on, and the character that shows that the run is complete."""
_COMMA = re.compile(r"\{,\}|,\\!")
_BEFORE = re.compile(rf"{_PREFIX}(?:{_POINT})?\Z")


def writing(text: str, begin: int, end: int) -> str:
    """The number that `text[begin:end]` ends with, or the beginning of one, with its signs; empty: none."""
    if text[end - 1 : end] not in _CHARACTERS:
        return ""
    first = max(begin, end - MAX_WRITING)
    start = first + len(text[first:end].rstrip(_RUN))
    match = _WRITING.search(text, max(first, start - 3), end)
    return match[0] if match else ""


def undecided(text: str, end: int) -> int:
    """Return the place where the last number of `text[:end]` begins, if the number may continue; otherwise `end`."""
    first = max(0, end - 3 * MAX_WRITING)
    return first + len(text[first:end].rstrip(_RUN))


def written(text: str, match: re.Match[str]) -> Iterator[str]:
    """Yield the numbers, with their signs, in a match of `WRITTEN`: three in ``1,2,3``."""
    before = _BEFORE.search(text, max(0, match.start() - 4), match.start())
    assert before is not None
    run = "." * before[0].endswith(".") + _COMMA.sub(",", match[0])
    sign = "-" if before["sign"] or before["late"] else ""
    for start, end in number_spans(run).items():
        yield sign + run[start:end]
        sign = ""


def is_value(value: Exact, number: str) -> bool:
    """Return whether a written number equals the value or rounds it."""
    number = number.replace(",", "")
    places = len(number.partition(".")[2])
    if places > _PLACES or (not places and value.ends != 0):
        return False
    return Decimal(value.rounded(places)) == Decimal(number)
