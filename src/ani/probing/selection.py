"""Chooses the layer to inject at, by what the probes of every layer got right."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedConfig

from ani.errors import InputError
from ani.probing.curve import LayerPoint, LayerSelection, Preset
from ani.probing.probes import ProbeResults
from ani.results.statistics import bootstrap_means

MARGIN = 0.05
"""Accuracy that a layer may lack to the best one and still count as good as it."""
_CONFIDENCE = 95
_FALL = 0.01  # of accuracy on the random split, after a peak that is worth a word
_SIXTHS = 6
"""Layers are compared by counts of right answers times this, which each size of a neighbourhood (1 to 3) divides: whole
numbers are the same on every processor, and the last bit of a mean is not."""
_ROUNDING = 1e-9  # of an accuracy: what a percentile of exact accuracies may be off by


_TOLD_BY = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
_KEYS = (*_TOLD_BY, "num_attention_heads", "intermediate_size", "tie_word_embeddings")
PUBLISHED: dict[str, dict[str, Any]] = {
    name: {**dict(zip(_KEYS, shape, strict=True)), "num_key_value_heads": 8, "head_dim": 128}
    for name, shape in {
        "Qwen/Qwen3-1.7B": ("qwen3", 2048, 28, 151_936, 16, 6144, True),
        "Qwen/Qwen3-4B": ("qwen3", 2560, 36, 151_936, 32, 9728, True),
        "Qwen/Qwen3-8B": ("qwen3", 4096, 36, 151_936, 32, 12_288, False),
        "Qwen/Qwen3-32B": ("qwen3", 5120, 64, 151_936, 64, 25_600, False),
        "meta-llama/Llama-3.1-8B": ("llama", 4096, 32, 128_256, 32, 14_336, False),
        "mistralai/Mistral-7B-v0.3": ("mistral", 4096, 32, 32_768, 32, 14_336, False),
    }.items()
}
"""The shapes of the paper's models, and of one more. Their -Base and -Instruct variants have the same."""
PUBLISHED["mistralai/Mistral-7B-v0.3"]["sliding_window"] = None  # transformers' default is that of v0.1
PAPER_LAYERS = {"Qwen3-4B": 21, "Qwen3-8B": 24, "Qwen3-32B": 37, "Llama-3.1-8B": 14, "Mistral-7B-v0.3": 30}
"""The paper's injection layers by model."""


def preset_for(config: PreTrainedConfig) -> Preset | None:
    """The paper's layer for a model of this shape, whatever the name it was loaded by (fine-tunes included)."""
    text = config.get_text_config()
    for model in PAPER_LAYERS:
        shape = next(shape for name, shape in PUBLISHED.items() if name.endswith(f"/{model}"))
        if all(getattr(text, key) == shape[key] for key in _TOLD_BY):
            return Preset(model=model, layer=PAPER_LAYERS[model])
    return None


