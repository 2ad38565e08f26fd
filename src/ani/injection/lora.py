"""LoRA of an adapter: PEFT adds it, takes it off and merges it; only plain LoRA is read and saved."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn
from transformers import PreTrainedModel

from ani.errors import InputError, first_problem, one_line
from ani.injection.adapter_files import PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE, own_file, read_weights
from ani.injection.model_parts import base_model, is_peft_model
from ani.text_files import parse_json, read_text

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel


class PlainLora(BaseModel):
    """The settings of PEFT's LoRA that an adapter may have; every other one must be at PEFT's default."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    peft_type: Literal["LORA"]
    r: int
    lora_alpha: float
    lora_dropout: float = 0.0
    target_modules: list[str] | str
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    use_rslora: bool = False
    fan_in_fan_out: bool = False
    task_type: Literal["CAUSAL_LM"] | None = None


_NO_SETTINGS = {"modules_to_save", "inference_mode", "base_model_name_or_path", "revision", "peft_version"}
_NO_SETTINGS |= {"init_lora_weights", "auto_mapping"}
"""Keys of PEFT's file that change nothing about how saved weights are used."""


def _plain_lora(raw: Any, where: str) -> "LoraConfig":
    """Settings of plain LoRA; raises InputError for anything else, which the file `where` has."""
    from peft import LoraConfig

    try:
        settings = PlainLora.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error)}; ANI reads plain LoRA of PEFT") from error
    others = {key: value for key, value in (settings.model_extra or {}).items() if key not in _NO_SETTINGS}
    others["modules_to_save"] = [name for name in raw.get("modules_to_save") or () if name != "ani"]
    defaults = LoraConfig().to_dict()
    for key, value in others.items():
        if value and value != defaults.get(key):
            raise InputError(f"{where}: {key} is {one_line(repr(value), 80)}; ANI reads plain LoRA of PEFT, without it")
    try:
        return LoraConfig(**settings.model_dump(include=PlainLora.model_fields.keys() - {"peft_type"}))
    except ValueError as error:  # settings that need each other
        raise InputError(f"{where}: {one_line(error)}") from error


def add_lora(model: PreTrainedModel, folder: Path) -> "PeftModel":
    """Add an adapter's LoRA to a model, in place, and return the PeftModel, which takes it off again (`unload`).

    Raises InputError if the model has PEFT's adapters already, or the files are damaged or don't fit the model, which
    is then as it was.
    """
    from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
    from peft.tuners.tuners_utils import BaseTunerLayer

    if is_peft_model(model) or any(isinstance(layer, BaseTunerLayer) for layer in model.modules()):
        raise InputError(
            f"the adapter {folder} has LoRA weights, and the model has PEFT's adapters already; pass the base "
            "model, without PEFT around it (ani.detach takes off the LoRA of ani.load_adapter)"
        )
    file = own_file(folder, PEFT_CONFIG_FILE)
    settings = _plain_lora(parse_json(read_text(file), str(file)), str(file))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    wrapped: PeftModel | None = None
    try:
        wrapped = PeftModel(model, settings)
        weights = own_file(folder, PEFT_WEIGHTS_FILE)
        # PEFT's modules_to_save stores the module's weights too; the module has its own file.
        wanted = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
        read = read_weights(weights, wanted, apart="base_model.model.ani.")
        set_peft_model_state_dict(wrapped, read)
    except Exception as error:
        if wrapped is not None:
            wrapped.unload()
        vars(model).pop("peft_config", None)
        if isinstance(error, InputError | torch.cuda.OutOfMemoryError | MemoryError):
            raise
        raise InputError(f"{file} doesn't fit the model: {one_line(error)}") from error
    finally:
        for parameter in trainable:
            parameter.requires_grad_()
    return wrapped


def fold_lora(wrapped: "PeftModel", path: Path) -> None:
    """Add LoRA's weights to the model's own, in place; raises InputError if that can't be done."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    model = cast(PreTrainedModel, wrapped.get_base_model())
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    if model.config.get_text_config().tie_word_embeddings and any(isinstance(e, BaseTunerLayer) for e in embeddings):
        raise InputError(
            f"the LoRA weights in {path} change one of the input and output embeddings, which the base model shares, "
            "so they can't be merged; train without the embeddings among the target modules"
        )
    try:
        wrapped.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise InputError(f"the LoRA weights in {path} can't be merged: {one_line(error)}") from error


def peft_model(model: nn.Module) -> "PeftModel | None":
    """The PeftModel with the LoRA of a model; None without LoRA. Raises InputError unless it can be saved."""
    wrapped = model if is_peft_model(model) else vars(base_model(model)).get("_ani_lora")
    if wrapped is None:
        if getattr(base_model(model), "_hf_peft_config_loaded", False):
            raise InputError("LoRA of transformers' add_adapter can't be saved; use PEFT's get_peft_model")
        return None
    if len(wrapped.active_adapters) != 1:
        names = ", ".join(wrapped.active_adapters)
        raise InputError(f"PEFT's active adapters are {names}, and one can be saved; choose with model.set_adapter")
    _plain_lora(wrapped.peft_config[wrapped.active_adapter].to_dict(), f"PEFT's adapter {wrapped.active_adapter!r}")
    return wrapped
