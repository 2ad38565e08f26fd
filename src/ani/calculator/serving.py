"""Serving the calculator: a checkpoint directory of base model and calculator, and the plugin for vLLM.

The base model is an ordinary checkpoint, which transformers loads as usual. Only `architectures` in its `config.json`
names our class, so that vLLM uses the calculator, and refuses the checkpoint without this package. The calculator's
files are in a sub-folder.
"""

import json
from pathlib import Path
from typing import Any

from ani.calculator.calculator import CONFIG_FILE, Calculator, folder_of, read_config
from ani.files import check_replaceable, replacing_directory
from ani.serving.merge import DType, full_precision_base
from ani.serving.plugin import register_families, why_not_every_token, why_not_vllm

FOLDER = "calculator"
"""Sub-folder of a served checkpoint that contains the calculator's files."""


def merge(calculator: str, out_path: str | Path, *, model: str | None = None, dtype: DType | None = None) -> None:
    """Write base model and calculator as one checkpoint directory that vLLM serves.

    Args:
        calculator: `smollm2-calculator`, a directory, or a name on the Hugging Face hub.
        out_path: Directory; an earlier checkpoint of this kind there is replaced as a whole.
        model: Base model: directory, hub name, or `smollm2`. None: the one that the calculator names.
        dtype: Dtype of the base model's weights. None: the dtype of its config.

    Raises:
        InputError: The calculator or its base is missing or they don't fit, the base is quantized, or `out_path` is
            something else; nothing is written then.
    """
    out = Path(out_path)
    with replacing_directory(out) as work:
        check_replaceable(out, "checkpoint with a calculator", (out / FOLDER / CONFIG_FILE).is_file())
        base, tokenizer = full_precision_base(model or read_config(folder_of(calculator)).base, dtype)
        Calculator.load(calculator, base, tokenizer).save(work / FOLDER)
        base.save_pretrained(work)
        tokenizer.save_pretrained(work)
        file = work / "config.json"
        config = {**json.loads(file.read_text("utf-8")), "architectures": [f"Calculator{type(base).__name__}"]}
        file.write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def register() -> None:
    """Register the classes and the check with vLLM; under a version that is not supported, register nothing."""
    if why_not_vllm():  # the plugin of merged checkpoints warns
        return
    register_families("Calculator", "ani.calculator.vllm", why_not)


def why_not(engine: Any) -> str | None:
    """Return the reason why vLLM can't serve the calculator with its settings, a `VllmConfig`, or None."""
    if engine.speculative_config is not None:
        return "the calculator decides one token at a time; leave out --speculative-config"
    if engine.parallel_config.enable_batch_sharded_sampling:
        return "each process must see all logits; leave out --enable-batch-sharded-sampling"
    return why_not_every_token(engine)
