"""What a recipe would train, hold in memory and read, without weights; knows nothing about training itself."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from peft import get_peft_model
from peft.tuners.lora import LoraLayer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from ani.data.arithmetic import arithmetic_problems
from ani.data.calculation_sentences import training_sentences
from ani.data.calculations import calculation_problems
from ani.data.sources import diagnostic_examples, names_file
from ani.encoders import build_encoder
from ani.errors import InputError
from ani.hardware import default_dtype
from ani.injection.attach import check_layer, decoder_layers
from ani.injection.module import AniModule
from ani.models import load_config
from ani.probing.selection import PUBLISHED
from ani.training.recipe import DataSource, LoraSettings, Recipe, TrainingSettings
from ani.training.run import check, lora_config, paper_layer
from ani.untrusted.text import one_line


class Parameters(NamedTuple):
    """How many there are."""

    base: int
    lora: int
    module: int
    """Of the ANI module; 0 for a method without one."""


class Memory(NamedTuple):
    """Bytes; see `dry_run`."""

    weights: int
    trainable: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    total: int
    """Of the others."""


class SourceNeed(NamedTuple):
    """What a data source reads."""

    kind: str
    what: str
    """The problems, the file, or the hub's dataset and split."""
    rows: int | None
    """Examples, at most; None: all that there are."""
    exists: bool | None
    """Of a file; None for other sources."""


class DryRun(NamedTuple):
    """A recipe's needs."""

    model: str
    model_type: str
    num_hidden_layers: int
    hidden_size: int
    published_shape: bool
    """The hub couldn't be reached, so that the shape is the one in `PUBLISHED`."""
    method: str
    layer: int | None
    """Of the ANI module; None: found by probing first, or there is no module."""
    probes: bool
    quantization: str
    dtype: str
    parameters: Parameters
    memory: Memory
    data: tuple[SourceNeed, ...]
    steps: int | None
    """Optimizer steps; None: `epochs` over data whose rows nobody has counted."""
    tokens: int | None
    """Upper bound of the tokens seen in training: steps × batch × accumulation × max_length."""
    flops: int | None
    """Floating-point operations of all linear layers at so many tokens; see `dry_run`."""


