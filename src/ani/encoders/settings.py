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
from ani.settings import Section


class EncoderSettings(Section):
    """The part of a config that defines the number features."""

    encoders: tuple[str, ...] = ("fourier",)
    """Names in `ENCODERS`; the features of several encoders are concatenated in this order."""
    integer_digits: int = Field(default=10, ge=1, le=400)
    """Digits before the point of `fourier`; 10 to this power is the maximum of `magnitude`."""
    fraction_digits: int = Field(default=6, ge=0, le=400)
    """Digits after the point; further digits are rounded, half to even."""
    sign: Literal["feature", "phase", "none"] = "feature"
    """Negative numbers in `fourier`. `feature`: |x|, and one more feature, ±1. `phase`: the formula of x itself, as
    in the paper; x and x − 10^integer_digits are then the same. `none`: |x|, as FoNE's published code."""
    overflow: Literal["wrap", "skip"] = "wrap"
    """Numbers out of the range of one of the encoders. `wrap`: encode them (`fourier` keeps the low digits,
    `magnitude` its maximum, `bits` infinity). `skip`: inject nothing."""

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
        settings.integer_digits, settings.fraction_digits, sign=settings.sign
    ),
    "magnitude": lambda settings: MagnitudeNumberEncoder(settings.integer_digits),
    "bits": lambda settings: BitsNumberEncoder(),
}
"""Every encoder that a config can name, with its builder; add your own here."""


class ConcatenatedNumberEncoder:
    """Concatenates the features of several encoders; a number is in range if it is for all of them."""

    def __init__(self, encoders: Sequence[NumberEncoder]) -> None:
        self.encoders = tuple(encoders)
        self.width = sum(encoder.width for encoder in encoders)

    def in_range(self, value: str | int | Decimal) -> bool:
        """True if the value is in the range of every encoder; raises the encoders' errors."""
        return all(encoder.in_range(value) for encoder in self.encoders)

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of N numbers, float32 of shape (N, width), on the CPU; raises the encoders' errors."""
        texts = as_texts(values)
        return torch.cat([encoder.encode(texts) for encoder in self.encoders], dim=1)


def build_encoder(settings: EncoderSettings) -> NumberEncoder:
    """Build the named encoder, or several as one; raises InputError if an encoder refuses its settings."""
    encoders = [ENCODERS[name](settings) for name in settings.encoders]
    return encoders[0] if len(encoders) == 1 else ConcatenatedNumberEncoder(encoders)
