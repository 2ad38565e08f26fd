"""What the gate decides about the numbers of a text; knows nothing about how that is shown."""

from decimal import Decimal
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ani.injection.attach import ani_module, base_model, last_decision, number_locator
from ani.numbers import Number


class NumberDecision(NamedTuple):
    """A number of a text and the gate's decision about it."""

    text: str
    value: Decimal
    start: int
    """First character in the text."""
    end: int
    """One after the last character."""
    first_token: int
    last_token: int
    alpha: float
    """σ(z), before the threshold; NaN where the config's overflow rule leaves the number alone."""
    injected: bool
    """α = 1[σ(z) > 0.5]."""


@torch.inference_mode()
def inspect(model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str) -> list[NumberDecision]:
    """Run `text` through an attached model as a prompt and return the decision about each of its numbers.

    Under all policies but `terminal` a number is decided anew at each of its tokens; the last decision is returned.
    """
    ani_module(model)
    base = base_model(model)
    locator = number_locator(model)
    encoded = tokenizer(text, return_tensors="pt").to(base.device)
    input_ids = encoded["input_ids"]
    numbers: list[Number] = locator.scanner.scan(input_ids[0].tolist())
    if not numbers:
        return []
    training = base.training
    base.eval()
    try:
        base(input_ids=input_ids, logits_to_keep=1)
    finally:
        base.train(training)
    decision = last_decision(model)
    logits: dict[int, float] = {}
    if decision is not None:  # None: the overflow rule leaves all of them alone
        logits = dict(zip(decision.numbers.positions.tolist(), decision.injection.logits.tolist(), strict=True))
    # Offsets count the characters of the decoded ids, which may begin with special tokens that `text` doesn't have.
    decoded = locator.scanner.text(input_ids[0].tolist())
    shift = max(decoded.find(text), 0)
    return [
        NumberDecision(
            number.text,
            number.value,
            number.start - shift,
            number.end - shift,
            number.first_token,
            number.last_token,
            torch.tensor(logits.get(number.last_token, float("nan"))).sigmoid().item(),
            logits.get(number.last_token, 0.0) > 0,
        )
        for number in numbers
    ]
