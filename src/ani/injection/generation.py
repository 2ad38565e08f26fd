"""Keeps the prompt of a running `generate`, under a policy that is not causal: its numbers are found once, because only
`generate` knows where the prompt ends; generated numbers get nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from ani.injection import substitution
from ani.injection.history import Rows, cache_in, cached_length, history
from ani.injection.model_parts import number_locator
from ani.injection.number_batch import NumberBatch, text_ids


@dataclass(frozen=True)
class Prompt:
    """The prompts of a `generate` call."""

    model: PreTrainedModel
    numbers: NumberBatch
    rows: Rows
    """Token ids, including those of a carried cache."""


_prompt: ContextVar[Prompt | None] = ContextVar("ani_prompt", default=None)


def prompt_of(model: PreTrainedModel) -> Prompt | None:
    """The prompt of the running `generate` of this model, if its numbers were found there."""
    prompt = _prompt.get()
    return prompt if prompt is not None and prompt.model is model else None


@contextmanager
def prompting(model: PreTrainedModel, input_ids: Any, given: dict[str, Any]) -> Iterator[None]:
    """Within the block, forward passes of the model use the numbers of this prompt, unless the policy is causal. Under
    `combine="substitute"` the attention mask in `given`, `generate`'s arguments, also hides the numbers' other tokens.
    """
    locator = number_locator(model)
    if locator.causal:
        yield
        return
    mask, cache = given.get("attention_mask"), cache_in(given)
    substitutes = input_ids is not None and substitution.is_on(model)
    if substitutes and mask is None:
        mask = substitution.inferred_mask(model, input_ids, given)
    rows = text_ids(input_ids, mask) if input_ids is not None else [[]]  # none: generation from BOS alone
    cached = cached_length(cache)
    only_new = mask is not None and mask.shape[1] > len(rows[0])
    if cached and (only_new or substitutes):  # the cache's contents stay as they are
        pairs = zip(history(cache, len(rows)), rows, strict=True)
        rows = [old + (new if only_new else new[cached:]) for old, new in pairs]
    numbers = locator.batch(substitution.readable(rows))
    if substitutes:
        new, given["attention_mask"] = numbers.between(cached, len(rows[0])), mask
        given["attention_mask"] = substitution.hide(rows, new, cached, input_ids, given)["attention_mask"]
        given.pop("position_ids", None)
    token = _prompt.set(Prompt(model, numbers, rows))
    try:
        yield
    finally:
        _prompt.reset(token)
