"""Saves, loads and publishes adapters: `ani_config.json`, `ani.safetensors`, PEFT's files, a model card.

A model of another shape is refused, and one with other weights (`ani.injection.base`) is warned of. Nothing is pickled,
nothing is half-written: a directory is written beside its place and then moved there. What is read may be anybody's:
`ani.untrusted` and `ani.injection.config` judge it before anything is built by it.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from huggingface_hub import HfApi, ModelCard, ModelCardData, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from pydantic import ValidationError
from safetensors.torch import save as save_safetensors
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from yaml import YAMLError

from ani.encoders import build_encoder
from ani.errors import InputError
from ani.files import replacing_directory, replacing_file
from ani.injection.attach import (
    BeforeLora,
    ani_module,
    attach,
    base_model,
    detach,
    is_attached,
    is_peft_model,
    remember_lora,
)
from ani.injection.base import Base, full_tensor
from ani.injection.config import FORMAT_VERSION, AniConfig, read_settings
from ani.injection.methods import METHODS, Method, MethodName, unknown_method
from ani.injection.module import AniModule
from ani.models import EMBEDDED, lasting_name
from ani.untrusted.folder import own_file, read_weights, unchanged_file
from ani.untrusted.text import first_problem, one_line, read_json_object

CONFIG_FILE = "ani_config.json"
WEIGHTS_FILE = "ani.safetensors"
CARD_FILE = "README.md"
PEFT_CONFIG_FILE = "adapter_config.json"
PEFT_WEIGHTS_FILE = "adapter_model.safetensors"
ASSETS = Path(__file__).parents[1] / "assets"
FILES = [CONFIG_FILE, WEIGHTS_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE]
SHIPPED = ("smollm2-adapter", "smollm2-calculator")
"""Adapters for the embedded model that come with the package, by name."""


def save_adapter(
    model: nn.Module,
    path: str | Path,
    *,
    method: MethodName = "ani",
    card: str | None = None,
    push_to_hub: str | None = None,
) -> None:
    """Write the adapter of an attached model: the ANI module and, where PEFT trained LoRA weights, those too. It names
    its base model, by `model.name_or_path`, and holds a few of its weights to know it by.

    Every process of a model that FSDP 2 sharded must call it; the first one writes.

    Args:
        model: Attached, possibly a PeftModel, of which the active adapter is saved. For a method without a module: a
            PeftModel, not attached.
        path: Directory; replaced as a whole if it is an adapter already.
        method: What trained it (`ani.injection.methods`).
        card: Text of the model card; a short one is made up from the config if it is None.
        push_to_hub: Name on the Hugging Face hub (`me/my-adapter`, or `my-adapter`) to put it under, too.

    Raises:
        InputError: As `push_adapter`; if `path` is something else than an adapter directory, or the method is unknown,
            or has no module and the model has one; or not exactly one of PEFT's adapters is active, or it is DoRA or
            trains biases.
    """
    path = Path(path)
    if method not in METHODS:
        raise InputError(unknown_method(method))
    module = ani_module(model) if METHODS[method].settings is not None else None
    if module is None and is_attached(model):
        raise InputError(f"method {method!r} has no module, but one is attached to the model; it would be lost")
    if path.exists() and not (path / CONFIG_FILE).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} exists and is no ANI adapter; choose another path or remove it")
    adapter = _active_adapter(model)
    config: dict[str, Any] = {"format_version": FORMAT_VERSION, "method": method}
    weights = b""
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    lora_state = None
    if sharded and is_peft_model(model):
        lora_state = {
            name: full_tensor(tensor.detach())
            for name, tensor in model.named_parameters()
            if tensor.requires_grad or ".lora_" in name
        }
    if module is not None:
        state = {name: full_tensor(tensor).contiguous() for name, tensor in module.state_dict().items()}
        weights = save_safetensors(state)
        config |= {**module.config.model_dump(mode="json"), "weights_sha256": hashlib.sha256(weights).hexdigest()}
    config["base"] = Base.of(base_model(model)).model_dump()
    if sharded and distributed.get_rank() > 0:
        return
    with replacing_directory(path) as work:
        if adapter is not None and is_peft_model(model):
            # `ani` may be among PEFT's modules_to_save; it has its own file.
            model.save_pretrained(
                str(work), selected_adapters=[adapter], save_embedding_layers=False, state_dict=lora_state
            )
            if adapter != "default":  # PEFT gives any other a folder of its name
                for file in (work / adapter).iterdir():
                    file.rename(work / file.name)
                (work / adapter).rmdir()
        elif adapter is not None:
            if sharded:
                raise InputError("a sharded model can be saved only with PEFT's get_peft_model around it")
            base_model(model).save_pretrained(work)
        if adapter is not None and (work / PEFT_CONFIG_FILE).is_file():
            _name_modules(work / PEFT_CONFIG_FILE, base_model(model), adapter)
        lora = work / PEFT_WEIGHTS_FILE
        config["lora_sha256"] = hashlib.sha256(lora.read_bytes()).hexdigest() if lora.is_file() else None
        if module is not None:
            (work / WEIGHTS_FILE).write_bytes(weights)
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        made_up = _card(method, None if module is None else module.config, lasting_name(config["base"]["name"]))
        (work / CARD_FILE).write_text(made_up if card is None else card)
    if push_to_hub is not None:
        push_adapter(path, push_to_hub)


def push_adapter(path: str | Path, name: str, *, results: str | None = None, licence: str | None = None) -> str:
    """Put an adapter directory on the Hugging Face hub, where `load_adapter` finds it by its name, and return the
    repository's address. Raises InputError if the directory is no adapter, or the hub doesn't take it: not logged in,
    not reached.

    Args:
        path: The directory.
        name: `me/my-adapter`, or `my-adapter` for the user who is logged in; a repository that is there is updated.
        results: Markdown that its model card gets as results, in place of earlier ones.
        licence: The card's, as the hub abbreviates it, such as `apache-2.0`.
    """
    path = Path(path)
    _read_config(path)
    if results is not None or licence is not None:
        try:
            card = ModelCard(own_file(path, CARD_FILE).read_text(encoding="utf-8"))
        except (ValueError, YAMLError) as error:
            raise InputError(f"{path / CARD_FILE} is no model card: {one_line(error)}; mend its head") from error
        if results is not None:
            card.text = f"{card.text.partition(_RESULTS)[0].rstrip()}\n{_RESULTS}\n{results}"
        if licence is not None:
            cast(ModelCardData, card.data).license = licence
        with replacing_file(path / CARD_FILE) as file:
            file.write(str(card))
    try:
        api = HfApi()
        place = api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=place.repo_id, folder_path=path, allow_patterns=[*FILES, CARD_FILE])
    except Exception as error:  # huggingface_hub's HTTP library, which its releases change, has errors of its own
        raise InputError(
            f"{path} was not put on the Hugging Face hub as {one_line(name)}: log in with `hf auth login`, as one who "
            f"may write there, and be online without HF_HUB_OFFLINE. The hub said: {one_line(error)}"
        ) from error
    return str(place)


def _active_adapter(model: nn.Module) -> str | None:
    """The name of PEFT's active adapter; None without PEFT. Raises InputError unless it is one that can be loaded."""
    if is_peft_model(model):
        active, configs = model.active_adapters, model.peft_config
    else:
        base: Any = base_model(model)
        if not base._hf_peft_config_loaded:
            return None
        active, configs = base.active_adapters(), base.peft_config
    if len(active) != 1:
        raise InputError(
            f"{len(active)} of PEFT's adapters are active ({', '.join(active) or 'none'}), and an ANI adapter holds "
            "one; choose it with model.set_adapter(name)"
        )
    if getattr(configs[active[0]], "use_dora", False) or getattr(configs[active[0]], "bias", "none") != "none":
        raise InputError(
            f"PEFT's adapter {active[0]!r} is DoRA (use_dora) or trains biases (bias), which transformers doesn't load "
            "as they were; train LoRA without them"
        )
    return active[0]


