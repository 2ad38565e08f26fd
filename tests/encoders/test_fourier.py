import math
from decimal import ROUND_HALF_EVEN, Context, Decimal

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ani.encoders.fourier import FourierNumberEncoder

WIDE = Context(prec=400, rounding=ROUND_HALF_EVEN)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**14), max_value=10**14, places=9)


def rounded(value: Decimal, places: int) -> Decimal:
    return value.quantize(Decimal(f"1e-{places}"), context=WIDE)


@pytest.mark.parametrize("bases", [(10,), (2, 5), (10, 2, 5)])
@pytest.mark.parametrize(
    "text",
    [
        "123456789012345678901234567890.987654321098765432109876543219",
        "-999999999999999999999999999999.000000000000000000000000000001",
        "0.1",
        "-7",
    ],
)
def test_parity_with_the_formula_at_high_precision(text: str, bases: tuple[int, ...]) -> None:
    encoder = FourierNumberEncoder(30, 30, bases=bases)
    (features,) = encoder.encode([text]).double().tolist()
    with mpmath.workdps(150):
        angles = [2 * mpmath.pi * mpmath.mpf(text) / mpmath.mpf(str(period)) for period in encoder.periods]
        exact = [float(wave(angle)) for angle in angles for wave in (mpmath.cos, mpmath.sin)]
    assert features == pytest.approx(exact, rel=0, abs=1e-7)


def test_closed_forms() -> None:
    encoder = FourierNumberEncoder(2, 1)
    assert encoder.periods == [Decimal(1), Decimal(10), Decimal(100)]
    root = math.sqrt(0.5)
    expected = {
        "0": [1, 0, 1, 0, 1, 0],
        "5": [1, 0, -1, 0, math.cos(math.pi / 10), math.sin(math.pi / 10)],
        "2.5": [-1, 0, 0, 1, math.cos(math.pi / 20), math.sin(math.pi / 20)],
        "12.5": [-1, 0, 0, 1, root, root],
        "-12.5": [-1, 0, 0, -1, root, -root],
    }
    assert encoder.encode(list(expected)).tolist() == [pytest.approx(row, abs=1e-7) for row in expected.values()]


def test_periods_and_width() -> None:
    encoder = FourierNumberEncoder(2, 1, bases=(5, 10, 2), sign="feature")
    assert encoder.periods == [Decimal(t) for t in ("0.5", "5", "50", "1", "10", "100", "0.2", "2", "20")]
    assert encoder.width == 2 * 9 + 1 == encoder.encode(["1"]).shape[1]
    assert FourierNumberEncoder().periods == [Decimal(10) ** i for i in range(-5, 11)]
    assert FourierNumberEncoder().encode([]).shape == (0, 32)
    for sign in ("phase", "feature", "none"):
        assert FourierNumberEncoder(sign=sign).encode(["1", "2", "3"]).is_contiguous()


@settings(deadline=None)
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


