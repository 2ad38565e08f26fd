"""The gate's decisions about a text, token by token."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from rich.table import Table
from rich.text import Text
from torch import nn
from transformers import DynamicCache, PreTrainedTokenizerBase

from ani.calculator.calculator import Calculator
from ani.calculator.gate import GateStates
from ani.chat import rendered
from ani.errors import InputError
from ani.injection.model_parts import base_model
from ani.numbers.grammar import BOUNDARY


class Decision(NamedTuple):
    """The gate's decision about a pending value."""

    token: int
    """Place of the token in the text, from 0 on."""
    text: str
    """What the token adds to the text; NUL characters for a special token."""
    asked: str
    """The calculation, as the text has it."""
    value: str
    """The exact value; of one with endless digits the first twelve places, with an ellipsis."""
    probability: float
    """σ(z), at least 0.5 where the gate is open."""
    opened: bool
    """Whether the gate is open."""


@torch.no_grad()
def decisions(
    calculator: Calculator, model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, raw: bool = False
) -> list[Decision]:
    """The decisions at all tokens of a text at which a value is pending, in order.

    Args:
        calculator: Loaded for this model.
        model: The model.
        tokenizer: The model's tokenizer.
        text: A user's message, or messages as a JSON list: a chat, up to where the answer begins.
        raw: Whether `text` is read as it is.
    """
    ids = tokenizer(text if raw else _chat(tokenizer, text), add_special_tokens=raw)["input_ids"]
    every = calculator.rows.every(ids)
    places = [place for place, pending in enumerate(every) if pending]
    if not places:
        return []
    base, config = base_model(model), calculator.config
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
        value = (
            pending.value.rounded(12) + "…" if pending.value.ends is None else pending.value.rounded(pending.value.ends)
        )
        probability = float(torch.sigmoid(torch.tensor(logit)))
        found.append(Decision(place, pieces[place], pending.text.strip(), value, probability, logit > 0))
    return found


def _chat(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    messages: Any = [{"role": "user", "content": text}]
    if text.lstrip().startswith("["):
        try:
            messages = json.loads(text)
            begins = messages[-1]["role"] != "assistant"
        except (ValueError, LookupError, TypeError) as error:
            raise InputError("the conversation must be a JSON list of messages with 'role' and 'content'") from error
        return rendered(tokenizer, messages, add_generation_prompt=begins)
    return rendered(tokenizer, messages)


def table(found: Sequence[Decision]) -> Table:
    """One row per decision, for a terminal."""
    shown = Table("after", "calculation", "value", "probability", "gate")
    for each in found:
        piece = each.text.replace("\n", "⏎").replace(BOUNDARY, "·")[-12:]
        decision = "open: written next" if each.opened else "closed"
        shown.add_row(Text(piece), Text(each.asked), each.value, f"{each.probability:.3f}", decision)
    if not found:
        shown.add_row("–", "no value is pending", "–", "–", "–")
    return shown
