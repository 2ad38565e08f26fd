r"""The ways in which a value may be written, character by character.

A value's spelling is an *opening* and a *number*.

Opening
    What may come between the text and the first digit: a blank, bold type, TeX's mathematics, a currency sign, and the
    minus sign. A writer leaves all of it to the model.
Number
    The digits of the exact decimal form. A value of which a text says how it is rounded ("to two decimals") has so
    many places. An amount of money is rounded to cents. Zeros at the end may be left off (``$16.00``). Where the
    calculation contains decimals, zeros may fill two places (``1.00 + 2.00 = 3.00``). Thousands have commas where the
    calculation is written so, or where the number already has one.
Endless numbers
    Where the digits go on for ever, each place after the point may have the digit or its rounding (half away from
    zero), and the model chooses where the number ends: from the second place on, at any place at which it is rounded
    correctly. So ``3.33`` and ``0.667`` may be written, and ``0.66`` only as a beginning of ``0.667``. At the
    first of them from `MAX_PLACES` places on it has to end.
End
    After the last digit comes neither a digit nor an exponent, and no digit after a full stop or comma that follows the
    last digit directly; and no operator, with which ``3 + 4 = 7 * 2`` would be false, and none of TeX (``\times``).
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from ani.calculator.reader.digits import is_value
from ani.calculator.reader.exact import SURE_PLACES, Exact

MAX_PLACES = 12
"""Places of an endless number at most, from its first digit other than 0 on."""

MIN_PLACES = 2
"""Places after the point of an endless number at least: a model that has the choice often ends after the first one."""

_BLANKS = ("", " ")
_BOLD = ("", "**")
_MATH = ("\\(", "\\( ", "\\[", "\\[ ", "$", "$$", "\\boxed{", "$\\boxed{", "\\(\\boxed{")
_CURRENCIES = ("", "\\$", "$", "€", "£", "¥", "₹")
_COMMAS = (",", "{,}", ",\\!")
_COMMAS_OF = re.compile(r"\{,\}|,\\!|,")
_NUMBER = re.compile(r"[0-9.]")
_AFTER = re.compile(r"(?:[.,]| ?\\)\Z")
"""Matches what follows a number and may belong to it: a full stop or comma, or the backslash of an operator."""
GROUPED = re.compile(r"[0-9],[0-9]{3}(?![0-9])")
"""Matches in a calculation whose result may have commas."""
DECIMALS = re.compile(r"\.[0-9]")
"""Matches in a calculation whose result may be filled with zeros."""


def _openings(signs: tuple[str, ...]) -> frozenset[str]:
    in_math = [*product(_BLANKS, _BOLD, _MATH, signs, _CURRENCIES[:2])]  # there a dollar sign ends it
    parts = [*product(_BLANKS, _BOLD, ("",), signs, _CURRENCIES), *in_math]
    orders = ((*front, *pair) for *front, sign, currency in parts for pair in ((sign, currency), (currency, sign)))
    return frozenset(map("".join, orders))


def _beginnings(texts: frozenset[str]) -> frozenset[str]:
    return frozenset(text[:end] for text in texts for end in range(len(text) + 1))


OPENINGS = {False: _openings(("",)), True: _openings(("-",))}
"""Whole openings, by whether the number is negative."""
_BEGUN = {negative: _beginnings(texts) for negative, texts in OPENINGS.items()}
PIECES = frozenset(text[start:] for texts in _BEGUN.values() for text in texts for start in range(len(text) + 1))
"""All parts of openings, the empty one included."""


def opening_at(text: str, negative: bool) -> str:
    """The longest whole opening with which a text ends, with or without the sign; a line break counts as a blank."""
    text = text[-16:]
    if text[-1:].isspace():
        text = text[:-1] + " "
    whole = OPENINGS[False] | OPENINGS[negative]
    return next(text[start:] for start in range(len(text) + 1) if text[start:] in whole)


class Next(NamedTuple):
    """Texts that may follow the beginning of a spelling."""

    openings: frozenset[str] = frozenset()
    """Texts that go on with the opening."""
    whole: frozenset[str] = frozenset({""})
    """Texts that complete the opening, so that digits may follow; only "" if there is a digit."""
    digits: frozenset[str] = frozenset()
    """Texts that go on with the number."""
    may_end: bool = False
    """True if the number may end here."""


class Spelling(NamedTuple):
    """The beginning of a value's spelling.

    Args:
        value: The number.
        money: Whether it is an amount of money.
        grouped: Whether its thousands may have commas.
        places: Places after the point to which it is rounded, at least 1. None: the exact value, or as many places as
            the model writes.
        text: What is written of it.
        filled: Whether zeros may fill two places.
    """

    value: Exact
    money: bool
    grouped: bool
    places: int | None = None
    text: str = ""
    filled: bool = False

    @property
    def negative(self) -> bool:
        """True if the number has a minus sign."""
        return self.value.negative if self.places is None else self.value.rounded(self.places)[0] == "-"

    def next(self, count: int) -> Next | None:
        """Return the texts of at most `count` characters that may follow; None if `text` doesn't begin the value."""
        first = _NUMBER.search(self.text)
        opening, number = (self.text[: first.start()], self.text[first.start() :]) if first else (self.text, "")
        if opening not in (OPENINGS if first else _BEGUN)[self.negative]:
            return None
        money = self.money or (self.value.ends == 0 and opening.rstrip("-").endswith(_CURRENCIES[1:]))
        found = continuation(self.value, money, self.grouped, self.filled, self.places, number, count)
        if first or found is None:
            return found
        openings, whole = _further(opening, self.negative)
        return found._replace(openings=openings, whole=whole)


