"""Merges an adapter and its base model into one checkpoint directory."""

from pathlib import Path
from typing import Literal, cast, get_args

from huggingface_hub import split_torch_state_dict_into_shards
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.chat import PLAIN_TEMPLATE
from ani.errors import InputError
from ani.files import check_replaceable, replacing_directory
from ani.injection.adapter import Adapter
from ani.injection.model_parts import is_attached
from ani.models import load_config, load_model, load_tokenizer
from ani.serving.checkpoint import mark_merged
from ani.serving.registration import SECTION
from ani.text_files import parse_json, read_text

DType = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(DType)
_CARD = "---\nlibrary_name: transformers\ntags: [ani, numeracy]\n---\n\n# Merged ANI checkpoint\n\n"


def merge(
    adapter_path: str | Path,
    out_path: str | Path,
    *,
    model: str | None = None,
    dtype: DType | None = None,
    max_shard_size: int | str = "5GB",
) -> None:
    """Write base model and adapter as one checkpoint directory, with the tokenizer.

    LoRA's weights are added to the base model's, in full precision even if LoRA was trained on a 4-bit base. After
    `import ani`, `AutoModelForCausalLM.from_pretrained(out_path)` loads the attached model. If the method has no
    module, the result is an ordinary checkpoint of its family.

    Args:
        adapter_path: Adapter directory, or a name on the Hugging Face hub.
        out_path: Directory; an earlier merged checkpoint there is replaced as a whole.
        model: Base model: directory, hub name, or `smollm2`. None: the one that the adapter names.
        dtype: Dtype of the base model's weights; None: the dtype of its config. The module's weights stay float32.
        max_shard_size: Maximum size of a weights file, as transformers takes it.

    Raises:
        InputError: If the base model or the adapter is missing or they don't fit, the base model is quantized,
            `out_path` is not a merged checkpoint, or another process writes it; nothing is written then.
    """
    try:
        split_torch_state_dict_into_shards({}, max_shard_size=max_shard_size)
    except ValueError as error:
        raise InputError(f"max_shard_size must be like 5GB or 500MB, not {max_shard_size!r}") from error
    out = Path(out_path)
    with replacing_directory(out) as work:
        check_replaceable(out, "merged checkpoint", _is_merged(out))
        adapter = Adapter.read(adapter_path)
        merged, tokenizer = full_precision_base(model or adapter.base_model(), dtype)
        adapter.load(merged, tokenizer, fold=True)
        mark_merged(merged, tokenizer, adapter.settings.method)
        merged.save_pretrained(work, max_shard_size=max_shard_size)
        tokenizer.save_pretrained(work)
        load = "LoRA is part of the weights; load it like any model of its family."
        if is_attached(merged):
            load = "Load it with `AutoModelForCausalLM.from_pretrained(path)` after `import ani`."
        (work / "README.md").write_text(f"{_CARD}Method `{adapter.settings.method}`. {load}\n")


def full_precision_base(base: str, dtype: DType | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the base model of a merged checkpoint on the CPU, in `dtype` (None: the dtype of its config), and its
    tokenizer, with a chat template in any case. Raises InputError if the dtype is unknown, or the model is missing or
    quantized."""
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
    config = load_config(base)
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(f"{base} is quantized, so it can't be merged; name the full-precision model")
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = tokenizer.chat_template or PLAIN_TEMPLATE
    stored = str(config.dtype or config.get_text_config().dtype).removeprefix("torch.")
    dtype = dtype or cast(DType, stored if stored in DTYPES else "float32")
    return load_model(base, dtype=dtype, device="cpu"), tokenizer


def _is_merged(path: Path) -> bool:
    try:
        return SECTION in parse_json(read_text(path / "config.json"), str(path))
    except InputError:
        return False