def load_adapter(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: str | Path, *, revision: str | None = None
) -> PreTrainedModel:
    """Attach a saved adapter, in place.

    Args:
        model: The base model that the adapter was trained on, without PEFT around it.
        tokenizer: Its tokenizer.
        path: Adapter directory, a name on the Hugging Face hub, or one of `SHIPPED`.
        revision: Branch, tag or commit on the hub; None: the newest.

    Returns:
        `model`, the same object, in evaluation mode.

    Warns if the model has the right shape, but other weights than the one that the adapter was trained on.

    Raises:
        InputError: If the adapter is missing, damaged, of another format version, or made for another model, or has
            LoRA weights and the model has LoRA already; the model is then unchanged.
    """
    _load(model, tokenizer, _directory(path, revision), _add_lora)
    return cast(PreTrainedModel, model.eval())


def fold_adapter(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: str | Path) -> MethodName:
    """Like `load_adapter`, but add LoRA's weights to the model's own; a model on which it fails is to be dropped.
    Returns the method that trained the adapter. Raises InputError as `load_adapter`, or if the LoRA weights can't be
    merged, or hold NaN."""
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
    weights = _module_weights(directory, saved)
    differs = saved.base.differs(model)  # asked first: LoRA may be added to the weights themselves
    if saved.lora_digest is not None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        from ani.untrusted.peft import check_lora

        if is_peft_model(model) or any(
            isinstance(layer, BaseTunerLayer) and layer.active_adapters for layer in model.modules()
        ):  # whose weights would be lost
            raise InputError(
                f"the adapter {directory} has LoRA weights, and the model has PEFT's adapters already; pass the base "
                "model, without PEFT around it (ani.detach takes off what ani.load_adapter added)"
            )
        unchanged_file(directory, PEFT_WEIGHTS_FILE, saved.lora_digest, CONFIG_FILE)
        if saved.config is not None:  # LoRA comes first, but not to a model that the module doesn't fit
            detach(attach(model, tokenizer, saved.config))
        check_lora(model, directory)
        try:
            lora(model, directory)
        except (InputError, torch.cuda.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # whatever PEFT meets in what others wrote
            raise InputError(f"the LoRA weights in {directory} can't be loaded: {one_line(error)}") from error
    if saved.config is not None:
        attach(model, tokenizer, saved.config)
        ani_module(model).load_state_dict(weights)
    if differs:
        warnings.warn(
            f"the adapter {directory} was trained on other weights than this model's (its base: "
            f"{one_line(saved.base.name or 'not named')}), so what it learnt may not fit: load the adapter's own base",
            stacklevel=3,
        )
    return saved.method


def _add_lora(model: PreTrainedModel, directory: Path) -> None:
    """If it fails, undo what PEFT did to the model's modules: it wraps them before it reads their weights."""
    before = BeforeLora.of(model)
    try:
        model.load_adapter(str(directory))
    except BaseException:
        before.restore(model)
        raise
    remember_lora(model, before)


def _fold_lora(model: PreTrainedModel, directory: Path) -> None:
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    wrapped = PeftModel.from_pretrained(model, str(directory))
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    if model.config.get_text_config().tie_word_embeddings and any(isinstance(e, BaseTunerLayer) for e in embeddings):
        raise InputError(
            f"the LoRA weights in {directory} change one of the input and output embeddings, which the base model "
            "shares, so they can't be merged; train without the embeddings among the target modules"
        )
    cast(Any, wrapped).merge_and_unload(safe_merge=True)


def adapter_base(path: str | Path) -> str:
    """The base model that an adapter names: a directory, a hub name, or `smollm2`. Raises InputError as `load_adapter`,
    or if it names none, or a directory that isn't there."""
    name = lasting_name(_read_config(_directory(path)).base.name)
    say = f"say which it is (a directory, a hub name or {EMBEDDED}) with --model, in Python with model=..."
    if name is None:
        raise InputError(f"the adapter {path} doesn't name the model that it was trained on; {say}")
    if os.path.isabs(name) and not os.path.isdir(name):
        raise InputError(f"the adapter {path} was trained on {one_line(name)}, which isn't there any more; {say}")
    return name


def adapter_method(path: str | Path) -> Method:
    """The method that trained an adapter: how texts are written for it, and its answers read; raises as
    `load_adapter`."""
    return METHODS[_read_config(_directory(path)).method]


def adapter_digest(path: str | Path) -> str:
    """Differs for other weights or settings; raises as `load_adapter`."""
    directory = _directory(path)
    _read_config(directory)
    return hashlib.sha256((directory / CONFIG_FILE).read_bytes()).hexdigest()  # it has the weights' checksums


def adapter_settings(path: str | Path) -> AniConfig | None:
    """The settings of an adapter's module; None if it has none. Raises as `load_adapter`."""
    return _read_config(_directory(path)).config


def _name_modules(file: Path, model: PreTrainedModel, adapter: str) -> None:
    """Where a saved PEFT config has patterns, write what they stood for: a file is read with modules' names alone."""
    from peft.tuners.lora import LoraLayer

    config = json.loads(file.read_text())
    patterns = ("exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern")
    if config["peft_type"] != "LORA" or not (
        isinstance(config["target_modules"], str) or any(config.get(key) for key in patterns)
    ):
        return
    layers = {n: m for n, m in model.named_modules() if isinstance(m, LoraLayer) and adapter in m.r}
    config |= dict.fromkeys(["exclude_modules", "layers_pattern", "layers_to_transform"]) | {
        "target_modules": list(layers),
        "rank_pattern": {n: m.r[adapter] for n, m in layers.items() if m.r[adapter] != config["r"]},
        "alpha_pattern": {
            n: m.lora_alpha[adapter] for n, m in layers.items() if m.lora_alpha[adapter] != config["lora_alpha"]
        },
    }
    file.write_text(json.dumps(config, indent=2, sort_keys=True))


def _directory(path: str | Path, revision: str | None = None) -> Path:
    directory = Path(path)
    if str(path) in SHIPPED and not directory.exists():
        return ASSETS / path
    try:
        if not directory.exists():
            return Path(snapshot_download(str(path), revision=revision, allow_patterns=FILES))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise InputError(
            f"no adapter at {one_line(path)}: there is no such directory, and the Hugging Face hub gave none "
            f"({one_line(error)})"
        ) from error
    if not directory.is_dir():
        raise InputError(f"{path} is a file; an adapter is a directory with {CONFIG_FILE} and {WEIGHTS_FILE}")
    return directory


class _Saved(NamedTuple):
    """What `CONFIG_FILE` says."""

    method: MethodName
    config: AniConfig | None
    """None: the method has no module."""
    digest: str
    """Of `WEIGHTS_FILE`; empty without a module."""
    lora_digest: str | None
    """Of PEFT's weights, if there are any."""
    base: Base


def _read_config(directory: Path) -> _Saved:
    if not (directory / CONFIG_FILE).exists():
        raise InputError(f"{directory} has no {CONFIG_FILE}, so it is no ANI adapter")
    file = own_file(directory, CONFIG_FILE)
    raw = read_json_object(file)
    if missing := [key for key in ("lora_sha256", "base") if key not in raw]:
        raise InputError(f"{file} is damaged: {missing[0]} is missing")
    digest, lora_digest = raw.pop("weights_sha256", None), raw.pop("lora_sha256")
    if not isinstance(digest, str | None) or not isinstance(lora_digest, str | None):
        raise InputError(f"{file} is damaged: weights_sha256 and lora_sha256 must be texts or null")
    try:
        base = Base.model_validate(raw.pop("base"))
    except ValidationError as error:
        raise InputError(f"{file} is damaged: base: {first_problem(error)}") from error
    method, config = read_settings(raw, str(file))
    if (digest if config is not None else lora_digest) is None:
        raise InputError(f"{file} is damaged: it names no weights")
    return _Saved(method, config, digest or "", lora_digest, base)


def _module_weights(directory: Path, saved: _Saved) -> dict[str, torch.Tensor]:
    """The module's weights; raises InputError unless they are finite and those that the config asks for."""
    if saved.config is None:
        return {}
    file = unchanged_file(directory, WEIGHTS_FILE, saved.digest, CONFIG_FILE)
    with torch.device("meta"):  # shapes only, whatever sizes the config tells of
        module = AniModule(saved.config, build_encoder(saved.config).width)
    return read_weights(file, module.state_dict(), CONFIG_FILE)


_RESULTS = "\n## Results\n"


def _card(method: MethodName, config: AniConfig | None, base: str | None) -> str:
    if base == EMBEDDED:
        base = "HuggingFaceTB/SmolLM2-135M-Instruct"
    elif base is not None and os.path.isabs(base):
        base = None  # a directory of this machine
    head = ModelCardData(base_model=base, library_name="ani", tags=["ani", "numeracy"]).to_yaml()
    head = f"---\n{head}\n---\n\n# ANI adapter\n\nMethod `{method}`"
    load = "Load it with `ani.load_adapter(model, tokenizer, path)`.\n"
    if config is None:
        return f"{head}: LoRA weights, in PEFT's own files. {load}"
    return (
        f"{head} for a `{config.model_type}` model with {config.num_hidden_layers} layers of width "
        f"{config.hidden_size}: layer {config.layer}, policy `{config.policy}`, {config.integer_digits} integer and "
        f"{config.fraction_digits} fraction digits, encoders `{', '.join(config.encoders)}`. {load}"
    )
