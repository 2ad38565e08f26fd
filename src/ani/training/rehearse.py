"""`ani rehearse`: a recipe's step at full size on fake tensors: shapes, dtypes, devices, memory."""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

import torch
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert

from ani.data.arithmetic import arithmetic_problems
from ani.data.collator import IGNORED, NumberCollator, TokenizedExample
from ani.data.kinds import DataSource
from ani.devices import default_dtype
from ani.errors import InputError, one_line
from ani.injection.attach import ani_module, base_model, is_attached, number_locator
from ani.injection.locate import NumberBatch
from ani.models import EMBEDDED, load_config, load_tokenizer, nf4, training_autocast
from ani.probing.selection import PUBLISHED
from ani.roles import Role
from ani.training.fake_device import Fault, Watch, fake, register
from ani.training.recipe import Recipe
from ani.training.run import check, paper_layer, with_adapter
from ani.training.trainer import adamw, learnt_columns, learnt_logits


@dataclass(frozen=True)
class Phase:
    """A part of the rehearsal."""

    name: str
    seconds: float
    """That fake tensors took here; a card's are others."""
    peak: int
    """Bytes on the device at most."""
    held: int
    """Bytes on the device at its end."""


@dataclass(frozen=True)
class Rehearsal:
    """What a recipe needs, and what a card would refuse."""

    model: str
    """Its name, family, layers and width."""
    published_shape: bool
    """The hub couldn't be reached, so that the shape is the one in `PUBLISHED`."""
    method: str
    layer: int | Literal["auto"] | None
    """Of the ANI module; `auto`: found by probing first; None: there is no module."""
    quantization: str
    dtype: str
    parameters: dict[str, int]
    """How many: `base`, `lora`, and `module`, ANI's."""
    phases: list[Phase]
    faults: list[str]
    """What is wrong, and where, in a sentence; it ends the rehearsal, so that there is one at most."""
    data: list[str]
    """Each source: what it is, how many examples it gives at most, and whether its file is there."""
    steps: int | None
    """Optimizer steps; None: `epochs` over data whose rows nobody has counted."""
    tokens: int | None
    """Upper bound of the tokens seen in training: steps × accumulation × batch × max_length."""
    flops: int | None
    """Floating-point operations of all products and attention at so many tokens."""


def rehearse(recipe: Recipe) -> Rehearsal:
    """Carry out a recipe's training step, prefill and a decode step at full size on fake tensors, in a process of its
    own: they have shape, dtype and device, and no values. Raises InputError if `train` would refuse the recipe, as far
    as that can be told without weights, or the model's shape is not to be had.

    The batch is as long as the recipe allows, arithmetic throughout, its first eighth the prompt. Gradients and AdamW's
    moments lie there from the start, as in all steps but the first. The base model's pass of `training.keep` is left
    out.
    """
    check(recipe, resume=True)  # nothing is written, so the output may be there
    return in_fresh_process(rehearse_here, recipe)


def in_fresh_process(function: Callable[[Recipe], Rehearsal], recipe: Recipe) -> Rehearsal:
    """Call a function in a process that has imported this module and done nothing else: some seconds the first time,
    and with a card each time."""
    context: BaseContext = multiprocessing.get_context("spawn")
    if not torch.cuda.is_available():  # else what is imported here initializes CUDA, which a fork can't use
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "__main__"])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, recipe).result()


