"""Saves and loads adapters: `ani_config.json`, `ani.safetensors`, PEFT's two files if there is LoRA, and a model card.

An adapter may come from anybody. Its settings are validated before anything is built from them. Its weights are read
only from safetensors, and must be complete and finite. No file may be a link out of its folder. Of PEFT's settings only
those of plain LoRA are read. A directory is written beside its place and then moved there.
"""

import hashlib
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import torch
from safetensors.torch import save_file
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.encoders import build_encoder
from ani.errors import InputError, one_line
from ani.files import check_replaceable, replacing_directory
from ani.hub import adapter_card
from ani.injection.adapter_files import (
    CARD_FILE,
    CONFIG_FILE,
    FILES,
    WEIGHTS_FILE,
    adapter_directory,
    own_file,
    read_weights,
)
from ani.injection.attach import attach, detach
from ani.injection.checks import warn_of_trained_weights
from ani.injection.lora import add_lora, fold_lora, peft_model
from ani.injection.methods import METHODS, MethodName, unknown_method
from ani.injection.model_parts import ani_module, base_model, check_tokenizer, fitted_config, is_attached
from ani.injection.module import AniModule
from ani.injection.saved import SavedMethod
from ani.models import EMBEDDED, lasting_name
from ani.revisions import alike, at_commit
from ani.settings import validated
from ani.text_files import parse_json, read_text

_ATTACHED = "an ANI module is attached to this model already; call ani.detach first"


class AdapterSettings(SavedMethod):
    """The content of `ani_config.json`."""

    base: str | None
    """Base model: a directory, a hub name with its commit (`NAME@COMMIT`) or `smollm2`; null if it has no name."""
    lora: bool
    """True if LoRA weights belong to the adapter."""


@dataclass(frozen=True)
class Adapter:
    """An adapter directory whose settings have been read; `load` adds it to its base model."""

    path: Path
    settings: AdapterSettings

    @classmethod
    def read(cls, name: str | Path, *, revision: str | None = None) -> Self:
        """Find an adapter and read its settings; raises InputError if it is missing or damaged.

        Args:
            name: Directory, a name on the Hugging Face hub, or one of `SHIPPED`.
            revision: Branch, tag or commit on the hub; None: the newest.
        """
        path = adapter_directory(name, revision)
        if not (path / CONFIG_FILE).exists():
            raise InputError(f"{path} has no {CONFIG_FILE}, so it is no ANI adapter")
        file = own_file(path, CONFIG_FILE)
        settings = validated(AdapterSettings, parse_json(read_text(file), str(file)), str(file))
        if settings.module is None and not settings.lora:
            raise InputError(f"{file}: neither a module nor LoRA belongs to the adapter")
        return cls(path, settings)

    def base_model(self) -> str:
        """The base model; raises InputError if the adapter names none, or a directory that isn't there."""
        say = f"name it (a directory, a hub name or {EMBEDDED}) with --model, in Python with model=..."
        base = lasting_name(self.settings.base)
        if base is None:
            raise InputError(f"the adapter {self.path} doesn't name the model that it was trained on; {say}")
        if os.path.isabs(base) and not os.path.isdir(base):
            raise InputError(f"the adapter {self.path} was trained on {one_line(base)}, which isn't there; {say}")
        return base

    def digest(self) -> str:
        """A hash of settings and weights."""
        found = hashlib.sha256()
        for name in FILES:
            if (self.path / name).is_file():
                found.update((self.path / name).read_bytes())
        return found.hexdigest()

    def load(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, fold: bool = False, check: bool = True
    ) -> None:
        """Attach the module and add LoRA to a model, in place; raises InputError as `load_adapter`.

        Args:
            model: The base model. If the adapter was trained on this merged checkpoint, its module is replaced.
            tokenizer: The model's tokenizer.
            fold: Add LoRA's weights to the model's own, for a merged checkpoint.
            check: As of `attach`.
        """
        name, base = _base_name(model), lasting_name(self.settings.base)
        trained_on = name is not None and base is not None and alike(name, base)
        if is_attached(model):
            if not trained_on:
                raise InputError(_ATTACHED)
            detach(model)
        weights, config = {}, self.settings.module
        if config is not None:
            with torch.device("meta"):  # only names and shapes
                wanted = AniModule(config, build_encoder(config).width).state_dict()
            weights = read_weights(own_file(self.path, WEIGHTS_FILE), wanted)
            fitted_config(config, model)  # a model that the module doesn't fit gets no LoRA either
        if self.settings.lora:
            wrapped = add_lora(model, self.path)
            if fold:
                fold_lora(wrapped, self.path)
            else:
                vars(model)["_ani_lora"] = wrapped
        if config is not None:
            try:
                attach(model, tokenizer, config, check=check)
            except InputError:
                if (wrapped := vars(model).pop("_ani_lora", None)) is not None:
                    wrapped.unload()
                raise
            ani_module(model).load_state_dict(weights)
        if name is not None and base is not None and not trained_on:
            warnings.warn(
                f"the adapter {self.path} was trained on {one_line(base)}, and this model is {one_line(name)}; "
                "if these are other weights, load the adapter's own base",
                stacklevel=3,
            )


