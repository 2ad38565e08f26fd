"""CUDA card: time and memory of QLoRA steps of the Qwen3-8B shape, with ANI and without.

The weights are random and made here, one matrix at a time, so that neither a hub nor 16 GB of float weights are needed.
The rest is recipes/paper/train.yaml (NF4, LoRA r 64, batch 1, 4,096 tokens, gradient checkpointing), without its
accumulation, as AniTrainer carries it out; the same without the module is method `sft`.

    python benchmarks/gpu.py            # some 30 GB of GPU memory
    python benchmarks/gpu.py --tiny     # the same code with a tiny model, on a CPU too
"""

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.append(str(Path(__file__).parents[1] / "stress" / "rehearsal"))

import _paired
import torch
from paper_models import PUBLISHED, full_row
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
)
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert

from ani.data.collator import NumberCollator
from ani.devices import default_device, default_dtype
from ani.injection.model_parts import number_locator
from ani.models import load_tokenizer, nf4
from ani.training.examples import Examples
from ani.training.recipe import Recipe, load_recipe
from ani.training.run import paper_layer, training_arguments, with_adapter
from ani.training.trainer import AniTrainer

RECIPE = Path(__file__).parents[1] / "recipes" / "paper" / "train.yaml"
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TINY |= {"num_key_value_heads": 2, "head_dim": 16}
WARMUP = 3


class Clock(TrainerCallback):
    """Records when each step ends: from one end to the next is a step with its collating."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def main() -> None:
    """Print one table of times and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model of 64 tokens, to try the code anywhere")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    if not cuda and not arguments.tiny:
        raise SystemExit("benchmarks/gpu.py needs a CUDA card; --tiny tries its code with a tiny model on the CPU")
    tokenizer = load_tokenizer("smollm2")
    config = AutoConfig.for_model(**PUBLISHED["Qwen/Qwen3-8B"] | (TINY if arguments.tiny else {}))
    with tempfile.TemporaryDirectory() as folder:
        for part in (config, tokenizer):
            part.save_pretrained(folder)
        overrides = [f"model={folder}", f"output={folder}/run", f"training.steps={arguments.steps + WARMUP + 1}"]
        overrides += ["data=[{kind: arithmetic, count: 1}]", "training.gradient_accumulation=1"]
        overrides += ["ani.layer=1", "training.max_length=64"] if arguments.tiny else []
        found = {method: measured(method, overrides, config, tokenizer) for method in ("sft", "ani")}
    card = torch.cuda.get_device_name() if cuda else "CPU"
    rows = _paired.table(f"{card}: QLoRA steps, {'tiny' if arguments.tiny else 'shape of Qwen3-8B'}")
    for method, what in (("sft", "LoRA alone"), ("ani", "LoRA with ANI")):
        steps, peak = found[method]
        _paired.add(rows, f"seconds per step, {what}", steps)
        if cuda:
            _paired.add(rows, f"peak memory in GiB, {what}", [peak / 2**30])
    sft, with_ani = (statistics.median(found[method][0]) for method in ("sft", "ani"))
    _paired.add(rows, "step time ANI / SFT, one after the other", [with_ani / sft], "" if arguments.tiny else "≤ 1.02")
    _paired.show(rows)


def measured(
    method: str, overrides: list[str], config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[float], int]:
    """Seconds of each step after the warm-up, and peak bytes on the card (0 without one), of a method's training."""
    recipe = load_recipe(RECIPE, overrides, [f"method={method}"])
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = prepared(recipe, config, tokenizer)
    locator = number_locator(model) if recipe.ani is not None else None
    rows = [full_row(tokenizer, recipe.training.max_length, seed) for seed in range(8)]
    collator = NumberCollator(tokenizer, locator)
    settings = training_arguments(recipe)
    settings.save_strategy = "no"
    clock = Clock()
    trainer = AniTrainer(
        settings=recipe.training,
        method=recipe.method,
        model=model,
        args=settings,
        train_dataset=Examples(rows, collator.pad_id),
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    steps = [end - begin for begin, end in pairwise(clock.ends)][WARMUP:]
    return steps, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def prepared(recipe: Recipe, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
    """The model that `ani.training.run.prepare` makes, but with random weights."""
    torch.manual_seed(recipe.seed)
    base = random_nf4(config, torch.device(default_device()), default_dtype())
    if recipe.ani is not None and isinstance(recipe.ani.layer, str):
        layer = paper_layer(recipe.model, config)
        recipe = recipe.model_copy(update={"ani": recipe.ani.model_copy(update={"layer": layer})})
    return with_adapter(base, tokenizer, recipe)


def random_nf4(config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A model with random weights, its linear layers but the head in NF4 as `ani.models.load_model` has them."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
        replace_with_bnb_linear(model, get_keys_to_not_convert(model), nf4(dtype))
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            value = torch.ones(parameter.shape, dtype=dtype, device=device)  # of the norms
            if parameter.ndim > 1:
                value.normal_(std=config.initializer_range)
            made: Any = nn.Parameter(value, requires_grad=False)
            if hasattr(parameter, "quant_type"):
                made = type(parameter)(value, requires_grad=False, quant_type="nf4", module=module)
                made = made.to(device)  # which quantizes
            setattr(module, name, made)
    rotary = model.get_decoder().rotary_emb
    model.get_decoder().rotary_emb = type(rotary)(config=config).to(device)
    model.is_loaded_in_4bit = True  # PEFT asks
    return model.eval()


if __name__ == "__main__":
    main()
