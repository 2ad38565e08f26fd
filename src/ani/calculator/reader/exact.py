"""Exact arithmetic: rationals, and reals whose digits are known to any place.

A real is a computation on balls (FLINT's ``arb``), which bound every error; precision rises until a digit is certain.
Where a real is rational without our knowing it (``ln π² − 2 ln π``), no precision decides. Such a number, one that does
not exist (``1 / 0``, ``√−2``), and one that is out of bounds raise `ArithmeticError`. Roots of rationals and rational
multiples of π are recognised, so that ``(2√3)² = 12``, ``√8 / √2 = 2`` and ``sin 30° = 1/2`` are rational.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from flint import arb, ctx, fmpq, fmpz

MAX_BITS = 1000
"""Bits of every numerator and denominator at most."""
MAX_DEGREE = 12
"""Degree of a root at most."""
MAX_WHOLE = 100
"""Digits before the point at most."""
SURE_PLACES = 100
"""Digits after the point that every number is known to have when it is made."""

_SURE_BITS = 64 + 4 * (MAX_WHOLE + SURE_PLACES)
_COS_SQUARES = {Fraction(t, 12): Fraction(square, 4) for t, square in {0: 4, 2: 3, 3: 2, 4: 1, 6: 0}.items()}
"""cos² tπ by t."""


class Radical(NamedTuple):
    """sign · ᵈ√radicand."""

    sign: int
    radicand: Fraction
    """Above 0."""
    degree: int


class Exact:
    """An exact number, immutable. Rationals are equal if their values are, reals if their first digits are.

    Args:
        rational: The value; None: it is a real.
        ball: Computes a ball that contains a real, at the precision of FLINT's context.
        in_pi: The value over π, where that is known to be rational.
        radical: The value as a root, where it is one.
    """

    __slots__ = ("_ball", "_sure", "in_pi", "radical", "rational")

    def __init__(
        self,
        rational: Fraction | None,
        ball: Callable[[], arb] | None = None,
        in_pi: Fraction | None = None,
        radical: Radical | None = None,
    ) -> None:
        self.rational, self.in_pi, self.radical, self._ball = rational, in_pi, radical, ball
        self._sure: arb | None = None
        for number in (rational, in_pi, radical and radical.radicand):
            if number and max(number.numerator.bit_length(), number.denominator.bit_length()) > MAX_BITS:
                raise ArithmeticError("out of bounds")

    @staticmethod
    def of(value: int | Fraction | Decimal) -> "Exact":
        """A rational number; raises ArithmeticError if it is out of bounds."""
        if isinstance(value, Decimal) and abs(value.adjusted()) > MAX_BITS:
            raise ArithmeticError("out of bounds")
        return Exact(Fraction(value), in_pi=None if value else Fraction(0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exact) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Exact({self.rational})" if self.rational is not None else f"Exact({self.rounded(10)}…)"

    @property
    def _key(self) -> Fraction | str:
        return self.rounded(SURE_PLACES // 2) if self.rational is None else self.rational

    @property
    def negative(self) -> bool:
        """True if the number is below 0."""
        return self.rational < 0 if self.rational is not None else bool(self._computed(_SURE_BITS) < 0)

    @property
    def whole(self) -> str:
        """The digits before the point, without a sign; "0" if there are none."""
        return self._digits(0)

    def fraction(self, places: int) -> str:
        """The first `places` digits after the point, the rest cut off.

        Raises:
            ArithmeticError: More than `SURE_PLACES` digits of a real, and precision does not decide them.
        """
        return self._digits(places).zfill(places + 1)[-places:] if places else ""

    @property
    def ends(self) -> int | None:
        """The number of digits after the point; None if there is no last one."""
        if self.rational is None:
            return None
        rest, places = self.rational.denominator, [0, 0]
        for i, prime in enumerate((2, 5)):
            while rest % prime == 0:
                rest //= prime
                places[i] += 1
        return max(places) if rest == 1 else None

    def rounded(self, places: int) -> str:
        """The decimal form, rounded to `places` digits after the point, half away from zero; no sign before a zero. A
        negative number of places rounds to tens, hundreds, and so on."""
        if places < 0:
            return str(int((self / Exact.of(10**-places)).rounded(0)) * 10**-places)
        digits = str((int(self._digits(places + 1)) + 5) // 10).zfill(places + 1)
        whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :]
        sign = "-" if self.negative and digits.strip("0") else ""
        return f"{sign}{whole}.{fraction}" if places else sign + whole

    def _digits(self, places: int) -> str:
        """The digits up to a place after the point, without point, sign, and zeros before them."""
        if self.rational is not None:
            return str(abs(self.rational.numerator) * 10**places // self.rational.denominator)
        for bits in (max(_SURE_BITS, 64 + 4 * (MAX_WHOLE + places)), 8 * (_SURE_BITS + places)):
            with ctx.workprec(bits):
                floor = (abs(self._computed(bits)) * 10**places).floor().unique_fmpz()
            if floor is not None:
                return str(floor)
        raise ArithmeticError("the digits can't be decided")

    def ball(self) -> arb:
        """A ball that contains the number, at the precision of FLINT's context."""
        if self._ball is None:
            assert self.rational is not None
            return arb(fmpq(self.rational.numerator, self.rational.denominator))
        return self._ball()

    def _computed(self, bits: int) -> arb:
        if bits == _SURE_BITS and self._sure is not None:
            return self._sure
        with ctx.workprec(bits):
            found = self.ball()
        if bits == _SURE_BITS:
            self._sure = found
        return found

    def decided(self) -> "Exact":
        """The number itself, if its sign, size and digits are certain; raises ArithmeticError otherwise."""
        if self.rational is None:
            if not bool(0 < abs(self._computed(_SURE_BITS)) < arb(10) ** MAX_WHOLE):
                raise ArithmeticError("out of bounds, or undecided")
            self._digits(SURE_PLACES)
        elif abs(self.rational) >= 10**MAX_WHOLE:
            raise ArithmeticError("out of bounds")
        return self

    def _as_radical(self, degree: int) -> Radical | None:
        if self.rational:
            bits = max(self.rational.numerator.bit_length(), self.rational.denominator.bit_length())
            small = bits * degree <= MAX_BITS
            return Radical(-1 if self.rational < 0 else 1, abs(self.rational) ** degree, degree) if small else None
        return self.radical if self.radical and self.radical.degree == degree else None

    def __neg__(self) -> "Exact":
        if self.radical is None:
            return self * Exact.of(-1)
        return Exact(None, lambda: -self.ball(), radical=self.radical._replace(sign=-self.radical.sign))

    def __add__(self, other: "Exact") -> "Exact":
        if self.rational is not None and other.rational is not None:
            return Exact.of(self.rational + other.rational)
        turns = None if self.in_pi is None or other.in_pi is None else self.in_pi + other.in_pi
        return Exact.of(0) if turns == 0 else Exact(None, lambda: self.ball() + other.ball(), turns)

    def __sub__(self, other: "Exact") -> "Exact":
        return self + -other

    def __mul__(self, other: "Exact") -> "Exact":
        a, b = self.rational, other.rational
        if 0 in (a, b) or (a is not None and b is not None):
            return Exact.of((a or 0) * (b or 0) if a is not None and b is not None else 0)
        degree = (self.radical or other.radical or Radical(1, Fraction(1), 0)).degree
        first, second = (self._as_radical(degree), other._as_radical(degree)) if degree else (None, None)
        if first and second:
            root = Exact.of(first.radicand * second.radicand).root(degree)
            return root if first.sign == second.sign else -root
        turns = other.in_pi * a if a is not None and other.in_pi is not None else None
        turns = self.in_pi * b if b is not None and self.in_pi is not None else turns
        return Exact(None, lambda: self.ball() * other.ball(), turns)

    def __truediv__(self, other: "Exact") -> "Exact":
        if other.rational is not None:
            return self * Exact.of(1 / other.rational)  # ZeroDivisionError is an ArithmeticError
        if self.in_pi is not None and other.in_pi:
            return Exact.of(self.in_pi / other.in_pi)
        if other.radical:
            sign, radicand, degree = other.radical
            inverse = Exact.of(1 / radicand).root(degree)
            return self * (inverse if sign > 0 else -inverse)
        other.decided()
        return Exact.of(0) if self.rational == 0 else Exact(None, lambda: self.ball() / other.ball())

    def __pow__(self, other: "Exact") -> "Exact":
        """A power; of a negative number only one with a whole exponent, as others are doubtful."""
        exponent, base = other.rational, self.rational
        if base == 0 and (exponent is None or exponent <= 0):
            raise ArithmeticError("0 to the power of 0 or less")
        if exponent is None:
            return (other * self.ln()).exp()
        bits = 1 if base is None else max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(exponent.numerator) * bits > MAX_BITS or exponent.denominator > MAX_BITS:
            raise ArithmeticError("out of bounds")
        if exponent.denominator != 1 and self.decided().negative:
            raise ArithmeticError("a root of a negative number")
        if base is not None:
            return Exact.of(base**exponent.numerator).root(exponent.denominator)
        if self.radical and exponent.denominator == 1:
            sign, radicand, degree = self.radical
            root = (Exact.of(radicand) ** Exact.of(exponent.numerator)).root(degree)
            return root if sign > 0 or exponent.numerator % 2 == 0 else -root
        return Exact(None, lambda: self.ball() ** exponent.numerator).root(exponent.denominator)

    def root(self, degree: int) -> "Exact":
        """The real root of a degree."""
        if degree == 1 or self.rational == 0:
            return self
        if self.decided().negative:
            if degree % 2 == 0:
                raise ArithmeticError("an even root of a negative number")
            return -(-self).root(degree)
        if degree > MAX_DEGREE:
            return (self.ln() / Exact.of(degree)).exp()
        value = self.rational
        if value is None:
            return Exact(None, lambda: self.ball().root(degree)).decided()
        parts = [int(fmpz(part).root(degree)) for part in (value.numerator, value.denominator)]
        if parts[0] ** degree == value.numerator and parts[1] ** degree == value.denominator:
            return Exact.of(Fraction(*parts))
        return Exact(None, lambda: self.ball().root(degree), radical=Radical(1, value, degree))

    def ln(self) -> "Exact":
        """The natural logarithm."""
        if self.rational == 0 or self.decided().negative:
            raise ArithmeticError("a logarithm of 0 or less")
        return Exact.of(0) if self.rational == 1 else Exact(None, lambda: self.ball().log())

    def log(self, base: int) -> "Exact":
        """The logarithm to a base above 1; of a rational power of the base it is rational."""
        value = self.decided().rational
        if value is None or value <= 0 or base < 2:
            return self.ln() / Exact.of(base).ln()
        for degree in range(1, 7):
            power = round(degree * (math.log(value.numerator) - math.log(value.denominator)) / math.log(base))
            if abs(power) < MAX_BITS and value**degree == Fraction(base) ** power:
                return Exact.of(Fraction(power, degree))
        return Exact(None, lambda: self.ball().log() / arb(base).log())

    def exp(self) -> "Exact":
        """e to the power of the number."""
        self.decided()
        return Exact.of(1) if self.rational == 0 else Exact(None, lambda: self.ball().exp()).decided()

    def cos(self) -> "Exact":
        """The cosine of an angle in radians; of a multiple of π/4 or π/6 by roots."""
        if self.in_pi is not None:
            turn = abs((self.in_pi + 1) % 2 - 1)  # 0 to 1 is half a turn
            sign, turn = (-1, 1 - turn) if 2 * turn > 1 else (1, turn)
            if (square := _COS_SQUARES.get(turn)) is not None:
                return Exact.of(square).root(2) * Exact.of(sign)
        self.decided()
        return Exact(None, lambda: self.ball().cos()).decided()

    def sin(self) -> "Exact":
        """The sine of an angle in radians."""
        if self.in_pi is not None:
            return (PI * Exact.of(Fraction(1, 2)) - self).cos()
        self.decided()
        return Exact(None, lambda: self.ball().sin()).decided()

    def tan(self) -> "Exact":
        """The tangent of an angle in radians."""
        return self.sin() / self.cos()


PI = Exact(None, lambda: arb.pi(), Fraction(1))
E = Exact(None, lambda: arb(1).exp())