@lru_cache(maxsize=1024)
def _further(opening: str, negative: bool) -> tuple[frozenset[str], frozenset[str]]:
    """The texts that go on with the beginning of an opening, and those that complete it."""
    begun, whole = _BEGUN[negative], OPENINGS[negative]
    starts = [text[len(opening) :] for text in begun if text.startswith(opening)]
    return frozenset(starts) - {""}, frozenset(text for text in starts if opening + text in whole)


@lru_cache(maxsize=4096)
def continuation(
    value: Exact, money: bool, grouped: bool, filled: bool, places: int | None, number: str, count: int
) -> Next | None:
    """Return the texts that may follow the beginning of a number.

    Args:
        value: The number.
        money: Whether it is written to cents.
        grouped: Whether its thousands may have commas.
        filled: Whether zeros may fill two places.
        places: As in `Spelling`.
        number: What is written of it, without sign and opening.
        count: Characters of a text at most.

    Returns:
        Texts of 1 to `count` characters; None if `number` is not a beginning of the value.
    """
    for form, optional, endless in _forms(value, money, filled, places, len(number) + count):
        found = [each for each in _written(form, number, grouped) if each.startswith(number)]
        if not found:
            continue
        may_end = any(len(number) >= len(each) - optional for each in found)
        may_end = _is_rounded(value, number) if endless else may_end
        if endless and may_end and _significant(number) >= MAX_PLACES:
            return Next(may_end=True)
        texts = {each[len(number) : end] for each in found for end in range(len(number) + 1, len(each) + 1)}
        if endless:
            texts |= {text for each in found for text in _roundings(value, each, len(number))}
            # The last place is rounded; where that would change a digit before it, digits go on.
            last = {text for text in texts if _significant(number + text) >= MAX_PLACES}
            rounded = {text for text in last if _is_rounded(value, number + text)} or last
            texts = {text for text in texts if _significant(number + text) < MAX_PLACES} | rounded
        return Next(digits=frozenset(text for text in texts if len(text) <= count), may_end=may_end)
    if value.ends is None and _is_rounded(value, number):
        return Next(may_end=True)
    if after := _AFTER.search(number):
        before = continuation(value, money, grouped, filled, places, number[: after.start()], count)
        return Next(may_end=True) if before and before.may_end else None
    return None


def _forms(value: Exact, money: bool, filled: bool, places: int | None, length: int) -> Iterator[tuple[str, int, bool]]:
    """The decimal forms of a number without its sign, the preferred one first; how many characters at the end may be
    left off; whether they go on for ever."""
    if places is not None or value.ends == 0 or (filled and value.ends in (1, 2)):
        form = value.rounded(2 * (money or filled) if places is None else places).removeprefix("-")
        cents = money and places is None and value.ends == 1  # $7.50 keeps its zero
        zeros = "." in form and value.ends is not None and value.ends <= (places or 2) and not cents
        yield form, len(form) - len(form.rstrip("0").rstrip(".")) if zeros else 0, False
        return
    if money and (rounded := value.rounded(2).removeprefix("-")).strip("0."):
        yield rounded, 0, False
    places = min(length, SURE_PLACES - 2) if value.ends is None else value.ends
    yield f"{value.whole}.{value.fraction(places)}", 0, value.ends is None


def _written(form: str, number: str, grouped: bool) -> Iterator[str]:
    """A decimal form without commas, and with those that are allowed, or that the number has."""
    whole, point, fraction = form.partition(".")
    yield form
    for comma in _COMMAS:
        if comma[0] in number or (grouped and comma == ","):
            yield f"{int(whole):,}".replace(",", comma) + point + fraction
    if whole == "0" and number.startswith("."):
        yield point + fraction


def _roundings(value: Exact, form: str, begin: int) -> Iterator[str]:
    """The texts after `form[:begin]` that end in a rounding, at each place after the point."""
    point = form.index(".")
    for index in range(max(begin, point + MIN_PLACES), len(form)):
        rounded = value.rounded(index - point).removeprefix("-")
        digits = _COMMAS_OF.sub("", form[:index])
        if rounded[:-1] in (digits, f"0{digits}"):
            yield form[begin:index] + rounded[-1]


def _is_rounded(value: Exact, number: str) -> bool:
    """Return whether a number is the value rounded to `MIN_PLACES` places or more, and not only zeros."""
    plain = _COMMAS_OF.sub("", number)
    decimal = re.fullmatch(rf"[0-9]*\.[0-9]{{{MIN_PLACES},}}", plain) is not None and plain.strip("0.") != ""
    return decimal and is_value(value, "-" * value.negative + plain)


def _significant(number: str) -> int:
    """Return the number of places after the point, counted from the first digit other than 0."""
    whole, _, fraction = number.partition(".")
    return len(fraction if whole.strip("0") else fraction.lstrip("0"))
