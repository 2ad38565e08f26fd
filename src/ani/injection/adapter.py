"""Adapter directories: `ani_config.json`, `ani.safetensors`, PEFT's files, a model card; knows nothing about training.

Nothing is pickled, nothing is half-written: a directory is written beside its place and then moved there.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from peft import PeftModel
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.errors import InputError
from ani.files import replacing_directory
from ani.injection.attach import ani_module, attach, base_model, detach, is_attached
from ani.injection.config import FORMAT_VERSION, LATER_SETTINGS, AniConfig

CONFIG_FILE = "ani_config.json"
WEIGHTS_FILE = "ani.safetensors"
PEFT_CONFIG_FILE = "adapter_config.json"
PEFT_WEIGHTS_FILE = "adapter_model.safetensors"


def save_adapter(model: nn.Module, path: str | Path, *, card: str | None = None) -> None:
    """Write the adapter of an attached model: the ANI module and, where PEFT trained LoRA weights, those too.

    Args:
        model: Attached, possibly a PeftModel.
        path: Directory; replaced as a whole if it is an adapter already.
        card: Text of the model card; a short one is made up from the config if it is None.

    Raises:
        InputError: If `path` is something else than an adapter directory.
    """
    path = Path(path)
    module = ani_module(model)
    if path.exists() and not (path / CONFIG_FILE).is_file() and not _is_empty_directory(path):
        raise InputError(f"{path} exists and is no ANI adapter; choose another path or remove it")
    weights = save_safetensors({name: tensor.contiguous() for name, tensor in module.state_dict().items()})
    config = {
        "format_version": FORMAT_VERSION,
        **module.config.model_dump(mode="json"),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    with replacing_directory(path) as work:
        if isinstance(model, PeftModel):
            _save_peft(model, work)
        elif getattr(base_model(model), "_hf_peft_config_loaded", False):
            base_model(model).save_pretrained(work)
        lora = work / PEFT_WEIGHTS_FILE
        config["lora_sha256"] = hashlib.sha256(lora.read_bytes()).hexdigest() if lora.is_file() else None
        (work / WEIGHTS_FILE).write_bytes(weights)
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        (work / "README.md").write_text(card if card is not None else _card(module.config))


def load_adapter(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: str | Path) -> PreTrainedModel:
    """Attach a saved adapter, in place.

    Args:
        model: The base model that the adapter was trained on, without PEFT around it.
        tokenizer: Its tokenizer.
        path: Adapter directory, or a name on the Hugging Face hub.

    Returns:
        `model`, the same object, in evaluation mode.

    Raises:
        InputError: If the adapter is missing, damaged, from a newer version, or made for another model; the model is
            then unchanged.
    """
    directory = _directory(path)
    config, digest, lora_digest = _read_config(directory)
    weights = _read_weights(directory, digest)
    if lora_digest is not None:
        _checked_bytes(directory, PEFT_WEIGHTS_FILE, lora_digest)
    if is_attached(model):
        raise InputError("an ANI module is attached to this model already; call ani.detach first")
    attach(model, tokenizer, config)  # checks the model before anything else is loaded
    try:
        try:
            ani_module(model).load_state_dict(weights)
        except RuntimeError as error:
            raise InputError(
                f"{directory / WEIGHTS_FILE} doesn't fit its {CONFIG_FILE}: {_first_line(error)}"
            ) from error
    except BaseException:
        detach(model)
        raise
    if lora_digest is not None:
        detach(model)  # so that LoRA finds the base model's own modules
        try:
            with _unchanged_on_failure(model):
                model.load_adapter(str(directory))
        except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"the LoRA weights in {directory} can't be loaded: {_first_line(error)}") from error
        attach(model, tokenizer, config)
        ani_module(model).load_state_dict(weights)
    return cast(PreTrainedModel, model.eval())


@contextmanager
def _unchanged_on_failure(model: PreTrainedModel) -> Iterator[None]:
    """Undo what PEFT did to the model's modules if the block raises: it wraps them before it reads their weights."""
    modules, attributes = list(model.named_modules()), dict(vars(model))
    trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    except BaseException:
        for name, module in modules[1:]:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module)
        vars(model).clear()
        vars(model).update(attributes)
        for parameter, requires_grad in trainable:
            parameter.requires_grad_(requires_grad)
        raise


def _save_peft(model: PeftModel, directory: Path) -> None:
    # `ani` may be among PEFT's modules_to_save; it has its own file.
    model.save_pretrained(str(directory), save_embedding_layers=False)


def _directory(path: str | Path) -> Path:
    directory = Path(path)
    if directory.is_dir():
        return directory
    if directory.exists():
        raise InputError(f"{path} is a file; an adapter is a directory with {CONFIG_FILE} and {WEIGHTS_FILE}")
    try:
        return Path(
            snapshot_download(
                str(path), allow_patterns=[CONFIG_FILE, WEIGHTS_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE]
            )
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"no adapter at {path!s}: there is no such directory, and the Hugging Face hub gave none "
            f"({_first_line(error)})"
        ) from error


def _read_config(directory: Path) -> tuple[AniConfig, str, str | None]:
    """The config, the digest of `WEIGHTS_FILE`, and that of PEFT's weights if there are any."""
    file = directory / CONFIG_FILE
    if not file.is_file():
        raise InputError(f"{directory} has no {CONFIG_FILE}, so it is no ANI adapter")
    try:
        raw: dict[str, Any] = json.loads(file.read_text())
        version = raw.pop("format_version")
        digest = raw.pop("weights_sha256")
        lora_digest = raw.pop("lora_sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{file} is damaged: {_first_line(error)}") from error
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f"{file} has format version {version!r}, this ani reads up to {FORMAT_VERSION}; upgrade with "
            "pip install -U ani"
        )
    try:
        config = AniConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    for key in AniConfig.model_fields:
        if key not in LATER_SETTINGS and raw.get(key) is None:
            raise InputError(f"{file} is damaged: {key} is missing")
    return config, str(digest), lora_digest if lora_digest is None else str(lora_digest)


def _read_weights(directory: Path, digest: str) -> dict[str, Any]:
    try:
        return load_safetensors(_checked_bytes(directory, WEIGHTS_FILE, digest))
    except SafetensorError as error:
        raise InputError(f"{directory / WEIGHTS_FILE} is damaged: {_first_line(error)}") from error


def _checked_bytes(directory: Path, name: str, digest: str) -> bytes:
    file = directory / name
    if not file.is_file():
        raise InputError(f"{directory} has no {name}; the adapter is incomplete")
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(f"{file} is not the file that {CONFIG_FILE} describes (truncated or changed); fetch it again")
    return data


def _card(config: AniConfig) -> str:
    return (
        "---\nlibrary_name: ani\ntags: [ani, numeracy]\n---\n\n# ANI adapter\n\n"
        f"Adaptive Numerical Injection for a `{config.model_type}` model with {config.num_hidden_layers} layers "
        f"of width {config.hidden_size}: layer {config.layer}, policy `{config.policy}`, {config.integer_digits} "
        f"integer and {config.fraction_digits} fraction digits, encoders `{', '.join(config.encoders)}`. Load it with "
        "`ani.load_adapter(model, tokenizer, path)`.\n"
    )


def _is_empty_directory(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
