"""Adapter directories: `ani_config.json`, `ani.safetensors`, PEFT's files, a model card; knows nothing about training.

Nothing is pickled, nothing is half-written: a directory is written beside its place and then moved there.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.errors import InputError
from ani.files import replacing_directory
from ani.injection.attach import ani_module, attach, base_model, detach, is_attached
from ani.injection.config import FORMAT_VERSION, LATER_SETTINGS, AniConfig
from ani.injection.methods import METHODS, Method, MethodName, unknown_method

CONFIG_FILE = "ani_config.json"
WEIGHTS_FILE = "ani.safetensors"
PEFT_CONFIG_FILE = "adapter_config.json"
PEFT_WEIGHTS_FILE = "adapter_model.safetensors"


def save_adapter(model: nn.Module, path: str | Path, *, method: MethodName = "ani", card: str | None = None) -> None:
    """Write the adapter of an attached model: the ANI module and, where PEFT trained LoRA weights, those too.

    Every process of a model that FSDP 2 sharded must call it; the first one writes.

    Args:
        model: Attached, possibly a PeftModel. For a method without a module: a PeftModel, not attached.
        path: Directory; replaced as a whole if it is an adapter already.
        method: What trained it (`ani.injection.methods`).
        card: Text of the model card; a short one is made up from the config if it is None.

    Raises:
        InputError: If `path` is something else than an adapter directory, or the method is unknown, or has no module
            and the model has one.
    """
    path = Path(path)
    if method not in METHODS:
        raise InputError(unknown_method(method))
    module = ani_module(model) if METHODS[method].settings is not None else None
    if module is None and is_attached(model):
        raise InputError(f"method {method!r} has no module, but one is attached to the model; it would be lost")
    if path.exists() and not (path / CONFIG_FILE).is_file() and not _is_empty_directory(path):
        raise InputError(f"{path} exists and is no ANI adapter; choose another path or remove it")
    config: dict[str, Any] = {"format_version": FORMAT_VERSION, "method": method}
    weights = b""
    trained = None
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        trained = {name: whole(tensor.detach()) for name, tensor in model.named_parameters() if tensor.requires_grad}
    if module is not None:
        state = {name: whole(tensor).contiguous() for name, tensor in module.state_dict().items()}
        weights = save_safetensors(state)
        config |= {**module.config.model_dump(mode="json"), "weights_sha256": hashlib.sha256(weights).hexdigest()}
    if trained is not None and distributed.get_rank() > 0:
        return
    with replacing_directory(path) as work:
        if isinstance(model, PeftModel):
            _save_peft(model, work, trained)
        elif getattr(base_model(model), "_hf_peft_config_loaded", False):
            base_model(model).save_pretrained(work)
        lora = work / PEFT_WEIGHTS_FILE
        config["lora_sha256"] = hashlib.sha256(lora.read_bytes()).hexdigest() if lora.is_file() else None
        if module is not None:
            (work / WEIGHTS_FILE).write_bytes(weights)
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        (work / "README.md").write_text(
            card if card is not None else _card(method, None if module is None else module.config)
        )


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
    _load(model, tokenizer, _directory(path), _add_lora)
    return cast(PreTrainedModel, model.eval())


def fold_adapter(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: str | Path) -> MethodName:
    """Like `load_adapter`, but add LoRA's weights to the model's own; a model on which it fails is to be dropped.

    Returns:
        The method that trained the adapter.

    Raises:
        InputError: As `load_adapter`; or if the LoRA weights can't be merged, or hold NaN.
    """
    return _load(model, tokenizer, _directory(path), _fold_lora)


def _load(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    lora: Callable[[PreTrainedModel, Path], None],
) -> MethodName:
    saved = _read_config(directory)
    weights = {} if saved.config is None else _read_weights(directory, saved.digest)
    if saved.lora_digest is not None:
        _checked_bytes(directory, PEFT_WEIGHTS_FILE, saved.lora_digest)
    if is_attached(model):
        raise InputError("an ANI module is attached to this model already; call ani.detach first")
    if saved.config is not None:  # before LoRA too, because it checks the model
        _attach(model, tokenizer, saved.config, weights, directory)
    if saved.lora_digest is not None:
        if saved.config is not None:
            detach(model)  # so that LoRA finds the base model's own modules
        try:
            lora(model, directory)
        except InputError:
            raise
        except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"the LoRA weights in {directory} can't be loaded: {_first_line(error)}") from error
        if saved.config is not None:
            _attach(model, tokenizer, saved.config, weights, directory)
    return saved.method


def _add_lora(model: PreTrainedModel, directory: Path) -> None:
    with _unchanged_on_failure(model):
        model.load_adapter(str(directory))


def _fold_lora(model: PreTrainedModel, directory: Path) -> None:
    wrapped = PeftModel.from_pretrained(model, str(directory))
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    if model.config.get_text_config().tie_word_embeddings and any(isinstance(e, BaseTunerLayer) for e in embeddings):
        raise InputError(
            f"the LoRA weights in {directory} change one of the input and output embeddings, which the base model "
            "shares, so they can't be merged; train without the embeddings among the target modules"
        )
    cast(Any, wrapped).merge_and_unload(safe_merge=True)


def _attach(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: AniConfig,
    weights: dict[str, Any],
    directory: Path,
) -> None:
    attach(model, tokenizer, config)
    try:
        ani_module(model).load_state_dict(weights)
    except RuntimeError as error:
        detach(model)
        raise InputError(f"{directory / WEIGHTS_FILE} doesn't fit its {CONFIG_FILE}: {_first_line(error)}") from error


def adapter_base(path: str | Path) -> str | None:
    """The base model that PEFT wrote into an adapter; None without LoRA weights; raises as `load_adapter`."""
    directory = _directory(path)
    if _read_config(directory).lora_digest is None:
        return None
    try:
        return cast(str | None, json.loads((directory / PEFT_CONFIG_FILE).read_text())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{directory / PEFT_CONFIG_FILE} is damaged: {_first_line(error)}") from error


def adapter_method(path: str | Path) -> Method:
    """The method that trained an adapter: how texts are written for it, and its answers read; raises as
    `load_adapter`."""
    return METHODS[_read_config(_directory(path)).method]


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


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or all of one that is sharded over processes, on the CPU; then every process must ask."""
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def _save_peft(model: PeftModel, directory: Path, state: dict[str, torch.Tensor] | None) -> None:
    # `ani` may be among PEFT's modules_to_save; it has its own file.
    model.save_pretrained(str(directory), save_embedding_layers=False, state_dict=state)


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


