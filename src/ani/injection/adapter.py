"""Adapter directories: `ani_config.json`, `ani.safetensors`, PEFT's files, a model card; knows nothing about training.

Nothing is pickled, nothing is half-written: a directory is written beside its place and then moved there. What is read
may be anybody's: it is judged by `ani.injection.config`, by the sizes in its headers and by what PEFT may be told, all
before anything is built by it.
"""

import copy
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from peft import LoraConfig, PeftModel, get_peft_model_state_dict, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.encoders import build_encoder
from ani.errors import InputError
from ani.files import replacing_directory
from ani.injection.attach import ani_module, attach, base_model, detach, is_attached
from ani.injection.config import FORMAT_VERSION, LATER_SETTINGS, AniConfig
from ani.injection.methods import METHODS, Method, MethodName, unknown_method
from ani.injection.module import AniModule
from ani.untrusted import first_problem, one_line, read_json_object

CONFIG_FILE = "ani_config.json"
WEIGHTS_FILE = "ani.safetensors"
PEFT_CONFIG_FILE = "adapter_config.json"
PEFT_WEIGHTS_FILE = "adapter_model.safetensors"

_LARGEST_HEADER = 2**20
"""Bytes of a safetensors file beside its weights; one of ours has some hundred."""
_MOST_WAYS = 10**6
"""In which a pattern may be matched with a module's name, by a generous estimate."""
_FLOATS = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})


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
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    lora_state = None
    if sharded and isinstance(model, PeftModel):
        lora_state = {
            name: full_tensor(tensor.detach())
            for name, tensor in model.named_parameters()
            if tensor.requires_grad or ".lora_" in name
        }
    if module is not None:
        state = {name: full_tensor(tensor).contiguous() for name, tensor in module.state_dict().items()}
        weights = save_safetensors(state)
        config |= {**module.config.model_dump(mode="json"), "weights_sha256": hashlib.sha256(weights).hexdigest()}
    if sharded and distributed.get_rank() > 0:
        return
    with replacing_directory(path) as work:
        if isinstance(model, PeftModel):
            _save_peft(model, work, lora_state)
        elif getattr(base_model(model), "_hf_peft_config_loaded", False):
            if sharded:
                raise InputError("a sharded model can be saved only with PEFT's get_peft_model around it")
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
    if is_attached(model):
        raise InputError("an ANI module is attached to this model already; call ani.detach first")
    saved = _read_config(directory)
    weights = {} if saved.config is None else _read_weights(directory, saved.config, saved.digest)
    if saved.lora_digest is not None:
        _checked_file(directory, PEFT_WEIGHTS_FILE, saved.lora_digest)
    if saved.config is not None:  # before LoRA too, because it checks the model
        _attach(model, tokenizer, saved.config, weights, directory)
    if saved.lora_digest is not None:
        if saved.config is not None:
            detach(model)  # so that LoRA finds the base model's own modules
        _check_lora(model, directory)
        try:
            lora(model, directory)
        except InputError:
            raise
        except (torch.cuda.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # whatever PEFT meets in what others wrote
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


class _LoraConfig(BaseModel):
    """What `PEFT_CONFIG_FILE` may say: plain LoRA. PEFT has further settings that import modules, name other files or
    draw on data; they must be at their defaults."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    peft_type: Literal["LORA"]
    r: int = Field(ge=1, le=2**16)
    lora_alpha: float
    lora_dropout: float = Field(ge=0, le=1)
    target_modules: Annotated[str, Field(max_length=1000)] | list[Annotated[str, Field(max_length=1000)]]
    base_model_name_or_path: Annotated[str, Field(max_length=4096)] | None = None
    task_type: Literal["CAUSAL_LM"] | None = None
    bias: Literal["none", "all", "lora_only"] = "none"
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | Literal["gaussian", "orthogonal"] = True
    use_rslora: bool = False
    use_dora: bool = False
    fan_in_fan_out: bool = False
    rank_pattern: dict[str, Annotated[int, Field(ge=1, le=2**16)]] | None = None
    alpha_pattern: dict[str, float] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    exclude_modules: str | list[str] | None = None
    inference_mode: bool = True
    peft_version: str | None = None
    revision: str | None = None
    auto_mapping: Any = None
    """For PEFT's own Auto classes, which import what it names; nobody here asks them."""


def _read_lora_config(directory: Path) -> _LoraConfig:
    file = _file(directory, PEFT_CONFIG_FILE)
    raw = read_json_object(file)
    try:
        config = _LoraConfig.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}; ANI loads plain LoRA adapters of PEFT") from error
    defaults = LoraConfig().to_dict()
    for key, value in (config.model_extra or {}).items():
        if value and value != defaults.get(key):
            raise InputError(
                f"{file}: {one_line(key, 80)} is {one_line(repr(value), 80)}; ANI loads plain LoRA adapters, without "
                "that setting of PEFT's"
            )
    patterns = [p for p in (config.target_modules, config.exclude_modules) if isinstance(p, str)]
    for pattern in (*patterns, *(config.rank_pattern or ()), *(config.alpha_pattern or ())):
        try:
            check_pattern(pattern)
        except ValueError as error:
            raise InputError(f"{file}: {error}") from error
    return config


