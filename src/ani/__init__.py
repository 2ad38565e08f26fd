"""ANI, Adaptive Numerical Injection: exact numbers for language models, injected where they are quantities.

`__init__.pyi` lists the public names. Each is imported when it is first used: torch and transformers take seconds,
which `ani --help` does not need.
"""

import logging

import lazy_loader
import wrapt

# bitsandbytes, which PEFT imports, warns on every CPU that an optional package of kernels is missing.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


@wrapt.when_imported("transformers.models.auto.modeling_auto")  # now, if it has been
def _register(_: object) -> None:
    from ani.serving import registration  # noqa: F401  (it makes transformers load merged checkpoints)
