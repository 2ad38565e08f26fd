"""Keeps the token ids of a cache's entries, so that a number split over two forward passes is read whole."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from transformers.cache_utils import Cache

from ani.errors import InputError
from ani.injection.classes import swap_class

Rows = list[list[int]]
"""Token ids, a list per row; negative where no token attends to them (`PADDING`, `substitution.hidden`)."""

_NAMES = ("past_key_values", "cache_params")


class _TokenHistory:
    """Mixed into a cache's class: `ani_token_ids` are the ids of its entries, a list per row. Not all caches are
    transformers' `Cache`."""

    ani_token_ids: Rows
    ani_length: int
    """Count of tokens in each row; the lists are longer while a forward pass runs, and after one that failed."""

    def reset(self) -> None:
        cast(Any, super()).reset()
        self.ani_token_ids, self.ani_length = [], 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        cast(Any, super()).reorder_cache(beam_idx)
        self._take(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        cast(Any, super()).batch_select_indices(indices)
        self._take(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        cast(Any, super()).batch_repeat_interleave(repeats)
        self._take([row for row in range(len(self.ani_token_ids)) for _ in range(repeats)])

    def _take(self, rows: Sequence[int]) -> None:
        self.ani_token_ids = [list(self.ani_token_ids[row]) for row in rows]


def cache_in(passed: Mapping[str, Any] | tuple[Any, ...]) -> Any:
    """The cache among the arguments or outputs of a forward pass; None without one."""
    if isinstance(passed, tuple):  # outputs with return_dict=False
        return next((each for each in passed if isinstance(each, Cache)), None)
    return next((passed[name] for name in _NAMES if passed.get(name) is not None), None)


def cached_length(cache: Any) -> int:
    """The count of tokens in a cache; 0 without one.

    Not every layer of a cache counts the text's tokens: layers of linear attention count none, those of cross-attention
    an image's. The count is that of the ids kept here if a layer agrees or none counts, else the longest layer's.
    """
    kept = cache.ani_length if isinstance(cache, _TokenHistory) else 0
    longest: int | None = None
    for layer in getattr(cache, "layers", None) or [cache]:
        if hasattr(layer, "get_seq_length"):
            count = int(layer.get_seq_length())
            if count == kept > 0:
                return kept
            longest = max(count, longest or 0)
    return kept if longest is None else longest


@torch.compiler.disable
def history(cache: Any, batch_size: int) -> Rows:
    """The token ids of the entries of a cache; rows are empty without one. Raises InputError if the cache contains
    tokens that no attached model put there."""
    length = cached_length(cache)
    if length == 0 and (isinstance(cache, _TokenHistory) or _is_empty(cache)):
        return [[] for _ in range(batch_size)]
    rows = cache.ani_token_ids if isinstance(cache, _TokenHistory) else []
    if len(rows) != batch_size or any(len(row) < length for row in rows):
        raise InputError(
            f"the cache contains {length or 'some'} tokens that ANI has not seen, so a number that began among them "
            "can't be read; fill the cache with the attached model, from input_ids"
        )
    return [row[:length] if len(row) > length else row for row in rows]  # longer: the cache was cropped


def _is_empty(cache: Any) -> bool:
    """True if a cache whose layers count no token is empty; other classes than transformers' don't show it."""
    states = [getattr(layer, "has_previous_state", {}) for layer in getattr(cache, "layers", ())]
    return cache is None or (isinstance(cache, Cache) and not any(any(state.values()) for state in states))


@torch.compiler.disable
def remember(cache: Any, rows: Rows) -> None:
    """Keep the token ids of a cache's entries with it."""
    if isinstance(cache, list | tuple):
        return  # it can't keep them: the pass that it is given to is refused
    if not isinstance(cache, _TokenHistory):
        swap_class(cache, _TokenHistory)
    cache.ani_token_ids, cache.ani_length = rows, len(rows[0]) if rows else 0