def dry_run(recipe: Recipe) -> DryRun:
    """What a recipe needs, from the model's shape alone: no weights are loaded and nothing is written.

    Memory is an estimate, in bytes, of one process at `batch_size` rows of `max_length` tokens, all of them labelled.
    It leaves out the CUDA context, the allocator's reserve and an operation's temporaries. As `prepare` does it:

    - weights: with `nf4`, the linear layers but the head have 4 bits a weight, 8 bits for each block of 64 (its scale)
      and 32 bits for each 256 blocks, 4.127 bits together; all else is in `dtype` (float32 where that is float16 with
      `nf4`). `dtype: auto` on a machine without a GPU is taken as bfloat16, as on most GPUs;
    - trainable weights, gradients and AdamW's two moments: float32 each, so 4 + 4 + 8 bytes for each trainable weight;
    - activations, per token, with a bytes for each value outside of the 4-bit weights: one layer keeps the input and
      output of its linear layers, a·Σ(in + out), its norms' float32 copies, 16·hidden, and for each linear layer with
      LoRA, which computes in c bytes (2 if a bfloat16 model is trained, else 4), c·r and, where it is cast or dropped
      out, its input again, c·in (and 4·in with dropout). With gradient checkpointing: one layer of that, and a·hidden
      for every layer. Without LoRA, layers before the module keep nothing. `attention: eager` keeps (a + 4)·heads·T
      more in each; `auto` is taken as what transformers chooses on a GPU, which keeps no T×T matrix. In bfloat16 there
      is a copy of LoRA's weights too;
    - logits: (a + 12)·vocabulary per token: they, their float32 log-softmax and two gradients.

    Operations are 2 for each weight of a linear layer and token, in the forward pass, in the backward pass to its
    inputs and, with gradient checkpointing, once more in between; for LoRA's weights also those of their gradients.
    Attention's scores are left out: with the paper's models some 7% more at 4,096 tokens, and less at fewer.

    Raises:
        InputError: If `train` would refuse the recipe, as far as that can be told without weights, tokenizer and data.
    """
    check(recipe, resume=True)  # nothing is written, so the output may be there
    config, published = _shape(recipe.model)
    quantized = recipe.quantization == "nf4"
    if recipe.dtype == "auto":
        dtype = default_dtype("cuda") if torch.cuda.is_available() else torch.bfloat16
    else:
        dtype = getattr(torch, recipe.dtype)
    with torch.device("meta"):
        kept_in = torch.float32 if quantized and dtype == torch.float16 else dtype
        model = AutoModelForCausalLM.from_config(config, dtype=kept_in)
        layer: int | None = None
        module = 0
        if recipe.ani is not None:
            if recipe.ani.layer != "auto":
                layer = paper_layer(recipe.model, config) if recipe.ani.layer == "paper" else recipe.ani.layer
                check_layer(layer, len(decoder_layers(model)), config.model_type)
            facts = {"layer": layer or 0, "hidden_size": config.get_text_config().hidden_size, "embedding_scale": 1.0}
            settings = recipe.ani.model_copy(update=facts).config()
            module = sum(p.numel() for p in AniModule(settings, build_encoder(settings).width).parameters())
        base, weights = model.num_parameters(), _weight_bytes(model, quantized=quantized)
        depth = len(decoder_layers(model))
        model.requires_grad_(False)
        if recipe.lora is not None:
            try:
                get_peft_model(model, lora_config(recipe.lora))  # in place
            except ValueError as error:
                raise InputError(f"lora.target_modules: {one_line(error)}") from error
    lora = model.num_parameters(only_trainable=True)
    trainable = 4 * (lora + module)
    kept = depth if recipe.lora is not None else depth - (layer or 0)
    tokens = recipe.training.batch_size * recipe.training.max_length
    activations, logits = _activations(model, recipe, kept)
    lora_copy = 2 * lora if model.dtype == torch.bfloat16 else 0
    memory = (weights, trainable, trainable, 2 * trainable, tokens * activations + lora_copy, tokens * logits)
    data = tuple(_need(source) for source in recipe.data)
    steps = _steps(recipe.training, data)
    seen = None if steps is None else steps * recipe.training.gradient_accumulation * tokens
    return DryRun(
        model=recipe.model,
        model_type=config.model_type,
        num_hidden_layers=depth,
        hidden_size=config.get_text_config().hidden_size,
        published_shape=published,
        method=recipe.method,
        layer=layer,
        probes=recipe.ani is not None and layer is None,
        quantization=recipe.quantization,
        dtype=str(dtype).removeprefix("torch."),
        parameters=Parameters(base, lora, module),
        memory=Memory(*memory, total=sum(memory)),
        data=data,
        steps=steps,
        tokens=seen,
        flops=None if seen is None else seen * _operations(model, recipe.training),
    )


def _shape(name: str) -> tuple[PreTrainedConfig, bool]:
    """The model's config, and whether it had to be taken from `PUBLISHED`."""
    try:
        return load_config(name), False
    except InputError:
        shape = PUBLISHED.get(name.replace("-Instruct", "").removesuffix("-Base"))
        if shape is None:
            raise
        return AutoConfig.for_model(**shape), True


def _weight_bytes(model: PreTrainedModel, *, quantized: bool) -> int:
    size: int = model.get_memory_footprint(return_buffers=False)
    for module in model.modules():
        if quantized and isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
            weights = module.weight.numel()
            blocks = math.ceil(weights / 64)
            size += math.ceil(weights / 2) + blocks + 4 * math.ceil(blocks / 256) - model.dtype.itemsize * weights
    return size


def _activations(model: PreTrainedModel, recipe: Recipe, kept: int) -> tuple[int, int]:
    """Bytes a token of activations, where `kept` layers keep theirs, and of logits; see `dry_run`."""
    config = model.config.get_text_config()
    size, computed = model.dtype.itemsize, 2 if model.dtype == torch.bfloat16 else 4
    inside = 16 * config.hidden_size
    if recipe.attention == "eager":
        inside += (size + 4) * config.num_attention_heads * recipe.training.max_length
    for name, module in decoder_layers(model)[0].named_modules():
        if isinstance(module, LoraLayer):
            lora = cast(LoraSettings, recipe.lora)
            copies = computed * (size < 4 or lora.dropout > 0) + 4 * (lora.dropout > 0)
            inside += computed * lora.r + copies * cast(int, module.in_features)
        elif isinstance(module, nn.Linear) and "lora_" not in name:
            inside += size * (module.in_features + module.out_features)
    layers = inside + kept * size * config.hidden_size if recipe.training.gradient_checkpointing else kept * inside
    return layers, (size + 12) * config.vocab_size


