from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.values.durations import Durations
from tests.properties import examples

MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November"]
MONTHS += ["December"]
dates = st.dates().map(lambda day: np.datetime64(day, "D"))


def written_date(day: np.datetime64, form: int) -> str:
    year, month, number = (int(part) for part in str(day).split("-"))
    name = MONTHS[month - 1]
    return [
        f"{number} {name} {year:04}",
        f"{name} {number}, {year:04}",
        str(day),
        f"{number}th of {name[:3]} {year:04}",
    ][form]


def value(text: str) -> Fraction | None:
    known = Durations().known("\0Hello. " + text)
    if known is None:
        return None
    assert ("\0Hello. " + text)[known.start :].startswith(known.text)
    return known.value.rational


@examples(200)
@given(dates, dates, st.integers(0, 3), st.integers(0, 3))
def test_days_between_dates(first: np.datetime64, last: np.datetime64, form: int, other: int) -> None:
    days = int((last - first).astype(int))
    begin, end = written_date(first, form), written_date(last, other)
    expected = days if days >= 0 else None
    assert value(f"How many days are there between {begin} and {end}?") == expected
    assert value(f"What is the number of days from {begin} until {end}") == expected
    assert value(f"How many weeks lie between {begin} and {end}?") == (
        days // 7 if days >= 0 and days % 7 == 0 else None
    )


@examples(100)
@given(st.integers(0, 5000), st.integers(0, 59), st.decimals(0, 60, places=2))
def test_durations_in_another_unit(hours: int, minutes: int, seconds: object) -> None:
    total = hours * 3600 + minutes * 60 + Fraction(str(seconds))
    assert value(f"how many minutes are {hours} h {minutes} min {seconds} s") == total / 60
    assert value(f"How many days are in {hours:,} hours, {minutes} minutes and {seconds} seconds?") == total / 86400
    assert value(f"Convert {hours}h {minutes}min {seconds}s to seconds.") == total


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("How many days are there between 3 March 2024 and 1 May 2024?", 59),
        ("How many days are there between 3 March and 1 May 2024?", 59),
        ("How many days are there between 28 February and 1 March 2023?", 1),
        ("how many minutes are 3 h 20 min", 200),
        ("How many weeks are there in 10 days?", Fraction(10, 7)),
        ("What is 2.5 hours in minutes?", 150),
        ("How many days are there between 03/01/2024 and 05/01/2024?", None),
        ("How many days are there between 3 March and 1 May?", None),
        ("How many days are there between 30 February 2024 and 1 May 2024?", None),
        ("How many days are there between 3 March 2024 and 1 May 2024 inclusive?", None),
        ("How many days are there from 3 March 2024 through 1 May 2024?", None),
        ("How many days are 2 months?", None),
        ("how many minutes are 20 min 3 h", None),
        ("how many minutes are 3 h and a half?", None),
        ("There are many days between 3 March 2024 and 1 May 2024", None),
    ],
)
def test_examples(text: str, expected: int | Fraction | None) -> None:
    assert value(text) == expected
