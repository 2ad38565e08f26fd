"""Attaches ANI to a Hugging Face model, and detaches it.

The model stays the same object. Classes are swapped for subclasses of themselves; `detach` restores those of modules:

- the model's: its `forward` finds the numbers of `input_ids` and adds to the loss (`ani.injection.forward`), and its
  `generate` keeps the prompt (`ani.injection.generation`);
- that of decoder layer l: its call edits the incoming hidden states. The edit is outside the layer's forward, so
  gradient checkpointing never computes it again (stanfordnlp/pyvene#231 is what happens otherwise);
- those of the earlier layers that the gate reads (`ani.injection.earlier_layers`);
- the KV cache's (`ani.injection.history`): it keeps the token ids of its entries, so that a number that began before
  this forward pass is read whole, whatever happened to the cache (beams, turns, chunks, crops).
"""

from typing import Any, cast

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

from ani.errors import InputError, one_line
from ani.injection import substitution
from ani.injection.checks import CheckedModel, remember_weights
from ani.injection.classes import ClassOfBaseInstances, OutermostForward, restore_class, swap_class
from ani.injection.config import AniConfig
from ani.injection.earlier_layers import forget_earlier_layers, read_earlier_layers
from ani.injection.forward import InjectionLayer, run_forward
from ani.injection.generation import prompting
from ani.injection.locate import NumberLocator
from ani.injection.model_parts import (
    ani_module,
    base_model,
    check_tokenizer,
    decoder_layers,
    fitted_config,
    is_attached,
    layer_device,
)
from ani.injection.module import AniModule
from ani.injection.self_test import check_cache, measured_scale


class AttachedModel(CheckedModel, GenerationMixin):
    """Mixed into an attached model's class; never instantiated by itself."""

    _ani_base: type[PreTrainedModel]

    forward = OutermostForward(run_forward)

    def _ani_detached(self) -> None:
        """For subclasses: `detach` is about to restore the model's own class."""

    def generate(self, inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """transformers' `generate`: the prompt's numbers, and under a causal policy generated ones, are injected."""
        input_ids = inputs if inputs is not None else kwargs.get("input_ids")
        if input_ids is None and kwargs.get("inputs_embeds") is not None:
            raise InputError("ANI finds numbers in token ids, but got inputs_embeds without input_ids; pass input_ids")
        with prompting(self, input_ids, kwargs):
            # GenerationMixin types `self` by a protocol that no class outside transformers meets.
            return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]


def attach(model: nn.Module, tokenizer: PreTrainedTokenizerBase, config: AniConfig, *, check: bool = True) -> nn.Module:
    """Attach an untrained ANI module, in place (paper Algorithm 1).

    With `combine="add"` (the default) an untrained module changes nothing, exactly. Attach after PEFT has wrapped the
    model (PEFT freezes what it finds), or name the module in PEFT's `modules_to_save=["ani"]`.

    Args:
        model: A decoder-only transformers model, or a PeftModel around one.
        tokenizer: The model's tokenizer.
        config: `embedding_scale=None` is measured here, by one short forward pass.
        check: Run the self-test (`ani.injection.self_test`), by three short forward passes: layer l's input is
            `hidden_states[l]`, and the cache shows what was read before. A model on `meta` is never tested.

    Returns `model`, the same object; `generate`, Trainer, PEFT and lm-eval keep working. Raises InputError if the model
    is attached already, is no decoder-only model, has no such layer, is not the model that the config names, or fails
    the self-test; the model is then unchanged.
    """
    base = base_model(model)
    if is_attached(base):
        raise InputError("an ANI module is attached to this model already; call ani.detach first")
    check_tokenizer(tokenizer)
    if not isinstance(config, AniConfig):
        raise InputError(f"the argument config must be an ani.AniConfig, not {one_line(repr(config), 80)}")
    config = fitted_config(config, base)
    if config.combine == "substitute":
        substitution.check_masks_hide(base)
    locator = NumberLocator(tokenizer, config)
    check = check and base.device.type != "meta"
    if check or config.embedding_scale is None:
        scale = measured_scale(base, tokenizer, config, locator, check)
        config = config.model_copy(update={"embedding_scale": scale})
    add_module(base, config, locator.encoder.width)
    vars(base)["_ani_locator"] = locator
    inner_forward = base.__dict__.pop("forward", None)
    swap_class(base, AttachedModel)
    if inner_forward is not None:
        base.forward = inner_forward
    try:
        if check:
            check_cache(base, tokenizer, config.layer)
    except BaseException:
        _remove_module(model)
        raise
    remember_weights(base)
    return model


def add_module(model: PreTrainedModel, config: AniConfig, feature_size: int) -> None:
    """Add the module and layer l's edit; both are idle until the model's class is an `AttachedModel` with a locator."""
    layers = decoder_layers(model)
    read_earlier_layers(layers, config)
    module = AniModule(config, feature_size)
    if not module.projection.weight.is_meta:  # else the model is being loaded: its weights have no device yet
        module.to(layer_device(model, layers[config.layer]))
    module.train(model.training)
    model.add_module("ani", module)
    swap_class(layers[config.layer], InjectionLayer, ClassOfBaseInstances)


def detach(model: nn.Module) -> nn.Module:
    """Remove the ANI module, in place, and the LoRA that `load_adapter` added: the base model, bit for bit. LoRA of
    `get_peft_model` stays. Returns `model`; raises InputError if there is nothing to remove."""
    base = base_model(model)
    lora = vars(base).pop("_ani_lora", None)
    if is_attached(base):
        _remove_module(model)
    elif lora is None:
        raise InputError("there is nothing to detach: the model has neither an ANI module nor LoRA of load_adapter")
    if lora is not None:
        lora.unload()
    return model


def _remove_module(model: nn.Module) -> None:
    config, base = ani_module(model).config, base_model(model)
    layers = decoder_layers(base)
    restore_class(layers[config.layer])
    forget_earlier_layers(layers, config)
    inner_forward = base.__dict__.pop("_ani_inner_forward", None)
    cast(AttachedModel, base)._ani_detached()
    restore_class(base)
    del base.ani
    for name in ("_ani_locator", "_ani_last_decision", "_ani_trainer_tags", "_ani_versions"):
        base.__dict__.pop(name, None)
    if inner_forward is not None:
        base.forward = inner_forward
