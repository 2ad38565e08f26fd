"""Trains ANI, with or without LoRA, as a recipe says; knows nothing about evaluation.

`AniTrainer` is transformers' Trainer: own learning rate for the module, gate statistics in the log, whole checkpoints
or none, and a stop with a reason when there is nothing left to learn from.

Started by accelerate in several processes, each with its environment variables, `train` shares the recipe's batches
among them (DDP, or FSDP 2). All compute the same steps; the main process alone writes.
"""

import inspect
import json
import math
import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self, cast

import torch
from accelerate import PartialState
from accelerate.utils import (
    DistributedType,
    FullyShardedDataParallelPlugin,
    broadcast_object_list,
    gather_object,
    set_seed,
)
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
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.data import Dataset, Sampler
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerState

from ani.data.arithmetic import arithmetic_problems
from ani.data.collator import IGNORED, NumberCollator, TokenizedExample, tokenize
from ani.data.diagnostic import diagnostic_sentences
from ani.data.sources import Example, arithmetic_example, load_hub, read_jsonl, sentence_examples
from ani.errors import InputError, TrainingFailed
from ani.files import alone, naming_full_disk, replacing_file
from ani.injection.adapter import PEFT_CONFIG_FILE, WEIGHTS_FILE, full_tensor, save_adapter
from ani.injection.attach import ani_module, attach, base_model, has_gate, is_attached, last_decision, number_locator
from ani.injection.locate import NOMINAL, QUANTITATIVE, UNKNOWN_ROLE, NumberLocator
from ani.injection.methods import METHODS, MethodName
from ani.models import DTypeName, default_dtype, load_config, load_model, load_tokenizer
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
KEPT = 2
"""Checkpoints. The Trainer's own limit goes by time, and would keep one that a kill left half-removed."""

SATURATED = 6.0
"""|z| beyond which σ'(z) < 0.0025: a gate that gets hardly any gradient."""
UNMOVED = 0.01
"""RMS of e, in units of the hidden state's, below which W_P has taught the model nothing yet."""


NOTHING = -1
"""Index of the example that stands where a process has none left."""


