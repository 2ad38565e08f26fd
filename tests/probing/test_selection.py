from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma3Config, LlamaConfig, MistralConfig, Qwen3Config

import ani
from ani.probing.curve import LayerSelection
from ani.probing.probes import probe_layers
from ani.probing.selection import MARGIN, choose_layer, preset_for
from tests.probing.planted import answers, cue, noise, numbers, role, states
from tests.properties import examples
from tests.refusals import refused


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


def test_the_last_layer_output_is_never_chosen() -> None:
    """Nothing reads what is added there, however well it shows the roles."""
    rising = [0.5, 0.6, 0.7, 0.8, 1.0]
    found = chosen(rising)
    assert (found.layer, found.best, found.argmax) == (3, 3, 3)
    assert len(found.curve) == 5
    # It does not lend its neighbour any accuracy either.
    assert found == chosen([*rising[:4], 0.5]).model_copy(update={"curve": found.curve})
    assert "above chance" in chosen([0.5] * 6).reason and "above chance" not in found.reason
    refused(lambda: choose_layer(answers([0.9], [0.9], layers=[4]), range(4)))


@pytest.mark.parametrize(
    ("family", "layers", "width", "vocabulary", "layer"),
    [
        (Qwen3Config, 36, 4096, 151_936, 24),
        (LlamaConfig, 32, 4096, 128_256, 14),
        (LlamaConfig, 32, 4096, 32_000, None),  # Llama 2
        (MistralConfig, 32, 4096, 32_000, None),  # v0.1
        (Gemma3Config, None, None, None, None),
    ],
)
def test_presets_go_by_shape(family: Any, layers: int, width: int, vocabulary: int, layer: int | None) -> None:
    shape = {"num_hidden_layers": layers, "hidden_size": width, "vocab_size": vocabulary}
    assert preset_for(family(**shape) if layers else family()) == layer
    assert layer is None or layer in ani.PAPER_LAYERS.values()
