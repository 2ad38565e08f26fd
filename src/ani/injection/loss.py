"""The loss that ANI adds to the language model's: the gate's penalty, and its cross-entropy on known roles."""

from typing import Any

import torch
from torch import nn

from ani.injection.module import AniModule, Injection


def auxiliary_loss(
    module: AniModule, injection: Injection, roles: torch.Tensor, totals: torch.Tensor | None = None
) -> torch.Tensor:
    """A scalar; 0 without numbers::

        λ·mean(r·α(1−α)) + w·mean over known roles of −log p(role)

    The first term is the binarization penalty, a mean over numbers, not tokens (paper Eq. 4). r = min(1, RMS(e) /
    `penalty_ramp`), with e in units of `embedding_scale`, phases it in: while W_P is close to zero the loss says
    nothing about the gate, and a constant penalty would drive it to an arbitrary end from which it can't return. w is
    `role_weight`.

    Args:
        module: The module, in training mode.
        injection: The result of the module's `forward`.
        roles: `ani.roles.Role`, int64 (N,).
        totals: Count of numbers and of known roles in the whole optimizer step, int64 (2,); None: those given here.
    """
    config = module.config
    alpha = injection.alpha.float()
    if module.gate is None or config.gate == "fitted":
        return alpha.new_zeros(())
    known = roles >= 0
    if totals is None:  # counted on the device, so that nothing waits for a GPU
        totals = torch.stack([torch.ones_like(roles).sum(), known.sum()])
    numbers, with_role = totals.to(alpha.device).clamp(min=1)
    penalties = alpha * (1 - alpha)
    if config.penalty_ramp > 0:
        penalties = penalties * (injection.embedding_rms / config.penalty_ramp).clamp(max=1)
    loss: torch.Tensor = config.penalty * penalties.sum() / numbers
    if config.role_weight > 0:
        surprise = nn.functional.binary_cross_entropy_with_logits(
            injection.logits.float(), roles.clamp(min=0).float(), known.float(), reduction="sum"
        )
        loss = loss + config.role_weight * surprise / with_role
    return loss


def add_loss(outputs: Any, auxiliary: torch.Tensor, labels: torch.Tensor, num_items: Any, totals: Any) -> Any:
    """The outputs of a forward pass with an auxiliary loss added, as transformers adds the router losses of MoE models.

    A trainer that accumulates gradients divides the summed token losses by `num_items`, the labelled tokens of all
    accumulated batches. If it also counts their numbers (`totals`), the penalty is summed in the same way; if not, the
    mean over this batch is weighted by the batch's part of the tokens.
    """
    auxiliary = auxiliary.to(labels.device)  # in a model on several devices, labels and loss may be on different ones
    part = 1.0 if totals is not None or num_items is None else (labels[:, 1:] != -100).sum() / num_items
    if isinstance(outputs, tuple):
        return (outputs[0] + (part * auxiliary).to(outputs[0].device), *outputs[1:])
    if getattr(outputs, "log_probs", None) is not None:
        # TRL's fused head: SFTTrainer makes the loss from these, so every labelled token carries the penalty.
        outputs.log_probs = outputs.log_probs - auxiliary.to(outputs.log_probs.device) * outputs.label_mask
    if getattr(outputs, "loss", None) is not None:
        outputs.loss = outputs.loss + (part * auxiliary).to(outputs.loss.device)
    return outputs
