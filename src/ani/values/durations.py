"""Kind `durations`: days between two dates, and durations in another unit, where a question asks for a number.

There is no value where the answer may be another: months and years have no fixed length, weeks between dates may leave
days over, ``03/01/2024`` is two dates (so a date has its month's name, or is written ``2024-03-01``), and ``inclusive``
and ``through`` may ask for one day more. The first of two dates may leave its year to the second.
"""

import re
from datetime import date
from fractions import Fraction

from ani.numbers.grammar import decimal_value
from ani.values.exact import Exact
from ani.values.value import Known, Value, mentions

_MAX_QUESTION = 200
_WORDS = ("how many", "number of", "what is", "convert", "express")  # one of them is in every question
_SECONDS = {
    word: seconds
    for words, seconds in {
        "s sec secs second seconds": 1,
        "min mins minute minutes": 60,
        "h hr hrs hour hours": 3600,
        "day days": 86_400,
        "week weeks": 604_800,
    }.items()
    for word in words.split()
}
_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_UNIT = "|".join(sorted(_SECONDS, key=len, reverse=True))
_PART = rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)(?:\.[0-9]+)?[ -]?(?:{_UNIT})"
_DURATION = rf"{_PART}(?:(?:,? and |,? ){_PART})*"
_PARTS = re.compile(rf"([0-9.,]+)[ -]?({_UNIT})")
_MONTH = (
    r"Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?"
)
_DAY = r"[0-9]{1,2}(?:st|nd|rd|th)?"
_DATE = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}|(?:{_DAY}(?: of)? (?:{_MONTH})|(?:{_MONTH}) {_DAY})(?:,? [0-9]{{4}})?"
_TWO_DATES = re.compile(
    rf"(?:how many|number of) (?P<unit>days|weeks)(?: are| is| were| lie| pass)?(?: there)? "
    rf"(?:between (?P<first>{_DATE}) and|from (?P<from>{_DATE}) (?:to|until|till)) (?P<last>{_DATE})[?.]?\s*\Z",
    re.IGNORECASE,
)
_IN_UNIT = re.compile(
    rf"(?:how many (?P<unit>{_UNIT})(?: are| is)?(?: there)?(?: in)? (?P<duration>{_DURATION})"
    rf"|(?:what is|convert|express) (?P<other>{_DURATION}) (?:in|to|into) (?P<into>{_UNIT}))[?.]?\s*\Z",
    re.IGNORECASE,
)


class Durations(Value):
    """``How many days are there between 3 March 2024 and 1 May 2024?``, ``how many minutes are 3 h 20 min``."""

    name = "durations"

    def known(self, text: str) -> Known | None:
        """The number of days, weeks or other units that a question at the end asks for."""
        first = max(0, len(text) - _MAX_QUESTION)
        if not mentions(text[first:], _WORDS):
            return None
        if match := _TWO_DATES.search(text, first):
            value: Fraction | int | None = _between(
                match["first"] or match["from"], match["last"], match["unit"].lower()
            )
        elif match := _IN_UNIT.search(text, first):
            unit = (match["unit"] or match["into"]).lower()
            value = _in_unit((match["duration"] or match["other"]).lower(), unit)
        else:
            return None
        return None if value is None else Known(Exact.of(value), match[0].strip(), match.start())


def _between(first: str, last: str, unit: str) -> int | None:
    """How many days or weeks lie between two dates; None if the second isn't the later one, or days are left over."""
    end = _date(last, None)
    begin = _date(first, end.year if end else None)
    if begin is None or end is None or begin > end:
        return None
    units, over = divmod((end - begin).days, 7 if unit == "weeks" else 1)
    return None if over else units


def _date(text: str, year: int | None) -> date | None:
    """A written date, in this year if it says none; None if there is no such day."""
    numbers = [int(number) for number in re.findall("[0-9]+", text)]
    try:
        if len(numbers) == 3:
            return date(*numbers)
        name = re.search(_MONTH, text, re.IGNORECASE)
        month = _MONTHS.index(name[0][:3].lower()) // 3 + 1 if name else 0
        day, in_year = numbers if len(numbers) == 2 else (numbers[0], year or 0)
        return date(in_year, month, day)
    except ValueError:
        return None


def _in_unit(duration: str, unit: str) -> Fraction | None:
    """A duration in a unit; None if its parts don't descend, as in ``20 min 3 h``."""
    parts = [(Fraction(decimal_value(number)), _SECONDS[name]) for number, name in _PARTS.findall(duration)]
    sizes = [size for _, size in parts]
    if sizes != sorted(set(sizes), reverse=True):
        return None
    return sum((number * size for number, size in parts), Fraction(0)) / _SECONDS[unit]
