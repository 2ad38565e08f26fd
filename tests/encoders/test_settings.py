"""Every choice of encoders: what all of them promise, what a config may name, and ANI with each of them."""

from decimal import Decimal
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from ani import AniConfig, BitsNumberEncoder, FourierNumberEncoder, MagnitudeNumberEncoder
from ani.encoders import EncoderSettings, NumberEncoder, build_encoder
from ani.injection.model_parts import last_decision
from tests.refusals import refused
from tests.tiny import attached, encode, logits_of

CHOICES: dict[str, dict[str, Any]] = {
    "fourier": {},
    "phase": {"sign": "phase"},
    "magnitude": {"encoders": ("magnitude",)},
    "bits": {"encoders": ("bits",)},
    "all": {"encoders": ("bits", "magnitude", "fourier")},
}
WIDTHS = {"fourier": 33, "phase": 32, "magnitude": 1, "bits": 64, "all": 64 + 1 + 33}
EXTREMES = ["0", "-0", "1e999", "-1e999", "1e-999", "9" * 400, f"0.{'0' * 400}1", 10**5000, Decimal("1e-999999999")]
NO_NUMBERS = [
    *("", ".", "-", "+.", "e5", "1e", "1e5.0", "abc", "12x", "12345678901x", "1.2.3", "--1", "1_000", "0x10"),
    *(" 5", "5 ", "5\n", "1,23", "1,2345", "12,34,567", ",123", "٣", "²", "−5", "é", "\udc80", "\0", ":", "/"),
    *("nan", "inf", Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("-Infinity")),
]
choices = pytest.mark.parametrize("choice", CHOICES)


def encoder_of(choice: str) -> NumberEncoder:
    return build_encoder(EncoderSettings(**CHOICES[choice]))


@choices
def test_shape_and_type(choice: str) -> None:
    encoder = encoder_of(choice)
    assert encoder.width == WIDTHS[choice]
    for values in ([], ["505"], EXTREMES):
        features = encoder.encode(values)
        assert features.shape == (len(values), encoder.width)
        assert features.dtype == torch.float32 and features.is_contiguous() and features.isfinite().all()
        assert features.abs().max().item() <= 5 if values else True
    assert encoder.in_range("505") and not encoder.in_range("-1e999")


@choices
def test_what_is_no_exact_number_is_named(choice: str) -> None:
    encoder = encoder_of(choice)
    for value in NO_NUMBERS:
        for refuse in (lambda value=value: encoder.encode(["1", value]), lambda value=value: encoder.in_range(value)):
            refused(refuse, repr(str(value)), "not a finite decimal number")
    for value in (1.5, float("nan"), None, b"5", [1], torch.tensor(3)):
        for read in (lambda value: encoder.encode(["1", value]), encoder.in_range):
            with pytest.raises(TypeError, match=type(value).__name__):
                read(value)
    with pytest.raises(TypeError, match=r"\['505'\]"):  # not a list of digits
        encoder.encode("505")


def test_settings_reach_their_encoder() -> None:
    values = ["505", "-3.25", "12345.678"]
    settings = {"integer_digits": 4, "fraction_digits": 2, "sign": "none"}
    encoder = build_encoder(EncoderSettings(encoders=["magnitude", "fourier", "bits"], **settings))
    parts = [MagnitudeNumberEncoder(4), FourierNumberEncoder(4, 2, sign="none"), BitsNumberEncoder()]
    assert encoder.width == 1 + 12 + 64
    assert torch.equal(encoder.encode(values), torch.cat([part.encode(values) for part in parts], dim=1))
    assert [encoder.in_range(value) for value in values] == [True, True, False]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"encoders": ()}, "at least one"),
        ({"encoders": ("fourier", "fourier")}, "'fourier' is named more than once"),
        ({"encoders": ("furrier",)}, "'furrier'.*fourier, magnitude, bits"),
        ({"sign": "minus"}, "sign"),
        ({"encoders": ("magnitude",), "integer_digits": 400}, "308.*400"),
    ],
)
def test_bad_choices_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){named}"):
        AniConfig(layer=1, **changes)


def test_skip_asks_the_chosen_encoder() -> None:
    text = "He owes 123 and 4567 and 89."
    numbers = {}
    for encoders in [("magnitude",), ("bits",)]:
        model, tokenizer = attached("gemma", encoders=encoders, integer_digits=3, overflow="skip")
        logits_of(model, encode(tokenizer, text))
        decision = last_decision(model)
        assert decision is not None
        numbers[encoders] = len(decision.numbers)
    assert numbers == {("magnitude",): 2, ("bits",): 3}