def choose_layer(
    results: ProbeResults, candidates: Sequence[int], *, preset: Preset | None = None, seed: int = 0
) -> LayerSelection:
    """Choose a layer by held-out accuracy, smoothed over each layer and its neighbours.

    A layer is *mature* if, with 95% confidence, it is at most `MARGIN` below the best one (a non-inferiority test on
    the paired bootstrap: too few sentences make the choice later rather than earlier). Chosen is the first layer of the
    longest stretch of mature layers. So an early peak that a word gives does not count, as it does not hold on
    sentences without the word; nor does one that does not last; and every layer after the chosen one can use the
    number.

    `candidates` are the layers that may be chosen: not the last layer's output, after which nothing reads what is
    added. The `preset` is compared with.
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
        raise InputError("no probed layer can be injected at: name layers before the last one's output")
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
    chosen, last = stretch[0], stretch[-1]
    random_right = results.random_split.sum(axis=0)
    argmax = max(columns, key=lambda column: random_right[column])
    above_chance = float(np.percentile(smooth_held_out[:, best], 100 - _CONFIDENCE)) > 0.5 + _ROUNDING
    selection = LayerSelection(
        layer=results.layers[chosen],
        stretch=(results.layers[chosen], results.layers[last]),
        best=results.layers[best],
        argmax=results.layers[argmax],
        early_peak=_early_peak(results.random_split, templates, smoothing, chosen, results.layers, seed),
        preset=preset,
        reason="",
        curve=curve,
    )
    reason = _reason(selection, len(results.held_out_numbers))
    if not above_chance:
        reason = (
            f"No layer reads roles above chance on sentences that the probe has not seen (at best layer "
            f"{selection.best}, {curve[best].held_out:.1%}), so this choice means nothing: give more sentences, or a "
            f"model that was trained. {reason}"
        )
    return selection.model_copy(update={"reason": reason})


def _smoothing(layers: tuple[int, ...], columns: list[int]) -> NDArray[np.int64]:
    """(K, K): column by column the weights, in sixths, of the mean over a layer and those of `columns` right before and
    after."""
    weights = np.zeros((len(layers), len(layers)), dtype=np.int64)
    for column, layer in enumerate(layers):
        near = sorted({column} | {other for other in columns if abs(layers[other] - layer) <= 1})
        weights[near, column] = _SIXTHS // len(near)
    return weights


def _estimate(name: str, right: NDArray[np.generic], resampled: NDArray[np.float64]) -> dict[str, float]:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return {name: float(right.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}


def _longest(columns: list[int]) -> list[int]:
    """The longest run of neighbouring columns; of equals the last, which has read more of the context."""
    runs: list[list[int]] = []
    for column in columns:
        if runs and column == runs[-1][-1] + 1:
            runs[-1].append(column)
        else:
            runs.append([column])
    return max(reversed(runs), key=len)


def _early_peak(
    right: NDArray[np.bool_],
    templates: Sequence[str],
    smoothing: NDArray[np.int64],
    chosen: int,
    layers: tuple[int, ...],
    seed: int,
) -> int | None:
    """The layer before the one in the column `chosen` after which accuracy falls most, if by a point or more, with 95%
    confidence.

    The fall is of the accuracy on the random split, `right` (N, K), smoothed by (K, K) weights; of the layers that it
    averages, the peak is the highest.
    """
    smooth = right @ smoothing
    resampled, counts = bootstrap_means(smooth, templates, seed=seed), smooth.sum(axis=0)
    falls: dict[int, int] = {}
    for column in range(chosen - 1):
        sure = np.percentile(resampled[:, [column]] - resampled[:, column + 1 : chosen], 100 - _CONFIDENCE, axis=0)
        fall = counts[column] - counts[column + 1 : chosen]
        falls[column] = max(fall[sure > _SIXTHS * _ROUNDING], default=0)
    peak = max(falls, key=lambda column: falls[column], default=None)
    if peak is None or falls[peak] < _FALL * _SIXTHS * len(right) - _ROUNDING:
        return None
    near = [column for column in range(chosen) if smoothing[column, peak]]
    each = right.sum(axis=0)
    return layers[max(near, key=lambda column: each[column])]


def _reason(selection: LayerSelection, tested: int) -> str:
    points = {point.layer: point for point in selection.curve}
    layer, best, argmax = points[selection.layer], points[selection.best], points[selection.argmax]
    first, last = selection.stretch
    within = f"with 95% confidence at most {100 * MARGIN:.0f} points below"
    unseen = f"on {tested:,} numbers in domains and templates, and of values, that the probe has not seen"
    if selection.layer == selection.best:
        parts = [f"Layer {layer.layer} and its neighbours read roles best {unseen} ({layer.held_out:.1%})"]
        if last > first:
            parts[0] += f"; layers {first} to {last} are {within}"
    else:
        parts = [
            f"{unseen[0].upper()}{unseen[1:]}, layer {best.layer} and its neighbours read roles best "
            f"({best.held_out:.1%}); layer {layer.layer} ({layer.held_out:.1%}) is the first of the longest stretch, "
            f"{first} to {last}, that is {within}"
        ]
    earlier = [point for point in selection.curve if point.layer < selection.layer]
    if earlier:
        before = earlier[-1]
        parts[0] += (
            f"; layer {before.layer} ({before.held_out:.1%}) may be {100 * before.deficit_high:.1f} points below layer "
            f"{best.layer}"
        )
    if selection.early_peak is not None:
        peak = points[selection.early_peak]
        parts.append(
            f"The early peak at layer {peak.layer} ({peak.random_split:.1%} on a random split, before a fall) is "
            f"passed over: held out it has {peak.held_out:.1%}"
        )
    if selection.argmax == selection.layer:
        parts.append("The paper's rule, the peak on a random split, takes the same layer")
    else:
        parts.append(
            f"The paper's rule, the peak on a random split, takes layer {argmax.layer} ({argmax.random_split:.1%}; "
            f"held out {argmax.held_out:.1%})"
        )
    if selection.preset is not None:
        model, preset = selection.preset.model, selection.preset.layer
        if preset == selection.layer:
            parts.append(f"The paper's layer for {model} is the same")
        elif first <= preset <= last:
            parts.append(f"The paper's layer for {model}, {preset}, lies in the same stretch")
        else:
            measured = f" ({points[preset].held_out:.1%})" if preset in points else ""
            parts.append(f"This disagrees with the paper's layer for {model}, which is {preset}{measured}")
    return ". ".join(parts) + "."