@settings(max_examples=300, deadline=None)
@given(
    value=st.one_of(
        DECIMALS,
        st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**6), max_value=10**6, places=60),
        # Ties, and carries through runs of nines.
        st.builds(
            lambda i, f: Decimal(f"{i}.{f}5"),
            st.integers(-9999, 9999),
            st.from_regex(r"[09]{0,8}", fullmatch=True),
        ),
    ),
    integer_digits=st.integers(1, 12),
    fraction_digits=st.integers(0, 8),
)
def test_rounding_is_half_even_and_range_is_judged_after_it(
    value: Decimal, integer_digits: int, fraction_digits: int
) -> None:
    encoder = FourierNumberEncoder(integer_digits, fraction_digits, sign="feature")
    exact = rounded(value, fraction_digits)
    fits = abs(exact) < 10**integer_digits
    assert encoder.in_range(value) is fits
    features = encoder.encode([value])
    wrapped = WIDE.remainder(exact, Decimal(10**integer_digits))
    assert encoder.decode(features) == [wrapped]
    assert features[0, -1] == (-1 if exact < 0 else 1)
    strict = FourierNumberEncoder(integer_digits, fraction_digits, sign="feature", overflow="error")
    if fits:
        assert torch.equal(strict.encode([value]), features)
    else:
        with pytest.raises(ValueError, match="does not fit"):
            strict.encode([1, value])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5", "0"),
        ("1.5", "2"),
        ("2.5", "2"),
        ("2.5000000001", "3"),
        ("-0.5", "0"),
        ("-1.5", "-2"),
        ("99.5", "0"),
    ],
)
def test_ties_by_hand(text: str, expected: str) -> None:
    encoder = FourierNumberEncoder(2, 0)
    assert encoder.decode(encoder.encode([text])) == [Decimal(expected)]


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("1e999", False),
        ("-1e" + "9" * 5000, False),
        (Decimal("1e999999999"), False),
        ("1e-999", True),
        ("5e-" + "9" * 5000, True),
        (Decimal("1e-999999999"), True),
        ("0e" + "9" * 30, True),
        (10**5000, False),
        ("0" * 5000, True),
        ("1" + "0" * 5000 + ".0", False),
    ],
    ids=range(10),
)
def test_huge_exponents_and_lengths_cost_nothing(value: str | int | Decimal, fits: bool) -> None:
    encoder = FourierNumberEncoder()
    assert encoder.in_range(value) is fits
    assert torch.equal(encoder.encode([value]), encoder.encode(["0"]))
    if not fits:
        with pytest.raises(ValueError, match="does not fit in 10 integer digits"):
            FourierNumberEncoder(overflow="error").encode([value])


@pytest.mark.parametrize("overflow", ["wrap", "skip"])
def test_integer_digits_above_the_range_wrap(overflow: str) -> None:
    encoder = FourierNumberEncoder(4, 2, overflow=overflow)
    wrapped = encoder.encode(["987651234.56", "-71234.56", "987650000.996", "9999.995"])
    assert torch.equal(wrapped, encoder.encode(["1234.56", "-1234.56", "1", "0"]))


def test_signs() -> None:
    values, opposite = ["12.5", "0", "4999999999"], ["-12.5", "-0", "-4999999999"]
    phase = FourierNumberEncoder()
    cos, sin = phase.encode(values).unflatten(1, (-1, 2)).unbind(-1)
    conjugate = phase.encode(opposite).unflatten(1, (-1, 2))
    assert torch.equal(conjugate, torch.stack((cos, -sin), -1))

    none = FourierNumberEncoder(sign="none")
    assert torch.equal(none.encode(opposite), phase.encode(values))

    feature = FourierNumberEncoder(sign="feature")
    assert torch.equal(feature.encode(opposite)[:, :-1], phase.encode(values))
    # Zero, and what rounds to it, is not negative; a number that wraps to zero is.
    signs = feature.encode([*values, *opposite, "-0.0000004", "-10000000000"])[:, -1]
    assert signs.tolist() == [1, 1, 1, -1, 1, -1, 1, -1]


def test_phase_decodes_to_the_half_range_around_zero() -> None:
    encoder = FourierNumberEncoder(2, 1)
    texts = ["49.9", "50", "99.9", "-49.9", "-50", "-50.1"]
    decoded = encoder.decode(encoder.encode(texts))
    assert decoded == [Decimal(t) for t in ("49.9", "-50", "-0.1", "-49.9", "-50", "49.9")]


