"""ANI, Adaptive Numerical Injection: exact numbers for language models, injected where they are quantities.

`__init__.pyi` lists the public names. Each is imported when it is first used: torch and transformers take seconds,
which `ani --help` does not need.
"""

import logging

import lazy_loader

# bitsandbytes, which PEFT imports, warns on every CPU that an optional package of kernels is missing.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
