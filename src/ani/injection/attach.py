"""ANI inside a Hugging Face model: attach, forward, cache, generate, detach; knows nothing about files or training.

The model stays the same object. Three classes are exchanged for subclasses of themselves, and given back by `detach`:

- the model's: its `forward` finds the numbers of `input_ids` before the pass and adds the penalty to the loss after
  it, and its `generate` remembers what is prompt;
- decoder layer l's: its call edits the incoming hidden states. Being outside the layer's forward, the edit is never
  recomputed by gradient checkpointing (stanfordnlp/pyvene#231 is what happens otherwise);
- the KV cache's: it remembers the token ids behind its entries, so that a number that began before this forward
  is read whole, whatever the cache went through (beams, turns, chunks, crops).
"""

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from peft import PeftModel
from peft.utils import ModulesToSaveWrapper
from torch import nn
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from ani.errors import InputError
from ani.injection.config import AniConfig
from ani.injection.locate import NumberBatch, NumberLocator, text_ids
from ani.injection.module import AniModule, Injection
from ani.injection.substitution import OnWholeText, inferred_mask, no_carried_cache, shortened, whole_text
from ani.models import evaluating

CALIBRATION_TEXT = (
    "Room 505 has a capacity of 10 people. The bill came to $23.50, and 8 guests paid 188 in total. "
    "In 2019 the town had 48210 inhabitants; 7% of them took bus 12. 345 + 678 = 1023. "
    "She ran 5.2 km in 31 minutes. Order 90417 holds 3 boxes of 250 screws. "
)
"""Text on whose numbers `attach` measures the layer's RMS; fixed, so that the same model gives the same scale."""


@dataclass
class _Call:
    """One forward pass under way."""

    model: PreTrainedModel
    numbers: NumberBatch
    injection: Injection | None = None


@dataclass(frozen=True)
class _Prompt:
    """What `generate` was given."""

    model: PreTrainedModel
    numbers: NumberBatch
    batch_size: int


class Decision(NamedTuple):
    """What the gate decided in one forward pass: its numbers, and the module's (detached) answer for each."""

    numbers: NumberBatch
    injection: Injection


_call: ContextVar[_Call | None] = ContextVar("ani_call", default=None)
_prompt: ContextVar[_Prompt | None] = ContextVar("ani_prompt", default=None)