@pytest.mark.parametrize(("bases", "turns"), [((10,), 1 / 20), ((2, 5), 1 / 10), ((2, 5, 10), 1 / 10)])
def test_decode_survives_noise_up_to_the_stated_angle(bases: tuple[int, ...], turns: float) -> None:
    generator = torch.Generator().manual_seed(0)
    encoder = FourierNumberEncoder(bases=bases)
    numbers = [Decimal(n).scaleb(-6) for n in torch.randint(-(10**15), 10**15, (500,), generator=generator).tolist()]
    features = encoder.encode(numbers)
    assert encoder.decode(features.bfloat16()) == numbers
    cos, sin = features.double().unflatten(1, (-1, 2)).unbind(-1)
    noise = (2 * torch.rand(cos.shape, generator=generator, dtype=torch.float64) - 1) * 2 * torch.pi * turns * 0.99
    scale = torch.rand(cos.shape, generator=generator, dtype=torch.float64) + 0.1
    angle = torch.atan2(sin, cos) + noise
    noisy = torch.stack((scale * angle.cos(), scale * angle.sin()), -1).flatten(1)
    assert encoder.decode(noisy) == numbers
    assert encoder.decode(noisy.float().requires_grad_()) == numbers


def test_decode_prints_plain_numbers() -> None:
    encoder = FourierNumberEncoder(sign="feature")
    texts = ["505", "-1200", "0", "0.5", "-0.000001", "9999999999.999999"]
    assert [f"{n:f}" for n in encoder.decode(encoder.encode(texts))] == texts
    assert [str(n) for n in encoder.decode(encoder.encode(["100", "-10000000000"]))] == ["100", "0"]


def test_decode_refuses_what_it_cannot_read() -> None:
    encoder = FourierNumberEncoder()
    assert encoder.decode(torch.empty(0, 32)) == []
    with pytest.raises(ValueError, match=r"\(N, 32\), not \(32,\)"):
        encoder.decode(torch.zeros(32))
    with pytest.raises(ValueError, match=r"not \(2, 31\)"):
        encoder.decode(torch.zeros(2, 31))
    with pytest.raises(ValueError, match="finite"):
        encoder.decode(torch.full((1, 32), math.nan))
    for bases in [(2,), (5,)]:
        partial = FourierNumberEncoder(bases=bases)
        with pytest.raises(ValueError, match="10, or both 2 and 5"):
            partial.decode(partial.encode(["1"]))


NO_NUMBERS = [
    *("", ".", "-", "+.", "e5", "1e", "1e5.0", "abc", "12x", "12345678901x", "1.2.3", "--1", "1_000", "0x10"),
    *(
        " 5",
        "5 ",
        "5\n",
        "1,23",
        "1,2345",
        "12,34,567",
        ",123",
        "٣",
        "²",
        "−5",
        "é",
        "\udc80",
        "\0",
        ":",
        "/",
    ),
    *("nan", "inf", Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("-Infinity")),
]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=ascii)
def test_what_is_no_number_is_named(value: str | Decimal) -> None:
    encoder = FourierNumberEncoder()
    for refuse in (lambda: encoder.encode(["1", value]), lambda: encoder.in_range(value)):
        with pytest.raises(ValueError, match="not a finite decimal number") as caught:
            refuse()
        assert repr(str(value)) in str(caught.value)


@pytest.mark.parametrize("value", [1.5, float("nan"), None, b"5", [1], torch.tensor(3)], ids=repr)
def test_inexact_or_unknown_types_are_refused(value: object) -> None:
    encoder = FourierNumberEncoder()
    with pytest.raises(TypeError, match=type(value).__name__):
        encoder.encode(["1", value])
    with pytest.raises(TypeError, match=type(value).__name__):
        encoder.in_range(value)


def test_a_single_text_is_not_a_list_of_digits() -> None:
    with pytest.raises(TypeError, match=r"\['505'\]"):
        FourierNumberEncoder().encode("505")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"integer_digits": -1}, "-1"),
        ({"integer_digits": 0, "fraction_digits": 0}, "0 and 0"),
        ({"bases": ()}, r"\(\)"),
        ({"bases": (3,)}, "3"),
        ({"bases": (10, 10)}, r"\(10, 10\)"),
        ({"sign": "minus"}, "minus"),
        ({"overflow": "clip"}, "clip"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        FourierNumberEncoder(**settings)
