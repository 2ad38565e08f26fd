"""The gate's decisions about a text, token by token."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from rich.table import Table
from rich.text import Text
from torch import nn
from transformers import DynamicCache, PreTrainedTokenizerBase

from ani.calculator.asked import shown
from ani.calculator.calculator import Calculator
from ani.calculator.gate import GateStates
from ani.evaluation.engines import TransformersEngine
from ani.injection.model_parts import base_model
from ani.numbers.signs import BOUNDARY


class Decision(NamedTuple):
    """The gate's decision about a pending value."""

    token: int
    """Place of the token in the text, from 0 on."""
    text: str
    """The text that the token adds; NUL characters for a special token."""
    asked: str
    """The calculation as it is written in the text."""
    value: str
    """The exact value; if its digits have no end, the first twelve after the point and an ellipsis."""
    probability: float
    """σ(z), at least 0.5 where the gate is open."""
    opened: bool
    """True if the gate is open."""


@torch.no_grad()
def decisions(
    calculator: Calculator, model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str
) -> list[Decision]:
    """The gate's decisions at the tokens of a chat at which a value is pending, in order.

    Args:
        calculator: Loaded for this model.
        model: The model.
        tokenizer: The model's tokenizer.
        text: A user's message.
    """
    base, config = base_model(model), calculator.config
    ids = TransformersEngine(base, tokenizer).ids([{"role": "user", "content": text}])
    every = calculator.rows.every(ids)
    places = [place for place, pending in enumerate(every) if pending]
    if not places:
        return []
    states = GateStates(base, config.layers, config.context, kept=None)
    given = torch.tensor([ids], device=base.device)
    base(input_ids=given, past_key_values=DynamicCache(config=base.config), use_cache=True)
    parts = states.parts(torch.tensor([0]), torch.tensor([places]))[0]
    logits = calculator.gate(parts.to(base.device)) + config.bias
    pieces, _ = calculator.rows.scanner.pieces(ids)
    found = []
    for place, logit in zip(places, logits.tolist(), strict=True):
        pending = every[place]
        assert pending is not None
        value = shown(pending.value, 12)
        probability = float(torch.sigmoid(torch.tensor(logit)))
        found.append(Decision(place, pieces[place], pending.text.strip(), value, probability, logit > 0))
    return found


def table(found: Sequence[Decision]) -> Table:
    """One row per decision, for a terminal."""
    rows = Table("after", "calculation", "value", "probability", "gate")
    for each in found:
        piece = each.text.replace("\n", "⏎").replace(BOUNDARY, "·")[-12:]
        decision = "open: written next" if each.opened else "closed"
        rows.add_row(Text(piece), Text(each.asked), each.value, f"{each.probability:.3f}", decision)
    if not found:
        rows.add_row("–", "no value is pending", "–", "–", "–")
    return rows
