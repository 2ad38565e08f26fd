"""The token ids that `ani.injection.history` keeps follow the rows of their cache, whatever its layers are."""

import copy

import pytest
import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
    QuantizedLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from ani.injection.history import cached_length, history, remember
from tests.refusals import refused

ROWS = [[1, 2], [3, 4], [5, 6]]


def states_of(rows: list[list[int]]) -> torch.Tensor:
    """Keys of one head of width one: each entry is its token's id."""
    return torch.tensor(rows, dtype=torch.float32)[:, None, :, None]


def filled() -> DynamicCache:
    """Three rows of two tokens."""
    cache = DynamicCache()
    cache.update(states_of(ROWS), states_of(ROWS), 0)
    remember(cache, [list(row) for row in ROWS])
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
    cache.crop(-1)
    assert ids_and_entries(cache) == ([[1], [3], [5]], [[1], [3], [5]])
    cache.reset()
    assert history(copy.deepcopy(cache), 1) == [[]]


class Lossless(QuantizedLayer):
    """A quantized layer that loses nothing."""

    def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor

    def _dequantize(self, q_tensor: torch.Tensor) -> torch.Tensor:
        return q_tensor


KEY_VALUE_LAYERS = {
    "dynamic": DynamicLayer,
    "sliding": lambda: DynamicSlidingWindowLayer(sliding_window=4),
    "static": lambda: StaticLayer(max_cache_len=16),
    "static, sliding": lambda: StaticSlidingWindowLayer(max_cache_len=16, sliding_window=4),
    "quantized": lambda: Lossless(residual_length=2),
    "hybrid": LinearAttentionAndFullAttentionLayer,
}


@pytest.mark.parametrize("kind", KEY_VALUE_LAYERS)
def test_layers_that_count_their_tokens(kind: str) -> None:
    cache = Cache(layers=[LinearAttentionLayer(), KEY_VALUE_LAYERS[kind]()])
    rows: list[list[int]] = [[] for _ in ROWS]
    for new in ([[1] * 3] * 3, [[2] * 4] * 3, [[3]] * 3):
        assert history(cache, 3) == rows
        cache.update(states_of(new), states_of(new), 1)
        remember(cache, rows := [row + more for row, more in zip(rows, new, strict=True)])
    assert cached_length(cache) == 8 and history(cache, 3) == rows
    other = Cache(layers=[KEY_VALUE_LAYERS[kind]()])
    other.update(states_of(ROWS), states_of(ROWS), 0)
    refused(lambda: history(other, 3), "2 tokens")


def test_layers_that_count_something_else() -> None:
    """Cross-attention has an image's 40 tokens."""
    image, text = states_of([[0] * 40]), states_of([[1, 2]])
    for cross, own in (((0, image), (1, text)), ((1, image), (0, text))):
        cache = DynamicCache()
        for index, states in sorted((cross, own), key=lambda each: each[0]):
            cache.update(states, states, index)
        remember(cache, [[1, 2]])
        assert history(cache, 1) == [[1, 2]]
