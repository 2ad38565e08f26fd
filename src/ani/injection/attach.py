"""Attaches ANI to a Hugging Face model and runs it in forward and `generate`; `_inject` edits the hidden states.

The model stays the same object. Classes are swapped for subclasses of themselves, and restored by `detach`:

- the model's: its `forward` finds the numbers of `input_ids` before the pass and adds the penalty to the loss after
  it, and its `generate` remembers what is prompt;
- decoder layer l's: its call edits the incoming hidden states. Being outside the layer's forward, the edit is never
  recomputed by gradient checkpointing (stanfordnlp/pyvene#231 is what happens otherwise);
- that of each of `gate_layers`: its call keeps the incoming hidden states for the gate; the attention of each of
  `gate_context` keeps the mean of its values over the text so far;
- the KV cache's (`ani.injection.history`): it remembers the token ids behind its entries, so that a number that began
  before this forward is read whole, whatever the cache went through (beams, turns, chunks, crops).
"""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, cast

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ani.errors import InputError
from ani.injection import substitution
from ani.injection.classes import ClassOfBaseInstances, restore_class, swap_class
from ani.injection.config import AniConfig
from ani.injection.history import Rows, cached_length, history, remember
from ani.injection.labels import response_tokens, warn_if_frozen, warn_if_unlabelled, with_auxiliary_loss
from ani.injection.locate import NumberBatch, NumberLocator, text_ids
from ani.injection.module import AniModule, Injection
from ani.injection.scale import measured_scale

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass
class _ForwardPass:
    """One forward pass under way."""

    model: PreTrainedModel
    numbers: NumberBatch
    injection: Injection | None = None
    earlier: list[torch.Tensor] = field(default_factory=list)
    """What the gate reads of earlier layers at the numbers, in the order of `gate_reads`, each (N, width)."""


@dataclass(frozen=True)
class _GenerationPrompt:
    """What `generate` was given."""

    model: PreTrainedModel
    numbers: NumberBatch | None
    """None: each forward finds its own."""
    rows: Rows
    """Token ids, those behind a carried cache included."""


class Decision(NamedTuple):
    """What the gate decided in one forward pass: its numbers, and the module's (detached) answer for each."""

    numbers: NumberBatch
    injection: Injection


_forward_pass: ContextVar[_ForwardPass | None] = ContextVar("ani_forward_pass", default=None)
_generation_prompt: ContextVar[_GenerationPrompt | None] = ContextVar("ani_generation_prompt", default=None)


class _OutermostForward:
    """`forward` of an attached model: the model's own, with ANI around it.

    A data descriptor, because others replace `model.forward` on the instance (TRL's fused head, accelerate's
    autocast) and PEFT calls it directly: what they set is what we wrap, so ANI stays outermost and is never lost.
    Module hooks would not do: they fire in `__call__` alone, which AdaLoRA passes by, as did every tuner of PEFT 0.18.
    """

    @torch.compiler.disable(recursive=False)
    def __get__(self, model: "AttachedModel | None", owner: type["AttachedModel"]) -> Callable[..., Any]:
        if model is None:
            return owner._ani_base.forward
        inner = model.__dict__.get("_ani_inner_forward") or owner._ani_base.forward.__get__(model)
        return functools.wraps(inner)(functools.partial(_forward, model, inner))

    def __set__(self, model: "AttachedModel", forward: Callable[..., Any]) -> None:
        model.__dict__["_ani_inner_forward"] = forward

    def __delete__(self, model: "AttachedModel") -> None:
        del model.__dict__["_ani_inner_forward"]


class AttachedModel(PreTrainedModel, GenerationMixin):
    """Mixed into an attached model's class; never instantiated by itself."""

    _ani_base: type[PreTrainedModel]

    forward = _OutermostForward()

    def _ani_detached(self) -> None:
        """For subclasses: `detach` is about to give the model its own class back."""

    def generate(
        self, inputs: torch.Tensor | None = None, *args: Any, read_as: torch.Tensor | None = None, **kwargs: Any
    ) -> Any:
        """transformers' `generate`; the prompt's numbers (under a causal policy generated ones too) are injected.

        Args:
            inputs: As transformers has it, and all others.
            read_as: Token ids of the same shape, such as those of the same text with other numbers: their numbers and
                calculations are injected in place of the prompt's. None: the prompt's.

        Raises:
            InputError: There are no token ids, or `read_as` has another shape.
        """
        input_ids = inputs if inputs is not None else kwargs.get("input_ids")
        if input_ids is None and kwargs.get("inputs_embeds") is not None:
            raise _no_ids()
        if read_as is not None and (input_ids is None or read_as.shape != input_ids.shape):
            raise InputError("read_as must have the shape of input_ids: name numbers of as many tokens as the prompt's")
        with _prompting(self, input_ids, read_as, kwargs):
            # GenerationMixin types `self` by a protocol that no class outside transformers meets.
            return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Not available: continuous batching packs rows into one, which has no place for ANI's positions."""
        raise InputError("generate_batch (continuous batching) can't be used with ANI attached; use generate")