class _StepTotals(NamedTuple):
    """Of an optimizer step: all accumulated batches of all processes."""

    numbers: int
    roles: int
    """Numbers whose role is known."""
    digits: int
    """Labels that are digits."""


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
        self._totals = _StepTotals(0, 0, 0)
        self._sums: dict[str, float] = {}
        self._log_started = time.monotonic()

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if _sharded() and state.distributed_type == DistributedType.MULTI_CPU:
            # accelerate heeds FSDP's settings on accelerators only; torch can do it on CPUs too.
            state.fsdp_plugin = FullyShardedDataParallelPlugin()
            state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.is_fsdp_enabled = True

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
        numbers = [batch["numbers"] for batch in batches if "numbers" in batch]
        digits = 0
        if self._number_token_loss is not None:
            digits = sum(self._number_token_loss.count(batch["labels"][:, 1:]) for batch in batches)
        roles = sum(int((each.roles >= 0).sum()) for each in numbers)
        counts = torch.tensor([[sum(map(len, numbers)), roles, digits]], device=self.args.device)
        self._totals = _StepTotals(*self.accelerator.gather(counts).sum(dim=0).tolist())
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
        # Where the Trainer divides by the labels of the whole step, we divide by its numbers and digits.
        counted = num_items_in_batch is not None
        if counted and "numbers" in inputs:
            inputs = {**inputs, "number_totals": (self._totals.numbers, self._totals.roles)}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self._number_token_loss is not None:
            digits = self._number_token_loss.count(following)
            total = self._number_token_loss.total(outputs["logits"], following)
            mean = self.args.world_size * total / max(1, self._totals.digits) if counted else total / max(1, digits)
            loss = loss + self.number_token_weight * mean
            self._add("number_token_loss", float(total.detach()))
            self._add("digits", digits)
        return (loss, outputs) if return_outputs else loss

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler[int]:
        lengths = [len(example.input_ids) for example in cast(Examples, self.train_dataset).examples]
        self._sampler = LengthGroupedSampler(
            lengths, self.args.per_device_train_batch_size, self.args.seed, self.args.world_size
        )
        return self._sampler

    def _run_epoch(self, model: Any, epoch: Any, *args: Any, **kwargs: Any) -> None:
        # Of a resumed run the loader of several processes is wrapped too deep for accelerate to reach the sampler.
        self._sampler.set_epoch(epoch)
        super()._run_epoch(model, epoch, *args, **kwargs)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(model, inputs, *args, **kwargs)
        if not bool(torch.isfinite(self.accelerator.gather(loss)).all()):
            step = self.state.global_step + 1
            # The weights that made this loss may have been saved a moment ago.
            (self.folder / f"checkpoint-{self.state.global_step}" / COMPLETE).unlink(missing_ok=True)
            rows = [self._decode(row) for row in inputs["input_ids"][:2].tolist()]
            message = (
                f"the loss is {float(loss)} at step {step}, on a batch of {len(inputs['input_ids'])} that begins with "
                f"{rows}; checkpoints of earlier steps are kept. Lower training.learning_rate or module_learning_rate"
            )
            # The processes stop together, and give the reason of the first that has one.
            raise TrainingFailed(next(filter(None, gather_object([None if bool(loss.isfinite()) else message]))))
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
        sums: dict[str, float] = {}
        for part in gather_object([self._sums]):
            for key, value in part.items():
                sums[key] = sums.get(key, 0.0) + value
        self._sums = {}
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

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        directory = Path(output_dir) if output_dir else self.folder
        sharded = any(isinstance(parameter, DTensor) for parameter in self.model.parameters())
        if self.args.should_save or sharded:
            save_adapter(self.model, directory / ADAPTER, method=self.method)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        _check_finite(self.model, self.state.global_step)
        directory = self.folder / f"checkpoint-{self.state.global_step}"
        try:
            with naming_full_disk(directory):
                super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                (directory / COMPLETE).touch()
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if self.args.should_save:
            for _, old in sorted(_checkpoints(self.folder))[:-KEPT]:
                (old / COMPLETE).unlink(missing_ok=True)  # first, so that half of it is never taken for a whole one
                shutil.rmtree(old)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        assert self.optimizer is not None and self.lr_scheduler is not None
        # Whole, as without FSDP: a checkpoint doesn't depend on the processes that wrote it.
        state = self.optimizer.state_dict()
        state["state"] = {
            index: {key: full_tensor(value) for key, value in entry.items()} for index, entry in state["state"].items()
        }
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.is_fsdp_enabled or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        assert self.optimizer is not None and self.lr_scheduler is not None
        state = torch.load(Path(checkpoint) / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for index, entry in state["state"].items():
            shard = cast(DTensor, parameters[index])
            for key, value in entry.items():
                if value.shape == shard.shape:
                    value = value.to(shard.device)
                    entry[key] = distribute_tensor(value, shard.device_mesh, shard.placements)
        self.optimizer.load_state_dict(state)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        if self.is_fsdp_enabled and resume_from_checkpoint is not None:
            self._load_from_checkpoint(resume_from_checkpoint)
        return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if model is not None:  # the sharded model, whose weights were loaded before it was sharded
            return
        directory = Path(resume_from_checkpoint) / ADAPTER
        if is_attached(self.model):
            ani_module(self.model).load_state_dict(load_file(directory / WEIGHTS_FILE))
        if (directory / PEFT_CONFIG_FILE).is_file():
            set_peft_model_state_dict(cast(PeftModel, self.model), load_peft_weights(str(directory), device="cpu"))


def _module_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return list(ani_module(model).parameters()) if is_attached(model) else []


def _check_finite(model: torch.nn.Module, step: int) -> None:
    trained = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters() if p.requires_grad)
    finite = all(bool(torch.isfinite(p).all()) for p in trained)
    if not all(gather_object([finite])):
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


