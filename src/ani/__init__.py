"""ANI, Adaptive Numerical Injection: exact numbers for language models, injected where they are quantities."""

# ruff: noqa: E402
import logging

# bitsandbytes, which PEFT imports, warns on every CPU that an optional package of kernels is missing.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

from ani.encoders import BitsNumberEncoder, FourierNumberEncoder, MagnitudeNumberEncoder
from ani.errors import InputError
from ani.injection.adapter import load_adapter, save_adapter
from ani.injection.attach import attach, detach
from ani.injection.config import AniConfig
from ani.injection.inspection import NumberDecision, inspect
from ani.injection.locate import NumberBatch
from ani.numbers import Number, NumberScanner
from ani.probing.run import select_layer
from ani.probing.selection import PAPER_LAYERS, LayerSelection
from ani.serving.merge import merge

__version__ = "0.1.0"

__all__ = [
    "PAPER_LAYERS",
    "AniConfig",
    "BitsNumberEncoder",
    "FourierNumberEncoder",
    "InputError",
    "LayerSelection",
    "MagnitudeNumberEncoder",
    "Number",
    "NumberBatch",
    "NumberDecision",
    "NumberScanner",
    "attach",
    "detach",
    "inspect",
    "load_adapter",
    "merge",
    "save_adapter",
    "select_layer",
]
