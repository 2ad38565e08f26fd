"""The token ids that `ani.injection.history` keeps follow the rows of their cache, whatever its layers are."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from transformers import Cache, DynamicCache, StaticCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
    QuantizedLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)
from transformers.models.minimax.modeling_minimax import MiniMaxCache

from ani.injection.history import cache_in, cached_length, history, remember
from ani.injection.model_parts import number_locator
from tests.refusals import refused
from tests.tiny import LAYERS, attached, encode, logits_of

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
    """Cross-attention has an image's 40 tokens, MiniMax's linear attention none."""
    image, text = states_of([[0] * 40]), states_of([[1, 2]])
    for cross, own in (((0, image), (1, text)), ((1, image), (0, text))):
        cache = DynamicCache()
        for index, states in sorted((cross, own), key=lambda each: each[0]):
            cache.update(states, states, index)
        remember(cache, [[1, 2]])
        assert history(cache, 1) == [[1, 2]]
    linear = MiniMaxCache()
    linear.set_linear_cache(0, torch.ones(1))
    linear.update(text, text, 1)
    refused(lambda: history(linear, 1), "2 tokens")
    remember(linear, [[1, 2]])
    assert history(linear, 1) == [[1, 2]]


def test_layers_that_count_nothing() -> None:
    cache, unseen = (Cache(layers=[LinearAttentionLayer()]) for _ in range(2))
    assert history(cache, 1) == [[]]
    for each in (cache, unseen):
        each.update_conv_state(torch.ones(1, 2, 4), 0)
    remember(cache, [[1, 2, 3]])
    assert history(cache, 1) == [[1, 2, 3]]
    history(cache, 1)[0].append(4)  # by a pass that then failed
    assert history(cache, 1) == [[1, 2, 3]]
    refused(lambda: history(unseen, 1), "not seen")
    cache.reset()
    assert history(cache, 1) == [[]]


def test_caches_of_other_classes() -> None:
    """xLSTM's cache is no `Cache`; a list can't keep the ids."""

    class States:
        """Recurrent states."""

    states, pairs = States(), [(torch.ones(1), torch.ones(1))]
    refused(lambda: history(states, 1), "not seen")
    for each in (states, pairs):
        remember(each, [[1, 2]])
    assert isinstance(states, States) and not isinstance(states, Cache) and history(states, 1) == [[1, 2]]
    refused(lambda: history(pairs, 1), "not seen")
    assert cache_in({"cache_params": states}) is states and cache_in((torch.ones(1), cache := filled())) is cache


CACHES: dict[str, Callable[[Any], Cache]] = {
    "quantized": lambda config: Cache(layers=[Lossless(residual_length=8) for _ in range(LAYERS)]),
    "offloaded": lambda config: DynamicCache(config=config, offloading=True),
    "offloaded, static": lambda config: StaticCache(config=config, max_cache_len=256, offloading=True),
}


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_logits_with_a_cache_are_those_without(family: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "Stream", nullcontext)  # a CPU has none
    monkeypatch.setattr(torch.cuda, "default_stream", MagicMock())
    model, tokenizer = attached(family, policy="after")
    ids, cache = encode(tokenizer), CACHES[kind](model.config)
    numbers = number_locator(model).batch(ids.tolist())
    cut = int(numbers.positions[len(numbers) // 2])
    pieces = [
        logits_of(model, piece, past_key_values=cache) for piece in ids.split([cut - 1, ids.shape[1] - cut + 1], 1)
    ]
    if (family, kind) != ("gemma", "quantized"):  # Gemma's window is for the mask of the whole cache
        torch.testing.assert_close(torch.cat(pieces, dim=1), logits_of(model, ids), rtol=0, atol=1e-4)
    assert history(cache, 1) == ids.tolist()
