"""Carries out a training recipe, or resumes it: checks it, finds the layer, loads model and data, trains.

`torchrun` and `accelerate launch` start several processes, which share the recipe's batches (DDP, or FSDP 2). All
compute the same steps; only the main process writes.
"""

import math
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, set_seed
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from rich.console import Console
from transformers import AutoModelForImageTextToText, PreTrainedConfig, PreTrainedTokenizerBase, TrainingArguments

from ani.data.collator import NumberCollator, TokenizedExample
from ani.devices import default_dtype
from ani.errors import InputError, one_line
from ani.files import only_process_in
from ani.injection.attach import attach
from ani.injection.locate import NumberLocator
from ani.injection.model_parts import ani_module, base_model, check_layer, is_attached, number_locator
from ani.models import DTypeName, auto_class, load_config, load_model, load_tokenizer
from ani.probing.curve import LayerSelection
from ani.probing.run import probe
from ani.probing.selection import PAPER_LAYERS, preset_for
from ani.results.records import SELECTION, read_object
from ani.roles import Role
from ani.settings import save_settings
from ani.terminal import SILENT
from ani.training.checkpoints import ADAPTER, last_step, sharded
from ani.training.examples import Examples, check_gate, decisions_by_role, load_examples, tokenized_examples
from ani.training.fitted_gate import fit_gate
from ani.training.packing import packing_of, why_not_packed
from ani.training.recipe import Recipe, load_recipe
from ani.training.trainer import AniTrainer, training_autocast

PROBE = "probe"
RECIPE_FILE = "recipe.yaml"


def check(recipe: Recipe, *, resume: bool = False) -> None:
    """Raise InputError for faults that can be found before anything is loaded: an output that cannot be used, settings
    that contradict each other, or a launch that is not supported."""
    output = Path(recipe.output)
    if output.exists() and not output.is_dir():
        raise InputError(f"output {output} is a file; name a directory")
    # Hidden files are left by a run that was killed before it wrote its recipe.
    if not resume and output.exists() and not all(path.name.startswith(".") for path in output.iterdir()):
        if (output / ADAPTER).is_dir():
            raise InputError(f"output {output} is not empty: it has a finished run, {output / ADAPTER}; name another")
        if not (output / RECIPE_FILE).is_file():
            raise InputError(f"output {output} is not empty and contains no run; name another")
        raise InputError(f"output {output} is not empty; continue with ani train --resume {output}, or name another")
    if recipe.quantization != "none" and recipe.lora is None:
        raise InputError("a 4-bit model is trained through LoRA only; set quantization: none with lora: null")
    processes, batches = int(os.environ.get("WORLD_SIZE", "1")), recipe.training.gradient_accumulation
    if batches % processes:
        raise InputError(
            f"training.gradient_accumulation={batches} is not a multiple of the {processes} processes that share a "
            "step's batches; change it, or start fewer"
        )
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        raise InputError("ani train does not support DeepSpeed; launch with --use_fsdp --fsdp_version 2")
    if sharded() and os.environ.get("FSDP_VERSION") != "2":
        raise InputError("ani train does not support FSDP 1; launch with --fsdp_version 2")


def dry_run(recipe: Recipe, console: Console) -> None:
    """Check a recipe, its layer and its data without loading weights, and print the number of examples, tokens and
    steps. Raises InputError as `train` would."""
    check(recipe, resume=True)  # nothing is written
    config, tokenizer, settings = load_config(recipe.model), load_tokenizer(recipe.model), recipe.training
    if recipe.ani is not None and recipe.ani.layer != "auto":
        layer = paper_layer(recipe.model, config) if recipe.ani.layer == "paper" else recipe.ani.layer
        check_layer(layer, config.get_text_config().num_hidden_layers, config.model_type)
    rows = training_rows(recipe, config, tokenizer, console)
    lengths = [len(row.input_ids) for row in rows]
    batches = math.ceil(len(rows) / settings.batch_size)
    steps = settings.steps or math.ceil(settings.epochs * math.ceil(batches / settings.gradient_accumulation))
    tokens = f"{sum(lengths):,} tokens, {max(lengths):,} in the longest"
    console.print(f"{len(rows):,} examples ({tokens}), {steps:,} steps", highlight=False)


