"""The config and model classes by which transformers loads a merged checkpoint.

On disk the `model_type` is `ani` (`ani.serving.registration`). `AutoConfig` loads a subclass of the family's config,
which is made on demand together with a subclass of the family's model. In memory both have the family's `model_type`,
because transformers, PEFT and lm-eval decide by it.
"""

import functools
from collections.abc import Mapping
from typing import Any, cast

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

from ani.encoders import build_encoder
from ani.errors import InputError
from ani.injection.attach import AttachedModel, add_module
from ani.injection.config import AniConfig
from ani.injection.locate import NumberLocator
from ani.injection.methods import METHODS, Method, MethodName
from ani.injection.model_parts import ani_module, check_layer, decoder_layers, is_attached
from ani.injection.saved import SavedMethod
from ani.models import load_whole
from ani.serving.calibration import Calibration, calibrate
from ani.serving.registration import CALIBRATION, FAMILY, MODEL_TYPE, SECTION
from ani.settings import validated

_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def mark_merged(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, method: MethodName) -> None:
    """Change a model in place, so that `save_pretrained` writes a merged checkpoint.

    A model without a module becomes an ordinary checkpoint of its family, whose config names the method.
    """
    config: Any = model.config
    module = ani_module(model).config if is_attached(model) else None
    section = SavedMethod.model_construct(method=method, module=module).model_dump(mode="json")
    if module is not None:
        section[FAMILY] = config.model_type
        section[CALIBRATION] = calibrate(model, tokenizer).model_dump(mode="json")
        config.__class__ = config_class_of(cast(Any, type(config)))
        model.__class__ = cast(Any, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])  # ours, whatever it loads
    setattr(config, SECTION, section)


def merged_method(config: PreTrainedConfig) -> Method | None:
    """Return the method of a merged checkpoint; None for the config of another model."""
    return METHODS[_saved(config).method] if isinstance(getattr(config, SECTION, None), Mapping) else None


def merged_settings(config: PreTrainedConfig) -> AniConfig | None:
    """Return the settings of a merged checkpoint's module; None if there is no module."""
    return None if merged_method(config) is None else _saved(config).module


def merged_calibration(config: PreTrainedConfig) -> Calibration:
    """Return the samples by which an engine is checked; raises InputError if the checkpoint has none."""
    found = getattr(config, SECTION)
    return validated(Calibration, found.get(CALIBRATION, {}), f"{SECTION}.{CALIBRATION} of {_name(config)}")


class _FamilyConfig:
    """Mixed into a family's config class."""

    _ani_family: type[Any]
    auto_map: Mapping[str, str] = {}
    """No class is in the checkpoint's folder; TRL asks."""

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "model_type": MODEL_TYPE}  # type: ignore[misc]

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        config, unused = super().get_config_dict(*args, **kwargs)  # type: ignore[misc]
        return {**config, "model_type": cls._ani_family.model_type}, unused

    def __reduce__(self) -> Any:  # a class made on demand can't be pickled by its name
        return _empty_config, (self._ani_family,), self.__dict__


def _empty_config(family: type[Any]) -> PreTrainedConfig:
    config_class = config_class_of(cast(Any, family))
    return config_class.__new__(config_class)


class MergedModel(AttachedModel):
    """Mixed into a family's model class: a model that is built with its module and loaded with its tokenizer."""

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        settings = _saved(config).module
        if settings is None:
            raise InputError(
                f"{config.name_or_path}: the method of {SECTION!r} has no module, so model_type can't be {MODEL_TYPE!r}"
            )
        check_layer(settings.layer, len(decoder_layers(self)), config.model_type)
        add_module(self, settings, build_encoder(settings).width)
        # As with `attach`: float32 whatever the model's dtype, never quantized, on one device.
        loading = cast(Any, self)
        loading._keep_in_fp32_modules = {*(self._keep_in_fp32_modules or ()), r"^ani\."}
        loading._keep_in_fp32_modules_strict = {*(self._keep_in_fp32_modules_strict or ()), r"^ani\."}
        loading._no_split_modules = {*(self._no_split_modules or ()), "AniModule"}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the model as transformers does, and its tokenizer; raises InputError if the tokenizer or weights are
        missing."""
        name = pretrained_model_name_or_path
        with_info = kwargs.pop("output_loading_info", False)
        hub = {key: kwargs[key] for key in _HUB_OPTIONS if key in kwargs}
        kwargs.setdefault("use_safetensors", True)  # never a pickle
        model, info = load_whole(super().from_pretrained, name, *args, **kwargs)
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **hub)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"{name} has no tokenizer, so no numbers can be found; save it there with tokenizer.save_pretrained"
            ) from error
        vars(model)["_ani_locator"] = NumberLocator(tokenizer, ani_module(model).config)
        return (model, info) if with_info else model

    def _ani_detached(self) -> None:
        config = cast(Any, self.config)
        config.__class__ = config._ani_family
        delattr(config, SECTION)


@functools.cache
def config_class_of(family: type[Any]) -> type[PreTrainedConfig]:
    """Return the config class of a family's merged checkpoints; registers its model class, for images too if the family
    has them."""
    images = family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    mapping = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING if images else MODEL_FOR_CAUSAL_LM_MAPPING
    base = cast(type[PreTrainedModel], mapping[family])
    config_class = type(
        f"Ani{family.__name__}", (_FamilyConfig, family), {"__module__": __name__, "_ani_family": family}
    )
    namespace = {"__module__": base.__module__, "_ani_base": base, "config_class": config_class}
    model_class = type(f"Ani{base.__name__}", (MergedModel, base), namespace)
    for auto_class in (AutoModelForCausalLM, AutoModelForImageTextToText)[: 1 + images]:
        auto_class.register(config_class, model_class)
    if (renames := get_checkpoint_conversion_mapping(base.__name__)) is not None:  # of weights, by a class's name
        register_checkpoint_conversion_mapping(model_class.__name__, renames)
    return config_class


def _saved(config: PreTrainedConfig) -> SavedMethod:
    section = {key: value for key, value in getattr(config, SECTION).items() if key not in (FAMILY, CALIBRATION)}
    return validated(SavedMethod, section, f"the section {SECTION!r} of {_name(config)}")


def _name(config: PreTrainedConfig) -> str:
    return config.name_or_path or "the config"