def load_adapter(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: str | Path,
    *,
    revision: str | None = None,
    check: bool = True,
) -> PreTrainedModel:
    """Attach a saved adapter, in place.

    Args:
        model: The base model that the adapter was trained on, without PEFT around it.
        tokenizer: The model's tokenizer.
        path: Adapter directory, a name on the Hugging Face hub, or one of `SHIPPED`.
        revision: Branch, tag or commit on the hub; None: the newest.
        check: Run the self-test, as `attach` does.

    Returns:
        `model`, the same object, in evaluation mode.

    Warns if the adapter names another base model, or another commit of it.

    Raises:
        InputError: If the adapter is missing, damaged, of another format version, or made for another model, or has
            LoRA weights and the model has LoRA already, or the model fails the self-test; it is then unchanged.
    """
    check_tokenizer(tokenizer)
    if is_attached(model):
        raise InputError(_ATTACHED)
    Adapter.read(path, revision=revision).load(model, tokenizer, check=check)
    return cast(PreTrainedModel, model.eval())


def save_adapter(model: nn.Module, path: str | Path, *, method: MethodName = "ani", card: str | None = None) -> None:
    """Write the adapter of an attached model: the ANI module and, where PEFT trained LoRA weights, those too.

    Of several processes that train together the first writes; with FSDP 2 all of them must call it. Warns if the base
    model's own weights were trained: an adapter does not contain them.

    Args:
        model: Attached, possibly a PeftModel, of which the active adapter is saved. For a method without a module: a
            PeftModel, not attached.
        path: Directory; replaced as a whole if it is an adapter already.
        method: The method that trained it (`ani.injection.methods`).
        card: Text of the model card; None: a short one.

    Raises:
        InputError: If `path` is something else than an adapter directory; if the method is unknown, or has no module
            and the model has one; if PEFT's adapter is not one of plain LoRA.
    """
    path = Path(path)
    if method not in METHODS:
        raise InputError(unknown_method(method))
    module = ani_module(model) if METHODS[method].settings is not None else None
    if module is None and is_attached(model):
        raise InputError(f"method {method!r} has no module, but one is attached to the model; it would be lost")
    check_replaceable(path, "ANI adapter", (path / CONFIG_FILE).is_file())
    wrapped = peft_model(model)
    weights = {} if module is None else {name: full_tensor(each) for name, each in module.state_dict().items()}
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    lora = None
    if sharded and wrapped is not None:
        trained = ((n, p) for n, p in wrapped.named_parameters() if p.requires_grad or ".lora_" in n)
        lora = {name: full_tensor(parameter.detach()) for name, parameter in trained}
    if distributed.is_initialized() and distributed.get_rank() > 0:
        return
    base = base_model(model)
    warn_of_trained_weights(base)
    config = None if module is None else module.config
    with replacing_directory(path) as work:
        if wrapped is not None:
            active = wrapped.active_adapter
            wrapped.save_pretrained(str(work), selected_adapters=[active], save_embedding_layers=False, state_dict=lora)
            if active != "default":  # PEFT writes it into a folder of its name
                for file in (work / active).iterdir():
                    file.rename(work / file.name)
                (work / active).rmdir()
        if module is not None:
            save_file({name: each.contiguous() for name, each in weights.items()}, work / WEIGHTS_FILE)
        settings = AdapterSettings.model_construct(
            method=method, module=config, base=_base_name(base), lora=wrapped is not None
        )
        (work / CONFIG_FILE).write_text(json.dumps(settings.model_dump(mode="json"), indent=2) + "\n")
        (work / CARD_FILE).write_text(
            adapter_card(method, config, lasting_name(base.name_or_path)) if card is None else card
        )


def _base_name(model: PreTrainedModel) -> str | None:
    """Return a loaded model's `lasting_name`; for a model from the hub with its commit."""
    return at_commit(lasting_name(model.name_or_path), getattr(model.config, "_commit_hash", None))


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or all of one that FSDP 2 sharded, on the CPU; then every process must ask."""
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor
