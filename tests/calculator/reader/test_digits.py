"""What is still to be written of a number, against a second reader and by example."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader import Exact
from ani.calculator.reader.digits import is_value, pending_digits, writing
from tests.calculator.reader import oracle
from tests.properties import examples

values = st.one_of(
    st.integers(-(10**8), 10**8).map(Fraction),
    st.fractions(-200, 200, max_denominator=40),
    st.builds(Fraction, st.integers(-(10**7), 10**7), st.sampled_from([8, 100, 1000, 3000, 7])),
    st.sampled_from([Fraction(0), Fraction(1999, 1000), Fraction(999, 1000), Fraction(2, 3), Fraction(-1, 8)]),
)


@st.composite
def beginnings(draw: st.DrawFn) -> tuple[Fraction, str]:
    """A value and the beginning of one of its writings, often spoilt at one character."""
    value = draw(values)
    form = draw(st.sampled_from([oracle.expansion(value, 8)[0], *(f"{float(abs(value)):.{p}f}" for p in (0, 1, 2, 3))]))
    whole, point, fraction = form.partition(".")
    groups = [f"{int(whole):,}".replace(",", comma) for comma in (",", "{,}", r",\!")]
    whole = draw(st.sampled_from([whole, *groups, whole.lstrip("0")]))
    sign = draw(st.sampled_from(["-" if value < 0 else "", "", "-"])) if draw(st.booleans()) else "-" * (value < 0)
    money = draw(st.sampled_from(["", "$"]))
    text = draw(st.sampled_from([sign + money, money + sign])) + whole + point + fraction
    text = text[: draw(st.integers(0, len(text)))]
    if text and draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text) - 1))
        text = text[:at] + draw(st.sampled_from([*r"0123456789.,-${}\!", ""])) + text[at + 1 :]
    return value, text


@examples(500)
@given(beginnings(), st.sampled_from(["", "$"]), st.integers(1, 5))
def test_what_is_still_to_be_written(drawn: tuple[Fraction, str], currency: str, count: int) -> None:
    value, text = drawn
    beginning = writing(text, 0, len(text))
    assert beginning == oracle.being_written(text, 0)
    found = pending_digits(Exact.of(value), currency, beginning, count)
    assert [tuple(digit) for digit in found] == oracle.to_come(value, bool(currency), beginning, count)


@examples(300)
@given(values, st.integers(0, 6), st.sampled_from([-1, 0, 0, 0, 1]))
def test_what_is_the_value(value: Fraction, places: int, units: int) -> None:
    near = oracle.rounded(value, places) + Fraction(units, 10**places)
    digits, _ = oracle.expansion(near, places)
    whole, _, fraction = digits.partition(".")
    number = "-" * (near < 0) + (f"{int(whole):,}.{fraction.ljust(places, '0')}" if places else whole)
    assert is_value(Exact.of(value), number) == oracle.right(value, number)


def to_come(value: Exact, beginning: str = "", currency: str = "", count: int = 4) -> str:
    """Characters, each with the digit it would be if it were the last, where that is another; ``…`` marks an end that
    may follow behind the point, ``|`` is the end."""
    return " ".join(
        (digit.character or "|") + f"({digit.last})" * (digit.last not in ("", digit.character)) + "…" * digit.endless
        for digit in pending_digits(value, currency, beginning, count)
    )


@pytest.mark.parametrize(
    ("value", "beginning", "currency", "expected"),
    [
        (Fraction(10, 3), "", "", "3 . 3… 3…"),
        (Fraction(10, 3), "3.3", "", "3… 3… 3… 3…"),
        (Fraction(2, 3), "0.6", "", "6(7)… 6(7)… 6(7)… 6(7)…"),
        (Fraction(2, 3), "0.67", "", "|"),
        (Fraction(2, 3), ".", "", "6(7)… 6(7)… 6(7)… 6(7)…"),
        (Fraction("1.5675"), "$", "$", "1(2) . 5(6) 7"),  # to cents
        (Fraction("1.5675"), "$1.5", "$", "7 |"),
        (Fraction("1.5675"), "$1.5", "", "6(7) 7(8) 5 |"),
        (Fraction("1.5675"), "1.56", "$", "7(8) 5 |"),
        (Fraction("7.5"), "$7.", "$", "5 0 |"),
        (Fraction(10), "$10", "$", "|"),
        (Fraction(7), "7.0", "", "|"),
        (Fraction(7), "7.", "", "|"),
        (Fraction("0.125"), "0.13.", "", ""),
        (Fraction(7), "8", "", ""),  # within another number
        (Fraction("0.196"), "0.1", "", "9 6 |"),  # no last digit: 0.20 is no 0.1
        (Fraction(-948), "", "", "- 9 4 8"),
        (Fraction(-948), "-", "", "9 4 8 |"),
        (Fraction(-948), "9", "", ""),
        (Fraction(948), "-", "", "9 4 8 |"),
        (Fraction(1234567), "1{,}2", "", "3 4 5 6"),
        (Fraction(1234567), r"1,\!2", "", "3 4 5 6"),
        (Fraction(1234567), "1,\\", "", "2 3 4 5"),
        (Fraction(1234567), "1,", "", "2 3 4 5"),
        (Fraction(1234567), "12,", "", ""),
        (Fraction(12), "12,", "", "|"),
    ],
)
def test_examples(value: Fraction, beginning: str, currency: str, expected: str) -> None:
    assert to_come(Exact.of(value), beginning, currency) == expected


def test_a_real_goes_on_for_ever() -> None:
    root = Exact.of(2).root(2)
    assert to_come(root) == "1 . 4… 1…" and to_come(root, "1.41") == "4… 2… 1… 3(4)…"
    assert is_value(root, "1.414") and is_value(root, "1.41421356") and not is_value(root, "1.415")
    assert not is_value(root, "1") and not is_value(root, "1.4142136" + "0" * 200)
    assert to_come(root, "1.41421356237309504880168872420969807856967187537694" + "8" * 60) == ""


def test_no_digits_are_made_up_beyond_those_that_are_sure() -> None:
    third = "0." + "3" * 97
    assert to_come(Exact.of(Fraction(1, 3)), third) == "3… 3…"
    assert to_come(Exact.of(Fraction(1, 2**200)), "0." + "0" * 60) == "6 2 2 3"
