"""`gate: fitted`: fits the gate to labelled numbers on the frozen model's hidden states, before training."""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from ani.data.collator import NumberCollator, TokenizedExample
from ani.errors import InputError
from ani.injection.attach import ani_module, base_model
from ani.injection.gate import Gate
from ani.injection.inspection import forced_gates
from ani.injection.locate import QUANTITATIVE
from ani.models import evaluating
from ani.training.examples import LengthGroupedSampler

MOST_BYTES = 8 * 2**30
"""Of the states of the numbers that are learnt from, at most."""
ROWS = 32
"""Rows of a forward pass."""
EPOCHS = 16
"""At least; more where these are fewer than `LEAST_STEPS` steps."""
LEAST_STEPS = 1000
BATCH_SIZE = 128
"""Numbers of a step."""
LEARNING_RATE = 1e-3
"""Peak of the one-cycle schedule."""
WEIGHT_DECAY = 0.05
INPUT_DROPOUT = 0.5


def fit_gate(
    model: nn.Module,
    collator: NumberCollator,
    rows: Sequence[TokenizedExample],
    seed: int = 0,
) -> None:
    """Fit the gate of an attached model with `gate="fitted"` to known roles, on the base model's hidden states.

    AdamW minimizes the cross-entropy of the roles, both of which weigh the same, and beside it that of whole texts: a
    text is right if the gate is right at all of its numbers. One gate that opens where nothing is asked for changes an
    answer, and a result with one digit missing is wrong. The gate is fitted on standardised states, because the states
    of one token are nearly parallel in all texts (cosine 0.94 to 0.99 where an answer begins). Mean and deviation are
    then folded into its first layer, so that it reads states as they are.

    Args:
        model: Attached; its base model is as it will be used, frozen.
        collator: Finds the numbers, with their roles.
        rows: Examples; some are drawn where the states of all their numbers would take more than `MOST_BYTES`.
        seed: Of the drawing and the fit.

    Raises:
        InputError: The examples have no numbers of one of the roles.
    """
    gate, base = ani_module(model).gate, base_model(model)
    assert isinstance(gate, Gate)
    features, roles, texts = _features(model, gate, collator, rows, seed)
    if len(roles.unique()) < 2:
        raise InputError("ani.gate=fitted needs nominal and quantitative numbers, and the examples have one role alone")
    with torch.random.fork_rng([base.device] if base.device.type == "cuda" else []):
        torch.manual_seed(seed)
        gate.inner.reset_parameters()
        gate.outer.reset_parameters()  # it was zero, so that nothing was decided
        net = nn.Sequential(gate.inner, nn.GELU(), gate.dropout, gate.outer).train().requires_grad_(True)
        mean, std = fit(net, features, roles, texts)
    gate.train(base.training).requires_grad_(False)
    gate.inner.bias.sub_(gate.inner.weight @ (mean / std))
    gate.inner.weight.div_(std)