class _InjectionLayer(nn.Module):
    """Mixed into the class of decoder layer l: edits `hidden_states[l]` on its way in."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "hidden_states" in kwargs:
            kwargs["hidden_states"] = _inject(kwargs["hidden_states"])
        else:
            args = (_inject(args[0]), *args[1:])
        return super().__call__(*args, **kwargs)


class _GateLayer(nn.Module):
    """Mixed into the class of an earlier decoder layer: keeps its hidden states for the gate."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        current = _current_pass()
        if len(current.numbers) or current.model.training:
            states = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            current.earlier.append(states[current.numbers.at(states.device)])
        return super().__call__(*args, **kwargs)


_CONTEXT = "ani_context"
"""Name of `_context_attention` among transformers' attention functions."""


def _context_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The attention function of `gate_context`'s layers.

    It calls the model's own twice: for the tokens' queries, and for queries of zeros. Zeros weigh all values alike, so
    the second output is their mean, the same for all query heads that share a value head.
    """
    attention: Any = module
    eager = vars(sys.modules[type(module).__module__])["eager_attention_forward"]
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention.ani_config._attn_implementation, eager)
    current = _forward_pass.get()  # none where gradient checkpointing computes a layer again
    if current is not None and (len(current.numbers) or current.model.training):
        with torch.no_grad():
            mean = attend(module, torch.zeros_like(query), key, value, attention_mask, **{**kwargs, "dropout": 0.0})[0]
            shared = query.shape[1] // value.shape[1]
            current.earlier.append(mean[:, :, ::shared].flatten(2)[current.numbers.at(mean.device)])
    attended: tuple[torch.Tensor, torch.Tensor | None] = attend(module, query, key, value, attention_mask, **kwargs)
    return attended


ALL_ATTENTION_FUNCTIONS.register(_CONTEXT, _context_attention)


def _keep_mean(layer: nn.Module) -> None:
    """Set `_context_attention` in a copy of the attention's config."""
    attention: Any = layer.self_attn
    attention.ani_config, attention.config = attention.config, copy.copy(attention.config)
    attention.config._attn_implementation_internal = _CONTEXT


def _value_size(layer: nn.Module) -> int:
    """Width of its attention's values, all heads together; 0 if the attention isn't built like Llama's."""
    attention: Any = getattr(layer, "self_attn", None)
    heads = getattr(getattr(attention, "config", None), "num_key_value_heads", 0)
    return int(heads * getattr(attention, "head_dim", 0))


