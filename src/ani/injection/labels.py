"""What training adds to a forward pass: the labels tell which tokens are the response, and the gate has a loss."""

import warnings
from typing import Any

import torch

from ani.errors import InputError
from ani.injection.locate import NumberLocator
from ani.injection.module import AniModule, Injection


def response_tokens(
    labels: torch.Tensor | None, start: int, locator: NumberLocator, training: bool
) -> list[list[bool]] | None:
    """Which tokens are the response's, where that matters; None: it doesn't, or nobody says so at inference.

    `labels`, (B, T), are −100 on the prompt, to which the `start` tokens before them belong too. In training there
    must be some, else this raises InputError.
    """
    if labels is None and locator.hides_response and training:
        raise InputError(
            f"policy={locator.policy!r} injects into prompts only and can't tell prompt from response without labels; "
            "pass labels (−100 on the prompt), numbers=..., or use policy='running' or 'after'"
        )
    if labels is None or not locator.hides_response:
        return None
    response = labels != -100
    if bool(response.all()):
        warnings.warn(
            f"policy={locator.policy!r} injects into prompts only, and these labels leave no prompt (no −100): ANI "
            "does nothing here; mask the prompt's labels, or use policy='running' or 'after'",
            stacklevel=4,
        )
    return [[False] * start + row for row in response.tolist()]


def with_auxiliary_loss(
    outputs: Any,
    module: AniModule,
    injection: Injection,
    roles: torch.Tensor,
    labels: torch.Tensor,
    num_items: Any,
    totals: torch.Tensor | None,
) -> Any:
    """Add the penalty to the model's own loss, as transformers does with the router losses of MoE models.

    A trainer that accumulates gradients divides the summed token losses by `num_items_in_batch`, the labelled tokens
    of all accumulated batches. If it also counts their numbers (`number_totals`, as `AniModule.auxiliary_loss` wants
    it), the penalty is summed alike; else this batch's share of the tokens is the weight of its mean.
    """
    # Of a model on several devices the module, the labels and the loss may each be on one of their own.
    auxiliary = module.auxiliary_loss(injection, roles.to(injection.logits.device), totals).to(labels.device)
    share = 1.0 if totals is not None or num_items is None else (labels[:, 1:] != -100).sum() / num_items
    if isinstance(outputs, tuple):
        return (outputs[0] + (share * auxiliary).to(outputs[0].device), *outputs[1:])
    if getattr(outputs, "log_probs", None) is not None:
        # TRL's fused head: the trainer makes the loss from these, so every labelled token carries the penalty.
        outputs.log_probs = outputs.log_probs - auxiliary.to(outputs.log_probs.device) * outputs.label_mask
    if getattr(outputs, "loss", None) is not None:
        outputs.loss = outputs.loss + (share * auxiliary).to(outputs.loss.device)
    return outputs


def warn_if_frozen(module: AniModule) -> None:
    """Say once that the module isn't trained while the model is: PEFT freezes what it finds."""
    if module.__dict__.get("_asked_if_frozen"):
        return
    module.__dict__["_asked_if_frozen"] = True
    if not any(parameter.requires_grad for parameter in module.parameters()):
        warnings.warn(
            "the ANI module is frozen, so this training leaves it as it is; to train it, attach after PEFT's "
            'get_peft_model, or give PEFT modules_to_save=["ani"]',
            stacklevel=4,
        )


def warn_if_unlabelled(module: AniModule) -> None:
    """Say once that a gate that is being trained isn't taught: what teaches it is added to the model's own loss."""
    config = module.config
    if module.gate is None or not (config.penalty or config.role_weight) or module.__dict__.get("_told_of_labels"):
        return
    if any(parameter.requires_grad for parameter in module.gate.parameters()):
        module.__dict__["_told_of_labels"] = True
        warnings.warn(
            "the model is trained without labels, so it makes no loss of its own, of which the gate's penalty and "
            "roles are part; pass it labels and learn from the loss that it returns (no label_smoothing_factor, no "
            "compute_loss_func)",
            stacklevel=4,
        )
