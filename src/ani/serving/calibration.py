"""Samples of the hidden states that a merged checkpoint's module receives, by which a serving engine is checked.

An engine computes with model code of its own. `ani merge` stores what layer l receives at the numbers of a short text;
before an engine serves, it computes the same text and compares.
"""

from typing import Annotated

import torch
from pydantic import Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.injection.inspection import forced_gates
from ani.injection.model_parts import ani_module, last_decision
from ani.settings import Section

TEXT = "Room 505 holds 10 people; 3.5 kg cost $1,234 and 7% of 90417 is 6329.19. "
_NUMBERS = 8
_WIDTH = 32
"""Sampled elements of each hidden state, at equal distances."""


class Calibration(Section):
    """Samples of the hidden states that enter layer l at the first numbers of a text."""

    text: str
    states: tuple[str, ...]
    """The sampled elements of each number's hidden state, separated by blanks."""
    tolerance: Annotated[float, Field(gt=0)]
    """Greatest difference of an engine's states from these. Rounding stays below it, and the states of the layers
    before and after exceed it."""

    def difference(self, states: torch.Tensor) -> float:
        """Return the difference of other hidden states, shape (N, d_model), at the first N of the numbers."""
        stored = torch.tensor([[float(element) for element in row.split()] for row in self.states[: len(states)]])
        return _difference(_sampled(states), stored)


@torch.no_grad()
def calibrate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Calibration:
    """Return the samples of a model with a module, in evaluation mode."""
    encoded = tokenizer(TEXT, return_tensors="pt")["input_ids"].to(model.device)
    with forced_gates(model, False):
        hidden = model(input_ids=encoded, output_hidden_states=True, use_cache=False, return_dict=True).hidden_states
    decision, layer = last_decision(model), ani_module(model).config.layer
    assert decision is not None
    positions = decision.numbers.positions[:_NUMBERS]
    states = _sampled(decision.injection.before[:_NUMBERS])
    beside = [_sampled(hidden[at][0, positions]) for at in (layer - 1, layer + 1) if at >= 0]
    tolerance = min(max(min(_difference(other, states) for other in beside) / 2, 0.02), 0.1)
    rows = tuple(" ".join(f"{element:.4g}" for element in row) for row in states.tolist())
    return Calibration(text=TEXT, states=rows, tolerance=round(tolerance, 4))


def _sampled(states: torch.Tensor) -> torch.Tensor:
    return states[:, :: max(1, states.shape[1] // _WIDTH)].float().cpu()


def _difference(states: torch.Tensor, others: torch.Tensor) -> float:
    """Return the median distance of the elements, divided by the median size of `others`. A mean would not do: a few
    elements of a hidden state may be a thousand times larger than the rest."""
    return float((states - others).abs().median() / others.abs().median())