class _StopWhenTold(TrainerCallback):
    """While it is entered, Ctrl-C (SIGINT) and SIGTERM end training after the step, with a checkpoint; a second Ctrl-C
    ends it at once."""

    def __init__(self, console: Console | None) -> None:
        self.console = console
        self.told: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other is told
            self._before = {number: signal.signal(number, self._tell) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _tell(self, number: int, frame: object) -> None:
        # A launcher passes Ctrl-C on to processes that have it already.
        if self.told == number == signal.SIGINT and not _distributed():
            raise KeyboardInterrupt
        self.told = number
        if self.console is not None:
            at_once = "" if _distributed() else "; Ctrl-C again: at once"
            self.console.print(f"ending after this step, with a checkpoint{at_once}", highlight=False)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if _distributed():  # all processes must end after the same step
            told = torch.tensor(self.told or 0, device=args.device)
            torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
            self.told = int(told) or None
        if self.told is not None:
            control.should_save = control.should_training_stop = True

    def end(self) -> None:
        """End the process as it was told to, if it was."""
        if self.told == signal.SIGINT:
            raise KeyboardInterrupt
        if self.told is not None:
            raise SystemExit(128 + self.told)


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class LengthGroupedSampler(Sampler[int]):
    """Random order in which the rows of a batch have similar lengths, so that little is padded.

    The order depends on seed and epoch alone: a resumed run skips what it has seen and meets the rest as before. The
    processes take its batches in turn; `NOTHING` fills up the last round, so that all of them have a batch.
    """

    POOL = 32
    """Batches whose rows are sorted together; the smaller, the more random, the larger, the less padding."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, processes: int = 1) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.filling = -len(lengths) % (batch_size * processes) if processes > 1 else 0
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; the Trainer calls it."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths) + self.filling

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
        return (row for batch in [*batches, *last, [NOTHING] * self.filling] for row in batch)


class Examples(Dataset[TokenizedExample]):
    """The examples; at `NOTHING` one without a number or anything to learn."""

    def __init__(self, examples: list[TokenizedExample], pad_id: int) -> None:
        self.examples = examples
        self.nothing = TokenizedExample([pad_id], 1, [UNKNOWN_ROLE])

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> TokenizedExample:
        return self.nothing if index == NOTHING else self.examples[index]


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
    state = PartialState()
    dtype, device = recipe.dtype, str(state.device) if state.num_processes > 1 and torch.cuda.is_available() else None
    if _sharded() and recipe.quantization == "none":
        # It may be too large for one GPU: shards are moved there.
        device = "cpu"
        if dtype == "auto" and torch.cuda.is_available():
            dtype = cast(DTypeName, str(default_dtype("cuda")).removeprefix("torch."))
    model: torch.nn.Module = load_model(recipe.model, dtype=dtype, quantization=recipe.quantization, device=device)
    set_seed(recipe.seed)
    model.requires_grad_(False)
    if recipe.lora is not None:
        if recipe.quantization != "none":
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        model = get_peft_model(cast(Any, model), lora_config(recipe.lora))
    if recipe.ani is not None:
        config = recipe.ani.config()
        if state.is_main_process:
            attach(model, tokenizer, config)
        # Told, not measured by each: accelerate may have left the weights to the main process until they are sharded.
        scale = broadcast_object_list([ani_module(model).scale if state.is_main_process else None])[0]
        if not state.is_main_process:
            attach(model, tokenizer, config.model_copy(update={"embedding_scale": scale}))
    return model, tokenizer


def _sharded() -> bool:
    """Whether accelerate's launcher asks for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def check(recipe: Recipe, *, resume: bool = False, processes: int | None = None) -> None:
    """Raise InputError for what can be told before anything is loaded: no place for the output, or settings that
    contradict each other, or can't be carried out by so many processes (None: by those that run)."""
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
    processes = processes or int(os.environ.get("WORLD_SIZE", "1"))
    if recipe.training.gradient_accumulation % processes:
        raise InputError(
            f"{processes} processes can't share training.gradient_accumulation="
            f"{recipe.training.gradient_accumulation} batches a step; make it a multiple of {processes}, and "
            "training.batch_size smaller if the step shall stay as large"
        )
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        raise InputError("DeepSpeed isn't supported; launch with FSDP 2 (--use_fsdp --fsdp_version 2)")
    if _sharded() and os.environ.get("FSDP_VERSION") != "2":
        raise InputError("FSDP 1 isn't supported; launch with --fsdp_version 2")


def train(
    recipe: Recipe,
    *,
    resume: bool = False,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    console: Console | None = None,
) -> torch.nn.Module:
    """Carry out a recipe; the adapter lies in `<output>/adapter` when it returns.

    In several processes each calls it alike. They share the `gradient_accumulation` batches of a step, so that the
    recipe gives the same training in any number of them, but for dropout.

    Args:
        recipe: Validated.
        resume: Go on from the last complete checkpoint in `recipe.output` (from the start if there is none).
        on_log: Called with each log line in the main process: loss, gate statistics, tokens/s, step and steps.
        console: For the progress of probing, and the layer that it finds; None: silent.

    Returns:
        The trained model, in evaluation mode; with FSDP it is sharded.

    Raises:
        InputError: If the recipe can't be carried out as it is, or another process works on its output.
        TrainingFailed: If the loss is no longer finite or the gate is dead; the last good checkpoint is kept.
        KeyboardInterrupt, SystemExit: After SIGINT (Ctrl-C) or SIGTERM, with a checkpoint of the step they came in.
        OSError: If the disk is full; checkpoints of earlier steps are kept.
    """
    with alone(Path(recipe.output)):
        check(recipe, resume=resume)
        return _train(recipe, resume, on_log, console)


def _train(
    recipe: Recipe, resume: bool, on_log: Callable[[dict[str, Any]], None] | None, console: Console | None
) -> torch.nn.Module:
    output = Path(recipe.output)
    arguments = _arguments(recipe)
    main = arguments.process_index == 0
    examples = load_examples(recipe)
    # The main process writes first when all have seen that the output is free. The others find what it probed.
    arguments.distributed_state.wait_for_everyone()
    (recipe_with_layer,) = broadcast_object_list([with_layer(recipe, console) if main else None])
    model, tokenizer = prepare(cast(Recipe, recipe_with_layer))
    locator = number_locator(model) if is_attached(model) else None
    collator = NumberCollator(tokenizer, locator)
    dataset = Examples(_tokenized(examples, tokenizer, locator, recipe.training.max_length), collator.pad_id)
    stop = _StopWhenTold(console)
    trainer = AniTrainer(
        module_learning_rate=recipe.training.module_learning_rate,
        method=recipe.method,
        number_token_loss=recipe.training.number_token_loss,
        model=model,
        args=arguments,
        train_dataset=dataset,
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[stop, _LogAtCheckpoints(), *([_Report(on_log)] if on_log is not None and main else [])],
    )
    if main:
        save_recipe(recipe, output / RECIPE_FILE)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    with arguments.main_process_first(local=False):  # it removes what the others shall not see
        checkpoint = _last_checkpoint(output) if resume else None
    if arguments.world_size > 1:
        set_seed(recipe.seed, device_specific=True)  # each drops out its own
    with warnings.catch_warnings(), stop:
        # torch warns about a pin_memory that has no effect without an accelerator.
        warnings.filterwarnings("ignore", message=".*pin_memory.*")
        # accelerate's FSDP leaves 4-bit weights whole; the README says so.
        warnings.filterwarnings("ignore", message="Found .* non-floating frozen Params4bit")
        if checkpoint is not None and (history := _ended(checkpoint, recipe)) is not None:
            trainer._load_from_checkpoint(str(checkpoint))  # the Trainer would make one step more
            if main:
                _write_log(output, history)
        else:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.state.global_step < trainer.state.max_steps:
        stop.end()
    _check_finite(model, trainer.state.global_step)
    trainer.save_model(str(output))
    trainer.accelerator.wait_for_everyone()
    stop.end()
    return model.eval()


def resume_recipe(directory: str | Path) -> Recipe:
    """The recipe of an interrupted run."""
    directory = Path(directory)
    if not (directory / RECIPE_FILE).is_file():
        raise InputError(f"{directory} holds no {RECIPE_FILE}, so no run to resume; start it with ani train RECIPE")
    if (directory / ADAPTER).is_dir():
        raise InputError(f"the run in {directory} is finished: its adapter is {directory / ADAPTER}")
    return load_recipe(directory / RECIPE_FILE).model_copy(update={"output": str(directory)})


def _arguments(recipe: Recipe) -> TrainingArguments:
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
        use_cpu=not torch.cuda.is_available(),
        # Every process touches every trained parameter, also where its batch holds no number.
        ddp_find_unused_parameters=False,
        ddp_timeout=7200,  # the others wait while the main process probes
    )
    arguments.gradient_accumulation_steps = settings.gradient_accumulation // arguments.world_size
    # With several GPUs in one process the Trainer would use nn.DataParallel, which can't split a NumberBatch.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def last_step(directory: str | Path) -> int:
    """The step of a run's newest complete checkpoint; 0: there is none."""
    return max((step for step, place in _checkpoints(Path(directory)) if (place / COMPLETE).is_file()), default=0)


def _last_checkpoint(output: Path) -> Path | None:
    """The newest complete checkpoint; half-written ones are removed."""
    for _, directory in _checkpoints(output):
        if not (directory / COMPLETE).is_file():
            shutil.rmtree(directory)
    step = last_step(output)
    return output / f"checkpoint-{step}" if step else None


def _ended(checkpoint: Path, recipe: Recipe) -> list[dict[str, float]] | None:
    """The log lines up to a checkpoint that has no step after it; None: it has."""
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    return state.log_history if state.global_step >= (recipe.training.steps or state.max_steps) else None


def _checkpoints(output: Path) -> list[tuple[int, Path]]:
    numbered = ((path.name.removeprefix("checkpoint-"), path) for path in output.glob("checkpoint-*"))
    return [(int(step), path) for step, path in numbered if step.isdecimal()]  # others are the user's own


def _write_log(output: Path, history: list[dict[str, float]]) -> None:
    lines = [json.dumps({k: v for k, v in entry.items() if math.isfinite(v)}) for entry in history if "loss" in entry]
    with replacing_file(output / LOG_FILE) as file:
        file.writelines(line + "\n" for line in lines)
