"""Fits a module's gate on the frozen model's hidden states, convexly, before training."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from ani.data.collator import NumberCollator, TokenizedExample
from ani.errors import InputError
from ani.injection.attach import ani_module, base_model
from ani.injection.gate import FittedGate
from ani.injection.inspection import forced_gates
from ani.models import evaluating
from ani.training.examples import LengthGroupedSampler

MOST_NUMBERS = 30_000
"""Numbers that are learnt from; more take longer and change little."""
STRENGTH = 0.003
"""C of the logistic regression: strong, as the features are many and templates few."""
BATCH_SIZE = 32


def fit_gate(
    model: nn.Module,
    collator: NumberCollator,
    rows: Sequence[TokenizedExample],
    seed: int = 0,
) -> None:
    """Set the gate of an attached model with `gate="fitted"` by logistic regression of roles on hidden states.

    States are standardised and roles weighted to count alike, so that the threshold is the one of balanced classes.

    Args:
        model: Attached; its base model is as it will be used, frozen.
        collator: Finds the numbers, with their roles.
        rows: Examples, of which some are drawn.
        seed: Of the drawing.

    Raises:
        InputError: The examples have no numbers of one of the roles.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    gate = ani_module(model).gate
    assert isinstance(gate, FittedGate)
    features: list[np.ndarray] = []
    roles: list[int] = []

    def keep(_: nn.Module, given: tuple[torch.Tensor, torch.Tensor, Sequence[torch.Tensor]], __: object) -> None:
        features.append(gate.features(given[0], given[2]).float().cpu().numpy())

    order = list(LengthGroupedSampler([len(row.input_ids) for row in rows], BATCH_SIZE, seed))
    base, hook = base_model(model), gate.register_forward_hook(keep)
    try:
        with evaluating(base), torch.inference_mode(), forced_gates(model, False):
            for first in range(0, len(order), BATCH_SIZE):
                batch = collator([rows[place] for place in order[first : first + BATCH_SIZE]])
                numbers = batch["numbers"]
                if not bool((numbers.roles >= 0).any()):
                    continue
                given = {name: batch[name].to(base.device) for name in ("input_ids", "attention_mask")}
                model(**given, numbers=numbers.to(base.device), logits_to_keep=1)
                known = (numbers.roles >= 0).numpy()
                features[-1] = features[-1][known]
                roles += numbers.roles[numbers.roles >= 0].tolist()
                if len(roles) >= MOST_NUMBERS:
                    break
    finally:
        hook.remove()
    if len(set(roles)) < 2:
        raise InputError("ani.gate=fitted needs nominal and quantitative numbers, and the examples have one role alone")
    scaler = StandardScaler()
    scaled = scaler.fit_transform(np.concatenate(features))
    fitted = LogisticRegression(C=STRENGTH, class_weight="balanced", max_iter=1000).fit(scaled, roles)
    weight = fitted.coef_[0] / scaler.scale_
    with torch.no_grad():
        gate.outer.weight.copy_(torch.from_numpy(weight)[None])
        gate.outer.bias.fill_(float(fitted.intercept_[0] - weight @ scaler.mean_))
