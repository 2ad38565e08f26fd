"""One forward pass of an attached model: finds its numbers, edits hidden states at layer l, and adds to the loss."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from ani.errors import InputError
from ani.injection import substitution
from ani.injection.checks import check_training, is_language_loss, response_tokens
from ani.injection.classes import named_arguments
from ani.injection.generation import prompt_of
from ani.injection.history import Rows, cache_in, history, remember
from ani.injection.loss import add_loss, auxiliary_loss
from ani.injection.model_parts import Decision, ani_module, is_attached, number_locator
from ani.injection.module import Injection
from ani.injection.number_batch import NumberBatch, text_ids, text_starts
from ani.injection.running_pass import ForwardPass, current_pass, running_pass


@torch.compiler.disable(recursive=False)  # torch.compile skips this bookkeeping and compiles the forward inside
def run_forward(model: PreTrainedModel, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the model's own forward, `inner`, with ANI around it."""
    active = running_pass.get()
    if not is_attached(model) or (active is not None and active.model is model):
        return inner(*args, **kwargs)  # an inner wrapper of the same call, or the wrapped forward outlived detach()
    numbers: NumberBatch | None = kwargs.pop("numbers", None)
    totals: torch.Tensor | None = kwargs.pop("number_totals", None)
    given = named_arguments(cast(Any, type(model))._ani_base.forward, args, kwargs)
    input_ids, labels, cache = given.get("input_ids"), given.get("labels"), cache_in(given)
    substitutes = substitution.is_on(model) and prompt_of(model) is None  # `generate` has made its own mask
    rows: Rows | None = None
    start = 0
    if input_ids is not None:
        if numbers is None or cache is not None or substitutes:  # else, as in training, nothing waits for the ids
            rows = _rows(model, given)
            start = len(rows[0]) - input_ids.shape[1] if rows else 0
        if numbers is None:
            numbers = _find_numbers(model, cast(Rows, rows), start, given)
        if substitutes:
            masks = substitution.hide(cast(Rows, rows), numbers, start, input_ids, given)
            args, kwargs = (), {**given, **masks}
    elif numbers is None or substitutes:
        raise InputError("ANI finds numbers in input_ids, but got none; pass them, or numbers=NumberBatch(...)")
    trains, of_language = model.training and torch.is_grad_enabled(), is_language_loss(model, given)
    if trains:
        check_training(ani_module(model), labels, of_language)
    current = ForwardPass(model, numbers, start, straight_through=not of_language)
    object.__setattr__(model, "_ani_last_decision", None)
    token = running_pass.set(current)
    try:
        outputs = inner(*args, **kwargs)
    finally:
        running_pass.reset(token)
    if trains and of_language and labels is not None and current.injection is not None:
        roles = numbers.roles.to(current.injection.logits.device)
        auxiliary = auxiliary_loss(ani_module(model), current.injection, roles, totals)
        outputs = add_loss(outputs, auxiliary, labels, kwargs.get("num_items_in_batch"), totals)
    if input_ids is not None and (used := cache_in(outputs) if cache is None else cache) is not None:
        remember(used, _rows(model, given) if rows is None else rows)
    if rows is not None and substitutes and labels is None:
        outputs = substitution.without_predictions(outputs, rows, input_ids, given.get("logits_to_keep", 0))
    return outputs


@torch.compiler.disable
def _rows(model: PreTrainedModel, given: Mapping[str, Any]) -> Rows:
    """Token ids of the cache and of this pass, a list per row."""
    input_ids = given["input_ids"]
    rows: Rows = history(cache_in(given), len(input_ids))
    start, prompt = len(rows[0]) if rows else 0, prompt_of(model)
    for i, (row, new) in enumerate(zip(rows, text_ids(input_ids, given.get("attention_mask")), strict=True)):
        if prompt is not None:  # its ids were taken before `generate` changed the mask
            known = prompt.rows[i * len(prompt.rows) // len(rows)][start : start + len(new)]
            new[: len(known)] = known
        row.extend(new)  # in place: the cost is that of the new tokens. If the pass fails, `history` cuts them off
    return rows


@torch.compiler.disable
def _find_numbers(model: PreTrainedModel, rows: Rows, start: int, given: Mapping[str, Any]) -> NumberBatch:
    if prompt := prompt_of(model):
        return prompt.numbers.between(start, len(rows[0])).repeated(len(rows) // len(prompt.rows))
    locator = number_locator(model)
    texts = None if start else text_starts(given["input_ids"], given)
    response = response_tokens(given.get("labels"), rows, texts or [[0]] * len(rows), locator, model.training)
    found = substitution.readable(rows) if locator.substitutes else rows
    return locator.batch(found, start=start, texts=texts, response=response)


class InjectionLayer(nn.Module):
    """Mixed into the class of decoder layer l: edits `hidden_states[l]`, the layer's input."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "hidden_states" in kwargs:
            kwargs["hidden_states"] = _inject(kwargs["hidden_states"])
        else:
            args = (_inject(args[0]), *args[1:])
        return super().__call__(*args, **kwargs)


def _inject(hidden_states: torch.Tensor) -> torch.Tensor:
    """h ← h + α·e at the numbers' positions, for hidden states of shape (B, T, d_model)."""
    current = current_pass()
    module = current.model.get_submodule("ani")
    if len(current.numbers) == 0 and not module.training:
        return hidden_states
    device = next(module.parameters()).device
    if device.type == "meta":  # offloaded: accelerate brings the weights when they are needed
        device = hidden_states.device
    # In a model on several devices, hidden states arrive from the device of the layer before.
    numbers, at = current.numbers.to(device), current.numbers.at(hidden_states.device)
    earlier = [states.to(device) for states in current.earlier]
    read = hidden_states[at].to(device), numbers.features, numbers.roles, earlier, current.straight_through
    injection: Injection = module(*read)
    current.injection = injection
    decision = Decision(numbers, Injection(*(each.detach() for each in injection)))
    object.__setattr__(current.model, "_ani_last_decision", decision)
    updated = injection.hidden_states.to(hidden_states.device)
    if ani_module(current.model).config.layer == 0:
        return hidden_states.index_put(at, updated)  # PEFT makes the embedding output a leaf
    # In place, so that transformers' record of this hidden state (`output_hidden_states`) shows the edit.
    return hidden_states.index_put_(at, updated)