class _OutermostForward:
    """`forward` of an attached model: the model's own, with ANI around it.

    A data descriptor, because others replace `model.forward` on the instance (TRL's fused head, accelerate's
    autocast) and PEFT calls it directly: what they set is what we wrap, so ANI stays outermost and is never lost.
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

    def generate(self, inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """transformers' `generate`; the prompt's numbers (under a causal policy generated ones too) are injected."""
        input_ids = inputs if inputs is not None else kwargs.get("input_ids")
        if input_ids is None and kwargs.get("inputs_embeds") is not None:
            raise _no_ids()
        if input_ids is not None and _substitutes(self):
            return self._generate_shortened(*args, **{**kwargs, "input_ids": input_ids})
        with _prompting(self, input_ids, kwargs.get("attention_mask"), kwargs.get("past_key_values")):
            # GenerationMixin types `self` by a protocol that no class outside transformers meets.
            return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]

    def _generate_shortened(self, *args: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        """Generate from the prompt with its numbers substituted; what is returned begins with the prompt as it was.

        Lengths, stopping criteria and logits processors are about that prompt too. A streamer that shows the prompt
        shows what is left of it.
        """
        cache = kwargs.get("past_key_values")
        if isinstance(cache, Cache) and cache.get_seq_length():
            raise no_carried_cache()
        mask = kwargs.pop("attention_mask", None)
        if mask is None:
            mask = inferred_mask(self, input_ids, kwargs)
        short = shortened(number_locator(self), input_ids, mask, None, padding_side="left")
        width = short.input_ids.shape[1]
        for name in ("max_length", "min_length"):
            if kwargs.get(name) is not None:
                kwargs[name] = max(kwargs[name] - input_ids.shape[1] + width, 0)
        if kwargs.get("generation_config") is not None:
            config = kwargs["generation_config"] = copy.deepcopy(kwargs["generation_config"])
            if config.max_new_tokens is None and config.max_length is not None:
                config.max_length = max(config.max_length - input_ids.shape[1] + width, 0)
            if config.min_length:
                config.min_length = max(config.min_length - input_ids.shape[1] + width, 0)
        for name in ("stopping_criteria", "logits_processor"):
            if kwargs.get(name) is not None:
                kwargs[name] = type(kwargs[name])(OnWholeText(each, input_ids, width) for each in kwargs[name])
        prompt = _prompt.set(_Prompt(self, short.numbers, len(input_ids)))
        try:
            # As in `generate`: GenerationMixin's type for `self` is one that no class outside transformers meets.
            outputs = super().generate(  # type: ignore[misc]
                short.input_ids, *args, attention_mask=short.attention_mask, **kwargs
            )
        finally:
            _prompt.reset(prompt)
        sequences: torch.Tensor = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
        whole = whole_text(sequences, input_ids, width)
        if isinstance(outputs, torch.Tensor):
            return whole
        outputs.sequences = cast(Any, whole)
        return outputs

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


class _TokenHistory(Cache):
    """Mixed into a KV cache's class: `ani_token_ids` are the ids behind its entries, a list a row."""

    ani_token_ids: list[list[int]]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        super().reorder_cache(cast(Any, beam_idx))
        self.ani_token_ids = [list(self.ani_token_ids[i]) for i in beam_idx.tolist()]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self.ani_token_ids = [list(self.ani_token_ids[i]) for i in indices.tolist()]

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.ani_token_ids = [list(ids) for ids in self.ani_token_ids for _ in range(repeats)]


