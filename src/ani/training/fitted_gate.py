"""`ani.gate: fitted`: fits the gate to labelled numbers on the frozen model's hidden states, before training."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from rich.console import Console
from torch import nn

from ani.data.collator import NumberCollator, TokenizedExample
from ani.errors import InputError
from ani.injection.gate import Gate
from ani.injection.inspection import forced_gates
from ani.injection.model_parts import ani_module, base_model
from ani.models import evaluating
from ani.terminal import SILENT, counting
from ani.training.examples import LengthGroupedSampler
from ani.training.fitting import epochs_for, fit

MOST_BYTES = 8 * 2**30
"""Upper bound for the states of all numbers."""
ROWS = 32
"""Rows per forward pass."""


def fit_gate(
    model: nn.Module,
    collator: NumberCollator,
    rows: Sequence[TokenizedExample],
    seed: int = 0,
    console: Console = SILENT,
) -> None:
    """Fit the gate of an attached model with `gate="fitted"` to the known roles of numbers in `rows` (a random part of
    them where the states of all numbers would take more than `MOST_BYTES`), on the frozen base model's hidden states.

    Mean and deviation of the states are folded into the gate's first layer, so that it reads states as they are.
    Raises InputError if all numbers of the examples have the same role.
    """
    gate, base = ani_module(model).gate, base_model(model)
    assert isinstance(gate, Gate)
    features, roles, texts = _features(model, gate, collator, rows, seed, console)
    if len(roles.unique()) < 2:
        raise InputError("ani.gate=fitted needs nominal and quantitative numbers, and the examples have one role alone")
    with torch.random.fork_rng([base.device] if base.device.type == "cuda" else []):
        torch.manual_seed(seed)
        gate.inner.reset_parameters()
        gate.outer.reset_parameters()  # it was zero, so that nothing was decided
        net = nn.Sequential(gate.inner, nn.GELU(), gate.dropout, gate.outer).train().requires_grad_(True)
        with counting(console, "epochs of the gate's fit", epochs_for(len(features))) as count:
            mean, std = fit(net, features, roles, texts, on_epoch=count)
    gate.train(base.training).requires_grad_(False)
    gate.inner.bias.sub_(gate.inner.weight @ (mean / std))
    gate.inner.weight.div_(std)


class _GateRead(Exception):
    """Ends a forward pass at the gate: the layers above it are not needed."""


def _features(
    model: nn.Module,
    gate: Gate,
    collator: NumberCollator,
    rows: Sequence[TokenizedExample],
    seed: int,
    console: Console,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gate's inputs at N numbers with known roles, float16 (N, width); the roles, int64 (N,); the text of each
    number, int64 (N,)."""
    read: list[torch.Tensor] = []
    roles: list[torch.Tensor] = [torch.empty(0, dtype=torch.long)]
    texts: list[torch.Tensor] = [torch.empty(0, dtype=torch.long)]

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        read.append(given[0].cpu().half())
        raise _GateRead

    order = list(LengthGroupedSampler([len(row.input_ids) for row in rows], ROWS, seed))
    base, hook = base_model(model), gate.inner.register_forward_pre_hook(keep)
    try:
        with (
            evaluating(base),
            torch.inference_mode(),
            forced_gates(model, False),
            counting(console, "texts read for the gate", len(order)) as count,
        ):
            for first in range(0, len(order), ROWS):
                batch = collator([rows[place] for place in order[first : first + ROWS]])
                count(min(ROWS, len(order) - first))
                known = batch["numbers"].roles >= 0
                if not bool(known.any()):
                    continue
                given = {name: batch[name].to(base.device) for name in ("input_ids", "attention_mask")}
                with suppress(_GateRead):
                    model(**given, numbers=batch["numbers"].to(base.device), logits_to_keep=1)
                read[-1] = read[-1][known]
                roles.append(batch["numbers"].roles[known])
                texts.append(first + batch["numbers"].rows[known])
                if sum(map(len, roles)) * read[-1][0].nbytes >= MOST_BYTES:
                    break
    finally:
        hook.remove()
    return (
        torch.cat([torch.empty(0, gate.inner.in_features, dtype=torch.half), *read]),
        torch.cat(roles),
        torch.cat(texts).unique(return_inverse=True)[1],
    )