def full_row(tokenizer: PreTrainedTokenizerBase, length: int, seed: int = 0) -> TokenizedExample:
    """Sums until `length` tokens are full; the prompt is the first eighth of them, and 32 where there are so many."""
    problems = arithmetic_problems(length // 4 + 1, digits=(3, 6), split="train", seed=seed)
    ids = tokenizer(" ".join(f"{problem.prompt} {problem.answer}." for problem in problems))["input_ids"][:length]
    return TokenizedExample(ids, max(length // 8, min(32, length // 2)), [Role.UNKNOWN] * length)


def rehearse_here(recipe: Recipe) -> Rehearsal:
    """`rehearse` in this process; `register` changes torch for the rest of it."""
    config, published = _shape(recipe.model)
    layer = None if recipe.ani is None else recipe.ani.layer
    if layer == "paper":
        layer = paper_layer(recipe.model, config)
    dtype = torch.bfloat16 if recipe.dtype == "auto" else cast(torch.dtype, getattr(torch, recipe.dtype))
    if recipe.dtype == "auto" and torch.cuda.is_available():
        dtype = default_dtype("cuda")
    tokenizer = _tokenizer(recipe.model)
    model = _on_meta(recipe, config, dtype, tokenizer, layer)
    ours = set(ani_module(model).parameters()) if is_attached(model) else set()  # with a gate that is frozen
    parameters = {"base": 0, "lora": 0, "module": 0}
    for parameter in model.parameters():
        parameters["module" if parameter in ours else "lora" if parameter.requires_grad else "base"] += (
            parameter.numel()
        )
    row = full_row(tokenizer, recipe.training.max_length)
    collate = NumberCollator(tokenizer, number_locator(model) if is_attached(model) else None)
    batch = collate([row] * recipe.training.batch_size)
    del batch["attention_mask"]  # a full row needs none, as transformers sees where it can read it
    learnt = int((batch["labels"][:, 1:] != IGNORED).sum())
    batch |= learnt_logits(base_model(model), batch["labels"], learnt_columns(batch["labels"]))
    batch["num_items_in_batch"] = torch.tensor(learnt)
    ids = batch["input_ids"][:1]
    answers = {"prefill": ids, "decode": ids[:, -1:].clone()}
    stage = _Stage(model)
    register()
    faults: list[str] = []
    try:
        with FakeTensorMode(), stage.watch:
            _train(stage, recipe, batch, learnt)
            _answer(stage, answers)
    except Fault as fault:
        faults.append(str(fault))
    training, data = recipe.training, [_source(recipe, source) for source in recipe.data]
    steps, rows = training.steps, [count for _, count in data]
    if steps is None and None not in rows:
        batches = math.ceil(sum(cast(list[int], rows)) / training.batch_size)
        steps = math.ceil(training.epochs * math.ceil(batches / training.gradient_accumulation))
    passes = None if steps is None else steps * training.gradient_accumulation
    shape = config.get_text_config()
    return Rehearsal(
        model=f"{recipe.model}: {config.model_type}, {shape.num_hidden_layers} layers of width {shape.hidden_size}",
        published_shape=published,
        method=recipe.method,
        layer=layer,
        quantization=recipe.quantization,
        dtype=str(dtype).removeprefix("torch."),
        parameters=parameters,
        phases=stage.phases,
        faults=faults,
        data=[what for what, _ in data],
        steps=steps,
        tokens=None if passes is None else passes * training.batch_size * training.max_length,
        flops=None if passes is None else passes * stage.step_flops,
    )


# --- the model --------------------------------------------------------------------------------------------------------


def _shape(name: str) -> tuple[PreTrainedConfig, bool]:
    """The model's config, and whether it had to be taken from `PUBLISHED`."""
    try:
        return load_config(name), False
    except InputError:
        shape = PUBLISHED.get(name.replace("-Instruct", "").removesuffix("-Base"))
        if shape is None:
            raise
        return AutoConfig.for_model(**shape), True


def _tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The model's, or where there is none the embedded model's: ids have no values, only numbers a place."""
    try:
        return load_tokenizer(name)
    except InputError:
        with suppress(InputError):
            return load_tokenizer(EMBEDDED)
        raise


def _on_meta(
    recipe: Recipe, config: PreTrainedConfig, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase, layer: Any
) -> nn.Module:
    """The recipe's model, with LoRA and module, that holds nothing."""
    attention = "eager" if recipe.attention == "eager" else "sdpa"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
        if recipe.quantization == "nf4":
            replace_with_bnb_linear(model, get_keys_to_not_convert(model), nf4(dtype))
            model.is_loaded_in_4bit = True  # PEFT asks
        if recipe.ani is not None:
            place = config.get_text_config().num_hidden_layers // 2 if layer == "auto" else layer
            settings = recipe.ani.model_copy(update={"layer": place, "embedding_scale": 1.0})
            recipe = recipe.model_copy(update={"ani": settings})
        return with_adapter(model, tokenizer, recipe).train()


def _fill(model: nn.Module) -> None:
    """Give all parameters and buffers fake ones; `Module.to` refuses them."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if hasattr(parameter, "quant_type"):
                module._parameters[name] = _packed(cast(nn.Parameter, parameter))
            elif parameter is not None:
                module._parameters[name] = nn.Parameter(fake(parameter), parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fake(buffer)


def _packed(weight: nn.Parameter) -> nn.Parameter:
    """A 4-bit weight as bitsandbytes packs it, with its blocks' scales."""
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(fake(weight), compress_statistics=True, quant_type="nf4")
    made: Any = nn.Parameter(packed, requires_grad=False)
    made.quant_state, made.bnb_quantized = state, True
    return cast(nn.Parameter, made)


# --- the steps --------------------------------------------------------------------------------------------------------


class _Stage:
    """What is rehearsed, and what came of it."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.watch = model, Watch()
        self.phases: list[Phase] = []
        self.step_flops = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part, of which seconds and bytes are noted; what is wrong raises Fault with a sentence that says where."""
        began, self.watch.peak = time.monotonic(), self.watch.now
        try:
            yield
        except (Fault, RuntimeError, TypeError, ValueError) as error:
            what = one_line(error)
            if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
                what = f"the host needs a value of the device, and waits for it ({what})"
            raise Fault(f"{name}, {self._place(error.__traceback__)}: {what}") from error
        finally:
            self.phases.append(Phase(name, time.monotonic() - began, self.watch.peak, self.watch.now))

    def _place(self, frames: TracebackType | None) -> str:
        names = {id(module): name for name, module in base_model(self.model).named_modules()}
        place = "outside the model"
        while frames is not None:
            place = names.get(id(frames.tb_frame.f_locals.get("self")), "") or place
            frames = frames.tb_next
        return place


def _train(stage: _Stage, recipe: Recipe, batch: dict[str, Any], learnt: int) -> None:
    """The training step of `AniTrainer`, on the last of a step's accumulated batches."""
    model, settings, watch = stage.model, recipe.training, stage.watch
    with stage.phase("weights"):
        _fill(model)
    with stage.phase("gradients, AdamW"):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer = adamw(model, settings)
        for group in optimizer.param_groups:
            group["foreach"] = True  # as on a card: for all weights at once
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
    with stage.phase("forward"):
        watch.logits = (learnt, base_model(model).config.get_text_config().vocab_size)
        with training_autocast(base_model(model)):
            loss = model(**given).loss
        watch.logits = None
    with stage.phase("backward"):
        loss.backward()
        stage.step_flops = watch.flops - before
    with stage.phase("update"):
        nn.utils.clip_grad_norm_(trained, settings.max_gradient_norm)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def _answer(stage: _Stage, passes: dict[str, torch.Tensor]) -> None:
    """Passes without gradients, each behind the earlier ones."""
    model: Any = stage.model.eval()
    cache = DynamicCache(config=model.config)
    for name, ids in passes.items():
        with stage.phase(name):
            model(input_ids=fake(ids), past_key_values=cache, use_cache=True, logits_to_keep=1)


# --- data, and what is shown ------------------------------------------------------------------------------------------


def _source(recipe: Recipe, source: DataSource) -> tuple[str, int | None]:
    """What is told of a data source, and its examples at most; None: all that there are."""
    settings = source.model_dump(exclude={"kind"}, exclude_defaults=True)
    what, rows = " ".join([source.kind, *(f"{key}={value}" for key, value in settings.items())]), settings.get("limit")
    path = getattr(source, "path", None)
    if source.on_hub:
        return what, rows
    if path is not None and not Path(path).is_file():
        return f"{what}: missing", rows
    rows = len(source.examples(recipe.seed))
    return f"{what}: {rows:,} examples", rows


def rehearsal_view(found: Rehearsal) -> Iterator[RenderableType]:
    """A rehearsal for a terminal: lines and a table."""
    # Text, because names may hold what rich takes for markup.
    yield Text(found.model)
    if found.published_shape:
        yield "  its config can't be read from here: the shape is the published one, from our own table"
    where = "found by probing first" if found.layer == "auto" else found.layer
    yield f"method {found.method}{'' if where is None else f', layer {where}'}"
    yield f"quantization {found.quantization}, {found.dtype}"
    shares = (f"{name} {count:,} ({count / found.parameters['base']:.3%})" for name, count in found.parameters.items())
    yield f"parameters: {', '.join(shares)}"
    table = Table("rehearsed without a card", "seconds here", "GiB at most", "GiB held after it")
    for phase in found.phases:
        table.add_row(phase.name, f"{phase.seconds:.1f}", f"{phase.peak / 2**30:.2f}", f"{phase.held / 2**30:.2f}")
    seconds, peak = sum(phase.seconds for phase in found.phases), max(phase.peak for phase in found.phases)
    table.add_row("all", f"{seconds:.1f}", f"{peak / 2**30:.2f}", "")
    yield table
    for source in found.data:
        yield Text(f"data: {source}")
    if found.steps is None or found.tokens is None or found.flops is None:
        yield "steps: known when the data is counted"
    else:
        yield f"{found.steps:,} optimizer steps, {found.tokens:,} tokens and {found.flops:.1e} operations at most"
    for fault in found.faults:
        yield Text(f"fault: {fault}", style="red")
