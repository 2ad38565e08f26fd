"""Number encoders: from exact numbers to feature vectors.

A new encoder is a class and an entry of `ENCODERS` (`ani.encoders.settings`).
"""

from ani.encoders.base import NumberEncoder, as_double, as_text, as_texts
from ani.encoders.bits import BitsNumberEncoder
from ani.encoders.fourier import FourierNumberEncoder
from ani.encoders.magnitude import MagnitudeNumberEncoder
from ani.encoders.settings import ENCODERS, ConcatenatedNumberEncoder, EncoderSettings, build_encoder

__all__ = [
    "ENCODERS",
    "BitsNumberEncoder",
    "ConcatenatedNumberEncoder",
    "EncoderSettings",
    "FourierNumberEncoder",
    "MagnitudeNumberEncoder",
    "NumberEncoder",
    "as_double",
    "as_text",
    "as_texts",
    "build_encoder",
]