def training_rows(
    recipe: Recipe, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, console: Console = SILENT
) -> list[TokenizedExample]:
    """Load and tokenize the recipe's examples, and print how often a gate will decide about numbers of each role.
    Raises InputError if the data can't be read, or would show a gate one role alone."""
    locator = None
    if recipe.ani is not None:
        layer = config.get_text_config().num_hidden_layers - 1  # where it is not chosen yet; it doesn't matter here
        chosen = {} if isinstance(recipe.ani.layer, int) else {"layer": layer}
        locator = NumberLocator(tokenizer, recipe.ani.model_copy(update=chosen).config())
    rows = tokenized_examples(load_examples(recipe), tokenizer, locator, recipe.training.max_length)
    if recipe.ani is not None and locator is not None and recipe.ani.gate != "open":
        seen = decisions_by_role(rows, locator)
        counts = ", ".join(f"{seen[role]:,} {role.name.lower()}" for role in sorted(Role, reverse=True))
        console.print(f"numbers that the gate sees ({locator.policy}): {counts}", highlight=False)
        check_gate(recipe.ani.gate, seen)
    return rows


def train(
    recipe: Recipe,
    *,
    resume: bool = False,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    console: Console = SILENT,
) -> torch.nn.Module:
    """Carry out a recipe and write the adapter to `<output>/adapter`. Returns the trained model, in evaluation mode;
    with FSDP it is sharded.

    Several processes call it with the same arguments. They share the `gradient_accumulation` batches of a step, so that
    training is the same in any number of them, except for dropout.

    Args:
        recipe: Settings of the run.
        resume: Continue from the last complete checkpoint in `recipe.output`, or from the start if there is none.
        on_log: Called with each log line in the main process (`AniTrainer`).
        console: Console for the numbers that the gate sees, and for the progress of probing and of the gate's fit.

    Raises:
        InputError: The recipe cannot be carried out, or another process works on its output.
        TrainingFailed: The loss is not finite or the gate is dead; the last good checkpoint is kept.
        KeyboardInterrupt, SystemExit: SIGINT (Ctrl-C) or SIGTERM came; there is a checkpoint of the last step.
    """
    output = Path(recipe.output)
    with only_process_in(output), warnings.catch_warnings():
        # torch warns about a pin_memory that has no effect without an accelerator.
        warnings.filterwarnings("ignore", message=".*pin_memory.*")
        # accelerate's FSDP leaves 4-bit weights whole; docs/train.md says so.
        warnings.filterwarnings("ignore", message="Found .* non-floating frozen Params4bit")
        check(recipe, resume=resume)
        recipe = recipe.pinned()
        arguments = training_arguments(recipe)
        processes = PartialState()
        rows = training_rows(recipe, load_config(recipe.model), load_tokenizer(recipe.model), console)
        # The main process writes once all have seen that the output is free. The others get its layer.
        processes.wait_for_everyone()
        found = [with_layer(recipe, console) if processes.is_main_process else None]
        model, tokenizer = prepare(cast(Recipe, broadcast_object_list(found)[0]))
        locator = number_locator(model) if is_attached(model) else None
        collator = NumberCollator(tokenizer, locator, recipe.training.loss_on == "all")
        if recipe.ani is not None and recipe.ani.gate == "fitted" and not (resume and last_step(output)):
            fit_gate(model, collator, rows, recipe.seed, console)
        # Only the main process looks: the others may have no weights yet (FSDP_CPU_RAM_EFFICIENT_LOADING).
        with training_autocast(base_model(model)):
            reason = broadcast_object_list([why_not_packed(model) if processes.is_main_process else None])[0]
        if reason is not None:
            console.print(f"each example is a row of its own: {reason}", highlight=False)
        trainer = AniTrainer(
            settings=recipe.training,
            packing=packing_of(model, recipe.training) if reason is None else None,
            method=recipe.method,
            on_log=on_log,
            model=model,
            args=arguments,
            train_dataset=Examples(rows, collator.pad_id),
            data_collator=collator,
            processing_class=tokenizer,
        )
        if processes.is_main_process:
            save_settings(recipe, output / RECIPE_FILE)
        if processes.num_processes > 1:
            set_seed(recipe.seed, device_specific=True)  # dropout differs between processes
        trainer.carry_out(resume=resume)
        return model.eval()


