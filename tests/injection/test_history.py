"""The token ids that `ani.injection.history` keeps follow the rows of their KV cache."""

import torch
from transformers import DynamicCache

from ani.injection.history import history, remember


def filled() -> DynamicCache:
    """Three rows of two tokens, each entry its token's id."""
    cache = DynamicCache()
    rows = [[1, 2], [3, 4], [5, 6]]
    states = torch.tensor(rows, dtype=torch.float32)[:, None, :, None]
    cache.update(states, states.clone(), 0)
    remember(cache, rows)
    return cache


def ids_and_entries(cache: DynamicCache) -> tuple[list[list[int]], list[list[int]]]:
    keys = cache.layers[0].keys
    assert keys is not None
    return history(cache, len(keys)), keys[:, 0, :, 0].int().tolist()


def test_ids_go_where_the_entries_go() -> None:
    cache = filled()
    cache.reorder_cache(torch.tensor([2, 0, 0]))  # as beam search does
    ids, entries = ids_and_entries(cache)
    assert ids == entries == [[5, 6], [1, 2], [1, 2]]
    ids[1].append(7)  # the two copies of a row are separate lists
    assert ids[2] == [1, 2]
    cache = filled()
    cache.batch_select_indices(torch.tensor([1]))
    assert ids_and_entries(cache) == ([[3, 4]], [[3, 4]])
    cache.batch_repeat_interleave(2)
    assert ids_and_entries(cache) == ([[3, 4]] * 2, [[3, 4]] * 2)
    cache = filled()
    cache.crop(1)
    assert ids_and_entries(cache) == ([[1], [3], [5]], [[1], [3], [5]])
