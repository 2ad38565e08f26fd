from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import Gemma3Config, LlamaConfig, MistralConfig, Qwen3Config

import ani
from ani.probing.curve import LayerSelection
from ani.probing.probes import probe_layers
from ani.probing.selection import MARGIN, choose_layer, preset_for
from tests.probing.planted import answers, cue, noise, numbers, role, states
from tests.properties import examples
from tests.refusals import refused

# --- an early layer wins by a word alone: the paper's rule is fooled, ours is not ---


def test_a_planted_word_fools_the_paper_rule_and_not_ours() -> None:
    """Layers 1 and 2 contain a word that gives the role in its domain; layers from 6 on the role itself, less well."""
    layers = [noise, cue, cue, *map(role, (0.3, 0.3, 0.7, 1.3, 1.5, 1.5, 1.5, 1.5, 1.5))]
    chosen = choose_layer(probe_layers(states(numbers(), *layers)), range(11))
    assert chosen.argmax in (1, 2)
    assert chosen.layer >= 6
    assert chosen.stretch[1] == 10
    words = chosen.curve[chosen.argmax]
    assert words.random_split > max(point.random_split for point in chosen.curve[3:]) + 0.01
    assert words.held_out_low < 0.5 < words.held_out_high


# --- the rule ---

ACCURACIES = st.lists(st.tuples(st.floats(0.5, 1), st.floats(0.5, 1)), min_size=2, max_size=12)


@given(accuracies=ACCURACIES, flip=st.randoms(use_true_random=False))
@examples(60)
def test_what_always_holds(accuracies: list[tuple[float, float]], flip: object) -> None:
    random_split, held_out = zip(*accuracies, strict=True)
    results = answers(random_split, held_out, count=200)
    candidates = range(len(accuracies) - 1)
    chosen = choose_layer(results, candidates)
    deficits = [chosen.curve[layer].deficit_high for layer in candidates]
    mature = [layer for layer in candidates if deficits[layer] <= MARGIN]
    first, last = chosen.stretch
    assert chosen.layer == first
    assert set(range(first, last + 1)) <= set(mature)
    assert first - 1 not in mature
    assert last + 1 not in mature
    assert chosen.best in mature
    assert deficits[chosen.best] == 0
    # No longer run of mature layers, and after this one none as long.
    for start in mature:
        run = next(n for n in range(1, len(candidates) + 2) if start + n not in mature)
        assert run <= last - first + 1
        assert run <= last - first or start <= first
    assert {chosen.layer, chosen.best, chosen.argmax} <= set(candidates)
    assert chosen.argmax == max(candidates, key=lambda layer: chosen.curve[layer].random_split)
    assert [point.layer for point in chosen.curve] == list(range(len(accuracies)))
    for point, right in zip(chosen.curve, results.held_out.T, strict=True):
        assert point.held_out == pytest.approx(right.mean())
        assert point.held_out_low <= point.held_out <= point.held_out_high
        assert point.random_split_low <= point.random_split <= point.random_split_high
        assert point.selectivity_low <= point.selectivity <= point.selectivity_high


@given(accuracies=ACCURACIES, seed=st.integers(0, 2**32 - 1))
@examples(30)
def test_the_order_of_the_numbers_does_not_matter(accuracies: list[tuple[float, float]], seed: int) -> None:
    """But for the bootstrap's luck, which decides where a deficit is as large as the margin."""
    results = answers(*zip(*accuracies, strict=True), count=200)
    chosen = choose_layer(results, range(len(accuracies)))
    assume(all(abs(point.deficit_high - MARGIN) > 0.01 for point in chosen.curve))
    order = np.random.default_rng(seed).permutation(200)
    known = [results.numbers[i] for i in order]
    rights = {name: getattr(results, name)[order] for name in ("random_split", "control", "held_out")}
    shuffled = results._replace(numbers=known, held_out_numbers=known, **rights)
    other = choose_layer(shuffled, range(len(accuracies)))
    for name in ("layer", "stretch", "best", "argmax"):
        assert getattr(other, name) == getattr(chosen, name)


def chosen(held_out: Sequence[float], random_split: Sequence[float] | None = None, **settings: int) -> LayerSelection:
    results = answers(random_split or held_out, held_out, **settings)
    return choose_layer(results, range(len(held_out) - 1))