class _LayerType(type):
    """Of the edited layer's class. accelerate's FSDP finds a layer's class by its name and shards the instances of it:
    when the edited layer is the first that it meets, the other layers must be among them."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cast(Any, cls)._ani_base)


@functools.cache
def _subclass(mixin: type[Any], base: type[Any], kind: type[type] = type) -> type[Any]:
    # The name stays: transformers writes it into config.json (`architectures`) and looks layers up by it.
    return kind(base.__name__, (mixin, base), {"_ani_base": base, "__module__": base.__module__})


def base_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model itself, without PEFT around it."""
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    if not isinstance(inner, PreTrainedModel):
        raise InputError(f"ANI attaches to a transformers model, not to {type(model).__name__}")
    return inner


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers, in order; raises InputError for a model that isn't a decoder-only language model."""
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if model.config.is_encoder_decoder or not isinstance(layers, nn.ModuleList) or not model.can_generate():
        raise InputError(
            f"{type(model).__name__} is no decoder-only language model with a list of layers; load it with "
            "AutoModelForCausalLM"
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
    if isinstance(module, ModulesToSaveWrapper):
        module = module.modules_to_save[module.active_adapters[0]]
    return cast(AniModule, module)


def has_gate(model: nn.Module) -> bool:
    """Whether a module with a gate is attached to the model: some methods have none."""
    return is_attached(model) and ani_module(model).gate is not None


def number_locator(model: nn.Module) -> NumberLocator:
    """The locator of an attached model, which its collator shares."""
    ani_module(model)
    locator = base_model(model).__dict__.get("_ani_locator")
    if locator is None:
        raise InputError("this merged model was built without its tokenizer; load it with from_pretrained")
    return cast(NumberLocator, locator)


def _substitutes(model: nn.Module) -> bool:
    """Whether numbers' sub-tokens leave the sequence: gates that are forced shut leave the text as it is."""
    return number_locator(model).substitutes and ani_module(model).forced is not False


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
    config = config.model_copy(update=_model_facts(base, config, len(layers)))
    check_layer(config.layer, base)
    locator = NumberLocator(tokenizer, config)
    if config.embedding_scale is None:
        scale = _measure_scale(base, tokenizer, config.layer, locator)
        config = config.model_copy(update={"embedding_scale": scale})
    add_module(base, config, locator.encoder.width)
    set_locator(base, locator)
    inner_forward = base.__dict__.pop("forward", None)
    base.__class__ = _subclass(AttachedModel, cast(Any, type(base)))
    if inner_forward is not None:
        base.forward = inner_forward
    return model


def add_module(model: PreTrainedModel, config: AniConfig, feature_size: int) -> None:
    """Give a model its module and layer l its edit, both idle until its class is an `AttachedModel` with a locator."""
    layer = decoder_layers(model)[config.layer]
    module = AniModule(config, feature_size)
    parameter = next(iter(layer.parameters()), None)
    module.to(parameter.device if parameter is not None else model.device)
    module.train(model.training)
    model.add_module("ani", module)
    layer.__class__ = _subclass(_InjectionLayer, cast(Any, type(layer)), _LayerType)


def set_locator(model: PreTrainedModel, locator: NumberLocator) -> None:
    """Give a model that has its module the locator that finds its numbers."""
    object.__setattr__(model, "_ani_locator", locator)


def check_layer(layer: int, model: PreTrainedModel) -> None:
    """Raise InputError unless the model has a decoder layer of this index."""
    depth = len(decoder_layers(model))
    if layer >= depth:
        raise InputError(
            f"layer={layer} does not exist: {model.config.model_type} has {depth} decoder layers, so layer must be 0 "
            f"to {depth - 1} (what is added after the last one reaches no other token)"
        )


def detach(model: nn.Module) -> nn.Module:
    """Take the ANI module off again, in place: the base model, bit for bit. Returns `model`."""
    layer_index = ani_module(model).config.layer
    base = base_model(model)
    layer = decoder_layers(base)[layer_index]
    layer.__class__ = cast(Any, layer)._ani_base
    inner_forward = base.__dict__.pop("_ani_inner_forward", None)
    cast(AttachedModel, base)._ani_detached()
    base.__class__ = cast(Any, base)._ani_base
    del base.ani
    for name in ("_ani_locator", "_ani_last_decision", "_ani_frozen_checked"):
        base.__dict__.pop(name, None)
    if inner_forward is not None:
        base.forward = inner_forward
    return model


def _model_facts(model: PreTrainedModel, config: AniConfig, num_layers: int) -> dict[str, Any]:
    text_config = model.config.get_text_config()
    facts = {
        "model_type": text_config.model_type,
        "hidden_size": text_config.hidden_size,
        "num_hidden_layers": num_layers,
    }
    for key, actual in facts.items():
        wanted = getattr(config, key)
        if wanted is not None and wanted != actual:
            raise InputError(f"this ANI config was made for {key}={wanted!r:.80}, the model has {key}={actual!r}")
    return facts


@torch.no_grad()
def _measure_scale(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layer: int, locator: NumberLocator
) -> float:
    """RMS of `hidden_states[layer]` at a number: the median over the number tokens of a fixed text.

    A median, because the first token of many models is a hundred times larger than all others.
    """
    encoded = tokenizer(CALIBRATION_TEXT, return_tensors="pt").to(model.device)
    with evaluating(model):
        hidden = model(
            input_ids=encoded["input_ids"], output_hidden_states=True, use_cache=False, return_dict=True
        ).hidden_states[layer]
    positions = [number.last_token for number in locator.scanner.scan(encoded["input_ids"][0].tolist())]
    scale = float(hidden[0, positions].float().square().mean(dim=-1).sqrt().median())
    if not 0 < scale < float("inf"):
        raise InputError(
            f"the hidden states of layer {layer} have RMS {scale} at numbers, so no embedding scale can be measured; "
            "load the model's weights, or set embedding_scale in the config"
        )
    return scale


def _no_ids() -> InputError:
    return InputError(
        "ANI finds numbers in token ids, but got inputs_embeds without input_ids; pass input_ids, or "
        "numbers=NumberBatch(...) beside inputs_embeds"
    )


# --- the forward pass -------------------------------------------------------------------------------------------------


# The bookkeeping is plain Python over token ids: torch.compile skips these frames and compiles the forward inside.
@torch.compiler.disable(recursive=False)
def _forward(model: PreTrainedModel, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    active = _call.get()
    if not isinstance(model, AttachedModel) or (active is not None and active.model is model):
        return inner(*args, **kwargs)  # an inner wrapper of the same call, or somebody kept us over a detach
    numbers: NumberBatch | None = kwargs.pop("numbers", None)
    totals: tuple[int, int] | None = kwargs.pop("number_totals", None)
    given = _arguments(type(model)._ani_base, args, kwargs)
    input_ids, cache, labels = (given.get(name) for name in ("input_ids", "past_key_values", "labels"))
    if input_ids is not None and numbers is None and _substitutes(model) and not _generating(model):
        return _forward_shortened(model, inner, given)
    rows: list[list[int]] | None = None
    if input_ids is not None:
        rows = _history(cache, len(input_ids))
        start = len(rows[0]) if rows else 0
        # In place, to cost no more than the new tokens. Should the pass fail, `_history` cuts them off again.
        for row, new in zip(rows, text_ids(input_ids, given.get("attention_mask")), strict=True):
            row.extend(new)
        if model.training and labels is not None and torch.is_grad_enabled():
            _warn_if_frozen(model)
        if numbers is None:
            numbers = _find_numbers(model, rows, start, labels)
    elif numbers is None:
        raise _no_ids()
    call = _Call(model, numbers)
    object.__setattr__(model, "_ani_last_decision", None)
    token = _call.set(call)
    try:
        outputs = inner(*args, **kwargs)
    finally:
        _call.reset(token)
    if model.training and labels is not None and call.injection is not None:
        outputs = _add_auxiliary_loss(model, outputs, call, labels, kwargs.get("num_items_in_batch"), totals)
    used = getattr(outputs, "past_key_values", None) if cache is None else cache
    if rows is not None and isinstance(used, Cache):
        _remember(used, rows)
    return outputs


@functools.cache
def _parameter_names(model_class: type[Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(model_class.forward).parameters)[1:]


def _arguments(model_class: type[PreTrainedModel], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(_parameter_names(cast(Any, model_class)), args, strict=False)), **kwargs}


@torch.compiler.disable
def _history(cache: Any, batch_size: int) -> list[list[int]]:
    """The token ids behind the entries of a cache; rows are empty without one."""
    length = int(cache.get_seq_length()) if isinstance(cache, Cache) else 0
    if length == 0:
        return [[] for _ in range(batch_size)]
    rows = cache.ani_token_ids if isinstance(cache, _TokenHistory) else []
    if len(rows) != batch_size or any(len(row) < length for row in rows):
        raise InputError(
            f"the KV cache holds {length} tokens that ANI has not seen, so a number that began among them can't be "
            "read; fill the cache with the attached model, from input_ids"
        )
    return [row[:length] if len(row) > length else row for row in rows]  # longer: the cache was cropped


@torch.compiler.disable
def _remember(cache: Cache, rows: list[list[int]]) -> None:
    if not isinstance(cache, _TokenHistory):
        cache.__class__ = _subclass(_TokenHistory, cast(Any, type(cache)))
    cast(_TokenHistory, cache).ani_token_ids = rows


@torch.compiler.disable
def _find_numbers(model: AttachedModel, rows: list[list[int]], start: int, labels: torch.Tensor | None) -> NumberBatch:
    locator = number_locator(model)
    prompt = _prompt.get()
    if prompt is not None and _generating(model):
        return prompt.numbers.between(start, len(rows[0])).repeated(len(rows) // prompt.batch_size)
    return locator.batch(rows, start=start, response=_known_response(model, labels, start))


def _known_response(model: AttachedModel, labels: torch.Tensor | None, start: int) -> list[list[bool]] | None:
    """Which tokens are the response's, where that matters; None: it doesn't, or nobody says so at inference."""
    locator = number_locator(model)
    if not locator.prompt_only:
        return None
    response = _response(labels, start, locator.policy)
    if response is None and model.training and torch.is_grad_enabled():
        raise InputError(
            f"policy={locator.policy!r} injects into prompts only and can't tell prompt from response without "
            "labels; pass labels (−100 on the prompt), numbers=..., or use policy='running' or 'after'"
        )
    return response


def _response(labels: torch.Tensor | None, start: int, policy: str) -> list[list[bool]] | None:
    if labels is None:
        return None
    response = labels != -100
    if bool(response.all()):
        warnings.warn(
            f"policy={policy!r} injects into prompts only, and these labels leave no prompt (no −100): ANI does "
            "nothing here; mask the prompt's labels, or use policy='running' or 'after'",
            stacklevel=4,
        )
    return [[False] * start + row for row in response.tolist()]


def _generating(model: AttachedModel) -> bool:
    """Whether this forward belongs to a `generate` of the model that found its prompt's numbers."""
    prompt = _prompt.get()
    return prompt is not None and prompt.model is model


# ContextVar.get can't be traced by torch.compile.
@torch.compiler.disable
def _current_call() -> _Call:
    call = _call.get()
    if call is None:
        raise InputError("the decoder of a model with ANI was called by itself; call the model (or ani.detach it)")
    return call


def _inject(hidden_states: torch.Tensor) -> torch.Tensor:
    call = _current_call()
    module = call.model.get_submodule("ani")
    if len(call.numbers) == 0 and not module.training:
        return hidden_states
    device = next(module.parameters()).device
    if device.type == "meta":  # offloaded: accelerate brings the weights when they are needed
        device = hidden_states.device
    numbers = call.numbers.to(hidden_states.device)
    at = (numbers.rows, numbers.positions)
    # Where a model lies on several devices, its hidden states arrive from the device of the layer before.
    injection: Injection = module(hidden_states[at].to(device), numbers.features.to(device))
    call.injection = injection
    decision = Decision(numbers, Injection(*(field.detach() for field in injection)))
    object.__setattr__(call.model, "_ani_last_decision", decision)
    updated = injection.hidden_states.to(hidden_states.device)
    if ani_module(call.model).config.layer == 0:
        return hidden_states.index_put(at, updated)  # PEFT makes the embedding output a leaf
    # In place, so that transformers' record of this hidden state (`output_hidden_states`) shows the edit.
    return hidden_states.index_put_(at, updated)


def _warn_if_frozen(model: AttachedModel) -> None:
    """Say once that the module isn't trained while the model is: PEFT freezes what it finds."""
    if model.__dict__.get("_ani_frozen_checked"):
        return
    object.__setattr__(model, "_ani_frozen_checked", True)
    if not any(parameter.requires_grad for parameter in ani_module(model).parameters()):
        warnings.warn(
            "the ANI module is frozen, so this training leaves it as it is; to train it, attach after PEFT's "
            'get_peft_model, or give PEFT modules_to_save=["ani"]',
            stacklevel=4,
        )


def _add_auxiliary_loss(
    model: AttachedModel,
    outputs: Any,
    call: _Call,
    labels: torch.Tensor,
    num_items: Any,
    totals: tuple[int, int] | None,
) -> Any:
    """Add the penalty to the model's own loss, as transformers does with the router losses of MoE models.

    A trainer that accumulates gradients divides the summed token losses by `num_items_in_batch`, the labelled tokens
    of all accumulated batches. If it also counts their numbers (`number_totals`, as `AniModule.auxiliary_loss` wants
    it), the penalty is summed alike; else this batch's share of the tokens is the weight of its mean.
    """
    assert call.injection is not None
    roles = call.numbers.roles.to(call.injection.logits.device)
    auxiliary = ani_module(model).auxiliary_loss(call.injection, roles, totals)
    share = 1.0 if totals is not None or num_items is None else (labels[:, 1:] != -100).sum() / num_items
    if isinstance(outputs, tuple):
        return (outputs[0] + share * auxiliary, *outputs[1:])
    if getattr(outputs, "log_probs", None) is not None:
        # TRL's fused head: the trainer makes the loss from these, so every labelled token carries the penalty.
        outputs.log_probs = outputs.log_probs - auxiliary * outputs.label_mask
    if getattr(outputs, "loss", None) is not None:
        outputs.loss = outputs.loss + share * auxiliary
    return outputs


# --- substitution: one position a number ------------------------------------------------------------------------------


def _forward_shortened(model: AttachedModel, inner: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A forward from the ids as the tokenizer gave them; its logits are (B, T, V) like any other's.

    At a sub-token that was taken out they are NaN: nothing is predicted inside a number, and whoever asks for the
    likelihood of its digits shall notice. Other outputs, such as hidden states, are those of the shortened rows.
    """
    given = dict(given)
    input_ids, mask, labels = (given.pop(name, None) for name in ("input_ids", "attention_mask", "labels"))
    if given.pop("past_key_values", None) is not None or given.pop("use_cache", None):
        raise no_carried_cache()
    positions = given.pop("position_ids", None)
    if positions is not None:
        present = torch.ones_like(input_ids) if mask is None else mask
        counted = (present.cumsum(dim=-1) - 1).clamp(min=0)
        if not torch.equal((positions * present).expand_as(present), counted * present):
            raise InputError(
                "combine='substitute' shortens the rows, so position_ids must count their tokens from 0; leave them out"
            )
    keep = given.pop("logits_to_keep", 0)
    as_tuple = given.pop("return_dict", model.config.return_dict) is False
    short = shortened(number_locator(model), input_ids, mask, _known_response(model, labels, 0))
    row, new, old = short.places
    if labels is not None:
        ignored = torch.full_like(short.input_ids, -100)
        given["labels"] = ignored.index_put((row, new), labels[row, old])
    outputs = _forward(
        model,
        inner,
        input_ids=short.input_ids,
        attention_mask=short.attention_mask,
        position_ids=(short.attention_mask.cumsum(dim=-1) - 1).clamp(min=0),
        numbers=short.numbers,
        **{**given, "use_cache": False, "return_dict": True},
    )
    decision = last_decision(model)
    if decision is not None:
        object.__setattr__(model, "_ani_last_decision", decision._replace(numbers=short.original))
    logits = outputs.logits.new_full((*input_ids.shape, outputs.logits.shape[-1]), torch.nan)
    logits = logits.index_put((row, old), outputs.logits[row, new])
    outputs.logits = logits[:, slice(-keep, None) if isinstance(keep, int) else keep]
    return outputs.to_tuple() if as_tuple else outputs


# --- generation -------------------------------------------------------------------------------------------------------


@contextmanager
def _prompting(model: AttachedModel, input_ids: Any, attention_mask: Any, cache: Any) -> Iterator[None]:
    """Unless the policy is causal, find the prompt's numbers once; what is generated after it gets nothing."""
    locator = number_locator(model)
    if locator.causal:
        yield
        return
    rows = text_ids(input_ids, attention_mask) if input_ids is not None else [[]]  # none: generation from BOS alone
    cached = int(cache.get_seq_length()) if isinstance(cache, Cache) else 0
    if attention_mask is not None and cached and attention_mask.shape[1] > input_ids.shape[1]:
        # Only the new turn was passed; what the cache holds stays context.
        history = _history(cache, len(rows))
        rows = [old + new for old, new in zip(history, rows, strict=True)]
    token = _prompt.set(_Prompt(model, locator.batch(rows), len(rows)))
    try:
        yield
    finally:
        _prompt.reset(token)