def check_pattern(pattern: str) -> None:
    """Raises ValueError unless a regular expression for modules' names, as PEFT has them, surely ends."""
    # A repeated group, or many repetitions or choices, can take for ever on a module's name.
    repetitions = len(re.findall(r"[*+{]|(?<!\()\?(?<![*+}]\?)", pattern))
    ways, rest = math.comb(60, min(repetitions, 30)), pattern
    while group := re.search(r"\([^()]*\)", rest):
        ways *= group[0].count("|") + 1
        rest = rest[: group.start()] + rest[group.end() :]
    if re.search(r"\)[*+{]", pattern) or ways > _MOST_WAYS:
        raise ValueError(f"matching modules with {one_line(pattern, 80)!r} may take for ever; name the modules instead")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{one_line(pattern, 80)!r} is no regular expression: {one_line(error)}") from error


def _check_lora(model: PreTrainedModel, directory: Path) -> None:
    """Raises InputError unless LoRA's weights are finite, and those that PEFT will make room for."""
    _read_lora_config(directory)
    file = directory / PEFT_WEIGHTS_FILE
    held: dict[str, list[int]] = {}
    try:
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118  # it is no dict
                if ".lora_" in name:
                    held[name.removeprefix("base_model.model.")] = weights.get_slice(name).get_shape()
                _check_numbers(file, name, weights.get_tensor(name))
    except InputError:
        raise
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged: {_first_line(error)}") from error
    try:
        # On no device, so that nothing of the size that the config tells is ever made.
        with torch.device("meta"):
            empty = type(model)(copy.deepcopy(model.config))
            inject_adapter_in_model(LoraConfig.from_pretrained(str(directory)), empty)
        state = get_peft_model_state_dict(cast(Any, empty), save_embedding_layers=False)
    except Exception as error:  # whatever PEFT meets in what others wrote
        raise InputError(f"{directory / PEFT_CONFIG_FILE} doesn't fit the model: {_first_line(error)}") from error
    wanted = {name: list(tensor.shape) for name, tensor in state.items() if ".lora_" in name}
    for name in {**wanted, **held}:
        if held.get(name) != wanted.get(name):
            raise InputError(
                f"{file} doesn't fit its {PEFT_CONFIG_FILE} and the model: {one_line(name)} has the shape "
                f"{held.get(name, 'nothing')}, not {wanted.get(name, 'nothing')}; fetch the adapter again"
            )