class _Saved(NamedTuple):
    """What `CONFIG_FILE` says."""

    method: MethodName
    config: AniConfig | None
    """None: the method has no module."""
    digest: str
    """Of `WEIGHTS_FILE`; empty without a module."""
    lora_digest: str | None
    """Of PEFT's weights, if there are any."""


def _read_config(directory: Path) -> _Saved:
    file = directory / CONFIG_FILE
    if not file.is_file():
        raise InputError(f"{directory} has no {CONFIG_FILE}, so it is no ANI adapter")
    try:
        raw: dict[str, Any] = json.loads(file.read_text())
        lora_digest = raw.pop("lora_sha256")
        digest = raw.pop("weights_sha256", None)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{file} is damaged: {_first_line(error)}") from error
    method, config = read_settings(raw, str(file))
    if (digest if config is not None else lora_digest) is None:
        raise InputError(f"{file} is damaged: it names no weights")
    return _Saved(method, config, str(digest or ""), lora_digest if lora_digest is None else str(lora_digest))


def read_settings(raw: Mapping[str, Any], file: str) -> tuple[MethodName, AniConfig | None]:
    """The method and the module's config (None: it has no module) from what a `file` says about them.

    Raises:
        InputError: If it is from a newer version, of an unknown method, or damaged.
    """
    raw = dict(raw)
    version = raw.pop("format_version", None)
    method = raw.pop("method", "ani")  # the first adapters don't say
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f"{file} has format version {version!r}, this ani reads up to {FORMAT_VERSION}; upgrade with "
            "pip install -U ani"
        )
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"{file}: {unknown_method(method)}")
    if METHODS[method].settings is None:
        if raw:
            raise InputError(f"{file} is damaged: method {method!r} has no module, but there are settings of one")
        return method, None
    try:
        config = AniConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    for key in AniConfig.model_fields:
        if key not in LATER_SETTINGS and raw.get(key) is None:
            raise InputError(f"{file} is damaged: {key} is missing")
    return method, config


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


def _card(method: MethodName, config: AniConfig | None) -> str:
    head = f"---\nlibrary_name: ani\ntags: [ani, numeracy]\n---\n\n# ANI adapter\n\nMethod `{method}`"
    load = "Load it with `ani.load_adapter(model, tokenizer, path)`.\n"
    if config is None:
        return f"{head}: LoRA weights, in PEFT's own files. {load}"
    return (
        f"{head} for a `{config.model_type}` model with {config.num_hidden_layers} layers of width "
        f"{config.hidden_size}: layer {config.layer}, policy `{config.policy}`, {config.integer_digits} integer and "
        f"{config.fraction_digits} fraction digits, encoders `{', '.join(config.encoders)}`. {load}"
    )


def _is_empty_directory(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
