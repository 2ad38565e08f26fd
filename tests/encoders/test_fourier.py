import math
from decimal import ROUND_HALF_EVEN, Context, Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ani.encoders.fourier import FourierNumberEncoder
from tests.properties import examples
from tests.refusals import refused

WIDE = Context(prec=400, rounding=ROUND_HALF_EVEN)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**14), max_value=10**14, places=9)


def rounded(value: Decimal, places: int) -> Decimal:
    return value.quantize(Decimal(f"1e-{places}"), context=WIDE)


@given(value=DECIMALS, shift=st.integers(-20, 20), upper=st.booleans())
def test_every_spelling_of_a_number_has_the_same_features(value: Decimal, shift: int, upper: bool) -> None:
    plain = f"{value:f}"
    scaled = f"{value.scaleb(-shift, context=WIDE):f}{'E' if upper else 'e'}{shift:+d}"
    spellings: list[str | int | Decimal] = [plain, f"{value:,f}", scaled, value, plain + "000"]
    if value >= 0:
        spellings.append("+" + plain)
    if abs(value) < 1:
        spellings.append(plain.replace("0.", ".", 1))
    if value == value.to_integral_value():
        spellings += [int(value), str(int(value)), f"{int(value):,}", f"{int(value)}."]
    encoder = FourierNumberEncoder()
    features = encoder.encode(spellings)
    assert (features == features[0]).all()
    # A number's features do not depend on its batch.
    assert all(torch.equal(encoder.encode([text])[0], row) for text, row in zip(spellings, features, strict=True))


@examples(300)
@given(
    value=st.one_of(
        DECIMALS,
        st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**6), max_value=10**6, places=60),
        # Ties, and carries through runs of nines.
        st.builds(
            lambda i, f: Decimal(f"{i}.{f}5"), st.integers(-9999, 9999), st.from_regex("[09]{0,8}", fullmatch=True)
        ),
    ),
    integer_digits=st.integers(1, 12),
    fraction_digits=st.integers(0, 8),
)
def test_rounding_is_half_even_and_range_is_judged_after_it(
    value: Decimal, integer_digits: int, fraction_digits: int
) -> None:
    encoder = FourierNumberEncoder(integer_digits, fraction_digits)
    exact = rounded(value, fraction_digits)
    fits = abs(exact) < 10**integer_digits
    assert encoder.in_range(value) is fits
    features = encoder.encode([value])
    wrapped = WIDE.remainder(exact, Decimal(10**integer_digits))
    assert encoder.decode(features) == [wrapped]
    assert features[0, -1] == (-1 if exact < 0 else 1)


def test_huge_exponents_and_lengths_cost_nothing() -> None:
    encoder, nines = FourierNumberEncoder(), "9" * 5000
    small = ["1e-999", "5e-" + nines, Decimal("1e-999999999"), "0e" + "9" * 30, "0" * 5000]
    large = ["1e999", "-1e" + nines, Decimal("1e999999999"), 10**5000, "1" + "0" * 5000 + ".0"]
    for value in small + large:
        assert encoder.in_range(value) is (value in small)
        assert torch.equal(encoder.encode([value])[:, :-1], encoder.encode(["0"])[:, :-1])


def test_signs() -> None:
    values, opposite = ["12.5", "0", "4999999999"], ["-12.5", "-0", "-4999999999"]
    phase = FourierNumberEncoder(sign="phase")
    cos, sin = phase.encode(values).unflatten(1, (-1, 2)).unbind(-1)
    conjugate = phase.encode(opposite).unflatten(1, (-1, 2))
    assert torch.equal(conjugate, torch.stack((cos, -sin), -1))

    none = FourierNumberEncoder(sign="none")
    assert torch.equal(none.encode(opposite), phase.encode(values))

    feature = FourierNumberEncoder()
    assert torch.equal(feature.encode(opposite)[:, :-1], phase.encode(values))
    # Zero, and what rounds to it, is not negative; a number that wraps to zero is.
    signs = feature.encode([*values, *opposite, "-0.0000004", "-10000000000"])[:, -1]
    assert signs.tolist() == [1, 1, 1, -1, 1, -1, 1, -1]
    # Phases decode to the half range around zero.
    half = FourierNumberEncoder(2, 1, sign="phase")
    assert half.decode(half.encode(["49.9", "50", "-50"])) == [Decimal("49.9"), Decimal(-50), Decimal(-50)]


@examples(20)
@given(seed=st.integers(0, 2**63 - 1))
def test_decode_survives_noise_up_to_the_stated_angle(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    encoder = FourierNumberEncoder(sign="phase")
    numbers = [Decimal(n).scaleb(-6) for n in torch.randint(-(10**15), 10**15, (100,), generator=generator).tolist()]
    features = encoder.encode(numbers)
    assert encoder.decode(features.bfloat16()) == numbers
    cos, sin = features.double().unflatten(1, (-1, 2)).unbind(-1)
    noise = (2 * torch.rand(cos.shape, generator=generator, dtype=torch.float64) - 1) * 2 * torch.pi / 20 * 0.99
    scale = torch.rand(cos.shape, generator=generator, dtype=torch.float64) + 0.1
    angle = torch.atan2(sin, cos) + noise
    noisy = torch.stack((scale * angle.cos(), scale * angle.sin()), -1).flatten(1)
    assert encoder.decode(noisy) == numbers
    assert encoder.decode(noisy.float().requires_grad_()) == numbers


def test_what_cannot_be_read_and_bad_settings_are_named() -> None:
    encoder = FourierNumberEncoder()
    assert encoder.decode(torch.empty(0, 33)) == []
    for features, named in ((torch.zeros(2, 32), r"not \(2, 32\)"), (torch.full((1, 33), math.nan), "finite")):
        with pytest.raises(ValueError, match=named):
            encoder.decode(features)
    refused(lambda: FourierNumberEncoder(-1), "-1")
    refused(lambda: FourierNumberEncoder(0, 0), "0 and 0")
    refused(lambda: FourierNumberEncoder(sign="minus"), "minus")
