"""Collates the examples of an optimizer step into forward passes, several examples a row where that takes fewer passes.

A packed row contains several texts, whose `position_ids` restart. transformers finds the texts by them, and masks each
text from the others, where it is given neither a mask nor a cache.
"""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ani.data.collator import IGNORED, NumberCollator, TokenizedExample
from ani.injection.model_parts import ani_module, base_model, is_attached
from ani.models import evaluating
from ani.training.recipe import TrainingSettings

PASSES, COLUMNS, TOKENS = "passes", "learnt_columns", "tokens"
"""Keys: the forward passes of a step; of each pass the columns with a token to learn, and the tokens of its texts."""


class Packing(NamedTuple):
    """The largest forward pass of packed rows."""

    length: int
    """Tokens of a row, unless one example is longer."""
    rows: int


def packing_of(model: nn.Module, settings: TrainingSettings) -> Packing:
    """The largest packed pass of a model that can mask texts: no larger than one of `batch_size` examples of
    `max_length` tokens. Flash attention finds the texts of a single row only. On a CPU, where a pass has no fixed cost,
    a row is no longer than the hidden state is wide: attention computes what a mask hides too, for such a row about a
    sixth of a layer's work."""
    base = base_model(model)
    if "flash" in str(base.config._attn_implementation):
        return Packing(settings.batch_size * settings.max_length, 1)
    width = base.config.get_text_config().hidden_size
    return Packing(
        min(settings.max_length, width) if base.device.type == "cpu" else settings.max_length, settings.batch_size
    )


def why_not_packed(model: nn.Module) -> str | None:
    """The reason why a model cannot be trained on packed rows; None if it can. A small pass shows it, in the precision
    of the caller."""
    base = base_model(model)
    name = type(base).__name__
    if is_attached(base) and ani_module(base).config.combine == "substitute":
        return "combine='substitute' hides tokens by a mask of its own"
    if "position_ids" not in inspect.signature(base.forward).parameters:
        return f"{name} takes no position_ids"
    if "chunked_attention" in (getattr(base.config.get_text_config(), "layer_types", None) or ()):
        return f"{name} cuts rows into chunks, wherever a text begins"
    if _reads_across_texts(base):
        return f"{name} with attention {base.config._attn_implementation} does not mask the texts of a row"
    return None


def _reads_across_texts(base: Any) -> bool:
    """True if the second of two texts in a row depends on the first: if its logits have gradients there."""
    embedded: list[torch.Tensor] = []

    def keep(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    positions = torch.arange(8, device=base.device).repeat(2).unsqueeze(0)
    hook = base.get_input_embeddings().register_forward_hook(keep)
    try:
        with evaluating(base), torch.enable_grad():
            logits = base(input_ids=positions + 1, position_ids=positions, use_cache=False).logits
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(logits[:, -1].float().logsumexp(dim=-1).sum(), embedded)
    return bool(gradient[:, :8].any())


class StepCollator:
    """Collates the examples that a process has in an optimizer step: `batch_size` examples a forward pass, or packed
    rows if they take fewer passes. `packing=None`: never packed."""

    def __init__(self, collate: NumberCollator, batch_size: int, packing: Packing | None) -> None:
        self.collate, self.batch_size, self.packing = collate, batch_size, packing

    def __call__(self, examples: Sequence[TokenizedExample]) -> dict[str, list[dict[str, Any]]]:
        """Return `passes`: batches of `NumberCollator`, each with `learnt_columns` and `tokens`."""
        learnt = [each for each in examples if each.prompt_length < len(each.input_ids)] or examples[:1]
        batches = []
        for rows in self._rows_of_passes([len(each.input_ids) for each in learnt]):
            places = sorted(place for row in rows for place in row)
            given = [learnt[place] for place in places]
            packed = len(places) > len(rows)
            batch = self.collate(given, [[places.index(place) for place in row] for row in rows] if packed else None)
            tokens = sum(len(each.input_ids) for each in given)
            batches.append({**batch, COLUMNS: learnt_columns(batch["labels"]), TOKENS: tokens})
        return {PASSES: batches}

    def _rows_of_passes(self, lengths: list[int]) -> list[list[list[int]]]:
        """The examples of each row of each pass, as indices."""
        passes = _parts([[place] for place in range(len(lengths))], self.batch_size)
        if self.packing is None:
            return passes
        packed = _parts(first_fit(lengths, max(self.packing.length, *lengths)), self.packing.rows)
        return packed if len(packed) < len(passes) else passes


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of indices whose lengths add up to `capacity` at most, by first fit of decreasing lengths: hardly more rows
    than are needed."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        row = next((row for row, left in enumerate(room) if left >= lengths[index]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(capacity)
        rows[row].append(index)
        room[row] -= lengths[index]
    return rows


def _parts(rows: list[list[int]], size: int) -> list[list[list[int]]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def learnt_columns(labels: torch.Tensor) -> int:
    """Number of columns of `labels`, (B, T), with a token to learn; −100 marks tokens that are not learnt."""
    return int((labels[:, 1:] != IGNORED).any(dim=0).sum())
