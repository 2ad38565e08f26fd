"""Spellings of values: which characters may come next, and where a number may end."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader import Exact
from ani.calculator.reader.digits import is_value
from ani.calculator.reader.pending import Pending
from ani.calculator.reader.spelling import Spelling
from tests.properties import examples

values = st.one_of(
    st.integers(-(10**8), 10**8).map(Fraction),
    st.fractions(-200, 200, max_denominator=40),
    st.sampled_from([Fraction(0), Fraction(2, 3), Fraction(-1, 8), Fraction(1, 3 * 10**7), Fraction(999, 1000)]),
)


def spelled(value: Fraction, currency: str, written: str = "", text: str = "") -> Spelling:
    return Pending("arithmetic", Exact.of(value), written, currency).spelling(text)


@examples(200)
@given(values, st.sampled_from(["", "$"]), st.sampled_from(["3 + 4", "3,000 + 4", "1.50 + 4"]), st.data())
def test_whatever_is_chosen_is_the_value(value: Fraction, currency: str, written: str, data: st.DataObject) -> None:
    """Choices among the offered texts always end, and the number is the value or its rounding."""
    spelling = spelled(value, currency, written)
    for _ in range(60):
        following = spelling.next(3)
        assert following is not None
        texts = sorted({whole + digits for whole in following.whole for digits in following.digits})
        if following.may_end and (not texts or data.draw(st.booleans())):
            break
        spelling = spelling._replace(text=spelling.text + data.draw(st.sampled_from(texts)))
    else:
        raise AssertionError(spelling)
    number = re.sub(r"[^-0-9.]", "", spelling.text).rstrip(".")
    if currency:
        assert abs(Fraction(number) - value) <= Fraction(1, 2 * 10 ** len(number.partition(".")[2]))
    else:
        assert is_value(Exact.of(value), number), spelling
    assert "," not in spelling.text or written == "3,000 + 4"


@pytest.mark.parametrize(
    ("value", "currency", "text", "digits", "may_end"),
    [
        ("7", "", "", {"7"}, False),
        ("7", "", " **7", set(), True),
        ("7", "", "7.", set(), True),
        ("7", "", "8", None, None),
        ("16", "", "$16", {".", ".0"}, True),
        ("16", "$", "16.", {"0", "00"}, True),
        ("-4288", "", " $-$", None, None),  # the second sign would end TeX's mathematics
        ("10/3", "", "3.", {"3", "33"}, False),
        ("10/3", "", "3.33", {"3", "33"}, True),
        ("2/3", "", "0.6", {"6", "7", "66", "67"}, False),
        ("2/3", "", "0.67", set(), True),
        ("2/3", "", "0.666666666666", {"7", "67"}, False),
        ("2/3", "", "0.666666666667", set(), True),
        ("27/37", "", "0.729729729729", {"7", "73"}, False),  # rounded here, it would end in 30
        ("1.5675", "$", "1.56", {"7", "75"}, False),
        ("7.5", "$", "7.5", {"0"}, False),
        ("7.5", "", "7.5", set(), True),
    ],
)
def test_what_comes_next(value: str, currency: str, text: str, digits: set[str] | None, may_end: bool | None) -> None:
    following = spelled(Fraction(value), currency, text=text).next(2)
    assert (following and (set(following.digits), following.may_end)) == (None if digits is None else (digits, may_end))


@pytest.mark.parametrize(
    ("value", "currency", "text", "digits", "may_end"),
    [
        ("7", "", "7", {".", ".0"}, True),
        ("7", "", "7.", {"0", "00"}, True),
        ("7.5", "", "7.5", {"0"}, True),
        ("7.5", "$", "7.5", {"0"}, False),
        ("7.25", "", "7.25", set(), True),
        ("7.125", "", "7.12", {"5"}, False),
        ("7.125", "", "7.125", set(), True),
        ("10/3", "", "3.33", {"3", "33"}, True),
    ],
)
def test_where_a_calculation_contains_decimals_zeros_may_fill_two_places(
    value: str, currency: str, text: str, digits: set[str], may_end: bool
) -> None:
    following = spelled(Fraction(value), currency, "1.50 + 2.50", text).next(2)
    assert following and (set(following.digits), following.may_end) == (digits, may_end)
