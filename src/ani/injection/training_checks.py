"""Checks of a training step: labels separate prompt and response, and the module is trained."""

import warnings

import torch

from ani.errors import InputError
from ani.injection.locate import NumberLocator
from ani.injection.module import AniModule


def response_tokens(
    labels: torch.Tensor | None, start: int, locator: NumberLocator, training: bool
) -> list[list[bool]] | None:
    """True for tokens of the response, per row; None if the policy doesn't need it, or at inference without labels.

    Args:
        labels: Shape (B, T), −100 on the prompt.
        start: Count of tokens before them, in the cache, which belong to the prompt.
        locator: The model's.
        training: Labels are needed, else this raises InputError.
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


def warn_if_untrained(module: AniModule, labels: torch.Tensor | None) -> None:
    """Warn, once per module, of a training step that can't train it: PEFT froze it, or there are no labels, whose loss
    the gate's penalty and roles are added to."""
    if not module.training or not torch.is_grad_enabled() or module.__dict__.get("_warned_of_training"):
        return
    config, gate = module.config, module.gate
    learns = gate is not None and any(parameter.requires_grad for parameter in gate.parameters())
    problem = None
    if labels is not None and not any(parameter.requires_grad for parameter in module.parameters()):
        problem = (
            "the ANI module is frozen, so this training leaves it as it is; to train it, attach after PEFT's "
            'get_peft_model, or give PEFT modules_to_save=["ani"]'
        )
    elif labels is None and learns and (config.penalty or config.role_weight):
        problem = (
            "the model is trained without labels, so it makes no loss, to which the gate's penalty and roles are "
            "added; pass labels and use the loss that it returns (no label_smoothing_factor, no compute_loss_func)"
        )
    if problem is not None:
        module.__dict__["_warned_of_training"] = True
        warnings.warn(problem, stacklevel=4)
