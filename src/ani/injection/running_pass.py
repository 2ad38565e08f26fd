"""The forward pass that is running, for the layers in it."""

from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from ani.errors import InputError
from ani.injection.module import Injection
from ani.injection.number_batch import NumberBatch


@dataclass
class ForwardPass:
    """A forward pass that is running."""

    model: PreTrainedModel
    numbers: NumberBatch
    start: int
    """Count of tokens of the text before this pass, as the cache's history has them."""
    straight_through: bool
    """True if the trainer compares it with a reference or a rollout, whose gates are those of inference."""
    injection: Injection | None = None
    earlier: list[torch.Tensor] = field(default_factory=list)
    """The gate's vectors of earlier layers at the numbers, in the order of `gate_reads`, each (N, width)."""


running_pass: ContextVar[ForwardPass | None] = ContextVar("ani_forward_pass", default=None)


@torch.compiler.disable  # ContextVar.get can't be traced
def current_pass() -> ForwardPass:
    """The running forward pass; raises InputError if the decoder runs without its model."""
    current = running_pass.get()
    if current is None:
        raise InputError("the decoder of a model with ANI was called by itself; call the model (or ani.detach it)")
    return current