def is_peft_model(model: nn.Module) -> "TypeGuard[PeftModel]":
    """Whether the model is a `PeftModel`. PEFT isn't imported to answer this: the import takes a second."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def base_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model itself, without PEFT around it."""
    inner = model.get_base_model() if is_peft_model(model) else model
    if not isinstance(inner, PreTrainedModel):
        raise InputError(f"ANI attaches to a transformers model, not to {type(model).__name__}")
    return inner


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers, in order; raises InputError for a model that isn't a decoder-only language model, or has no
    `layers` where models of the common build have them."""
    if model.config.is_encoder_decoder or not model.can_generate():
        raise InputError(
            f"{type(model).__name__} is no decoder-only language model; load one, with AutoModelForCausalLM"
        )
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise InputError(
            f"{type(model).__name__} has no list `layers` in what its get_decoder() gives, as Qwen3, Llama, Mistral "
            "and Gemma 3 have; choose a model of their build"
        )
    return layers


def is_attached(model: nn.Module) -> bool:
    """Whether an ANI module is attached to the model."""
    return isinstance(base_model(model), AttachedModel)


def ani_module(model: nn.Module) -> AniModule:
    """The attached module (inside PEFT's `modules_to_save` wrapper, if there is one)."""
    base = base_model(model)
    if not isinstance(base, AttachedModel):
        raise InputError(
            "the model has no ANI module; call ani.attach or ani.load_adapter first (with an adapter that has one: "
            "those of the methods sft and numerologic are LoRA weights alone)"
        )
    module = base.get_submodule("ani")
    if not isinstance(module, AniModule):
        wrapper = cast(Any, module)
        module = wrapper.modules_to_save[wrapper.active_adapters[0]]
    return cast(AniModule, module)


def has_gate(model: nn.Module) -> bool:
    """Whether a module with a gate is attached to the model: some methods have none."""
    return is_attached(model) and ani_module(model).gate is not None


def injects_pending(model: nn.Module) -> bool:
    """Whether a module that injects pending values is attached to the model."""
    return is_attached(model) and number_locator(model).reads_pending


def number_locator(model: nn.Module) -> NumberLocator:
    """The locator of an attached model, which its collator shares."""
    ani_module(model)
    locator = base_model(model).__dict__.get("_ani_locator")
    if locator is None:
        raise InputError("this merged model was built without its tokenizer; load it with from_pretrained")
    return cast(NumberLocator, locator)


def _substitutes(model: nn.Module) -> bool:
    """Whether numbers are read from one position each: gates that are forced shut leave the text as it is."""
    module = ani_module(model)
    return module.config.combine == "substitute" and module.forced is not False


def last_decision(model: nn.Module) -> Decision | None:
    """The gate's decisions in the latest forward pass that held numbers; for logs and inspection."""
    return getattr(base_model(model), "_ani_last_decision", None)


def attach(model: nn.Module, tokenizer: PreTrainedTokenizerBase, config: AniConfig) -> nn.Module:
    """Attach an untrained ANI module, in place (paper Algorithm 1).

    The result computes exactly what the model computed before, until it is trained. Attach after PEFT has wrapped
    the model (PEFT freezes whatever it finds), or name the module in PEFT's `modules_to_save=["ani"]`.

    Args:
        model: A decoder-only transformers model, or a PeftModel around one.
        tokenizer: The model's tokenizer.
        config: `embedding_scale=None` is measured here, by one short forward pass.

    Returns:
        `model`, the same object; `generate`, Trainer, PEFT and lm-eval keep working.

    Raises:
        InputError: If the model is attached already, is no decoder-only model, has no such layer, or differs from
            the one that the config names.
    """
    base = base_model(model)
    layers = decoder_layers(base)
    if isinstance(base, AttachedModel):
        raise InputError("an ANI module is attached to this model already; call ani.detach first")
    text_config = base.config.get_text_config()
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
    config = config.model_copy(update=facts)
    check_layer(config.layer, len(decoder_layers(base)), base.config.model_type)
    if config.combine == "substitute":
        substitution.check_masks_hide(base)
    locator = NumberLocator(tokenizer, config)
    if config.embedding_scale is None:
        scale = measured_scale(base, tokenizer, config.layer, locator)
        config = config.model_copy(update={"embedding_scale": scale})
    add_module(base, config, locator.encoder.width)
    set_locator(base, locator)
    inner_forward = base.__dict__.pop("forward", None)
    swap_class(base, AttachedModel)
    if inner_forward is not None:
        base.forward = inner_forward
    return model


def add_module(model: PreTrainedModel, config: AniConfig, feature_size: int) -> None:
    """Give a model its module and layer l its edit, both idle until its class is an `AttachedModel` with a locator."""
    layers = decoder_layers(model)
    if config.gate_context and not config.value_size:
        raise InputError(f"gate_context needs attention as Llama has it, and {type(layers[0]).__name__} has another")
    module = AniModule(config, feature_size)
    parameter = next(iter(layers[config.layer].parameters()), None)
    module.to(parameter.device if parameter is not None else model.device)
    module.train(model.training)
    model.add_module("ani", module)
    swap_class(layers[config.layer], _InjectionLayer, ClassOfBaseInstances)
    for index in config.gate_layers:
        swap_class(layers[index], _GateLayer, ClassOfBaseInstances)
    for index in config.gate_context:
        _keep_mean(layers[index])


def set_locator(model: PreTrainedModel, locator: NumberLocator) -> None:
    """Give a model that has its module the locator that finds its numbers."""
    object.__setattr__(model, "_ani_locator", locator)


def check_layer(layer: int, depth: int, model_type: str) -> None:
    """Raise InputError unless a model of so many decoder layers has one of this index."""
    if layer >= depth:
        raise InputError(
            f"layer={layer} does not exist: {model_type} has {depth} decoder layers, so layer must be 0 "
            f"to {depth - 1} (what is added after the last one reaches no other token)"
        )


def detach(model: nn.Module) -> nn.Module:
    """Take the ANI module off again, in place, and the LoRA that `load_adapter` added: the base model, bit for bit.
    LoRA of `get_peft_model` stays. Returns `model`.

    Raises:
        InputError: If there is nothing to take off.
    """
    base = base_model(model)
    lora = vars(base).pop("_ani_lora", None)
    if lora is None or is_attached(base):
        _take_off_module(model)
    if lora is not None:
        lora.unload()
    return model


def _take_off_module(model: nn.Module) -> None:
    config, base = ani_module(model).config, base_model(model)
    for index in (config.layer, *config.gate_layers):
        restore_class(decoder_layers(base)[index])
    for index in config.gate_context:
        attention = cast(Any, decoder_layers(base)[index]).self_attn
        attention.config = attention.__dict__.pop("ani_config")
    inner_forward = base.__dict__.pop("_ani_inner_forward", None)
    cast(AttachedModel, base)._ani_detached()
    restore_class(base)
    del base.ani
    for name in ("_ani_locator", "_ani_last_decision"):
        base.__dict__.pop(name, None)
    if inner_forward is not None:
        base.forward = inner_forward


def _no_ids() -> InputError:
    return InputError(
        "ANI finds numbers in token ids, but got inputs_embeds without input_ids; pass input_ids, or, unless "
        "combine='substitute', numbers=NumberBatch(...) beside inputs_embeds"
    )


# --- the forward pass -------------------------------------------------------------------------------------------------


# The bookkeeping is plain Python over token ids: torch.compile skips these frames and compiles the forward inside.
@torch.compiler.disable(recursive=False)
def _forward(model: PreTrainedModel, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    active = _forward_pass.get()
    if not isinstance(model, AttachedModel) or (active is not None and active.model is model):
        return inner(*args, **kwargs)  # an inner wrapper of the same call, or somebody kept us over a detach
    numbers: NumberBatch | None = kwargs.pop("numbers", None)
    totals: torch.Tensor | None = kwargs.pop("number_totals", None)
    given = {**dict(zip(_parameter_names(cast(Any, type(model)._ani_base)), args, strict=False)), **kwargs}
    input_ids, cache, labels = (given.get(name) for name in ("input_ids", "past_key_values", "labels"))
    substitutes = _substitutes(model) and _prompt(model) is None  # `generate` begins with the mask that it needs
    rows: Rows | None = None
    if input_ids is not None:
        if numbers is None or cache is not None or substitutes:  # else, as in training, nobody waits for the ids
            rows = _rows(model, given)
        if model.training and torch.is_grad_enabled():
            (warn_if_unlabelled if labels is None else warn_if_frozen)(ani_module(model))
        if numbers is None:
            numbers = _find_numbers(model, cast(Rows, rows), cached_length(cache), labels)
        if substitutes:
            assert rows is not None
            start = cached_length(cache)
            substitution.mask_sub_tokens(rows, numbers, start)
            args, kwargs = (), {**given, **substitution.hiding_masks(rows, input_ids, given)}
    elif numbers is None or substitutes:
        raise _no_ids()
    forward_pass = _ForwardPass(model, numbers)
    object.__setattr__(model, "_ani_last_decision", None)
    token = _forward_pass.set(forward_pass)
    try:
        outputs = inner(*args, **kwargs)
    finally:
        _forward_pass.reset(token)
    injection = forward_pass.injection
    if model.training and labels is not None and injection is not None:
        items = kwargs.get("num_items_in_batch")
        outputs = with_auxiliary_loss(outputs, ani_module(model), injection, numbers.roles, labels, items, totals)
    used = getattr(outputs, "past_key_values", None) if cache is None else cache
    if input_ids is not None and isinstance(used, Cache):
        remember(used, _rows(model, given) if rows is None else rows)
    if rows is not None and substitutes and labels is None:
        outputs = substitution.without_predictions(outputs, rows, input_ids, given.get("logits_to_keep", 0))
    return outputs


@functools.cache
def _parameter_names(model_class: type[Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(model_class.forward).parameters)[1:]


@torch.compiler.disable
def _rows(model: AttachedModel, given: Mapping[str, Any]) -> Rows:
    """Token ids behind this pass's cache and its own, a list a row."""
    input_ids = given["input_ids"]
    rows: Rows = history(given.get("past_key_values"), len(input_ids))
    start = len(rows[0]) if rows else 0
    # In place, to cost no more than the new tokens. Should the pass fail, `history` cuts them off again.
    for row, new in zip(rows, _new_ids(model, input_ids, given.get("attention_mask"), start), strict=True):
        row.extend(new)
    return rows


@torch.compiler.disable
def _new_ids(model: AttachedModel, input_ids: torch.Tensor, attention_mask: Any, start: int) -> Rows:
    """Token ids of this pass; of the prompt, those that `generate` found, whose mask tells no longer what is text."""
    rows: Rows = text_ids(input_ids, attention_mask)
    if prompt := _prompt(model):
        for i, row in enumerate(rows):
            known = prompt.rows[i * len(prompt.rows) // len(rows)][start : start + len(row)]
            row[: len(known)] = known
    return rows


@torch.compiler.disable
def _find_numbers(model: AttachedModel, rows: Rows, start: int, labels: torch.Tensor | None) -> NumberBatch:
    prompt = _prompt(model)
    if prompt is not None and prompt.numbers is not None:
        return prompt.numbers.between(start, len(rows[0])).repeated(len(rows) // len(prompt.rows))
    locator = number_locator(model)
    response = response_tokens(labels, start, locator, training=model.training and torch.is_grad_enabled())
    return locator.batch(substitution.readable(rows) if locator.substitutes else rows, start=start, response=response)


def _prompt(model: AttachedModel) -> _GenerationPrompt | None:
    """The prompt of the `generate` of this model to which a forward belongs, if it was read there."""
    prompt = _generation_prompt.get()
    return prompt if prompt is not None and prompt.model is model else None


# ContextVar.get can't be traced by torch.compile.
@torch.compiler.disable
def _current_pass() -> _ForwardPass:
    current = _forward_pass.get()
    if current is None:
        raise InputError("the decoder of a model with ANI was called by itself; call the model (or ani.detach it)")
    return current


def _inject(hidden_states: torch.Tensor) -> torch.Tensor:
    current = _current_pass()
    module = current.model.get_submodule("ani")
    if len(current.numbers) == 0 and not module.training:
        return hidden_states
    device = next(module.parameters()).device
    if device.type == "meta":  # offloaded: accelerate brings the weights when they are needed
        device = hidden_states.device
    # Where a model lies on several devices, its hidden states arrive from the device of the layer before.
    numbers, at = current.numbers.to(device), current.numbers.at(hidden_states.device)
    earlier = [states.to(device) for states in current.earlier]
    injection: Injection = module(hidden_states[at].to(device), numbers.features, numbers.roles, earlier)
    current.injection = injection
    decision = Decision(numbers, Injection(*(field.detach() for field in injection)))
    object.__setattr__(current.model, "_ani_last_decision", decision)
    updated = injection.hidden_states.to(hidden_states.device)
    if ani_module(current.model).config.layer == 0:
        return hidden_states.index_put(at, updated)  # PEFT makes the embedding output a leaf
    # In place, so that transformers' record of this hidden state (`output_hidden_states`) shows the edit.
    return hidden_states.index_put_(at, updated)


# --- generation -------------------------------------------------------------------------------------------------------


@contextmanager
def _prompting(
    model: AttachedModel, input_ids: Any, read_as: torch.Tensor | None, given: dict[str, Any]
) -> Iterator[None]:
    """Unless the policy is causal, find the prompt's numbers once; what is generated after it gets nothing.

    Where numbers are read from one position, the mask in `given` is replaced by one without their other tokens.
    """
    locator = number_locator(model)
    if locator.causal and read_as is None:
        yield
        return
    mask, cache = given.get("attention_mask"), given.get("past_key_values")
    substitutes = input_ids is not None and _substitutes(model)
    if substitutes and mask is None:
        mask = substitution.inferred_mask(model, input_ids, given)
    ids = input_ids if read_as is None else read_as
    rows = text_ids(ids, mask) if ids is not None else [[]]  # none: generation from BOS alone
    cached = cached_length(cache)
    only_new = mask is not None and mask.shape[1] > len(rows[0])
    if cached and (only_new or substitutes):  # what the cache holds stays as it is
        pairs = zip(history(cache, len(rows)), rows, strict=True)
        rows = [old + (new if only_new else new[cached:]) for old, new in pairs]
    numbers = None if locator.causal else locator.batch(substitution.readable(rows))
    if substitutes and numbers is not None:
        substitution.mask_sub_tokens(rows, numbers.between(cached, len(rows[0])), cached)
        given |= substitution.hiding_masks(rows, input_ids, {**given, "attention_mask": mask})
        given.pop("position_ids")
    token = _generation_prompt.set(_GenerationPrompt(model, numbers, rows))
    try:
        yield
    finally:
        _generation_prompt.reset(token)
