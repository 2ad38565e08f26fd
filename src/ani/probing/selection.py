"""Chooses the layer to inject at by the right answers of every layer's probes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedConfig

from ani.errors import InputError
from ani.probing.curve import LayerPoint, LayerSelection
from ani.probing.probes import ProbeResults
from ani.results.statistics import bootstrap_means

MARGIN = 0.05
"""Accuracy by which a layer may be below the best one and still count as good as it."""
_CONFIDENCE = 95
_SIXTHS = 6
"""Layers are compared by counts of right answers times this, which each size of a neighbourhood (1 to 3) divides: whole
numbers are the same on every processor, and the last bit of a mean is not."""
_ROUNDING = 1e-9  # of an accuracy: what a percentile of exact accuracies may be off by


PAPER_LAYERS = {"Qwen3-4B": 21, "Qwen3-8B": 24, "Qwen3-32B": 37, "Llama-3.1-8B": 14, "Mistral-7B-v0.3": 30}
"""The paper's injection layers by model."""
PAPER_SHAPES = {
    ("qwen3", 2560, 36, 151_936): "Qwen3-4B",
    ("qwen3", 4096, 36, 151_936): "Qwen3-8B",
    ("qwen3", 5120, 64, 151_936): "Qwen3-32B",
    ("llama", 4096, 32, 128_256): "Llama-3.1-8B",
    ("mistral", 4096, 32, 32_768): "Mistral-7B-v0.3",
}
"""Model type, hidden size, number of layers and size of the vocabulary of the paper's models."""


def preset_for(config: PreTrainedConfig) -> int | None:
    """The paper's layer for a model of this shape, whatever its name, so that fine-tuned models have it too."""
    text = config.get_text_config()
    shape = (text.model_type, text.hidden_size, text.num_hidden_layers, text.vocab_size)
    return PAPER_LAYERS.get(PAPER_SHAPES.get(shape, ""))


def choose_layer(results: ProbeResults, candidates: Sequence[int], *, seed: int = 0) -> LayerSelection:
    """Choose a layer by held-out accuracy, smoothed over each layer and its neighbours.

    A layer is *mature* if, with 95% confidence, it is at most `MARGIN` below the best one (a non-inferiority test on
    the paired bootstrap: too few sentences make the choice later rather than earlier). The first layer of the longest
    stretch of mature layers is chosen. So an early peak that comes from a word does not count, because it vanishes on
    sentences without the word; nor does a peak that does not last; and every layer after the chosen one can use the
    number.

    Args:
        results: The answers of the probes.
        candidates: Layers that may be chosen: not the last layer's output, because nothing reads what is added to it.
        seed: Seed of the bootstrap.

    Raises:
        InputError: No probed layer is among the candidates.
    """
    templates = [number.template for number in results.numbers]
    held_out_templates = [number.template for number in results.held_out_numbers]
    random_split = bootstrap_means(results.random_split, templates, seed=seed)
    held_out = bootstrap_means(results.held_out, held_out_templates, seed=seed)
    gain = (results.random_split.astype(np.float64) - results.control)[results.seen]
    seen_templates = [template for template, seen in zip(templates, results.seen, strict=True) if seen]
    selectivity = bootstrap_means(gain, seen_templates, seed=seed)

    columns = [index for index, layer in enumerate(results.layers) if layer in set(candidates)]
    if not columns:
        raise InputError("no probed layer can be injected at; name layers before the last layer's output")
    smoothing = _smoothing(results.layers, columns)
    smooth = results.held_out @ smoothing  # of each answer, in sixths
    right = smooth.sum(axis=0)
    best = max(columns, key=lambda column: right[column])
    smooth_held_out = bootstrap_means(smooth, held_out_templates, seed=seed) / _SIXTHS
    deficit_high = np.percentile(smooth_held_out[:, [best]] - smooth_held_out, _CONFIDENCE, axis=0)
    curve = tuple(
        LayerPoint(
            layer=layer,
            **_estimate("random_split", results.random_split[:, column], random_split[:, column]),
            **_estimate("held_out", results.held_out[:, column], held_out[:, column]),
            control=float(results.control[results.seen, column].mean()),
            **_estimate("selectivity", gain[:, column], selectivity[:, column]),
            deficit_high=float(deficit_high[column]),
            strength=results.strengths[column],
        )
        for column, layer in enumerate(results.layers)
    )
    stretch = _longest([column for column in columns if deficit_high[column] <= MARGIN + _ROUNDING])
    first, last = results.layers[stretch[0]], results.layers[stretch[-1]]
    random_right = results.random_split.sum(axis=0)
    reason = (
        f"Layer {first} is the first of the longest stretch, {first} to {last}, whose held-out accuracy is at most "
        f"{100 * MARGIN:.0f} points below the best (layer {results.layers[best]}) with 95% confidence."
    )
    if np.percentile(smooth_held_out[:, best], 100 - _CONFIDENCE) <= 0.5 + _ROUNDING:
        reason += " No layer reads roles above chance, so this choice means nothing: give more sentences."
    return LayerSelection(
        layer=first,
        stretch=(first, last),
        best=results.layers[best],
        argmax=results.layers[max(columns, key=lambda column: random_right[column])],
        reason=reason,
        curve=curve,
    )


def _smoothing(layers: tuple[int, ...], columns: list[int]) -> NDArray[np.int64]:
    """Weights (K, K), in sixths, of the mean over a layer and its neighbours in `columns`; one column per layer."""
    weights = np.zeros((len(layers), len(layers)), dtype=np.int64)
    for column, layer in enumerate(layers):
        near = sorted({column} | {other for other in columns if abs(layers[other] - layer) <= 1})
        weights[near, column] = _SIXTHS // len(near)
    return weights


def _estimate(name: str, right: NDArray[np.generic], resampled: NDArray[np.float64]) -> dict[str, float]:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return {name: float(right.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}


def _longest(columns: list[int]) -> list[int]:
    """The longest run of neighbouring columns; the last of equally long ones, which has read more of the context."""
    runs: list[list[int]] = []
    for column in columns:
        if runs and column == runs[-1][-1] + 1:
            runs[-1].append(column)
        else:
            runs.append([column])
    return max(reversed(runs), key=len)
