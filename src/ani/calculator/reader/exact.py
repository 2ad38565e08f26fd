"""Exact arithmetic: rationals, and reals whose digits can be computed to any place.

A number is a sum of terms ``coefficient · factors``. The coefficient is a rational; the factors are roots of integers,
π, e, and what a function makes of another exact number (``ln 3``, ``sin 1``). Sums and products are worked out on the
terms, so that ``(2√3)² = 12``, ``√8 / √2 = 2`` and ``log 40 + log 25 = 3`` are found to be rational and not only
nearly so; of a real's digits, balls of rising precision (FLINT's ``arb``, which bounds every error) decide.

No digit of a real can be had that way where the real is rational without our knowing it: ``ln π² − 2 ln π`` is a
ball around 0 at any precision. Such a number, as one that does not exist (``1 / 0``, ``√−2``), raises
`ArithmeticError` when it is made. So does one that is out of bounds, as no text may cost more than some hundred
microseconds: more than `MAX_BITS` bits in a coefficient, `MAX_TERMS` terms, `MAX_WHOLE` digits before the point.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from flint import arb, ctx, fmpq, fmpz

MAX_BITS = 1000
"""Of every numerator and denominator, and of what stands under a root."""
MAX_DEGREE = 12
"""Of a root that is worked with as such."""
MAX_TERMS = 16
MAX_WHOLE = 100
"""Digits before the point."""
SURE_PLACES = 100
"""Digits behind the point that every number is known to have when it is made."""

_SURE_BITS = 64 + 4 * (MAX_WHOLE + SURE_PLACES)
_PRIMES = [n for n in range(2, 50) if all(n % d for d in range(2, n))]


class Atom(NamedTuple):
    """A root; or a constant of `arb`, or a method of it with the number that it is of and another argument."""

    name: str
    of: "Exact | None" = None
    argument: int = 0
    """Of a root the degree."""

    @property
    def degree(self) -> int:
        """Of a root; 0: it is none."""
        return self.argument if self.name == "root" else 0


Monomial = frozenset[tuple[Atom, int]]
"""Factors and their powers; of a root what stands under it."""
_ONE: Monomial = frozenset()
_E = Atom("const_e")
_PI: Monomial = frozenset({(Atom("pi"), 1)})
_SQUARES = {fmpq(0): 4, fmpq(1, 6): 3, fmpq(1, 4): 2, fmpq(1, 3): 1, fmpq(1, 2): 0}
"""(2 cos tπ)² by t."""


class Exact:
    """An exact number, immutable; equal numbers are equal if they are rational or made of the same terms."""

    __slots__ = ("_hash", "_rational", "_sure", "_terms")
    _rational: fmpq | None
    _terms: dict[Monomial, fmpq]
    _sure: arb | None
    _hash: int | None

    def __init__(self, terms: Mapping[Monomial, fmpq]) -> None:
        """A sum of terms, by their factors."""
        self._terms = {factors: c for factors, c in terms.items() if c}
        self._sure = self._hash = None
        self._rational = None if any(self._terms) else fmpq(terms.get(_ONE, 0))
        if len(self._terms) > MAX_TERMS or any(c.height_bits() > MAX_BITS for c in self._terms.values()):
            raise ArithmeticError("out of bounds")

    @staticmethod
    def of(value: int | Fraction | Decimal) -> "Exact":
        """A rational number; raises ArithmeticError where it is out of bounds."""
        if isinstance(value, Decimal) and abs(value.adjusted()) > MAX_BITS:
            raise ArithmeticError("out of bounds")
        numerator, denominator = value.as_integer_ratio()
        return _exact(fmpq(numerator, denominator))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exact) and self._terms == other._terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._terms.items()))
        return self._hash

    def __repr__(self) -> str:
        return (
            f"Exact({self.rational})" if self._rational is not None else f"Exact({self._ball().str(10, radius=False)}…)"
        )

    # --- its digits ---------------------------------------------------------------------------------------------------

    @property
    def rational(self) -> Fraction | None:
        """The value, where it is rational."""
        value = self._rational
        return None if value is None else Fraction(int(value.numerator), int(value.denominator))

    @property
    def negative(self) -> bool:
        """Whether it lies below 0."""
        value = self._rational
        return bool(value < 0) if value is not None else bool(self._ball() < 0)

    @property
    def whole(self) -> str:
        """The digits before the point, without a sign; "0" if there are none."""
        return self._digits(0)

    def fraction(self, places: int) -> str:
        """The first `places` digits behind the point, the rest cut off.

        Raises:
            ArithmeticError: More than `SURE_PLACES` are asked for of a real, and precision does not decide them.
        """
        return self._digits(places).zfill(places + 1)[-places:] if places else ""

    @property
    def ends(self) -> int | None:
        """The digits behind the point; None if they go on for ever."""
        if self._rational is None:
            return None
        rest, places = int(self._rational.denominator), [0, 0]
        for i, prime in enumerate((2, 5)):
            while rest % prime == 0:
                rest //= prime
                places[i] += 1
        return max(places) if rest == 1 else None

    def rounded(self, places: int) -> str:
        """It, rounded to so many places, half away from zero; no sign before a zero. Raises as `fraction`."""
        digits = str((int(self._digits(places + 1)) + 5) // 10).zfill(places + 1)
        whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :]
        sign = "-" if self.negative and digits.strip("0") else ""
        return f"{sign}{whole}.{fraction}" if places else sign + whole

    def _digits(self, places: int) -> str:
        """The digits up to a place behind the point, without point, sign, and zeros before them."""
        scale, value = 10**places, self._rational
        if value is not None:
            return str(abs(value.numerator) * scale // value.denominator)
        for bits in (max(_SURE_BITS, 64 + 4 * (MAX_WHOLE + places)), 8 * (_SURE_BITS + places)):
            with ctx.workprec(bits):
                floor = (abs(self._ball(bits)) * scale).floor().unique_fmpz()
            if floor is not None:
                return str(floor)
        raise ArithmeticError("its digits can't be decided")

    def _ball(self, bits: int = _SURE_BITS) -> arb:
        """A ball that holds it, worked out with so many bits."""
        if bits == _SURE_BITS and self._sure is not None:
            return self._sure
        with ctx.workprec(bits):
            ball = arb(0)
            for factors, coefficient in self._terms.items():
                term = arb(coefficient)
                for atom, power in factors:
                    if atom.degree:
                        term *= arb(power).root(atom.degree)
                    else:
                        method = getattr(atom.of._ball(bits) if atom.of else arb, atom.name)
                        term *= (method(atom.argument) if atom.argument else method()) ** power
                ball += term
        if bits == _SURE_BITS:
            self._sure = ball
        return ball

    def decided(self) -> "Exact":
        """Itself, if its sign, its size and its digits can be told; raises ArithmeticError otherwise."""
        value = self._rational
        if value is None:
            with ctx.workprec(_SURE_BITS):
                inside = 0 < abs(self._ball()) < arb(10) ** MAX_WHOLE
            if not inside:
                raise ArithmeticError("out of bounds, or undecided")
            self._digits(SURE_PLACES)
        elif abs(value) >= fmpq(10) ** MAX_WHOLE:
            raise ArithmeticError("out of bounds")
        return self

    # --- what is made of it -------------------------------------------------------------------------------------------

    def __neg__(self) -> "Exact":
        return _exact(-self._rational) if self._rational is not None else Exact({f: -c for f, c in self._terms.items()})

    def __add__(self, other: "Exact") -> "Exact":
        if self._rational is not None and other._rational is not None:  # many times faster
            return _exact(self._rational + other._rational)
        return _summed([*self._terms.items(), *other._terms.items()])

    def __sub__(self, other: "Exact") -> "Exact":
        return self + -other

    def __mul__(self, other: "Exact") -> "Exact":
        if self._rational is not None and other._rational is not None:
            return _exact(self._rational * other._rational)
        if len(self._terms) * len(other._terms) > 2 * MAX_TERMS:
            raise ArithmeticError("out of bounds")
        return _summed(
            (factors, ca * cb * c)
            for a, ca in self._terms.items()
            for b, cb in other._terms.items()
            for factors, c in [_product((*a, *b))]
        )

    def __truediv__(self, other: "Exact") -> "Exact":
        return self * other._inverse()

    def __pow__(self, other: "Exact") -> "Exact":
        """A power; of a negative number only one with a whole exponent, as others are doubtful."""
        exponent = other._rational
        if not self._terms and (exponent is None or exponent <= 0):
            raise ArithmeticError("0 to the power of 0 or less")
        if exponent is None:
            return (other * self.ln()).exp()
        base = self._rational
        bits = 1 if base is None else base.height_bits()
        if abs(exponent.numerator) * bits > MAX_BITS or exponent.denominator > MAX_BITS:
            raise ArithmeticError("out of bounds")
        if exponent.denominator != 1 and self.decided().negative:
            raise ArithmeticError("a root of a negative number")
        if base is not None:
            return _exact(base ** int(exponent.numerator)).root(int(exponent.denominator))
        power = self if exponent > 0 else self._inverse()
        result, times = Exact.of(1), abs(int(exponent.numerator))
        while times:
            if times % 2:
                result *= power
            times //= 2
            power = power * power if times else power
        return result.root(int(exponent.denominator))

    def root(self, degree: int) -> "Exact":
        """The real root of a degree."""
        value = self._rational
        if degree == 1 or not self._terms:
            return self
        if self.decided().negative:
            if degree % 2 == 0:
                raise ArithmeticError("an even root of a negative number")
            return -(-self).root(degree)
        if value is None and degree == 2:
            return _applied(self, "sqrt")
        if value is None or degree > MAX_DEGREE:
            return (self.ln() / Exact.of(degree)).exp()
        factors, outside = _product(
            [(Atom("root", None, degree), int(value.numerator * value.denominator ** (degree - 1)))]
        )
        return Exact({factors: outside / value.denominator})

    def ln(self) -> "Exact":
        """The natural logarithm; of a rational by those of its prime factors, so that logarithms meet."""
        if self.decided().negative or not self._terms:
            raise ArithmeticError("a logarithm of 0 or less")
        if self._rational is not None:
            powers = _prime_powers(self._rational)
            return Exact({frozenset({(Atom("log", Exact.of(p)), 1)}): fmpq(power) for p, power in powers.items()})
        (factors, coefficient), *others = self._terms.items()
        (atom, power), *rest = factors or ((_E, 0),)
        if coefficient == 1 and atom == _E and not others and not rest:
            return Exact.of(power)
        return _applied(self, "log")

    def log(self, base: int) -> "Exact":
        """The logarithm to a base above 1; of a rational by those of primes, but the base's last one."""
        value = self.decided()._rational
        if value is None or value <= 0 or base < 2:
            return self.ln() / Exact.of(base).ln()
        powers, (*others, (last, times)) = _prime_powers(value), _prime_powers(fmpq(base)).items()
        share = fmpq(powers.pop(last, 0), times)
        terms = {_ONE: share}
        for prime, power in {**{p: 0 for p, _ in others}, **powers}.items():
            coefficient = power - share * dict(others).get(prime, 0)
            terms[frozenset({(Atom("log_base", Exact.of(prime), base), 1)})] = coefficient
        return Exact(terms)

    def exp(self) -> "Exact":
        """e to the power of it."""
        value = self._rational
        if value is not None and value.denominator == 1 and abs(value) <= MAX_BITS:
            return Exact({frozenset({(_E, int(value.numerator))} if value else ()): fmpq(1)})
        return _applied(self, "exp")

    def cos(self) -> "Exact":
        """The cosine of an angle in radians; of a multiple of π/4 or π/6 by roots."""
        turn = self.in_pi
        if turn is not None:
            turn = abs(turn - 2 * ((turn + 1) / 2).floor())  # 0 to 1 is half a turn
            sign, turn = (-1, 1 - turn) if 2 * turn > 1 else (1, turn)
            if turn in _SQUARES:
                return Exact.of(_SQUARES[turn]).root(2) * Exact.of(Fraction(sign, 2))
        return _applied(self, "cos")

    def sin(self) -> "Exact":
        """The sine of an angle in radians."""
        if self.in_pi is None:
            return _applied(self, "sin")
        return (Exact({_PI: fmpq(1, 2)}) - self).cos()

    def tan(self) -> "Exact":
        """The tangent of an angle in radians."""
        return self.sin() / self.cos()

    @property
    def in_pi(self) -> fmpq | None:
        """How many times π it is, where that is rational."""
        if not self._terms:
            return fmpq(0)
        (factors, coefficient), *others = self._terms.items()
        return coefficient if factors == _PI and not others else None

    def _inverse(self) -> "Exact":
        if not self._terms:
            raise ZeroDivisionError
        if self._rational is not None:
            return _exact(1 / self._rational)
        (factors, coefficient), *others = self._terms.items()
        if others:
            return _applied(self, "__pos__", -1)
        inverse = []
        for atom, power in factors:
            if atom.degree:
                inverse.append((atom, power ** (atom.degree - 1)))
                coefficient *= power
            else:
                inverse.append((atom, -power))
        product, outside = _product(inverse)
        return Exact({product: outside / coefficient})


