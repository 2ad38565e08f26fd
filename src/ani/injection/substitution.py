"""Shorter rows for numbers that take one position each; knows nothing about models' layers or the module.

The terminal token of a substituted number stays, for the module to replace its embedding; the sub-tokens before it
leave the sequence. Whoever calls the model sees the text as the tokenizer gave it (`ani.injection.attach`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from ani.errors import InputError
from ani.injection.locate import NumberBatch, NumberLocator, text_ids


class Shortened(NamedTuple):
    """A batch without the sub-tokens that substitution takes out; S is the longest row's new length."""

    input_ids: torch.Tensor
    """(B, S)."""
    attention_mask: torch.Tensor
    """(B, S)."""
    numbers: NumberBatch
    """At their places in the shortened rows."""
    original: NumberBatch
    """At their places in the given ones."""
    places: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    """Of every token that is left: row, column now, column before."""


def shortened(
    locator: NumberLocator,
    input_ids: torch.Tensor,
    attention_mask: Any,
    response: list[list[bool]] | None,
    *,
    padding_side: str = "right",
) -> Shortened:
    """Take the sub-tokens of substituted numbers out of a batch.

    Args:
        locator: The model's.
        input_ids: (B, T).
        attention_mask: (B, T), or None: all of it is text.
        response: True for tokens of the response, whose numbers stay; None: there is none.
        padding_side: Where rows that have become shorter than others are filled up.

    Raises:
        InputError: The mask has another shape.
    """
    if attention_mask is not None and attention_mask.ndim != 2:
        raise InputError(
            "combine='substitute' shortens the rows, so the attention mask must be one of tokens, (rows, length), not "
            f"of shape {tuple(attention_mask.shape)}"
        )
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    rows = text_ids(input_ids, mask)
    kept = locator.kept(rows, response)
    width = max(map(len, kept))
    shift = [width - len(row) if padding_side == "left" else 0 for row in kept]
    at = [(row, shift[row] + new, old) for row, places in enumerate(kept) for new, old in enumerate(places)]
    row, new, old = torch.tensor(at, dtype=torch.long, device=input_ids.device).reshape(-1, 3).unbind(1)
    empty = input_ids.new_zeros(len(rows), width)
    short_ids, short_mask = (empty.index_put((row, new), x[row, old].to(empty)) for x in (input_ids, mask))
    original = locator.batch(rows, response=response)
    numbers = original.within(kept)
    numbers = replace(numbers, positions=numbers.positions + torch.tensor(shift, dtype=torch.long)[numbers.rows])
    return Shortened(short_ids, short_mask, numbers, original, (row, new, old))


def no_carried_cache() -> InputError:
    """What is raised where a cache would have to be carried over."""
    return InputError(
        "combine='substitute' shortens the rows, so a KV cache can't be carried from call to call; pass the whole "
        "text with use_cache=False, or use generate"
    )


def inferred_mask(model: PreTrainedModel, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The mask that transformers' `generate` would make of padding that nobody masked."""
    config = kwargs.get("generation_config") or model.generation_config
    pad = kwargs.get("pad_token_id", config.pad_token_id)
    ends = kwargs.get("eos_token_id", config.eos_token_id)
    if pad is None or pad in (ends if isinstance(ends, list) else [ends]):
        return None
    return input_ids.ne(pad).long()


def whole_text(sequences: torch.Tensor, input_ids: torch.Tensor, width: int) -> torch.Tensor:
    """Generated rows with the prompts as they were, in place of the `width` tokens that were left of them."""
    prompts = input_ids.repeat_interleave(len(sequences) // len(input_ids), dim=0)
    return torch.cat([prompts, sequences[:, width:]], dim=1)


class OnWholeText:
    """A stopping criterion or logits processor that is shown rows with the prompts as they were."""

    def __init__(self, inner: Callable[..., Any], input_ids: torch.Tensor, width: int) -> None:
        self.inner = inner
        self.input_ids = input_ids
        self.width = width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        return self.inner(whole_text(input_ids, self.input_ids, self.width), scores)
