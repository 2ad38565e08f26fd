"""Registers the model type `ani` of merged checkpoints with transformers, as soon as transformers is imported too.

Transformers without this package refuses the model type `ani`. It would load a `llama` without the module, and only
warn.
"""

from typing import Any, Self, cast

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from ani.errors import InputError

MODEL_TYPE = "ani"
SECTION = "ani"
"""Key of config.json: the method and, if it has a module, the family and every setting of `AniConfig`."""
FAMILY = "base_model_type"
CALIBRATION = "calibration"


class _AnyConfig(PreTrainedConfig):
    """The config class that `AutoConfig` finds for `MODEL_TYPE`; it reads the config of the family in the section."""

    model_type = MODEL_TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        from ani.serving.checkpoint import config_class_of

        try:
            family = config_dict[SECTION][FAMILY]
            config_class = config_class_of(cast(Any, CONFIG_MAPPING[family]))
        except (KeyError, TypeError) as error:
            raise InputError(
                f"this config of model_type {MODEL_TYPE!r} is damaged: {SECTION}.{FAMILY} must name a causal language "
                "model of the installed transformers; merge the adapter again"
            ) from error
        return cast(Self, config_class.from_dict({**config_dict, "model_type": family}, **kwargs))


AutoConfig.register(MODEL_TYPE, _AnyConfig, exist_ok=True)
