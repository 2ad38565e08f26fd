from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader.exact import MAX_WHOLE, PI, SURE_PLACES, Exact

of = Exact.of


def sqrt(value: int) -> Exact:
    return of(value).root(2)


rationals = st.fractions(max_denominator=10**6) | st.integers(-(10**40), 10**40).map(Fraction)
places = st.integers(0, 30)


@given(rationals, places)
def test_digits_are_those_of_long_division(value: Fraction, places: int) -> None:
    exact = of(value)
    assert exact.rational == value and exact.negative == (value < 0)
    written = Fraction(int(exact.whole + exact.fraction(places)), 10**places)
    assert 0 <= abs(value) - written < Fraction(1, 10**places)
    assert len(exact.fraction(places)) == places
    assert exact.fraction(places) == exact.fraction(places + 5)[:places]


@given(rationals, places)
def test_rounding_is_half_away_from_zero(value: Fraction, places: int) -> None:
    rounded = of(value).rounded(places)
    with localcontext(prec=200):
        expected = (Decimal(value.numerator) / value.denominator).quantize(Decimal(1).scaleb(-places), "ROUND_HALF_UP")
    assert rounded == format(expected or abs(expected), "f")


@given(rationals)
def test_where_a_number_ends(value: Fraction) -> None:
    ends = of(value).ends
    if ends is None:
        assert any(value.denominator % p == 0 for p in sympy.primefactors(value.denominator) if p not in (2, 5))
    else:
        assert (value * 10**ends).denominator == 1
        assert not ends or (value * 10 ** (ends - 1)).denominator != 1


@given(rationals, rationals)
def test_arithmetic_is_that_of_fractions(a: Fraction, b: Fraction) -> None:
    x, y = of(a), of(b)
    assert [(x + y).rational, (x - y).rational, (x * y).rational, (-x).rational] == [a + b, a - b, a * b, -a]
    if b:
        assert (x / y).rational == a / b
    assert (x == y) == (a == b) and (a != b or hash(x) == hash(y))


@pytest.mark.parametrize(
    ("exact", "value"),
    [
        (sqrt(16), 4), (of(Fraction(9, 4)).root(2), Fraction(3, 2)), ((of(2) * sqrt(3)) ** of(2), 12),
        (sqrt(12) * sqrt(3), 6), (sqrt(8) / sqrt(2), 2), (of(-8).root(3), -2), (of(8) ** of(Fraction(2, 3)), 4),
        (of(Fraction(1, 4)) ** of(Fraction(-1, 2)), 2), (PI * of(4) / PI, 4), ((PI / of(6)).sin(), Fraction(1, 2)),
        ((PI * of(Fraction(-7, 3))).cos(), Fraction(1, 2)), ((PI * of(Fraction(3, 4))).tan(), -1),
        (of(Fraction(1, 27)).log(9), Fraction(-3, 2)), (of(6).log(36), Fraction(1, 2)),
    ],
)  # fmt: skip
def test_reals_that_come_out_rational(exact: Exact, value: Fraction | int) -> None:
    assert exact.decided().rational == value


@pytest.mark.parametrize(
    ("exact", "value"),
    [
        (sqrt(2), sympy.sqrt(2)), (-sqrt(2) / of(3), -sympy.sqrt(2) / 3),
        (of(Fraction(2, 3)).root(5), sympy.Rational(2, 3) ** sympy.Rational(1, 5)),
        (of(1) / (sqrt(2) + sqrt(3)), 1 / (sympy.sqrt(2) + sympy.sqrt(3))), (of(2) ** sqrt(2), 2 ** sympy.sqrt(2)),
        (PI * of(10**40), sympy.pi * 10**40), (of(Fraction(1, 3)).exp(), sympy.exp(sympy.Rational(1, 3))),
        (of(5).ln() * of(7).ln(), sympy.log(5) * sympy.log(7)), ((PI / of(5)).sin(), sympy.sin(sympy.pi / 5)),
        ((PI * of(Fraction(8, 7))).cos(), sympy.cos(sympy.pi * 8 / 7)), (PI.log(3), sympy.log(sympy.pi) / sympy.log(3)),
    ],
)  # fmt: skip
def test_digits_of_reals(exact: Exact, value: sympy.Expr) -> None:
    near = Fraction(str(value.evalf(400)))
    assert exact.decided().rational is None and exact.ends is None and exact.negative == (near < 0)
    for places in (0, 1, 30, 3 * SURE_PLACES):
        written = Fraction(int(exact.whole + exact.fraction(places)), 10**places)
        assert 0 < abs(near) - written < Fraction(1, 10**places)
        assert abs(Fraction(exact.rounded(places)) - near) < Fraction(1, 2 * 10**places)


@pytest.mark.parametrize(
    "make",
    [
        lambda: of(1) / of(0), lambda: of(1) / (sqrt(2) - sqrt(2)), lambda: of(-2).root(2),
        lambda: of(-8) ** of(Fraction(1, 3)), lambda: of(0) ** of(0), lambda: of(-1).ln(), lambda: (PI / of(2)).tan(),
        lambda: ((PI * PI).ln() - of(2) * PI.ln()).decided(), lambda: (sqrt(7) - sqrt(7)).decided(),
        lambda: of(10**MAX_WHOLE).decided(), lambda: of(Decimal("1e999999999")), lambda: of(9) ** of(9) ** of(9),
        lambda: of(1000).exp().exp().exp(),
    ],
)  # fmt: skip
def test_what_does_not_exist_or_is_undecided_or_too_large_is_no_number(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ArithmeticError):
        make()
