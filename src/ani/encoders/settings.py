"""The encoder settings of a config, and the registry `ENCODERS`."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Literal, Self

import torch
from pydantic import Field, field_validator, model_validator

from ani.encoders.base import NumberEncoder, as_texts
from ani.encoders.bits import BitsNumberEncoder
from ani.encoders.fourier import FourierNumberEncoder
from ani.encoders.magnitude import MagnitudeNumberEncoder
from ani.encoders.pending import CarriedEncoder, PendingDigitsEncoder
from ani.settings import Section


class EncoderSettings(Section):
    """The part of a config that says how numbers become features."""

    values: Literal["literals", "pending", "both"] = "literals"
    """What tokens carry. `literals`: numbers as they are written (the paper). `pending`: the pending digits of
    whatever exact value the text asks for, from the question or sign that makes it known until it is
    written, across turns. `both`: each with its own columns of W_P."""
    result_characters: int = Field(default=3, ge=1, le=16)
    """Next characters of a pending value that a token carries: as many as a token can hold digits."""
    encoders: tuple[str, ...] = ("fourier",)
    """Names in `ENCODERS`; the features of several stand side by side, in this order."""
    integer_digits: int = Field(default=10, ge=1, le=400)
    """Digits before the point of `fourier`; 10 to this power is the maximum of `magnitude`."""
    fraction_digits: int = Field(default=6, ge=0, le=400)
    """Digits after it; further ones are rounded, half to even."""
    sign: Literal["feature", "phase", "none"] = "feature"
    """How `fourier` tells negative numbers. `feature`: |x|, and ±1 beside it. `phase`: the formula of x itself, as in
    the paper; x and x − 10^integer_digits are then the same. `none`: |x|, as FoNE's published code."""
    overflow: Literal["wrap", "skip"] = "wrap"
    """Numbers out of the range of one of the encoders. `wrap`: encode them all the same (`fourier` keeps the low
    digits, `magnitude` its maximum, `bits` infinity). `skip`: leave the number alone."""

    @field_validator("encoders")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = ", ".join(ENCODERS)
        if not names:
            raise ValueError(f"name at least one encoder of {known}")
        for name in names:
            if name not in ENCODERS:
                raise ValueError(f"no encoder {name!r}; known are {known} (register your own in ani.encoders.ENCODERS)")
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is named more than once")
        return names

    @model_validator(mode="after")
    def _buildable(self) -> Self:
        build_encoder(self)  # what an encoder refuses is refused here, not when a model has been loaded
        return self


ENCODERS: dict[str, Callable[[EncoderSettings], NumberEncoder]] = {
    "fourier": lambda settings: FourierNumberEncoder(
        settings.integer_digits, settings.fraction_digits, sign=settings.sign, overflow=settings.overflow
    ),
    "magnitude": lambda settings: MagnitudeNumberEncoder(settings.integer_digits),
    "bits": lambda settings: BitsNumberEncoder(),
}
"""Every encoder that a config can name, and how it is built; open to one's own."""


class ConcatenatedNumberEncoder:
    """The features of several encoders side by side, in their order; a number is in range where it is for all."""

    def __init__(self, encoders: Sequence[NumberEncoder]) -> None:
        self.encoders = tuple(encoders)

    @property
    def width(self) -> int:
        """Number of features of one number."""
        return sum(encoder.width for encoder in self.encoders)

    def in_range(self, value: str | int | Decimal) -> bool:
        """Whether the value is in the range of every encoder; raises as theirs."""
        return all(encoder.in_range(value) for encoder in self.encoders)

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of N numbers, float32 of shape (N, width), on the CPU; raises as the encoders."""
        texts = as_texts(values)
        return torch.cat([encoder.encode(texts) for encoder in self.encoders], dim=1)


def build_encoder(settings: EncoderSettings) -> NumberEncoder | CarriedEncoder | PendingDigitsEncoder:
    """Build the encoder for `settings.values`: of literals the named encoder, or several side by side; of pending
    values `PendingDigitsEncoder`; of both `CarriedEncoder`.

    Raises:
        InputError: an encoder refuses its settings.
    """
    encoders = [ENCODERS[name](settings) for name in settings.encoders]
    literal = encoders[0] if len(encoders) == 1 else ConcatenatedNumberEncoder(encoders)
    if settings.values == "literals":
        return literal
    if settings.values == "pending":
        return PendingDigitsEncoder(settings.result_characters)
    return CarriedEncoder(literal, settings.result_characters)
