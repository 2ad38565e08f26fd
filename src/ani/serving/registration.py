"""Registers model type `ani`, that of merged checkpoints, with transformers, as soon as that is imported too.

Its `model_type` is `ani`, so transformers without this package refuses it, where it would load a `llama` and only
warn that it left the module out.
"""

from typing import Any, Self, cast

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from ani.errors import InputError

MODEL_TYPE = "ani"
SECTION = "ani"
"""Key of config.json: the method, and for one with a module the family and every setting of `AniConfig`."""
FAMILY = "base_model_type"


class _AnyConfig(PreTrainedConfig):
    """What `AutoConfig` finds under `MODEL_TYPE`; reads as the config of the family that the section names."""

    model_type = MODEL_TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        from ani.serving.checkpoint import config_class_of

        try:
            family = config_dict[SECTION][FAMILY]
            config_class = config_class_of(cast(Any, CONFIG_MAPPING[family]))
        except (KeyError, TypeError) as error:
            raise InputError(
                f"this config of model_type {MODEL_TYPE!r} is damaged, or of a family that this transformers doesn't "
                f"have: no {SECTION}.{FAMILY} of a causal language model"
            ) from error
        return cast(Self, config_class.from_dict({**config_dict, "model_type": family}, **kwargs))


AutoConfig.register(MODEL_TYPE, _AnyConfig, exist_ok=True)