def _operations(model: PreTrainedModel, settings: TrainingSettings) -> int:
    """For a token; see `dry_run`."""
    passes = 3 if settings.gradient_checkpointing else 2
    weights = (module.weight for module in model.modules() if isinstance(module, nn.Linear))
    return sum(2 * weight.numel() * (passes + int(weight.requires_grad)) for weight in weights)


def _need(source: DataSource) -> SourceNeed:
    match source.kind:
        case "arithmetic":
            # The generator refuses a count that there are too few problems for.
            arithmetic_problems(source.count, digits=source.digits, operations=source.operations, split="train")
            lengths = ", ".join(map(str, source.digits))
            return SourceNeed(source.kind, f"{', '.join(source.operations)} of {lengths} digits", source.count, None)
        case "calculations":
            calculation_problems(**source.model_dump(exclude={"kind"}), split="train")
            what = f"{', '.join(source.operations)} of {', '.join(map(str, source.operands))} operands"
            return SourceNeed(source.kind, what, source.count, None)
        case "calculation-sentences":
            rows = len(training_sentences(source.count))
            return SourceNeed(source.kind, "sentences with calculations that are meant or not", rows, None)
        case "asked-chats":
            return SourceNeed(source.kind, "prompts that ask for a calculation", source.count, None)
        case "unasked-chats":
            return SourceNeed(source.kind, "chats with a calculation that isn't asked for", source.count, None)
        case "gsm8k" | "math":
            exists = Path(source.path).is_file() if names_file(source.path) else None
            return SourceNeed(source.kind, source.path, source.limit, exists)
        case "diagnostic":
            diagnostic_examples(source.count)
            return SourceNeed(source.kind, "sentences with names and quantities", source.count, None)
        case "jsonl":
            return SourceNeed(source.kind, source.path, source.limit, Path(source.path).is_file())
        case "hub":
            return SourceNeed(source.kind, f"{source.name}, split {source.split}", source.limit, None)


def _steps(settings: TrainingSettings, data: Sequence[SourceNeed]) -> int | None:
    if settings.steps is not None:
        return settings.steps
    rows = [source.rows for source in data if source.rows is not None]
    if len(rows) < len(data):
        return None
    batches = math.ceil(sum(rows) / settings.batch_size)
    return math.ceil(settings.epochs * math.ceil(batches / settings.gradient_accumulation))


def dry_run_record(plan: DryRun) -> dict[str, Any]:
    """A dry run as JSON takes it."""
    parts = {"parameters": plan.parameters._asdict(), "memory": plan.memory._asdict()}
    return {**plan._asdict(), **parts, "data": [source._asdict() for source in plan.data]}


def dry_run_view(plan: DryRun) -> Iterator[RenderableType]:
    """A dry run for a terminal: lines and tables."""
    # Text, because names may hold what rich takes for markup.
    yield Text(f"{plan.model}: {plan.model_type}, {plan.num_hidden_layers} layers of width {plan.hidden_size}")
    if plan.published_shape:
        yield "  its config can't be read from here: the shape is the published one, from our own table"
    where = "" if plan.layer is None else f", layer {plan.layer}"
    yield f"method {plan.method}{', layer found by probing first' if plan.probes else where}"
    table = Table("parameters", "number", "share of the base model")
    for name, count in plan.parameters._asdict().items():
        table.add_row(name, f"{count:,}", f"{count / plan.parameters.base:.3%}")
    yield table
    table = Table("memory, an estimate", "GiB")
    for name, size in plan.memory._asdict().items():
        table.add_row(_PARTS[name].format(plan=plan), f"{size / 2**30:.3f}")
    yield table
    table = Table("data", "what", "rows at most", "file")
    for source in plan.data:
        file = "" if source.exists is None else "found" if source.exists else "missing"
        table.add_row(source.kind, Text(source.what), "all" if source.rows is None else f"{source.rows:,}", file)
    yield table
    if plan.steps is None or plan.tokens is None or plan.flops is None:
        yield "steps: known when the data is counted"
    else:
        yield f"{plan.steps:,} optimizer steps, {plan.tokens:,} tokens and {plan.flops:.1e} operations at most"


_PARTS = {
    "weights": "weights of the base model (quantization {plan.quantization}, {plan.dtype})",
    "trainable": "trainable weights (float32)",
    "gradients": "gradients (float32)",
    "optimizer": "AdamW's moments (2 × float32)",
    "activations": "activations at the longest batch",
    "logits": "logits at the longest batch",
    "total": "total",
}
