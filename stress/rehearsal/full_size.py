"""Carries out a recipe's training step and an answer at full size on fake tensors: shapes, dtypes, devices, memory."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import Any, cast

import fake_device
import torch
from fake_device import Fault, Watch, fake
from paper_models import PUBLISHED, full_row
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert

from ani.data.collator import IGNORED, NumberCollator
from ani.injection.model_parts import ani_module, base_model, is_attached, number_locator
from ani.injection.number_batch import NumberBatch
from ani.models import EMBEDDED, load_tokenizer, nf4
from ani.training.packing import learnt_columns
from ani.training.recipe import Recipe
from ani.training.run import check, paper_layer, with_adapter
from ani.training.trainer import adamw, learnt_logits, training_autocast


@dataclass
class Rehearsal:
    """Result of a rehearsal.

    Attributes:
        parameters: Number of parameters: `base`, `lora` and `module`.
        seconds: Time that the fake tensors took.
        peak: Largest number of bytes on the device.
        flops: Floating-point operations of one forward and backward pass.
        fault: The first error that a card would raise, with its place.
    """

    parameters: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    peak: int = 0
    flops: int = 0
    fault: str | None = None


def rehearse(
    recipe: Recipe, plant: Callable[[nn.Module], None] | None = None, texts: Sequence[int] | None = None
) -> Rehearsal:
    """Rehearse a recipe in a new process, because `fake_device.register` changes torch for the rest of a process.

    The batch is as long as the recipe allows, its first eighth the prompt. Gradients and AdamW's moments exist from the
    start, as in every step but the first. `plant` changes the filled model before the forward pass, to test the
    rehearsal itself. `texts` are the lengths of examples that share the row of another batch. Raises InputError if
    `train` would refuse the recipe.
    """
    context: BaseContext = multiprocessing.get_context("spawn")
    if not torch.cuda.is_available():  # a fork cannot use CUDA once the parent has initialized it
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_rehearse, recipe, plant, texts).result()


def left_on_the_cpu(model: nn.Module) -> None:
    """Plant a fault: the gate's first layer is not on the device."""
    inner = cast(Any, ani_module(model).gate).inner
    inner._parameters["weight"] = nn.Parameter(torch.empty(inner.weight.shape))


def _rehearse(recipe: Recipe, plant: Callable[[nn.Module], None] | None, texts: Sequence[int] | None) -> Rehearsal:
    check(recipe, resume=True)  # nothing is written
    found, watch = Rehearsal(), Watch()
    tokenizer = load_tokenizer(EMBEDDED)  # the ids have no values, only the numbers have places
    model = _on_meta(recipe, tokenizer)
    ours = set(ani_module(model).parameters()) if is_attached(model) else set()
    for parameter in model.parameters():
        part = "module" if parameter in ours else "lora" if parameter.requires_grad else "base"
        found.parameters[part] = found.parameters.get(part, 0) + parameter.numel()
    collate = NumberCollator(tokenizer, number_locator(model) if ours else None)
    lengths = texts or [recipe.training.max_length] * recipe.training.batch_size
    batch = collate([full_row(tokenizer, length) for length in lengths], texts and [[*range(len(texts))]])
    # transformers finds that full rows need no mask only by reading it
    batch = {name: value for name, value in batch.items() if name not in ("attention_mask", "use_cache")}
    watch.causal = len(texts or ()) < 2
    learnt = int((batch["labels"][:, 1:] != IGNORED).sum())
    batch |= learnt_logits(base_model(model), batch["labels"], learnt_columns(batch["labels"]))
    batch["num_items_in_batch"] = torch.tensor(learnt)
    passes = [batch["input_ids"][:1], batch["input_ids"][:1, -1:].clone()]
    fake_device.register()
    began = time.monotonic()
    try:
        with FakeTensorMode(), watch:
            _fill(model)
            if plant is not None:
                plant(model)
            _step(model, recipe, batch, learnt, watch, found)
            _answer(model, passes)
    except Fault as fault:
        found.fault = str(fault)
    found.seconds, found.peak = time.monotonic() - began, watch.peak
    return found


