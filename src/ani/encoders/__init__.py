"""Number encoders: from exact numbers to feature vectors.

A new encoder is a class and an entry of `ENCODERS` (`ani.encoders.settings`).
"""

from ani.encoders.base import NumberEncoder as NumberEncoder
from ani.encoders.base import as_double as as_double
from ani.encoders.base import as_text as as_text
from ani.encoders.base import as_texts as as_texts
from ani.encoders.bits import BitsNumberEncoder as BitsNumberEncoder
from ani.encoders.fourier import FourierNumberEncoder as FourierNumberEncoder
from ani.encoders.magnitude import MagnitudeNumberEncoder as MagnitudeNumberEncoder
from ani.encoders.settings import ENCODERS as ENCODERS
from ani.encoders.settings import EncoderSettings as EncoderSettings
from ani.encoders.settings import build_encoder as build_encoder
