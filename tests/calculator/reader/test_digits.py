"""Numbers as texts write them, against a second reader."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader import Exact
from ani.calculator.reader.digits import is_value, writing
from tests.calculator.reader import oracle
from tests.properties import examples

values = st.one_of(
    st.integers(-(10**8), 10**8).map(Fraction),
    st.fractions(-200, 200, max_denominator=40),
    st.builds(Fraction, st.integers(-(10**7), 10**7), st.sampled_from([8, 100, 1000, 3000, 7])),
    st.sampled_from([Fraction(0), Fraction(1999, 1000), Fraction(999, 1000), Fraction(2, 3), Fraction(-1, 8)]),
)


@st.composite
def beginnings(draw: st.DrawFn) -> str:
    """The beginning of a written number, often spoilt at one character."""
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
    return text


@examples(500)
@given(beginnings())
def test_what_is_being_written(text: str) -> None:
    assert writing(text, 0, len(text)) == oracle.being_written(text, 0)


@examples(300)
@given(values, st.integers(0, 6), st.sampled_from([-1, 0, 0, 0, 1]))
def test_what_is_the_value(value: Fraction, places: int, units: int) -> None:
    near = oracle.rounded(value, places) + Fraction(units, 10**places)
    digits, _ = oracle.expansion(near, places)
    whole, _, fraction = digits.partition(".")
    number = "-" * (near < 0) + (f"{int(whole):,}.{fraction.ljust(places, '0')}" if places else whole)
    assert is_value(Exact.of(value), number) == oracle.right(value, number)


def test_roundings_of_a_real_are_its_value() -> None:
    root = Exact.of(2).root(2)
    assert is_value(root, "1.414") and is_value(root, "1.41421356") and not is_value(root, "1.415")
    assert not is_value(root, "1") and not is_value(root, "1.4142136" + "0" * 200)