def _on_meta(recipe: Recipe, tokenizer: Any) -> nn.Module:
    """The recipe's model with LoRA and module, without weights."""
    config = AutoConfig.for_model(**PUBLISHED[recipe.model.removesuffix("-Instruct").removesuffix("-Base")])
    dtype = torch.bfloat16
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        if recipe.quantization == "nf4":
            replace_with_bnb_linear(model, get_keys_to_not_convert(model), nf4(dtype))
            model.is_loaded_in_4bit = True  # PEFT asks
        if recipe.ani is not None:
            layer = paper_layer(recipe.model, config) if recipe.ani.layer == "paper" else recipe.ani.layer
            settings = recipe.ani.model_copy(update={"layer": layer, "embedding_scale": 1.0})
            recipe = recipe.model_copy(update={"ani": settings})
        return with_adapter(model, tokenizer, recipe).train()


def _fill(model: nn.Module) -> None:
    """Give all parameters and buffers fake values on the device."""
    from bitsandbytes.functional import quantize_4bit

    for module in model.modules():
        for name, parameter in module._parameters.items():
            if hasattr(parameter, "quant_type"):
                packed, state = quantize_4bit(fake(cast(Any, parameter)), compress_statistics=True, quant_type="nf4")
                made: Any = nn.Parameter(packed, requires_grad=False)
                made.quant_state, made.bnb_quantized = state, True
                module._parameters[name] = made
            elif parameter is not None:
                module._parameters[name] = nn.Parameter(fake(parameter), parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fake(buffer)


def _step(model: nn.Module, recipe: Recipe, batch: dict[str, Any], learnt: int, watch: Watch, found: Rehearsal) -> None:
    """The training step of `AniTrainer`, with the last of a step's accumulated batches."""
    settings = recipe.training
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = adamw(model, settings)
    for group in optimizer.param_groups:
        group["foreach"] = True  # as on a card: all weights at once
    optimizer.step()
    if settings.gradient_accumulation == 1:
        optimizer.zero_grad()
    given = {
        name: fake(value) if isinstance(value, torch.Tensor) else NumberBatch(*map(fake, vars(value).values()))
        for name, value in batch.items()
    }
    if "numbers" in given:
        given["number_totals"] = fake(torch.tensor([len(given["numbers"]), 0]))
    cast(Any, model).config.use_cache = False
    if settings.gradient_checkpointing:
        cast(Any, model).gradient_checkpointing_enable()
    before = watch.flops
    with _named("forward", model):
        watch.logits = (learnt, base_model(model).config.get_text_config().vocab_size)
        with training_autocast(base_model(model)):
            loss = model(**given).loss
        watch.logits = None
    with _named("backward", model):
        loss.backward()
        found.flops = watch.flops - before
    with _named("update", model):
        nn.utils.clip_grad_norm_(trained, settings.max_gradient_norm)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def _answer(model: Any, passes: list[torch.Tensor]) -> None:
    """A prefill and a decode step."""
    model.eval()
    cache = DynamicCache(config=model.config)
    for ids in passes:
        with _named("answer", model):
            model(input_ids=fake(ids), past_key_values=cache, use_cache=True, logits_to_keep=1)


@contextmanager
def _named(phase: str, model: nn.Module) -> Iterator[None]:
    """Turn an error into a Fault that names the phase and the innermost module."""
    try:
        yield
    except (Fault, RuntimeError, TypeError, ValueError) as error:
        names = {id(module): name for name, module in base_model(model).named_modules()}
        place, frames = "outside the model", error.__traceback__
        while frames is not None:
            place = names.get(id(frames.tb_frame.f_locals.get("self")), "") or place
            frames = frames.tb_next
        what = str(error)
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            what = f"the host needs a value of the device, and waits for it ({what})"
        raise Fault(f"{phase}, {place}: {what}") from error
