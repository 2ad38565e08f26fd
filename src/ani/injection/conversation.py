"""What is pending at each token of a conversation, and what the gate decides there."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ani.chat import rendered
from ani.errors import InputError
from ani.injection.attach import base_model, last_decision, number_locator
from ani.models import evaluating
from ani.numbers.grammar import BOUNDARY
from ani.untrusted.text import parse_json
from ani.values.pending import Pending

if TYPE_CHECKING:
    from rich.table import Table

DUE = 12
"""Pending digits that are shown at most."""


class PendingDecision(NamedTuple):
    """A value that is pending at a token, and the gate's decision about it."""

    token: int
    """In the prompt."""
    text: str
    """What the token adds to the text."""
    start: int
    """Its first character in the text; special tokens are text."""
    kind: str
    """The value's name in `ani.values.VALUES`."""
    asked: str
    """What makes it known, as it is written."""
    due: str
    """Its next characters behind this token, `DUE` at most; empty: only its end is due."""
    alpha: float
    """σ(z), before the threshold."""
    injected: bool


@torch.inference_mode()
def inspect_pending(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool = False
) -> list[PendingDecision]:
    """Run `text` through an attached model with `values="pending"` or `"both"`; the tokens at which a value is pending,
    in order.

    Args:
        model: Attached.
        tokenizer: The model's.
        text: A text, or a whole conversation as `ani.chat.rendered` writes it.
        special: Whether `text` has its special tokens already, as a rendered conversation does.
    """
    base, locator = base_model(model), number_locator(model)
    token_ids = tokenizer(text, add_special_tokens=not special)["input_ids"]
    found = locator.pending(token_ids)
    if not found:
        return []
    with evaluating(base):
        base(input_ids=torch.tensor([token_ids], device=base.device), logits_to_keep=1)
    decision = last_decision(model)
    assert decision is not None
    alphas = decision.injection.logits.float().sigmoid().tolist()
    applied = decision.injection.alpha.tolist()
    decided = dict(zip(decision.numbers.positions.tolist(), zip(alphas, applied, strict=True), strict=True))
    pieces, _ = locator.scanner.pieces(token_ids)
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    return [
        PendingDecision(
            token,
            pieces[token],
            starts[token],
            each.name,
            each.text.strip(),
            _due(each),
            decided[token][0],
            decided[token][1] > 0,
        )
        for token, each in found.items()
    ]


def conversation_text(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """What the model reads of a chat: one user message, or messages as a JSON list; up to where an answer begins unless
    the last message is one. Raises InputError if they are no messages, or the template refuses them."""
    messages: Any = [{"role": "user", "content": text}]
    if text.lstrip().startswith("["):
        messages = parse_json(text, "the conversation")
        if not messages or not all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in messages):
            raise InputError("the conversation must be a list of messages, each with 'role' and 'content'")
    return rendered(tokenizer, messages, add_generation_prompt=messages[-1]["role"] != "assistant")


def pending_table(found: Sequence[PendingDecision]) -> "Table":
    """A row a token: what it writes, what is pending behind it, α = σ(z) and the decision."""
    from rich.table import Table
    from rich.text import Text

    table = Table("behind", "pending", "due", "α", "gate")
    for each in found:
        decision = "open: written next" if each.injected else "closed"
        shown = Text(each.text.replace("\n", "⏎").replace(BOUNDARY, "·")[-12:])
        table.add_row(shown, Text(each.asked), each.due or "end", f"{each.alpha:.3f}", decision)
    if not found:
        table.add_row("–", "no value is pending", "–", "–", "–")
    return table


def pending_html(found: Sequence[PendingDecision]) -> str:
    """The same as HTML, escaped."""
    rows = (
        (each.text.replace(BOUNDARY, "·"), each.asked, each.due or "end", f"{each.alpha:.3f}", "open" * each.injected)
        for each in found
    )
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{name}</th>" for name in ("behind", "pending", "due", "α", "gate"))
    return f"<table><tr>{head}</tr>{cells}</table>" if cells else "<p>No value was pending.</p>"


def _due(pending: Pending) -> str:
    digits = pending.next(DUE)
    more = "…" if len(digits) == DUE and digits[-1].character else ""
    return "".join(digit.character for digit in digits) + more
