"""Checks of a model's use: labels separate prompt and response, the module is trained, a reference has it too, and what
is trained is saved."""

import inspect
import re
import sys
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ani.errors import InputError
from ani.injection.history import Rows
from ani.injection.locate import NumberLocator
from ani.injection.model_parts import ani_module, is_attached
from ani.injection.module import AniModule
from ani.injection.number_batch import PADDING


def response_tokens(
    labels: torch.Tensor | None, rows: Rows, starts: Sequence[Sequence[int]], locator: NumberLocator, training: bool
) -> list[list[bool]] | None:
    """True for tokens of the response, per row; None if the policy doesn't need it, or at inference without labels.

    Warns if there is no token of a prompt: each text's first token has no label in packed rows, and says nothing.

    Args:
        labels: Shape (B, T), −100 on the prompt, for the last T tokens of `rows`; those before belong to the prompt.
        rows: Token ids, per row.
        starts: Index of each text's first token, per row.
        locator: The model's.
        training: If gradients are computed too, labels are needed, else this raises InputError.
    """
    if labels is None and locator.hides_response and training and torch.is_grad_enabled():
        raise InputError(
            f"policy={locator.policy!r} injects into prompts only and can't tell prompt from response without labels; "
            "pass labels (−100 on the prompt), numbers=..., or use policy='running' or 'after'"
        )
    if labels is None or not locator.hides_response:
        return None
    cached = len(rows[0]) - labels.shape[1]
    response = [[False] * cached + row for row in (labels != -100).tolist()]
    if not any(
        not answers and token != PADDING and at not in first
        for row, answered, first in zip(rows, response, starts, strict=True)
        for at, (token, answers) in enumerate(zip(row, answered, strict=True))
    ):
        warnings.warn(
            f"policy={locator.policy!r} injects into prompts only, and these labels leave no prompt (no −100): ANI "
            "does nothing here; mask the prompt's labels, or use policy='running' or 'after'",
            stacklevel=4,
        )
    return response


def is_language_loss(model: PreTrainedModel, given: Mapping[str, Any]) -> bool:
    """True if the loss of a forward pass is a language model's. Of TRL's trainers with a fused head only SFTTrainer has
    such a loss; the others compare log-probabilities of answers, in which a penalty would be an error."""
    return not given.get("fused_lm_head") or "sft" in vars(model).get("_ani_trainer_tags", ())


def remember_weights(model: PreTrainedModel) -> None:
    """Keep the versions of an attached model's own weights, which every change in place increases."""
    adapted = re.compile(r"(^|\.)(ani\.|lora_|modules_to_save)")
    own = (weight for name, weight in model.named_parameters() if not adapted.search(name))
    vars(model)["_ani_versions"] = [(weakref.ref(weight), weight._version) for weight in own]


def warn_of_trained_weights(model: PreTrainedModel) -> None:
    """Warn if own weights of an attached model were trained: an adapter does not contain them."""
    versions = vars(model).get("_ani_versions", ())
    if any((weight := kept()) is not None and weight.requires_grad and weight._version != v for kept, v in versions):
        warnings.warn(
            "the base model's own weights have changed since attach, and an adapter does not contain them; keep them "
            "by model.save_pretrained, or train LoRA",
            stacklevel=3,
        )


class CheckedModel(PreTrainedModel):
    """Mixed into an attached model's class: refuses uses that would be wrong."""

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Not available: continuous batching packs rows into one, where ANI's positions are unknown."""
        raise InputError("generate_batch can't be used with ANI attached; use generate")

    def add_model_tags(self, tags: list[str] | str) -> None:
        """transformers' `add_model_tags`. Each trainer of TRL calls it when its reference has been made."""
        super().add_model_tags(tags)
        if "trl" in tags:
            vars(self)["_ani_trainer_tags"] = tags
            # The caller is the trainer. Nothing else leads to its reference: callbacks get its arguments and the model,
            # and accelerate prepares a reference as it does any model.
            self._check(sys._getframe(1).f_locals.get("self"))
            for parameter in self.get_submodule("ani").parameters():
                if parameter.dtype == torch.bfloat16:  # TRL's cast of all that is trained beside 4-bit weights, in
                    parameter.data = parameter.data.float()  # which small steps would change nothing

    def _check(self, trainer: Any) -> None:
        """Raise InputError if the trainer's rollouts come from another model, or its reference lacks the module, or has
        the module that is trained."""
        if getattr(trainer, "use_vllm", False):
            raise InputError("TRL's vLLM generates without the ANI module; set use_vllm=False")
        if not (hasattr(trainer, "ref_model") and trainer.beta) or getattr(trainer, "precompute_ref_logps", False):
            return  # no reference, or one that is computed before the training
        reference, name = trainer.ref_model, type(trainer).__name__
        if reference is not None and not is_attached(reference):
            takes_one = "ref_model" in inspect.signature(type(trainer)).parameters
            other = (
                "pass ref_model=copy.deepcopy(model)"
                if takes_one
                else "train a merged checkpoint (ani.merge), or set beta=0"
            )
            raise InputError(
                f'{name}\'s reference is a model without the ANI module; train LoRA, with modules_to_save=["ani"], '
                f"or {other}"
            )
        module_learns = any(parameter.requires_grad for parameter in ani_module(self).parameters())
        if reference is None and module_learns and isinstance(self.get_submodule("ani"), AniModule):
            raise InputError(
                f"{name}'s reference is the model without LoRA, with the ANI module that is trained; attach before "
                'PEFT, and give PEFT modules_to_save=["ani"]'
            )


def check_training(module: AniModule, labels: torch.Tensor | None, of_language: bool) -> None:
    """Warn, once per module, of a training step that can't train it: PEFT froze it, or the loss is no language model's
    (`is_language_loss`, and with labels), to which the gate's penalty and roles are added. Raises InputError if the
    module could not be saved."""
    if vars(module).get("_warned_of_training"):
        return
    first = next(module.parameters(), None)
    if first is None or hasattr(first, "ds_id") or hasattr(first, "_fsdp_flattened"):
        raise InputError(
            "FSDP 1 and DeepSpeed's ZeRO-3 take the ANI module apart, so that it could not be saved; launch with "
            "--fsdp_version 2 or --zero_stage 2"
        )
    config, gate = module.config, module.gate
    gate_learns = gate is not None and any(parameter.requires_grad for parameter in gate.parameters())
    problem = None
    if labels is not None and not any(parameter.requires_grad for parameter in module.parameters()):
        problem = (
            "the ANI module is frozen, so this training leaves it as it is; to train it, attach after PEFT's "
            'get_peft_model, or give PEFT modules_to_save=["ani"]'
        )
    elif not (labels is not None and of_language) and gate_learns and (config.penalty or config.role_weight):
        problem = "the gate's penalty and roles are part of the model's own loss, which this training does not use"
    if problem is not None:
        vars(module)["_warned_of_training"] = True
        warnings.warn(problem, stacklevel=4)
