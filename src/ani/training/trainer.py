"""Trains ANI, with or without LoRA, as a recipe says; knows nothing about evaluation.

`AniTrainer` is transformers' Trainer: own learning rate for the module, gate statistics in the log, whole checkpoints
or none, and a stop with a reason when there is nothing left to learn from.
"""

import inspect
import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
from accelerate.utils import set_seed
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    prepare_model_for_kbit_training,
    set_peft_model_state_dict,
)
from peft.utils import load_peft_weights
from rich.console import Console
from safetensors.torch import load_file
from torch.utils.data import Dataset, Sampler
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ani.data.arithmetic import arithmetic_problems
from ani.data.collator import IGNORED, NumberCollator, TokenizedExample, tokenize
from ani.data.diagnostic import diagnostic_sentences
from ani.data.sources import Example, arithmetic_example, load_hub, read_jsonl, sentence_examples
from ani.errors import InputError, TrainingFailed
from ani.files import replacing_file
from ani.injection.adapter import PEFT_CONFIG_FILE, WEIGHTS_FILE, save_adapter
from ani.injection.attach import ani_module, attach, base_model, has_gate, is_attached, last_decision, number_locator
from ani.injection.locate import NOMINAL, QUANTITATIVE, NumberLocator
from ani.injection.methods import METHODS, MethodName
from ani.models import load_config, load_model, load_tokenizer
from ani.probing.run import SELECTION, probe
from ani.probing.selection import PAPER_LAYERS, preset_for
from ani.training.number_token_loss import NumberTokenLoss
from ani.training.recipe import LoraSettings, Recipe, load_recipe, save_recipe
from ani.untrusted import read_json_object

ADAPTER = "adapter"
PROBE = "probe"
RECIPE_FILE = "recipe.yaml"
LOG_FILE = "training_log.jsonl"
COMPLETE = "complete"
"""Marks a checkpoint whose every file was written."""

SATURATED = 6.0
"""|z| beyond which σ'(z) < 0.0025: a gate that gets hardly any gradient."""
UNMOVED = 0.01
"""RMS of e, in units of the hidden state's, below which W_P has taught the model nothing yet."""