def fit(
    net: nn.Module, features: torch.Tensor, roles: torch.Tensor, texts: torch.Tensor, epochs: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit a network to the roles of N numbers, as `fit_gate` says.

    Args:
        net: Gives the logits (B, 1) of standardised features (B, width), on any device.
        features: What is read at each number, float16 (N, width).
        roles: `NOMINAL` or `QUANTITATIVE`, int64 (N,).
        texts: Which text each stands in, from 0 on, int64 (N,).
        epochs: None: `EPOCHS`, or more for `LEAST_STEPS` steps.

    Returns:
        Mean and standard deviation of the features, float32 (width,), on the network's device.
    """
    device = next(net.parameters()).device
    parts = features.split(4096)
    center = sum(part.double().sum(dim=0) for part in parts) / len(features)
    variance = sum((part.double() - center).square().sum(dim=0) for part in parts) / len(features)
    mean, std = center.float().to(device), (variance.sqrt() + 1e-6).float().to(device)
    share = float((roles == QUANTITATIVE).float().mean())
    weights = torch.where(roles == QUANTITATIVE, 0.5 / share, 0.5 / (1 - share))
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = math.ceil(len(features) / BATCH_SIZE)
    epochs = epochs or max(EPOCHS, math.ceil(LEAST_STEPS / batches))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=epochs * batches)
    with torch.enable_grad():
        for _ in range(epochs):
            for drawn in _batches(texts):
                read, role, text, weight = (each[drawn].to(device) for each in (features, roles, texts, weights))
                logits = net(_dropped_out((read.float() - mean) / std)).squeeze(-1)
                wrong = torch.where(role == QUANTITATIVE, -logits, logits)
                loss = (nn.functional.softplus(wrong) * weight).mean() + _of_texts(wrong, text)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return mean, std


def _batches(texts: torch.Tensor) -> Iterable[torch.Tensor]:
    """The numbers of whole texts in random order, about `BATCH_SIZE` a step; `texts`: each number's, from 0 on."""
    order = torch.randperm(int(texts.max()) + 1)
    ends = texts.bincount()[order].cumsum(dim=0)
    steps = torch.empty_like(order)
    steps[order] = (ends - 1) // BATCH_SIZE
    of_numbers = steps[texts]
    return filter(len, of_numbers.argsort(stable=True).split(of_numbers.bincount().tolist()))


def _of_texts(wrong: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """The mean over whole texts of log(1 + Σ exp(z)): near a text's greatest z where the gate is wrong at one of its
    numbers, near 0 where it is right at all.

    Args:
        wrong: z of N numbers, (N,), above 0 where the gate is wrong.
        texts: Each one's text, int64 (N,).
    """
    _, group = texts.unique(return_inverse=True)
    greatest = wrong.new_zeros(int(group.max()) + 1).scatter_reduce(0, group, wrong.detach(), "amax")
    total = torch.exp(-greatest).index_add(0, group, torch.exp(wrong - greatest[group]))
    return (greatest + total.log()).mean()


def _dropped_out(states: torch.Tensor) -> torch.Tensor:
    """Each number of (N, width) states with probability `INPUT_DROPOUT` 0, the others larger for it. A random byte
    decides, where `nn.Dropout` draws a float: on a CPU that takes longer than the rest of a step."""
    words = torch.empty(math.ceil(states.numel() / 8), dtype=torch.long, device=states.device).random_(-(2**63), None)
    kept = words.view(torch.uint8)[: states.numel()].view(states.shape) >= round(256 * INPUT_DROPOUT)
    return states * kept / (1 - INPUT_DROPOUT)


class _GateRead(Exception):
    """Ends a forward pass: the layers above the gate aren't needed."""


def _features(
    model: nn.Module, gate: Gate, collator: NumberCollator, rows: Sequence[TokenizedExample], seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the gate reads at N numbers whose roles are known, float16 (N, its width), the roles, int64 (N,), and which
    text each stands in, int64 (N,)."""
    read: list[torch.Tensor] = []
    roles: list[torch.Tensor] = [torch.empty(0, dtype=torch.long)]
    texts: list[torch.Tensor] = [torch.empty(0, dtype=torch.long)]

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        read.append(given[0].cpu().half())
        raise _GateRead

    order = list(LengthGroupedSampler([len(row.input_ids) for row in rows], ROWS, seed))
    base, hook = base_model(model), gate.inner.register_forward_pre_hook(keep)
    try:
        with evaluating(base), torch.inference_mode(), forced_gates(model, False):
            for first in range(0, len(order), ROWS):
                batch = collator([rows[place] for place in order[first : first + ROWS]])
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
    features = torch.empty(sum(map(len, read)), gate.inner.in_features, dtype=torch.half)
    for part in features.split([*map(len, read)]):
        part.copy_(read.pop(0))  # one by one, as all of them don't fit twice
    return features, torch.cat(roles), torch.cat(texts).unique(return_inverse=True)[1]
