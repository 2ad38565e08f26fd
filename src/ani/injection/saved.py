"""A method and its module's settings, as the files of adapters and merged checkpoints contain them."""

from typing import Literal, Self

from pydantic import model_validator

from ani.injection.config import AniConfig
from ani.injection.methods import METHODS, MethodName, unknown_method
from ani.settings import Section

_LATER = {"gate_norm"}
"""Settings of the module that the first files of this version lack; their module has the default."""


class SavedMethod(Section):
    """Everything that is needed to rebuild what was attached."""

    format_version: Literal[2] = 2
    """Version of the format; files of another version are refused."""
    method: MethodName
    module: AniConfig | None
    """Every setting of the module; null if the method has none."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.method not in METHODS:
            raise ValueError(unknown_method(self.method))
        if (self.module is None) != (METHODS[self.method].settings is None):
            raise ValueError(f"method {self.method!r} {'has' if self.module is None else 'has no'} module")
        if self.module is not None:
            for key, value in self.module:
                if value is None or key not in self.module.model_fields_set | _LATER:
                    raise ValueError(f"module.{key} is missing")
        return self