class AniTrainer(Trainer):
    """transformers' Trainer for a model with ANI attached, or for LoRA alone where the method has no module.

    Args:
        module_learning_rate: Learning rate of the ANI module.
        method: Name that checkpoints carry.
        number_token_loss: Weight of that term (`ani.training.number_token_loss`); 0: without it.
        **kwargs: As for Trainer.

    Raises:
        InputError: If the Number Token Loss can't be had with this tokenizer.
    """

    model: torch.nn.Module

    def __init__(
        self,
        *,
        module_learning_rate: float,
        method: MethodName = "ani",
        number_token_loss: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.method: MethodName = method
        self.folder = Path(cast(str, self.args.output_dir))
        self.module_learning_rate = module_learning_rate
        self._keeps_logits = "logits_to_keep" in inspect.signature(base_model(self.model).forward).parameters
        self.number_token_weight = number_token_loss
        self._number_token_loss: NumberTokenLoss | None = None
        if number_token_loss > 0:
            vocab_size = base_model(self.model).config.get_text_config().vocab_size
            self._number_token_loss = NumberTokenLoss(cast(Any, self.processing_class), vocab_size)
        self._digits = 0
        self._sums: dict[str, float] = {}
        self._log_started = time.monotonic()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            module = {id(parameter) for parameter in _module_parameters(self.model)}
            trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            groups = [
                # First, because its rate is the one that the Trainer logs.
                {"params": [p for p in trainable if id(p) not in module], "lr": self.args.learning_rate},
                {"params": [p for p in trainable if id(p) in module], "lr": self.module_learning_rate},
            ]
            self.optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)
        return self.optimizer

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        if self._number_token_loss is not None:
            self._digits = sum(self._number_token_loss.count(batch["labels"][:, 1:]) for batch in batches)
        return batches, num_items

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        following = torch.nn.functional.pad(inputs["labels"][:, 1:], (0, 1), value=IGNORED)
        if self._keeps_logits:
            # The head is a fifth of a small model's work, and only the response's logits are learnt from.
            columns = (following != IGNORED).any(dim=0).nonzero().squeeze(1)
            following = following[:, columns]
            inputs = {**inputs, "logits_to_keep": columns, "shift_labels": following}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self._number_token_loss is not None:
            digits = self._number_token_loss.count(following)
            total = self._number_token_loss.total(outputs["logits"], following)
            # The mean over the digits of all accumulated batches, where the Trainer doesn't divide by their number.
            mean = total / max(1, digits if num_items_in_batch is None else self._digits)
            loss = loss + self.number_token_weight * mean
            self._add("number_token_loss", float(total.detach()))
            self._add("digits", digits)
        return (loss, outputs) if return_outputs else loss

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler[int]:
        lengths = [len(example.input_ids) for example in cast(_Examples, self.train_dataset).examples]
        return LengthGroupedSampler(lengths, self.args.per_device_train_batch_size, self.args.seed)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(model, inputs, *args, **kwargs)
        if not bool(torch.isfinite(loss)):
            step = self.state.global_step + 1
            # The weights that made this loss may have been saved a moment ago.
            (self.folder / f"checkpoint-{self.state.global_step}" / COMPLETE).unlink(missing_ok=True)
            rows = [self._decode(row) for row in inputs["input_ids"][:2].tolist()]
            raise TrainingFailed(
                f"the loss is {float(loss)} at step {step}, on a batch of {len(inputs['input_ids'])} that begins with "
                f"{rows}; checkpoints of earlier steps are kept. Lower training.learning_rate or module_learning_rate"
            )
        self._count(inputs)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._statistics()
        super().log(logs, start_time)
        if self.args.should_save:
            _write_log(self.folder, self.state.log_history)
        if "loss" in logs:
            self._stop_if_dead(logs)

    def _decode(self, ids: list[int]) -> str:
        return str(cast(PreTrainedTokenizerBase, self.processing_class).decode(ids))[:80]

    def _count(self, inputs: dict[str, Any]) -> None:
        self._add("tokens", float(inputs["attention_mask"].sum()))
        decision = last_decision(self.model)
        if decision is None:
            return
        numbers, injection = decision
        self._add("ratio", float(injection.injected_ratio.sum()))
        self._add("embedding_rms", float(injection.embedding_rms.sum()))
        self._add("numbers", len(numbers))
        if not has_gate(self.model):
            return
        self._add("gated", len(numbers))
        self._add("penalty", float((injection.alpha * (1 - injection.alpha)).sum()))
        self._add("saturated", float((injection.logits.abs() > SATURATED).sum()))
        self._add("open", float((injection.logits > 0).sum()))
        for name, role in (("quantitative", QUANTITATIVE), ("nominal", NOMINAL)):
            logits = injection.logits[numbers.roles == role]
            self._add(f"open_{name}", float((logits > 0).sum()))
            self._add(f"logit_{name}", float(logits.abs().sum()))
            self._add(f"numbers_{name}", len(logits))

    def _add(self, key: str, value: float) -> None:
        self._sums[key] = self._sums.get(key, 0.0) + value

    def _statistics(self) -> dict[str, float]:
        sums, self._sums = self._sums, {}
        now = time.monotonic()
        elapsed, self._log_started = now - self._log_started, now
        logs = {"tokens_per_second": sums.get("tokens", 0.0) / elapsed}
        if digits := sums.get("digits", 0.0):
            logs["number_token_loss"] = sums["number_token_loss"] / digits
        if numbers := sums.get("numbers", 0.0):
            logs["embedding_ratio"] = sums["ratio"] / numbers
            logs["embedding_rms"] = sums["embedding_rms"] / numbers
        if gated := sums.get("gated", 0.0):
            logs["gate_open"] = sums["open"] / gated
            logs["gate_undecided"] = sums["penalty"] / gated
            logs["gate_saturated"] = sums["saturated"] / gated
        for name in ("quantitative", "nominal"):
            if count := sums.get(f"numbers_{name}", 0.0):
                logs[f"gate_open_{name}"] = sums[f"open_{name}"] / count
                logs[f"gate_logit_{name}"] = sums[f"logit_{name}"] / count
        return logs

    def _stop_if_dead(self, logs: dict[str, float]) -> None:
        # Over all numbers: data of the user's own seldom tells their roles.
        if not has_gate(self.model):
            return
        one_sided = logs.get("gate_open") in (0, 1)
        if one_sided and logs["gate_saturated"] == 1 and logs["embedding_rms"] < UNMOVED:
            raise TrainingFailed(
                f"the gate saturated at step {self.state.global_step} ({'open' if logs['gate_open'] else 'closed'} for "
                f"every number, |z| > {SATURATED:g}) before the embeddings moved (RMS {logs['embedding_rms']:.3g}): "
                "nothing can teach it any more. Lower ani.penalty, raise ani.penalty_ramp, or lower "
                "training.module_learning_rate"
            )

    # --- checkpoints: our adapter directory, and a mark that everything was written ---

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        directory = Path(output_dir) if output_dir else self.folder
        directory.mkdir(parents=True, exist_ok=True)
        save_adapter(self.model, directory / ADAPTER, method=self.method)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        _check_finite(self.model, self.state.global_step)
        super()._save_checkpoint(model, trial)
        directory = self.folder / f"checkpoint-{self.state.global_step}"
        (directory / COMPLETE).touch()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        directory = Path(resume_from_checkpoint) / ADAPTER
        if is_attached(self.model):
            ani_module(self.model).load_state_dict(load_file(directory / WEIGHTS_FILE))
        if (directory / PEFT_CONFIG_FILE).is_file():
            set_peft_model_state_dict(cast(PeftModel, self.model), load_peft_weights(str(directory), device="cpu"))


