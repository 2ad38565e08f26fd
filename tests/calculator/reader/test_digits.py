"""Tests which written numbers count as a value or as its rounding."""

from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader import Exact
from ani.calculator.reader.digits import is_value
from tests.properties import examples

values = st.one_of(
    st.fractions(-200, 200, max_denominator=40),
    st.builds(Fraction, st.integers(-(10**7), 10**7), st.sampled_from([1, 8, 100, 1000, 3000, 7])),
    st.sampled_from([Fraction(0), Fraction(1999, 1000), Fraction(999, 1000), Fraction(2, 3), Fraction(-1, 8)]),
)


@examples(300)
@given(values, st.integers(0, 6), st.sampled_from([-1, 0, 0, 0, 1]))
def test_what_is_the_value(value: Fraction, places: int, units: int) -> None:
    with localcontext(prec=60):
        unit = Decimal(1).scaleb(-places)
        rounded = (Decimal(value.numerator) / value.denominator).quantize(unit, ROUND_HALF_UP)
        near = rounded + units * unit
    right = near == rounded and (places > 0 or value.denominator == 1)
    assert is_value(Exact.of(value), f"{near:,f}") == right


def test_roundings_of_a_real_are_its_value() -> None:
    root = Exact.of(2).root(2)
    assert is_value(root, "1.414") and is_value(root, "1.41421356") and not is_value(root, "1.415")
    assert not is_value(root, "1") and not is_value(root, "1.4142136" + "0" * 200)
