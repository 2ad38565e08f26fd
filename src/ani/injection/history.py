"""Keeps the token ids of a KV cache's entries, so that a number split over two forward passes is read whole."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers.cache_utils import Cache

from ani.errors import InputError
from ani.injection.classes import swap_class

Rows = list[list[int]]
"""Token ids, a list per row; negative where no token attends to them (`PADDING`, `substitution.hidden`)."""


class _TokenHistory(Cache):
    """Mixed into a KV cache's class: `ani_token_ids` are the ids of its entries, a list per row."""

    ani_token_ids: Rows

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        super().reorder_cache(cast(Any, beam_idx))
        self._take(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._take(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._take([row for row in range(len(self.ani_token_ids)) for _ in range(repeats)])

    def _take(self, rows: Sequence[int]) -> None:
        self.ani_token_ids = [list(self.ani_token_ids[row]) for row in rows]


def cached_length(cache: Any) -> int:
    """The count of tokens in a cache; 0 without one."""
    return int(cache.get_seq_length()) if isinstance(cache, Cache) else 0


@torch.compiler.disable
def history(cache: Any, batch_size: int) -> Rows:
    """The token ids of the entries of a cache; rows are empty without one. Raises InputError if the cache contains
    tokens that no attached model put there."""
    length = cached_length(cache)
    if length == 0:
        return [[] for _ in range(batch_size)]
    rows = cache.ani_token_ids if isinstance(cache, _TokenHistory) else []
    if len(rows) != batch_size or any(len(row) < length for row in rows):
        raise InputError(
            f"the KV cache contains {length} tokens that ANI has not seen, so a number that began among them can't be "
            "read; fill the cache with the attached model, from input_ids"
        )
    return [row[:length] if len(row) > length else row for row in rows]  # longer: the cache was cropped


@torch.compiler.disable
def remember(cache: Cache, rows: Rows) -> None:
    """Keep the token ids of a cache's entries with it."""
    if not isinstance(cache, _TokenHistory):
        swap_class(cache, _TokenHistory)
    cast(_TokenHistory, cache).ani_token_ids = rows