PI = Exact({_PI: fmpq(1)})
E = Exact({frozenset({(_E, 1)}): fmpq(1)})


@lru_cache(maxsize=64)  # a reader parses one message from several places, and would compute each function again
def _applied(number: Exact, function: str, power: int = 1) -> Exact:
    """A power of what a method of `arb` makes of a number."""
    number.decided()
    return Exact({frozenset({(Atom(function, number), power)}): fmpq(1)}).decided()


def _exact(value: fmpq) -> Exact:
    """A rational, made faster."""
    if value.height_bits() > MAX_BITS:
        raise ArithmeticError("out of bounds")
    made = object.__new__(Exact)
    made._rational, made._sure, made._hash = value, None, None
    made._terms = {_ONE: value} if value else {}
    return made


def _summed(terms: Iterable[tuple[Monomial, fmpq]]) -> "Exact":
    total: dict[Monomial, fmpq] = {}
    for factors, coefficient in terms:
        total[factors] = total.get(factors, fmpq(0)) + coefficient
    return Exact(total)


def _product(factors: Iterable[tuple[Atom, int]]) -> tuple[Monomial, fmpq]:
    """Factors multiplied: what they come to, and the rational that goes before them."""
    powers: dict[Atom, int] = {}
    outside = fmpq(1)
    for atom, power in factors:
        if atom.degree:
            before, powers[atom] = _extracted(powers.get(atom, 1) * power, atom.degree)
            outside *= before
        else:
            powers[atom] = powers.get(atom, 0) + power
    if any(abs(power) > MAX_BITS for atom, power in powers.items() if not atom.degree):
        raise ArithmeticError("out of bounds")
    return frozenset((atom, power) for atom, power in powers.items() if power != bool(atom.degree)), outside


def _extracted(radicand: int, degree: int) -> tuple[int, int]:
    """(a, b) with ᵈ√radicand = a · ᵈ√b; b is 1 if the root is whole, and has no small prime too often."""
    if radicand.bit_length() > MAX_BITS:
        raise ArithmeticError("out of bounds")
    whole = int(fmpz(radicand).root(degree))
    if whole**degree == radicand:
        return whole, 1
    outside = 1
    for prime in _PRIMES:
        while radicand % prime**degree == 0:
            radicand //= prime**degree
            outside *= prime
    return outside, radicand


def _prime_powers(value: fmpq) -> dict[int, int]:
    """The powers of small primes in a positive rational, and what is left of it above and below its line."""
    powers: dict[int, int] = {}
    for side, power in ((int(value.numerator), 1), (int(value.denominator), -1)):
        for prime in _PRIMES:
            while side % prime == 0:
                side //= prime
                powers[prime] = powers.get(prime, 0) + power
        if side > 1:
            powers[side] = powers.get(side, 0) + power
    return powers
