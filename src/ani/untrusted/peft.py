"""Checks an untrusted PEFT config: plain LoRA, of modules by their names.

PEFT matches modules by regular expressions, of which some never end, and has settings that import modules, name other
files or draw on data. From a file neither is taken.
"""

import copy
import re
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from transformers import PreTrainedModel

from ani.errors import InputError
from ani.untrusted.folder import own_file, read_weights
from ani.untrusted.text import first_problem, one_line, read_json_object


def _checked_names(value: Any) -> Any:
    for name in [value] if isinstance(value, str) else value if isinstance(value, list | dict) else []:
        if isinstance(name, str) and not re.fullmatch(r"[\w.-]{1,1000}", name):
            raise ValueError(
                f"{one_line(repr(name), 80)} is no module's name, and regular expressions are not read from a file: "
                "list the modules by name"
            )
    return value


def _listed(value: Any) -> Any:
    if isinstance(value, str) and value != "all-linear":
        raise ValueError("it must be all-linear, or a list of modules' names such as [q_proj, v_proj]")
    return value


_NAMES = BeforeValidator(_checked_names)
Targets = Annotated[Literal["all-linear"] | list[str], BeforeValidator(_listed), _NAMES]
"""What LoRA is trained in: modules by their names, or all linear ones but the output embedding."""


class PlainLora(BaseModel):
    """What PEFT's adapter_config.json may say; every other setting must be at PEFT's default."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    peft_type: Literal["LORA"]
    r: int = Field(ge=1, le=2**16)
    lora_alpha: float
    lora_dropout: float = Field(ge=0, le=1)
    target_modules: Targets
    base_model_name_or_path: Annotated[str, Field(max_length=4096)] | None = None
    task_type: Literal["CAUSAL_LM"] | None = None
    modules_to_save: Annotated[list[str] | None, _NAMES] = None
    init_lora_weights: bool | Literal["gaussian", "orthogonal"] = True
    use_rslora: bool = False
    fan_in_fan_out: bool = False
    rank_pattern: Annotated[dict[str, Annotated[int, Field(ge=1, le=2**16)]] | None, _NAMES] = None
    alpha_pattern: Annotated[dict[str, float] | None, _NAMES] = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: Annotated[str | list[str] | None, _NAMES] = None
    exclude_modules: Annotated[list[str] | None, _NAMES] = None
    inference_mode: bool = True
    peft_version: str | None = None
    revision: str | None = None
    auto_mapping: Any = None
    """For PEFT's own Auto classes, which import what it names; nobody here asks them."""


def read_lora_config(directory: Path) -> PlainLora:
    """The PEFT config of an adapter; raises InputError unless it is plain LoRA."""
    file = own_file(directory, CONFIG_NAME)
    raw = read_json_object(file)
    try:
        config = PlainLora.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}; ANI loads plain LoRA adapters of PEFT") from error
    defaults = LoraConfig().to_dict()
    for key, value in (config.model_extra or {}).items():
        if value and value != defaults.get(key):
            raise InputError(
                f"{file}: {one_line(key, 80)} is {one_line(repr(value), 80)}; ANI loads plain LoRA adapters, without "
                "that setting of PEFT's"
            )
    return config


def check_lora(model: PreTrainedModel, directory: Path) -> None:
    """Raises InputError unless LoRA's weights are finite, and those that PEFT will make room for in the model."""
    modules = sum(1 for _ in model.modules())
    for key, value in read_lora_config(directory):
        if isinstance(value, list | dict) and len(value) > modules:  # PEFT tries each with each
            raise InputError(
                f"{directory / CONFIG_NAME}: {key} has {len(value):,} entries, and the model {modules:,} modules; "
                "fetch the adapter again"
            )
    try:
        # On no device, so that nothing of the size that the config tells is ever made.
        with torch.device("meta"):
            empty = type(model)(copy.deepcopy(model.config))
            inject_adapter_in_model(LoraConfig.from_pretrained(str(directory)), empty)
        wanted = get_peft_model_state_dict(cast(Any, empty), save_embedding_layers=False)
    except Exception as error:  # whatever PEFT meets in what others wrote
        raise InputError(f"{directory / CONFIG_NAME} doesn't fit the model: {one_line(error)}") from error
    told_by = f"{CONFIG_NAME} and the model"
    file = directory / SAFETENSORS_WEIGHTS_NAME
    # PEFT's modules_to_save has stored the module there, too; it is read from its own file.
    read_weights(file, wanted, told_by, prefix="base_model.model.", apart="ani.")
