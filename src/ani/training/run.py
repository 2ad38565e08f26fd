"""Carries out a training recipe, or resumes it: checks it, finds the layer, loads model and data, trains.

Started by accelerate in several processes, each with its environment variables, `train` shares the recipe's batches
among them (DDP, or FSDP 2). All compute the same steps; the main process alone (accelerate's `is_main_process`) writes.
"""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, set_seed
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from rich.console import Console
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, TrainingArguments

from ani.data.collator import NumberCollator
from ani.data.sources import Example
from ani.devices import default_dtype
from ani.errors import InputError, one_line
from ani.evaluation.engines import TransformersEngine
from ani.files import only_process_in
from ani.injection.attach import ani_module, attach, base_model, is_attached, number_locator
from ani.models import DTypeName, load_config, load_model, load_tokenizer
from ani.probing.curve import LayerSelection
from ani.probing.run import probe
from ani.probing.selection import PAPER_LAYERS, preset_for
from ani.results.records import SELECTION, read_object
from ani.settings import save_settings
from ani.terminal import SILENT
from ani.training.checkpoints import ADAPTER, last_step, sharded
from ani.training.examples import Examples, answered, load_examples, tokenized_examples
from ani.training.fitted_gate import fit_gate
from ani.training.recipe import Recipe, load_recipe
from ani.training.trainer import AniTrainer

PROBE = "probe"
ANSWERS = ".answers.jsonl"
"""Hidden, as the recipe is written later: what is hidden doesn't make an output count as used."""
RECIPE_FILE = "recipe.yaml"


def check(recipe: Recipe, *, resume: bool = False, processes: int | None = None) -> None:
    """Raise InputError for what can be told before anything is loaded: no place for the output, or settings that
    contradict each other, or can't be carried out by so many processes (None: by those that run)."""
    if not recipe.trains:
        raise InputError(
            f"method {recipe.method!r} trains nothing: name it as a variant of a comparison, or use ani eval --forced"
        )
    output = Path(recipe.output)
    if output.exists() and not output.is_dir():
        raise InputError(f"output {output} is a file; name a directory")
    # What is hidden is left of a run that was killed before it wrote its recipe.
    if not resume and output.exists() and not all(path.name.startswith(".") for path in output.iterdir()):
        if (output / ADAPTER).is_dir():
            raise InputError(f"output {output} is not empty: it has a finished run, {output / ADAPTER}; name another")
        if not (output / RECIPE_FILE).is_file():
            raise InputError(f"output {output} is not empty, and holds no run; name another")
        raise InputError(f"output {output} is not empty; continue with ani train --resume {output}, or name another")
    if recipe.quantization != "none" and recipe.lora is None:
        raise InputError("a 4-bit model is trained through LoRA only; set quantization: none beside lora: null")
    if recipe.training.keep and (recipe.ani is None or recipe.ani.values != "pending"):
        raise InputError(
            "training.keep learns tokens that write pending values alone; set ani.values: pending beside it"
        )
    processes = processes or int(os.environ.get("WORLD_SIZE", "1"))
    if recipe.training.gradient_accumulation % processes:
        raise InputError(
            f"{processes} processes can't share training.gradient_accumulation="
            f"{recipe.training.gradient_accumulation} batches a step; make it a multiple of {processes}, and "
            "training.batch_size smaller if the step shall stay as large"
        )
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        raise InputError("DeepSpeed isn't supported; launch with FSDP 2 (--use_fsdp --fsdp_version 2)")
    if sharded() and os.environ.get("FSDP_VERSION") != "2":
        raise InputError("FSDP 1 isn't supported; launch with --fsdp_version 2")