def test_an_isolated_early_spike_is_not_chosen() -> None:
    """It is as high as the plateau, so the plateau's first layer is."""
    curve = [0.5, 0.6, 0.9, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9]
    found = chosen(curve)
    assert found.argmax == 2  # the first of equals
    assert found.layer in (6, 7)
    # Higher than the plateau by less than the margin, and as long as two layers: it still does not last.
    assert chosen([0.5, 0.91, 0.92, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]).layer in (6, 7)


def test_the_first_layer_of_a_plateau_and_of_equal_ones_the_last() -> None:
    assert chosen([0.5, 0.6, 0.7, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]).stretch == (4, 7)  # 3 is drawn down by 2
    assert chosen([0.9] * 6).stretch == (0, 4)
    assert chosen([0.9, 0.9, 0.9, 0.5, 0.5, 0.9, 0.9, 0.9, 0.5]).stretch[0] >= 5


def test_fewer_numbers_choose_later() -> None:
    """With little evidence a layer that seems as good may be worse than the margin."""
    rising = [0.5, 0.7, 0.8, 0.84, 0.85, 0.86, 0.87, 0.88, 0.88]
    layers = [chosen(rising, count=count).layer for count in (160, 600, 20_000)]
    assert layers == sorted(layers, reverse=True)
    assert layers[0] > layers[-1]


def test_the_last_layer_output_is_never_chosen() -> None:
    """Nothing reads what is added there, however well it shows the roles."""
    rising = [0.5, 0.6, 0.7, 0.8, 1.0]
    found = chosen(rising)
    assert (found.layer, found.best, found.argmax) == (3, 3, 3)
    assert len(found.curve) == 5
    # It does not lend its neighbour any accuracy either.
    assert found == chosen([*rising[:4], 0.5]).model_copy(update={"curve": found.curve})
    refused(lambda: choose_layer(answers([0.9], [0.9], layers=[4]), range(4)))


def test_layers_left_out() -> None:
    """Neighbours in the list are a stretch; only neighbours in the model are smoothed over."""
    found = choose_layer(answers([0.9] * 5, [0.5, 0.9, 0.9, 0.9, 0.9], layers=[0, 4, 9, 14, 20]), range(24))
    assert (found.layer, found.stretch) == (4, (4, 20))


def test_the_reason_names_the_stretch_and_a_choice_by_chance() -> None:
    found = chosen([0.5, 0.6, 0.9, 0.9, 0.9, 0.91, 0.91, 0.5])
    assert all(str(layer) in found.reason for layer in (*found.stretch, found.best))
    assert "above chance" in chosen([0.5] * 6).reason and "above chance" not in found.reason


def test_selectivity_counts_what_can_be_learnt_by_heart() -> None:
    results = answers([0.9, 0.8], [0.9, 0.8])
    seen = np.arange(len(results.seen)) % 2 == 0
    control = results.control & seen[:, None]
    found = choose_layer(results._replace(seen=seen, control=control), range(2))
    for column, point in enumerate(found.curve):
        assert point.control == control[seen, column].mean()
        expected = results.random_split[seen, column].mean() - control[seen, column].mean()
        assert point.selectivity == pytest.approx(expected)


# --- the paper's layers ---


@pytest.mark.parametrize(
    ("family", "layers", "width", "vocabulary", "layer"),
    [
        (Qwen3Config, 36, 4096, 151_936, 24),
        (Qwen3Config, 36, 2560, 151_936, 21),
        (Qwen3Config, 64, 5120, 151_936, 37),
        (LlamaConfig, 32, 4096, 128_256, 14),
        (MistralConfig, 32, 4096, 32_768, 30),
        (Qwen3Config, 28, 2048, 151_936, None),  # Qwen3-1.7B
        (LlamaConfig, 32, 4096, 32_000, None),  # Llama 2
        (MistralConfig, 32, 4096, 32_000, None),  # v0.1
        (Gemma3Config, None, None, None, None),
    ],
)
def test_presets_go_by_shape(family: Any, layers: int, width: int, vocabulary: int, layer: int | None) -> None:
    shape = {"num_hidden_layers": layers, "hidden_size": width, "vocab_size": vocabulary}
    assert preset_for(family(**shape) if layers else family()) == layer
    assert layer is None or layer in ani.PAPER_LAYERS.values()
