"""Parts of a model: the base model inside PEFT, its decoder layers, and what ANI attached to it."""

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, cast

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.errors import InputError, one_line
from ani.injection.config import AniConfig
from ani.injection.locate import NumberLocator
from ani.injection.module import AniModule, Injection
from ani.injection.number_batch import NumberBatch

if TYPE_CHECKING:
    from peft import PeftModel


def is_peft_model(model: nn.Module) -> "TypeGuard[PeftModel]":
    """True if the model is a `PeftModel`. PEFT isn't imported for the answer: the import takes a second."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def base_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model itself, without PEFT around it; raises InputError for another model."""
    inner = model.get_base_model() if is_peft_model(model) else model
    if not isinstance(inner, PreTrainedModel):
        raise InputError(f"the argument model must be a transformers model, not {one_line(repr(model), 80)}")
    return inner


def check_tokenizer(tokenizer: object) -> None:
    """Raise InputError unless an argument is a tokenizer of transformers."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(
            f"the argument tokenizer must be the model's tokenizer, not {one_line(repr(tokenizer), 80)}; load it with "
            "AutoTokenizer.from_pretrained"
        )


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers, in order: the first list of as many modules as the config counts, in the decoder if it has
    one, or the decoder's list `layers`. Raises InputError if the model is no decoder-only language model, or has no
    such list."""
    if model.config.is_encoder_decoder or not model.can_generate():
        raise InputError(
            f"{type(model).__name__} is no decoder-only language model; load one, with AutoModelForCausalLM"
        )
    decoder, count = model.get_decoder(), getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [part for whole in (decoder, model) for part in whole.modules() if isinstance(part, nn.ModuleList)]
    layers = next((each for each in lists if len(each) == count), getattr(decoder, "layers", None))
    if not isinstance(layers, nn.ModuleList):
        raise InputError(f"{type(model).__name__} has no list of {count} decoder layers; choose another model")
    return layers


def layer_device(model: PreTrainedModel, layer: nn.Module) -> Any:
    """The device where a decoder layer of a model is executed."""
    for part in layer.modules():  # accelerate keeps the weights of an offloaded layer elsewhere
        if (device := getattr(getattr(part, "_hf_hook", None), "execution_device", None)) is not None:
            return device
    return next((parameter.device for parameter in layer.parameters()), model.device)


def check_layer(layer: int, depth: int, model_type: str) -> None:
    """Raise InputError unless a model of `depth` decoder layers has a layer of this index."""
    if layer >= depth:
        raise InputError(
            f"layer={layer} does not exist: {model_type} has {depth} decoder layers, so layer must be 0 "
            f"to {depth - 1} (an edit after the last layer reaches no other token)"
        )


def _value_size(layer: nn.Module) -> int:
    """Width of a decoder layer's attention values, all heads together; 0 if the attention isn't built like Llama's."""
    attention: Any = getattr(layer, "self_attn", None)
    heads = getattr(getattr(attention, "config", None), "num_key_value_heads", 0)
    return int(heads * getattr(attention, "head_dim", 0))


def fitted_config(config: AniConfig, model: PreTrainedModel) -> AniConfig:
    """The config with the facts about a model filled in; raises InputError if it was made for other facts, or the model
    has no such layer."""
    layers, text_config = decoder_layers(model), model.config.get_text_config()
    facts = {
        "model_type": text_config.model_type,
        "hidden_size": text_config.hidden_size,
        "value_size": _value_size(layers[0]),
        "num_hidden_layers": len(layers),
    }
    for key, actual in facts.items():
        wanted = getattr(config, key)
        if wanted is not None and wanted != actual:
            raise InputError(f"this ANI config was made for {key}={wanted!r:.80}, the model has {key}={actual!r}")
    check_layer(config.layer, len(layers), text_config.model_type)
    return config.model_copy(update=facts)


def is_attached(model: nn.Module) -> bool:
    """True if an ANI module is attached to the model."""
    return hasattr(type(base_model(model)), "_ani_base")


def ani_module(model: nn.Module) -> AniModule:
    """The attached module that is in use, also inside PEFT's `modules_to_save` wrapper; raises InputError if there is
    none."""
    if not is_attached(model):
        raise InputError(
            "the model has no ANI module; call ani.attach or ani.load_adapter first (adapters of the methods sft and "
            "numerologic are LoRA weights alone)"
        )
    module: Any = base_model(model).get_submodule("ani")
    if not isinstance(module, AniModule):
        adapter = next((name for name in module.active_adapters if name in module.modules_to_save), None)
        others = module.disable_adapters or adapter is None
        module = module.original_module if others else module.modules_to_save[adapter]
    return cast(AniModule, module)


def has_gate(model: nn.Module) -> bool:
    """True if a module with a gate is attached to the model."""
    return is_attached(model) and ani_module(model).gate is not None


def number_locator(model: nn.Module) -> NumberLocator:
    """The locator of an attached model, which its collator also uses."""
    ani_module(model)
    locator = vars(base_model(model)).get("_ani_locator")
    if locator is None:
        raise InputError("this merged model was built without its tokenizer; load it with from_pretrained")
    return cast(NumberLocator, locator)


class Decision(NamedTuple):
    """The numbers of a forward pass, and the module's result for them (detached)."""

    numbers: NumberBatch
    injection: Injection


def last_decision(model: nn.Module) -> Decision | None:
    """The decisions of the latest forward pass of an attached model, None if it had no numbers."""
    return getattr(base_model(model), "_ani_last_decision", None)