def _module_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return list(ani_module(model).parameters()) if is_attached(model) else []


def _check_finite(model: torch.nn.Module, step: int) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters() if p.requires_grad):
        raise TrainingFailed(
            f"the weights are no longer finite after step {step}; checkpoints of earlier steps are kept. Lower "
            "training.learning_rate or module_learning_rate"
        )


class _Report(TrainerCallback):
    """Passes every log line on, with the number of steps."""

    def __init__(self, on_log: Callable[[dict[str, Any]], None]) -> None:
        self.on_log_line = on_log

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.on_log_line({**logs, "step": state.global_step, "steps": state.max_steps})


class _LogAtCheckpoints(TrainerCallback):
    """Logs before every save: the sums since the last log line aren't in a checkpoint."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_save:
            control.should_log = True


class LengthGroupedSampler(Sampler[int]):
    """Random order in which the rows of a batch have similar lengths, so that little is padded.

    The order depends on seed and epoch alone: a resumed run skips what it has seen and meets the rest as before.
    """

    POOL = 32
    """Batches whose rows are sorted together; the smaller, the more random, the larger, the less padding."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; the Trainer calls it."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        random = Random(f"{self.seed} {self.epoch}")
        order = list(range(len(self.lengths)))
        random.shuffle(order)
        pool = self.POOL * self.batch_size
        batches: list[list[int]] = []
        for start in range(0, len(order), pool):
            rows = sorted(order[start : start + pool], key=lambda row: self.lengths[row])
            batches += [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        # A batch that isn't full must stay the last one, or the batches after it would be cut elsewhere.
        last = [batches.pop()] if batches and len(batches[-1]) < self.batch_size else []
        random.shuffle(batches)
        return (row for batch in [*batches, *last] for row in batch)


class _Examples(Dataset[TokenizedExample]):
    def __init__(self, examples: list[TokenizedExample]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> TokenizedExample:
        return self.examples[index]


def load_examples(recipe: Recipe) -> list[Example]:
    """The recipe's training examples, source after source, as its method writes them; all from training splits."""
    seed = recipe.seed if recipe.data_seed is None else recipe.data_seed
    examples: list[Example] = []
    for source in recipe.data:
        match source.kind:
            case "arithmetic":
                problems = arithmetic_problems(
                    source.count,
                    digits=source.digits,
                    operations=source.operations,
                    split="train",
                    seed=seed,
                )
                examples += map(arithmetic_example, problems)
            case "diagnostic":
                # Sentences that end with a number have no completion and are left out: ask for more than needed.
                sentences = diagnostic_sentences(2 * source.count, split="train", seed=seed)
                examples += list(sentence_examples(sentences))[: source.count]
            case "jsonl":
                examples += read_jsonl(source.path)[: source.limit]
            case "hub":
                examples += load_hub(source.name, source.split, source.limit)[: source.limit]
    return [example.written(METHODS[recipe.method].write) for example in examples]


def _tokenized(
    examples: list[Example], tokenizer: PreTrainedTokenizerBase, locator: NumberLocator | None, max_length: int
) -> list[TokenizedExample]:
    """Tokenized examples, without those that `max_length` leaves no token to learn: their loss would be 0 / 0."""
    tokenized = [tokenize(example, tokenizer, locator, max_length) for example in examples]
    kept = [example for example in tokenized if example.prompt_length < len(example.input_ids)]
    left_out = len(tokenized) - len(kept)
    if not kept:
        raise InputError(
            f"no example keeps a completion within training.max_length={max_length} tokens; raise it"
            if left_out
            else "the data holds no examples"
        )
    if left_out:
        warnings.warn(
            f"{left_out} of {len(tokenized)} examples are left out: their prompts fill training.max_length="
            f"{max_length} tokens",
            stacklevel=3,
        )
    return kept


def with_layer(recipe: Recipe, console: Console | None = None) -> Recipe:
    """The recipe with its layer as a number, if its method has one.

    `auto` probes the base model, in the recipe's precision and quantization, and leaves the results in `probe` of the
    output directory; where they are already, they are read.

    Raises:
        InputError: `paper`, but the paper has no model of this shape; or the model can't be probed.
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


def _probed_layer(recipe: Recipe, console: Console | None) -> int:
    """The layer that probing chooses, or chose when this run began."""
    output = Path(recipe.output)
    selected = output / PROBE / SELECTION
    if selected.is_file():
        layer = read_json_object(selected).get("layer")
        if type(layer) is not int:
            raise InputError(f"{selected} is damaged: it names no layer; remove {selected.parent} to probe again")
        return layer
    model = load_model(recipe.model, dtype=recipe.dtype, quantization=recipe.quantization)
    # First, so that a run that is killed while it probes, or right after, can be resumed.
    file = output / RECIPE_FILE
    new = not file.exists()
    if new:
        save_recipe(recipe, file)
    try:
        selection = probe(
            model,
            load_tokenizer(recipe.model),
            output / PROBE,
            **recipe.probe.model_dump(),
            console=console,
            facts={"model": recipe.model},
        )
    except InputError:
        if new:
            file.unlink()
            with suppress(OSError):
                output.rmdir()
        raise
    if console is not None:
        console.print(selection.reason, highlight=False)
    return selection.layer


def lora_config(lora: LoraSettings) -> LoraConfig:
    """A recipe's LoRA, as PEFT wants it."""
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )


def prepare(recipe: Recipe) -> tuple[torch.nn.Module, PreTrainedTokenizerBase]:
    """Load the recipe's model, wrap it in LoRA if it says so, and attach its method's untrained module, if any."""
    tokenizer = load_tokenizer(recipe.model)
    model: torch.nn.Module = load_model(recipe.model, dtype=recipe.dtype, quantization=recipe.quantization)
    set_seed(recipe.seed)
    model.requires_grad_(False)
    if recipe.lora is not None:
        if recipe.quantization != "none":
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        model = get_peft_model(cast(Any, model), lora_config(recipe.lora))
    if recipe.ani is not None:
        attach(model, tokenizer, recipe.ani.config())
    return model, tokenizer


def check(recipe: Recipe, *, resume: bool = False) -> None:
    """Raise InputError for what can be told before anything is loaded: no place for the output, or settings that
    contradict each other."""
    output = Path(recipe.output)
    if output.exists() and not output.is_dir():
        raise InputError(f"output {output} is a file; name a directory")
    if output.exists() and any(output.iterdir()) and not resume:
        raise InputError(f"output {output} is not empty; continue with ani train --resume {output}, or name another")
    if recipe.quantization != "none" and recipe.lora is None:
        raise InputError("a 4-bit model is trained through LoRA only; set quantization: none beside lora: null")


def train(
    recipe: Recipe,
    *,
    resume: bool = False,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    console: Console | None = None,
) -> torch.nn.Module:
    """Carry out a recipe; the adapter lies in `<output>/adapter` when it returns.

    Args:
        recipe: Validated.
        resume: Go on from the last complete checkpoint in `recipe.output` (from the start if there is none).
        on_log: Called with each log line: loss, gate statistics, tokens/s, step and steps.
        console: For the progress of probing, and the layer that it finds; None: silent.

    Returns:
        The trained model, in evaluation mode.

    Raises:
        InputError: If the recipe can't be carried out as it is.
        TrainingFailed: If the loss is no longer finite or the gate is dead; the last good checkpoint is kept.
    """
    check(recipe, resume=resume)
    output = Path(recipe.output)
    examples = load_examples(recipe)
    model, tokenizer = prepare(with_layer(recipe, console))
    locator = number_locator(model) if is_attached(model) else None
    dataset = _Examples(_tokenized(examples, tokenizer, locator, recipe.training.max_length))
    trainer = AniTrainer(
        module_learning_rate=recipe.training.module_learning_rate,
        method=recipe.method,
        number_token_loss=recipe.training.number_token_loss,
        model=model,
        args=_arguments(recipe),
        train_dataset=dataset,
        data_collator=NumberCollator(tokenizer, locator),
        processing_class=tokenizer,
        callbacks=[_LogAtCheckpoints(), *([_Report(on_log)] if on_log is not None else [])],
    )
    save_recipe(recipe, output / RECIPE_FILE)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    checkpoint = _last_checkpoint(output) if resume else None
    with warnings.catch_warnings():
        # torch warns about a pin_memory that has no effect without an accelerator.
        warnings.filterwarnings("ignore", message=".*pin_memory.*")
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    _check_finite(model, trainer.state.global_step)
    save_adapter(model, output / ADAPTER, method=recipe.method)
    return model.eval()


def resume_recipe(directory: str | Path) -> Recipe:
    """The recipe of an interrupted run."""
    directory = Path(directory)
    if not (directory / RECIPE_FILE).is_file():
        raise InputError(f"{directory} holds no {RECIPE_FILE}, so there is no run to resume")
    if (directory / ADAPTER).is_dir():
        raise InputError(f"the run in {directory} is finished: its adapter is {directory / ADAPTER}")
    return load_recipe(directory / RECIPE_FILE).model_copy(update={"output": str(directory)})


def _arguments(recipe: Recipe) -> TrainingArguments:
    settings = recipe.training
    arguments = TrainingArguments(
        output_dir=recipe.output,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation,
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
        save_total_limit=2,
        seed=recipe.seed,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    # With several GPUs in one process the Trainer would use nn.DataParallel, which can't split a NumberBatch.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _last_checkpoint(output: Path) -> Path | None:
    """The newest complete checkpoint; half-written ones are removed."""
    complete: list[tuple[int, Path]] = []
    for directory in output.glob("checkpoint-*"):
        if not directory.name.removeprefix("checkpoint-").isdecimal():
            continue  # the user's own
        if (directory / COMPLETE).is_file():
            complete.append((int(directory.name.removeprefix("checkpoint-")), directory))
        else:
            shutil.rmtree(directory)
    return max(complete)[1] if complete else None


def _write_log(output: Path, history: list[dict[str, float]]) -> None:
    lines = [json.dumps({k: v for k, v in entry.items() if math.isfinite(v)}) for entry in history if "loss" in entry]
    with replacing_file(output / LOG_FILE) as file:
        file.writelines(line + "\n" for line in lines)
