"""`fit`: fits a small network to labelled decisions by their features. Imports torch alone."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

EPOCHS = 16
"""Passes over all decisions, at least."""
LEAST_STEPS = 1000
BATCH_SIZE = 128
"""Decisions per step, about."""
LEARNING_RATE = 1e-3
"""Peak of the one-cycle schedule."""
WEIGHT_DECAY = 0.05
INPUT_DROPOUT = 0.5


def epochs_for(count: int) -> int:
    """Epochs of a fit to `count` decisions: `EPOCHS`, or as many as `LEAST_STEPS` steps need."""
    return max(EPOCHS, math.ceil(LEAST_STEPS / math.ceil(count / BATCH_SIZE)))


def fit(
    net: nn.Module,
    features: torch.Tensor,
    labels: torch.Tensor,
    texts: torch.Tensor,
    *,
    on_epoch: Callable[[int], None] = lambda _: None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit a network to N labelled decisions; both labels have the same weight. Return mean and standard deviation of
    the features, float32 (width,), on the network's device.

    AdamW minimizes the cross-entropy of the decisions plus that of whole texts: a text is right if all of its decisions
    are right, because one wrong decision changes an answer. The network is fitted on standardised features, because the
    hidden states of one token are nearly parallel in all texts (cosine 0.94 to 0.99).

    Args:
        net: Maps standardised features (B, width) to logits (B, 1), on any device.
        features: float16 (N, width), on the CPU.
        labels: int64 (N,): 1 where the logit should be above 0, 0 where below; both occur.
        texts: int64 (N,): the text of each decision, numbered from 0 without gaps.
        on_epoch: Called after each epoch, with 1.
    """
    device = next(net.parameters()).device
    parts = features.split(4096)
    center = sum(part.double().sum(dim=0) for part in parts) / len(features)
    variance = sum((part.double() - center).square().sum(dim=0) for part in parts) / len(features)
    mean, std = center.float().to(device), (variance.sqrt() + 1e-6).float().to(device)
    share = float(labels.float().mean())
    weights = torch.where(labels == 1, 0.5 / share, 0.5 / (1 - share))
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    epochs = epochs_for(len(features))
    steps = epochs * math.ceil(len(features) / BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    with torch.enable_grad():
        for _ in range(epochs):
            for drawn in _batches(texts):
                read, label, text, weight = (each[drawn].to(device) for each in (features, labels, texts, weights))
                logits = net(_dropped_out((read.float() - mean) / std)).squeeze(-1)
                wrong = torch.where(label == 1, -logits, logits)
                loss = (nn.functional.softplus(wrong) * weight).mean() + _of_texts(wrong, text)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            on_epoch(1)
    return mean, std


def _batches(texts: torch.Tensor) -> Iterable[torch.Tensor]:
    """Batches of decisions, as indices (B,): whole texts in random order, about `BATCH_SIZE` decisions each."""
    order = torch.randperm(int(texts.max()) + 1)
    ends = texts.bincount()[order].cumsum(dim=0)
    steps = torch.empty_like(order)
    steps[order] = (ends - 1) // BATCH_SIZE
    step_of = steps[texts]
    return filter(len, step_of.argsort(stable=True).split(step_of.bincount().tolist()))


def _of_texts(wrong: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """Mean over texts of log(1 + Σ exp(z)): near the greatest z of a text with a wrong decision, near 0 without one.
    `wrong` is z of N decisions, (N,), above 0 where the decision is wrong; `texts` the text of each, int64 (N,)."""
    _, group = texts.unique(return_inverse=True)
    greatest = wrong.new_zeros(int(group.max()) + 1).scatter_reduce(0, group, wrong.detach(), "amax")
    total = torch.exp(-greatest).index_add(0, group, torch.exp(wrong - greatest[group]))
    return (greatest + total.log()).mean()


def _dropped_out(features: torch.Tensor) -> torch.Tensor:
    """Features (B, width), each set to 0 with probability `INPUT_DROPOUT`, the others scaled up. A random byte decides:
    `nn.Dropout` draws a float, which takes longer than the rest of a step on a CPU."""
    words = torch.empty(math.ceil(features.numel() / 8), dtype=torch.long, device=features.device)
    words.random_(-(2**63), None)
    kept = words.view(torch.uint8)[: features.numel()].view(features.shape) >= round(256 * INPUT_DROPOUT)
    return features * kept / (1 - INPUT_DROPOUT)