def _check_numbers(file: Path, name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in _FLOATS:
        raise InputError(f"{file}: {one_line(name)} holds {tensor.dtype}, not floating-point weights")
    if not tensor.isfinite().all():
        raise InputError(f"{file}: {one_line(name)} holds NaN or infinity; train again, or take an earlier checkpoint")


def adapter_base(path: str | Path) -> str | None:
    """The base model that PEFT wrote into an adapter; None without LoRA weights; raises as `load_adapter`."""
    directory = _directory(path)
    if _read_config(directory).lora_digest is None:
        return None
    return _read_lora_config(directory).base_model_name_or_path


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


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or all of one that is sharded over processes, on the CPU; then every process must ask."""
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def _save_peft(model: PeftModel, directory: Path, state: dict[str, torch.Tensor] | None) -> None:
    # `ani` may be among PEFT's modules_to_save; it has its own file.
    model.save_pretrained(str(directory), save_embedding_layers=False, state_dict=state)


def _directory(path: str | Path) -> Path:
    directory = Path(path)
    try:
        if directory.is_dir():
            return directory
        if directory.exists():
            raise InputError(f"{path} is a file; an adapter is a directory with {CONFIG_FILE} and {WEIGHTS_FILE}")
        return Path(
            snapshot_download(
                str(path), allow_patterns=[CONFIG_FILE, WEIGHTS_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE]
            )
        )
    except InputError:
        raise
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise InputError(
            f"no adapter at {one_line(path)}: there is no such directory, and the Hugging Face hub gave none "
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
    if not (directory / CONFIG_FILE).exists():
        raise InputError(f"{directory} has no {CONFIG_FILE}, so it is no ANI adapter")
    file = _file(directory, CONFIG_FILE)
    raw = read_json_object(file)
    if "lora_sha256" not in raw:
        raise InputError(f"{file} is damaged: lora_sha256 is missing")
    digest, lora_digest = raw.pop("weights_sha256", None), raw.pop("lora_sha256")
    if not isinstance(digest, str | None) or not isinstance(lora_digest, str | None):
        raise InputError(f"{file} is damaged: weights_sha256 and lora_sha256 must be texts or null")
    method, config = read_settings(raw, str(file))
    if (digest if config is not None else lora_digest) is None:
        raise InputError(f"{file} is damaged: it names no weights")
    return _Saved(method, config, digest or "", lora_digest)


def read_settings(raw: Mapping[str, Any], file: str) -> tuple[MethodName, AniConfig | None]:
    """The method and the module's config (None: it has no module) from what a `file` says about them.

    Raises:
        InputError: If it is from a newer version, of an unknown method, or damaged.
    """
    raw = dict(raw)
    version = raw.pop("format_version", None)
    method = raw.pop("method", "ani")  # the first adapters don't say
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise InputError(
            f"{file} has format version {version!r:.80}, this ani reads up to {FORMAT_VERSION}; upgrade with "
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
        raise InputError(f"{file}: {first_problem(error)}") from error
    for key in AniConfig.model_fields:
        if key not in LATER_SETTINGS and raw.get(key) is None:
            raise InputError(f"{file} is damaged: {key} is missing")
    return method, config


def _read_weights(directory: Path, config: AniConfig, digest: str) -> dict[str, torch.Tensor]:
    """The module's weights; raises InputError unless they are finite and those that the config asks for."""
    with torch.device("meta"):  # shapes only, whatever sizes the config tells of
        module = AniModule(config, build_encoder(config).width)
    wanted = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    file = _checked_file(
        directory, WEIGHTS_FILE, digest, 8 * sum(tensor.numel() for tensor in module.state_dict().values())
    )
    try:
        weights = load_safetensors(file.read_bytes())
    except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged: {_first_line(error)}") from error
    for name in {**wanted, **weights}:
        found = list(weights[name].shape) if name in weights else None
        if found != wanted.get(name):
            raise InputError(
                f"{file} doesn't fit its {CONFIG_FILE}: {one_line(name)} has the shape {found or 'nothing'}, not "
                f"{wanted.get(name, 'nothing')}; fetch the adapter again"
            )
        _check_numbers(file, name, weights[name])
    return weights


def _checked_file(directory: Path, name: str, digest: str, weights: int | None = None) -> Path:
    """A file of the adapter; raises InputError unless its digest is right, and at most so many bytes are `weights`."""
    file = _file(directory, name)
    try:
        size = file.stat().st_size
        if weights is not None and size > weights + _LARGEST_HEADER:
            raise InputError(
                f"{file} holds {size:,} bytes, and doesn't fit its {CONFIG_FILE}, which asks for {weights:,} at most; "
                "fetch the adapter again"
            )
        with file.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file} can't be read: {error.strerror}") from error
    if found != digest:
        raise InputError(f"{file} is not the file that {CONFIG_FILE} describes (truncated or changed); fetch it again")
    return file


def _file(directory: Path, name: str) -> Path:
    """A file of the adapter; raises InputError if it isn't there, or is a link to somewhere else."""
    file = directory / name
    pickle = file.with_suffix(".bin")
    if not file.exists() and pickle.exists():
        raise InputError(
            f"{directory} holds {pickle.name}, a pickle, which can run any code when it is opened, and no {name}; ANI "
            "loads safetensors only: have it saved as those"
        )
    if not file.is_file():
        raise InputError(f"{directory} has no {name}; the adapter is incomplete")
    folder, real = directory.resolve(), file.resolve()
    # In its cache, the hub's own client links a snapshot's files to blobs beside the snapshots.
    blobs = folder.parent.parent / "blobs" if folder.parent.name == "snapshots" else folder
    if not real.is_relative_to(folder) and not real.is_relative_to(blobs):
        raise InputError(f"{file} is a link to a file outside of the adapter; copy that file in its place")
    return file


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
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0])