def train(
    recipe: Recipe,
    *,
    resume: bool = False,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    console: Console = SILENT,
) -> torch.nn.Module:
    """Carry out a recipe; the adapter lies in `<output>/adapter` when it returns. Returns the trained model, in
    evaluation mode; with FSDP it is sharded.

    In several processes each calls it alike. They share the `gradient_accumulation` batches of a step, so that the
    recipe gives the same training in any number of them, but for dropout.

    Args:
        recipe: Validated.
        resume: Go on from the last complete checkpoint in `recipe.output` (from the start if there is none).
        on_log: Called with each log line in the main process: loss, gate statistics, tokens/s, step and steps.
        console: For the progress of probing, and the layer that it finds.

    Raises:
        InputError: If the recipe can't be carried out as it is, or another process works on its output.
        TrainingFailed: If the loss is no longer finite or the gate is dead; the last good checkpoint is kept.
        KeyboardInterrupt, SystemExit: After SIGINT (Ctrl-C) or SIGTERM, with a checkpoint of the last whole step.
        OSError: If the disk is full; checkpoints of earlier steps are kept.
    """
    output = Path(recipe.output)
    with only_process_in(output), warnings.catch_warnings():
        # torch warns about a pin_memory that has no effect without an accelerator.
        warnings.filterwarnings("ignore", message=".*pin_memory.*")
        # accelerate's FSDP leaves 4-bit weights whole; docs/train.md says so.
        warnings.filterwarnings("ignore", message="Found .* non-floating frozen Params4bit")
        check(recipe, resume=resume)
        arguments = training_arguments(recipe)
        processes = PartialState()
        examples = load_examples(recipe)
        # The main process writes first when all have seen that the output is free. The others find what it probed.
        processes.wait_for_everyone()
        found = [with_layer(recipe, console) if processes.is_main_process else None]
        model, tokenizer = prepare(cast(Recipe, broadcast_object_list(found)[0]))
        locator = number_locator(model) if is_attached(model) else None
        collator = NumberCollator(tokenizer, locator, values_only=recipe.training.keep > 0)
        backend = TransformersEngine(cast(Any, model), tokenizer)
        answers = [answered(examples, backend, output / ANSWERS, console) if processes.is_main_process else None]
        examples = cast(list[Example], broadcast_object_list(answers)[0])
        rows = tokenized_examples(examples, tokenizer, locator, recipe.training.max_length)
        if recipe.ani is not None and recipe.ani.gate == "fitted" and not (resume and last_step(output)):
            fit_gate(model, collator, rows, recipe.seed, console)
        trainer = AniTrainer(
            settings=recipe.training,
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
            set_seed(recipe.seed, device_specific=True)  # each drops out its own
        trainer.carry_out(resume=resume, console=console)
        return model.eval()


def resume_recipe(directory: str | Path) -> Recipe:
    """The recipe of an interrupted run."""
    directory = Path(directory)
    if not (directory / RECIPE_FILE).is_file():
        raise InputError(f"{directory} holds no {RECIPE_FILE}, so no run to resume; start it with ani train RECIPE")
    if (directory / ADAPTER).is_dir():
        raise InputError(f"the run in {directory} is finished: its adapter is {directory / ADAPTER}")
    return load_recipe(directory / RECIPE_FILE).model_copy(update={"output": str(directory)})


def with_layer(recipe: Recipe, console: Console = SILENT) -> Recipe:
    """The recipe with its layer as a number, if its method has one. Raises InputError for `paper` if the paper has no
    model of this shape, or if the model can't be probed.

    `auto` probes the base model, in the recipe's precision and quantization, and leaves the results in `probe` of the
    output directory; where they are already, they are read.
    """
    if recipe.ani is None:
        return recipe
    layer = recipe.ani.layer
    if layer == "paper":
        layer = paper_layer(recipe.model, load_config(recipe.model))
    elif layer == "auto":
        layer = _probed_layer(recipe, console)
    return recipe.model_copy(update={"ani": recipe.ani.model_copy(update={"layer": layer})})


def paper_layer(name: str, config: PreTrainedConfig) -> int:
    """The layer of `ani.layer: paper`; raises InputError for a model whose shape the paper doesn't have."""
    preset = preset_for(config)
    if preset is None:
        raise InputError(
            f"ani.layer: paper is for the models of the paper ({', '.join(PAPER_LAYERS)}), and {name} has the shape of "
            "none of them; write a number, or auto"
        )
    return preset.layer


def _probed_layer(recipe: Recipe, console: Console) -> int:
    """The layer that probing chooses, or chose when this run, or another model of a comparison, began."""
    output = Path(recipe.output)
    selected, file = output / PROBE / SELECTION, output / RECIPE_FILE
    new = not file.exists()
    if selected.is_file():
        found = read_object(selected, LayerSelection)
        if not new:
            console.print(found.reason, highlight=False)
        return found.layer
    model = load_model(recipe.model, dtype=recipe.dtype, quantization=recipe.quantization)
    # First, so that a run that is killed while it probes, or right after, can be resumed.
    if new:
        save_settings(recipe, file)
    try:
        selection = probe(
            model,
            load_tokenizer(recipe.model),
            output / PROBE,
            **recipe.probing,
            console=console,
            facts={"model": recipe.model},
        )
    except InputError:
        if new:
            file.unlink()
        raise
    console.print(selection.reason, highlight=False)
    return selection.layer


def prepare(recipe: Recipe) -> tuple[torch.nn.Module, PreTrainedTokenizerBase]:
    """Load the recipe's model, wrap it in LoRA if it says so, and attach its method's untrained module, if any."""
    tokenizer = load_tokenizer(recipe.model)
    processes, dtype = PartialState(), recipe.dtype
    device = str(processes.device) if processes.num_processes > 1 and torch.cuda.is_available() else None
    if sharded() and recipe.quantization == "none":
        # It may be too large for one GPU: shards are moved there.
        device = "cpu"
        if dtype == "auto" and torch.cuda.is_available():
            dtype = cast(DTypeName, str(default_dtype("cuda")).removeprefix("torch."))
    model: torch.nn.Module = load_model(
        recipe.model, dtype=dtype, quantization=recipe.quantization, device=device, attention=recipe.attention
    )
    set_seed(recipe.seed)
    return with_adapter(model, tokenizer, recipe), tokenizer


def with_adapter(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> torch.nn.Module:
    """Freeze a model, wrap it in the recipe's LoRA, if any, and attach its method's untrained module, if any. Raises
    InputError if the model has no modules that `lora.target_modules` names, or no such layer."""
    processes = PartialState()
    model.requires_grad_(False)
    if recipe.lora is not None:
        if recipe.quantization != "none" and base_model(model).dtype == torch.float16:
            # Beside the 4-bit layers all is float32 then: gradients would vanish in float16.
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        settings = recipe.lora.model_dump(exclude={"alpha", "dropout"})
        settings |= {"lora_alpha": recipe.lora.alpha, "lora_dropout": recipe.lora.dropout}
        try:
            model = get_peft_model(cast(Any, model), LoraConfig(**settings, task_type="CAUSAL_LM"))
        except ValueError as error:
            raise InputError(f"lora.target_modules: {one_line(error)}") from error
    if recipe.ani is not None:
        config = recipe.ani.config()
        main = processes.is_main_process
        if main:
            attach(model, tokenizer, config)
        # Told, not measured by each: accelerate may have left the weights to the main process until they are sharded.
        scale = broadcast_object_list([ani_module(model).scale if main else None])[0]
        if not main:
            attach(model, tokenizer, config.model_copy(update={"embedding_scale": scale}))
    return model


def training_arguments(recipe: Recipe) -> TrainingArguments:
    """A recipe's settings, as the Trainer wants them."""
    settings = recipe.training
    arguments = TrainingArguments(
        output_dir=recipe.output,
        per_device_train_batch_size=settings.batch_size,
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
        # Batches are pinned then, so that nobody waits for a copy.
        accelerator_config={"non_blocking": torch.cuda.is_available()},
        use_cpu=not torch.cuda.is_available(),
        # Every process touches every trained parameter, also where its batch holds no number.
        ddp_find_unused_parameters=False,
        ddp_timeout=7200,  # the others wait while the main process probes
    )
    arguments.gradient_accumulation_steps = settings.gradient_accumulation // arguments.world_size
    # With several GPUs in one process the Trainer would use nn.DataParallel, which can't split a NumberBatch.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def how_to_go_on(output: str | Path) -> str:
    """What to do after a run into `output` was interrupted."""
    adapter = Path(output) / ADAPTER
    if adapter.is_dir():
        return f"the training is finished, its adapter is {adapter}"
    if not (Path(output) / RECIPE_FILE).is_file():
        return "nothing is kept yet, start the same command again"
    step = last_step(output)
    kept = f"the last checkpoint is of step {step}" if step else "there is no checkpoint yet"
    return f"continue with: ani train --resume {output} ({kept})"