def resume_recipe(directory: str | Path) -> Recipe:
    """Recipe of an interrupted run; raises InputError if the directory contains none, or a finished one."""
    directory = Path(directory)
    if not (directory / RECIPE_FILE).is_file():
        raise InputError(f"{directory} contains no {RECIPE_FILE}, so no run to resume; start one with ani train RECIPE")
    if (directory / ADAPTER).is_dir():
        raise InputError(f"the run in {directory} is finished: its adapter is {directory / ADAPTER}")
    return load_recipe(directory / RECIPE_FILE).model_copy(update={"output": str(directory)})


def with_layer(recipe: Recipe, console: Console = SILENT) -> Recipe:
    """Replace the layer `auto` or `paper` of a recipe by a number. `auto` probes the base model in the recipe's
    precision and quantization, and writes the results to `<output>/probe`; results that are there are read instead.
    Raises InputError if the paper has no model of this shape, or the model cannot be probed."""
    if recipe.ani is None:
        return recipe
    layer = recipe.ani.layer
    if layer == "paper":
        layer = paper_layer(recipe.model, load_config(recipe.model))
    elif layer == "auto":
        layer = _probed_layer(recipe, console)
    return recipe.model_copy(update={"ani": recipe.ani.model_copy(update={"layer": layer})})


def paper_layer(name: str, config: PreTrainedConfig) -> int:
    """Layer of the paper for a model of this shape; raises InputError if the paper has none."""
    layer = preset_for(config)
    if layer is None:
        raise InputError(
            f"ani.layer: paper is for the models of the paper ({', '.join(PAPER_LAYERS)}), and {name} has another "
            "shape; write a number, or auto"
        )
    return layer


def _probed_layer(recipe: Recipe, console: Console) -> int:
    """Layer that probing chooses now, or has chosen for this run or for another run of the comparison."""
    output = Path(recipe.output)
    selected, file = output / PROBE / SELECTION, output / RECIPE_FILE
    new = not file.exists()
    if selected.is_file():
        found = read_object(selected, LayerSelection)
        if not new:
            console.print(found.reason, highlight=False)
        return found.layer
    model = load_model(recipe.model, dtype=recipe.dtype, quantization=recipe.quantization)
    # The recipe first, so that a run that is killed while it probes can be resumed.
    if new:
        save_settings(recipe, file)
    try:
        facts = {"model": recipe.model}
        tokenizer = load_tokenizer(recipe.model)
        selection = probe(model, tokenizer, output / PROBE, **recipe.probing, console=console, facts=facts)
    except InputError:
        if new:
            file.unlink()
        raise
    console.print(selection.reason, highlight=False)
    return selection.layer


def prepare(recipe: Recipe) -> tuple[torch.nn.Module, PreTrainedTokenizerBase]:
    """Load the recipe's model and tokenizer; wrap the model in LoRA and attach the untrained module, where the recipe
    has them."""
    tokenizer = load_tokenizer(recipe.model)
    processes, dtype = PartialState(), recipe.dtype
    device = str(processes.device) if processes.num_processes > 1 and torch.cuda.is_available() else None
    if sharded() and recipe.quantization == "none":
        # The model may be too large for one GPU; FSDP moves the shards there.
        device = "cpu"
        if dtype == "auto" and torch.cuda.is_available():
            dtype = cast(DTypeName, str(default_dtype("cuda")).removeprefix("torch."))
    model: torch.nn.Module = load_model(
        recipe.model, dtype=dtype, quantization=recipe.quantization, device=device, attention=recipe.attention
    )
    set_seed(recipe.seed)
    return with_adapter(model, tokenizer, recipe), tokenizer


