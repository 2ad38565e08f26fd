"""An adapter and its base model → one checkpoint directory; knows nothing about what serves it."""

import json
from pathlib import Path
from typing import Literal, cast, get_args

from huggingface_hub import split_torch_state_dict_into_shards

from ani.errors import InputError
from ani.files import replacing_directory
from ani.injection.adapter import adapter_base, fold_adapter
from ani.injection.attach import is_attached
from ani.injection.methods import MethodName
from ani.models import EMBEDDED, load_config, load_model, load_tokenizer
from ani.serving.checkpoint import SECTION, mark_merged

DType = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(DType)


def merge(
    adapter_path: str | Path,
    out_path: str | Path,
    *,
    model: str | None = None,
    dtype: DType | None = None,
    max_shard_size: int | str = "5GB",
) -> None:
    """Write base model and adapter as one checkpoint directory, with the tokenizer.

    LoRA's weights are added to the base model's own, in full precision also where it was trained on a 4-bit base; the
    module's stand beside them. After `import ani`, `AutoModelForCausalLM.from_pretrained(out_path)` gives the attached
    model. Of a method without a module it is an ordinary checkpoint of its family.

    Args:
        adapter_path: Adapter directory, or a name on the Hugging Face hub.
        out_path: Directory; a merged checkpoint that is there is replaced as a whole.
        model: The base model: directory, hub name, or `smollm2`. None: the one that PEFT wrote into the adapter.
        dtype: Of the base model's weights; None: that of its config. The module's stay float32.
        max_shard_size: Of a weights file, as transformers takes it.

    Raises:
        InputError: If the base model or the adapter can't be had or don't fit, the base model is quantized, `out_path`
            is something else than a merged checkpoint, or another process writes it; nothing is then written.
    """
    out = Path(out_path)
    with replacing_directory(out) as work:
        _merge(adapter_path, out, work, model, dtype, max_shard_size)


def _merge(
    adapter_path: str | Path,
    out: Path,
    work: Path,
    model: str | None,
    dtype: DType | None,
    max_shard_size: int | str,
) -> None:
    if out.exists() and not _is_merged(out) and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} exists and is no merged checkpoint; choose another path or remove it")
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"no dtype {dtype!r}; known are {', '.join(DTYPES)}")
    try:
        split_torch_state_dict_into_shards({}, max_shard_size=max_shard_size)
    except ValueError as error:
        raise InputError(f"max_shard_size must be like 5GB or 500MB, not {max_shard_size!r}") from error
    named = adapter_base(adapter_path)  # also where it isn't needed: a bad adapter is met before the base is loaded
    base = model or named
    if base is None:
        raise InputError(
            f"the adapter {adapter_path} doesn't say which model it was trained on; name that (a directory, a hub name "
            f"or {EMBEDDED}) with --model, or model=..."
        )
    try:
        config = load_config(base)
    except InputError as error:
        if model is not None:
            raise
        raise InputError(
            f"the adapter {adapter_path} was trained on {base}, which isn't here; name the base model with --model, or "
            f"model=... ({error})"
        ) from error
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(f"{base} is quantized, so nothing can be merged into it; name its full-precision original")
    tokenizer = load_tokenizer(base)
    if dtype is None:
        stored = str(config.dtype or config.get_text_config().dtype).removeprefix("torch.")
        dtype = cast(DType, stored if stored in DTYPES else "float32")
    merged = load_model(base, dtype=dtype, device="cpu")
    method = fold_adapter(merged, tokenizer, adapter_path)
    mark_merged(merged, method)
    merged.save_pretrained(work, max_shard_size=max_shard_size)
    tokenizer.save_pretrained(work)
    (work / "README.md").write_text(_card(method, is_attached(merged)))


def _is_merged(path: Path) -> bool:
    try:
        return isinstance(json.loads((path / "config.json").read_text())[SECTION], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _card(method: MethodName, with_module: bool) -> str:
    head = (
        f"---\nlibrary_name: transformers\ntags: [ani, numeracy]\n---\n\n# Merged ANI checkpoint\n\nMethod `{method}`."
    )
    if not with_module:
        return f"{head} LoRA is part of the weights; load it as any model of its family.\n"
    return f"{head} Load it with `AutoModelForCausalLM.from_pretrained(path)` after `import ani`.\n"
