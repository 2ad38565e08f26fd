r"""The decimal digits of a value: which may come next, and whether a written number equals the value or rounds it.

Being written
    What stands at the end of a text is a beginning of the number if it is one of its decimal form: with its sign (none,
    if it is positive) and perhaps a currency sign, with commas or TeX's ``{,}`` or ``,\!`` at all the right places
    so far or at none, with or without the 0 before the point. The pending digits go on behind it. Within another
    number, or a mistake, there are none: the value can only follow when that number is over.
Digits
    Those of the decimal form, cut off, not rounded, as nobody knows where the writer ends. Beside each stands the digit
    that it would be if it were the last (half away from zero), from the last one before the point on. There is none
    where rounding changes a digit before it: 0.196 to two places is 0.20, which can't follow 0.1. So a writer may end
    at any place, as ``10 / 3 = 3.33`` and ``2/3 ≈ 0.667`` do, and is right.
End
    A number whose digits end is followed by an end. One that goes on for ever has none; its digits behind the point are
    marked instead, since there, too, an end may follow. Behind a rounding (``0.67``), needless zeros (``7.00``), and a
    dot or comma that may be the sentence's (``7.``) only an end can come. A dot that must be the sentence's (``0.67.``)
    has nothing pending behind it. An end says whether it stands behind a fraction's digits or a separator, because
    there a model by itself mostly writes one more digit.
Money
    An amount goes to cents, if it is no whole number: rounded, 0 filled in (``$7.50``), then the end. What is written
    more exactly (``$0.125``) goes on as any number does.
Written
    A number is the value if it equals it, or its rounding to at least one place behind the point. The rounding to whole
    numbers is left out: in ``10 / 3 = 3.33`` the 3 before the equals sign is another number.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Literal, NamedTuple

from ani.calculator.reader.exact import SURE_PLACES, Exact
from ani.numbers.grammar import number_spans

END = ""
"""The character of an end."""
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
"""A digit and all that go on from it, with what shows that no more do: one character, or that behind a separator."""
_COMMA = re.compile(r"\{,\}|,\\!")
_BEFORE = re.compile(rf"{_PREFIX}(?:{_POINT})?\Z")


class PendingDigit(NamedTuple):
    """A character that is still to be written."""

    character: str
    """A digit, the point, the minus sign, or `END`."""
    last: str = ""
    """The digit that it would be if it were the last one; empty: none."""
    endless: bool = False
    """Whether it is a digit behind the point of a number that goes on for ever."""
    behind: Literal["", "fraction", "separator"] = ""
    """Of an end, what it stands behind: digits of a fraction, or a dot or comma that may be the sentence's; empty:
    digits of a whole number."""


def writing(text: str, begin: int, end: int) -> str:
    """The number that `text[begin:end]` ends with, or the beginning of one, with its signs; empty: none."""
    if text[end - 1 : end] not in _CHARACTERS:
        return ""
    first = max(begin, end - MAX_WRITING)
    start = first + len(text[first:end].rstrip(_RUN))
    match = _WRITING.search(text, max(first, start - 3), end)
    return match[0] if match else ""


def undecided(text: str, end: int) -> int:
    """Where the last number of `text[:end]` begins, or its last part, if it may go on; otherwise the end."""
    first = max(0, end - 3 * MAX_WRITING)
    return first + len(text[first:end].rstrip(_RUN))


def written(text: str, match: re.Match[str]) -> Iterator[str]:
    """The numbers, with their signs, that a match of `WRITTEN` holds: of ``1,2,3`` three."""
    before = _BEFORE.search(text, max(0, match.start() - 4), match.start())
    assert before is not None
    run = "." * before[0].endswith(".") + _COMMA.sub(",", match[0])
    sign = "-" if before["sign"] or before["late"] else ""
    for start, end in number_spans(run).items():
        yield sign + run[start:end]
        sign = ""


def is_value(value: Exact, number: str) -> bool:
    """Whether a written number is the value."""
    number = number.replace(",", "")
    places = len(number.partition(".")[2])
    if places > _PLACES or (not places and value.ends != 0):
        return False
    return Decimal(value.rounded(places)) == Decimal(number)


@lru_cache(maxsize=4096)  # most tokens write no number, and have the same
def pending_digits(value: Exact, currency: str, beginning: str, count: int) -> tuple[PendingDigit, ...]:
    """The next characters of a value; fewer than `count` where the end is among them, none within another number.

    Args:
        value: The number.
        currency: The sign of an amount of money.
        beginning: What is written of a number, as `writing` has it.
        count: How many characters.
    """
    match = _WRITING.match(beginning)
    number = match["number"] if match else ""
    signed = bool(match and (match["sign"] or match["late"]))
    if signed == value.negative or not (signed or number):
        minus = [PendingDigit("-")] if value.negative and not signed else []
        rest = _rest(value, currency, number, count)
        if rest is not None:
            return (*minus, *rest)[:count]
        ended = re.sub(r"(?:,\\!?|[.,]|\{,?)\Z", "", number)  # the number, if the separator behind it is the sentence's
        whole = _COMMA.sub(",", ended)
        if number_spans(whole) == {0: len(whole)} and is_value(value, "-" * signed + whole):
            end = PendingDigit(END, behind="fraction" if ended == number else "separator")
            return () if number.endswith(".") and "." in whole else (end,)
    return () if number else pending_digits(value, currency, "", count)


def _rest(value: Exact, currency: str, number: str, count: int) -> list[PendingDigit] | None:
    """What follows the beginning of a number, without its sign; None if it is no beginning."""
    places = min(len(number) + count, _PLACES)
    ends = value.ends is not None and value.ends <= places
    if ends:
        places = value.ends or 0
    forms = [(f"{value.whole}.{value.fraction(places)}".removesuffix("."), ends, value.ends is None)]
    if currency and value.ends != 0:
        forms.insert(0, (value.rounded(2).removeprefix("-"), True, False))
    for form, ends, endless in forms:
        whole, point, fraction = form.partition(".")
        groups = f"{int(whole):,}"
        wholes = [
            whole,
            *(groups.replace(",", comma) for comma in (",", "{,}", r",\!")),
            *([""] if point and whole == "0" else []),
        ]
        for candidate in wholes:
            candidate += point + fraction
            if candidate.startswith(number):
                left = len(re.sub(r"[{,}\\!]", "", candidate[len(number) :]))
                places_of = range(len(form) - left, len(form))[:count]
                found = [PendingDigit(form[i], *_marks(value, form, i, len(whole), endless)) for i in places_of]
                return found + [PendingDigit(END, behind="fraction" if fraction else "")] * ends
    return None


def _marks(value: Exact, form: str, index: int, point: int, endless: bool) -> tuple[str, bool]:
    """`last` and `endless` of a character of a decimal form, whose point stands at `point`."""
    if index < point - 1 or index == point:
        return "", False
    rounded = value.rounded(max(0, index - point)).removeprefix("-")
    fits = len(rounded) == index + 1 and rounded[:index] == form[:index]
    return rounded[index] if fits else "", endless and index > point