def with_adapter(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> torch.nn.Module:
    """Freeze a model, wrap it in LoRA and attach the untrained module, where the recipe has them. Raises InputError if
    the model lacks the layer, or all modules that `lora.target_modules` names."""
    processes = PartialState()
    model.requires_grad_(False)
    if recipe.lora is not None:
        if recipe.quantization != "none" and base_model(model).dtype == torch.float16:
            # All but the 4-bit layers becomes float32: gradients would vanish in float16.
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        settings = recipe.lora.model_dump(exclude={"alpha", "dropout"})
        settings |= {"lora_alpha": recipe.lora.alpha, "lora_dropout": recipe.lora.dropout}
        if auto_class(base_model(model).config) is AutoModelForImageTextToText:  # a text trains the decoder alone
            decoder = base_model(model).get_decoder()
            name = next(name for name, module in model.named_modules() if module is decoder)
            settings["exclude_modules"] = rf"(?!{re.escape(name)}\.).*"
        try:
            model = get_peft_model(cast(Any, model), LoraConfig(**settings, task_type="CAUSAL_LM"))
        except ValueError as error:
            raise InputError(f"lora.target_modules: {one_line(error)}") from error
    if recipe.ani is not None:
        config = recipe.ani.config()
        main = processes.is_main_process
        if main:
            attach(model, tokenizer, config)
        # Only the main process tests and measures: the others may have no weights yet (FSDP_CPU_RAM_EFFICIENT_LOADING).
        scale = broadcast_object_list([ani_module(model).scale if main else None])[0]
        if not main:
            attach(model, tokenizer, config.model_copy(update={"embedding_scale": scale}), check=False)
        if recipe.training.random_start:
            ani_module(model).start_at_random()
    return model


def training_arguments(recipe: Recipe) -> TrainingArguments:
    """Settings of the recipe for transformers' Trainer."""
    settings = recipe.training
    arguments = TrainingArguments(
        output_dir=recipe.output,
        num_train_epochs=settings.epochs,
        max_steps=settings.steps if settings.steps is not None else -1,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup" if settings.warmup_steps else "constant",
        warmup_steps=settings.warmup_steps,
        max_grad_norm=settings.max_gradient_norm,
        gradient_checkpointing=settings.gradient_checkpointing,
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        save_steps=settings.save_every,
        seed=recipe.seed,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        # Pinned batches are copied while the GPU computes.
        accelerator_config={"non_blocking": torch.cuda.is_available()},
        use_cpu=not torch.cuda.is_available(),
        # Every process uses every trained parameter, even if its batch contains no number.
        ddp_find_unused_parameters=False,
        ddp_timeout=7200,  # the others wait while the main process probes
    )
    # A batch of the Trainer is a step: `AniTrainer` cuts it into forward passes.
    arguments.per_device_train_batch_size = settings.batch_size * settings.gradient_accumulation // arguments.world_size
    # In one process with several GPUs the Trainer would use nn.DataParallel, which cannot split a NumberBatch.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def how_to_go_on(output: str | Path) -> str:
    """Sentence that says how to continue an interrupted run in the directory `output`."""
    adapter = Path(output) / ADAPTER
    if adapter.is_dir():
        return f"training is finished; the adapter is {adapter}"
    if not (Path(output) / RECIPE_FILE).is_file():
        return "nothing was saved yet; start the same command again"
    step = last_step(output)
    kept = f"the last checkpoint is of step {step}" if step else "there is no checkpoint yet"
    return f"continue with: ani train --resume {output} ({kept})"
