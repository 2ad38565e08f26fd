"""`AniTrainer`: packed rows, two learning rates, and gate statistics in the log.

A batch of the Trainer is an optimizer step of several forward passes. Between log lines nothing here reads a value from
the device, because the host would wait for it; only several processes compare their numbers of passes.
"""

import copy
import inspect
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch.utils.data import Sampler
from transformers import PreTrainedModel, SchedulerType
from transformers.trainer_callback import PrinterCallback

from ani.data.collator import IGNORED
from ani.errors import InputError, TrainingFailed, how_to_install
from ani.injection.model_parts import ani_module, base_model, has_gate, is_attached, last_decision
from ani.roles import Role
from ani.training.checkpoints import ResumableTrainer
from ani.training.examples import Examples, LengthGroupedSampler
from ani.training.packing import COLUMNS, PASSES, TOKENS, Packing, StepCollator
from ani.training.recipe import TrainingSettings

SATURATED = 6.0
"""|z| above which σ'(z) < 0.0025, so that a gate gets hardly any gradient."""
UNMOVED = 0.01
"""RMS of e, in units of the hidden state's RMS, below which W_P has taught the model nothing."""


def adamw(model: torch.nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """AdamW for all trained weights: LoRA at `learning_rate`, the ANI module at `module_learning_rate`."""
    ours = list(ani_module(model).parameters()) if is_attached(model) else []
    module = {id(parameter) for parameter in ours}
    lora = [p for p in model.parameters() if p.requires_grad and id(p) not in module]
    groups: list[dict[str, Any]] = [
        {"params": lora, "lr": settings.learning_rate},  # first: its rate is the one that the Trainer logs
        {"params": [p for p in ours if p.requires_grad], "lr": settings.module_learning_rate},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)


def learnt_logits(model: PreTrainedModel, labels: torch.Tensor, learnt: int) -> dict[str, torch.Tensor]:
    """Arguments of a forward pass that computes the learnt logits alone: the head is a fifth of a small model's work.
    `learnt` is `learnt_columns(labels)`. Empty for a model that has no such arguments."""
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        return {}
    following = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    columns = (following != IGNORED).any(dim=0).float().topk(learnt).indices.sort().values
    return {"logits_to_keep": columns, "shift_labels": following[:, columns]}


def number_token_loss(tokenizer: Any, vocabulary: int) -> Any:
    """`ntloss.NTLoss` of a tokenizer. Raises InputError without the package, or if digits are no tokens."""
    try:
        from ntloss.core import NTLoss
    except ModuleNotFoundError as error:
        raise InputError(f"training.number_loss needs the package ntloss; {how_to_install('train')}") from error
    loss = NTLoss(copy.deepcopy(tokenizer), vocab_size=vocabulary)  # it may add tokens
    if int(loss.is_number_token[: len(tokenizer)].sum()) != 10:
        raise InputError("training.number_loss needs a tokenizer with a token for each digit; set it to 0")
    return loss


def training_autocast(model: PreTrainedModel) -> torch.autocast:
    """Return the context of a training forward pass: LoRA's float32 weights multiply in bfloat16 if the base does. A
    base in float16 stays as it is, because it would need scaled losses."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=model.dtype == torch.bfloat16)


def _passes(steps: list[Any]) -> list[dict[str, Any]]:
    return [batch for step in steps for batch in step[PASSES]]


class AniTrainer(ResumableTrainer):
    """Trainer of a model with ANI attached, or of LoRA alone where the method has no module. Raises TrainingFailed if
    the loss is not finite or the gate can learn nothing more.

    `packing` is the largest packed pass (`packing_of`); None: no row is packed. `on_log` is called with each log line
    in the main process: loss, gate statistics, tokens per second (of prompts and answers, without padding), step and
    steps.
    """

    def __init__(
        self,
        *,
        settings: TrainingSettings,
        packing: Packing | None = None,
        on_log: Callable[[dict[str, Any]], None] | None = None,
        **kwargs: Any,
    ) -> None:
        self._collate = StepCollator(kwargs.pop("data_collator"), settings.batch_size, packing)
        super().__init__(data_collator=self._collate, **kwargs)
        self.remove_callback(PrinterCallback)
        self.settings = settings
        self.on_log = on_log
        self._number_totals: torch.Tensor | None = None
        self._number_loss: Any = None
        if settings.number_loss:
            vocabulary = base_model(self.model).config.get_text_config().vocab_size
            self._number_loss = number_token_loss(self.processing_class, vocabulary)
        self._digits: torch.Tensor | None = None  # learnt ones of the step
        self._most_passes = 0  # of the processes in this step
        self._sums: dict[str, torch.Tensor] = {}
        self._tokens = 0
        self._losses: list[tuple[int, torch.Tensor]] = []  # of the steps since the last log line
        self._log_started = time.monotonic()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = adamw(self.model, self.settings)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        if decay := self.settings.decay:
            steps = min(round(decay * num_training_steps), num_training_steps - self.args.warmup_steps)
            self.args.lr_scheduler_type = SchedulerType.WARMUP_STABLE_DECAY
            self.args.lr_scheduler_kwargs = {"num_decay_steps": steps, "decay_type": "linear"}
        return super().create_scheduler(num_training_steps, *args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        steps, num_items = super().get_batch_samples(*args, **kwargs)
        passes = _passes(steps)
        if found := [batch["numbers"].roles for batch in passes if "numbers" in batch]:
            roles = torch.cat(found)
            counts = torch.stack([torch.ones_like(roles).sum(), (roles >= 0).sum()])
            # Totals of the optimizer step: all passes of all processes.
            self._number_totals = self.accelerator.gather(counts.unsqueeze(0)).sum(dim=0)
        if self._number_loss is not None:
            labels = torch.cat([batch["labels"].flatten() for batch in passes])
            digits = self._number_loss.is_number_token.to(labels.device)[labels.clamp(min=0)] & (labels >= 0)
            self._digits = self.accelerator.gather(digits.sum().unsqueeze(0)).sum().clamp(min=1)
        if self.accelerator.num_processes > 1:
            count = torch.tensor([len(passes)], device=self.args.device)
            self._most_passes = int(self.accelerator.gather(count).max())
        return steps, num_items

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        return super()._get_num_items_in_batch(_passes(batch_samples), device)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # nobody reads transformers' estimate, for which a batch is one pass

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        columns = inputs[COLUMNS]
        inputs = {name: value for name, value in inputs.items() if name not in (COLUMNS, TOKENS)}
        inputs |= learnt_logits(base_model(self.model), inputs["labels"], columns)
        # Where the Trainer divides by the labels of the whole step, the module divides by its numbers.
        if num_items_in_batch is not None and "numbers" in inputs:
            inputs = {**inputs, "number_totals": self._number_totals}
        if self._number_loss is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        labels, logits = inputs.get("shift_labels"), outputs.logits
        if labels is None:
            labels, logits = inputs["labels"][:, 1:], logits[:, :-1]
        distance = self._number_loss(logits.float(), labels, reduction="mean" if num_items_in_batch is None else "sum")
        if num_items_in_batch is not None:  # the Trainer adds the passes, and takes the mean of the processes
            distance = distance / self._digits * self.accelerator.num_processes
        loss = loss + self.settings.number_loss * distance
        return (loss, outputs) if return_outputs else loss

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> torch.autocast:
        # accelerate's own (`bf16=True`) copies all logits to float32 once more.
        return training_autocast(base_model(self.model))

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler[int]:
        lengths = [len(example.input_ids) for example in cast(Examples, self.train_dataset).examples]
        filled = self.args.per_device_train_batch_size * self.args.world_size if self.args.world_size > 1 else 1
        self._sampler = LengthGroupedSampler(lengths, self.settings.batch_size, self.args.seed, filled)
        return self._sampler

    def _run_epoch(self, model: Any, epoch: Any, *args: Any, **kwargs: Any) -> None:
        # In a resumed run of several processes accelerate does not reach the sampler: its loader is wrapped too deep.
        self._sampler.set_epoch(epoch)
        super()._run_epoch(model, epoch, *args, **kwargs)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        passes = [*inputs[PASSES]]
        while len(passes) < self._most_passes:  # a shard of FSDP takes part in every pass
            passes += self._collate([cast(Examples, self.train_dataset).nothing])[PASSES]
        self.current_gradient_accumulation_steps = len(passes)
        losses = []
        for place, batch in enumerate(passes, start=1):
            with nullcontext() if place == len(passes) else self.accelerator.no_sync(model):
                losses.append(super().training_step(model, batch, *args, **kwargs))
            self._count(batch)
        loss = torch.stack(losses).sum()
        self._losses.append((self.state.global_step, loss))
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            self._stop_if_not_finite()
            logs |= self._statistics()
        super().log(logs, start_time)
        self.write_log()
        if "loss" in logs:
            if self.on_log is not None and self.accelerator.is_main_process:
                self.on_log({**logs, "step": self.state.global_step, "steps": self.state.max_steps})
            self._stop_if_dead(logs)

    # --- statistics of the numbers since the last log line ---

    def _count(self, inputs: dict[str, Any]) -> None:
        self._tokens += inputs[TOKENS]
        decision = last_decision(self.model)
        if decision is None:
            return
        numbers, injection = decision
        self._add(embedding_ratio=injection.injected_ratio, embedding_rms=injection.embedding_rms)
        if has_gate(self.model):
            logits, alpha = injection.logits, injection.logits.sigmoid()
            self._add(gate_open=logits > 0, gate_undecided=alpha * (1 - alpha), gate_saturated=logits.abs() > SATURATED)
            for name, role in (("quantitative", Role.QUANTITATIVE), ("nominal", Role.NOMINAL)):
                of_role = numbers.roles.to(logits.device) == role
                self._add(of_role, **{f"gate_open_{name}": logits > 0, f"gate_logit_{name}": logits.abs()})

    def _add(self, counted: torch.Tensor | None = None, **values: torch.Tensor) -> None:
        """Add values to their sums and counts, only where `counted` is true if that is given."""
        for key, value in values.items():
            each = torch.ones_like(value, dtype=torch.bool) if counted is None else counted
            sums = torch.stack([part.sum(dtype=torch.float64) for part in (value.detach().where(each, 0), each)])
            self._sums[key] = self._sums[key] + sums if key in self._sums else sums

    def _statistics(self) -> dict[str, float]:
        """Means over the numbers of all processes, and tokens per second of all processes."""
        own = {key: sums.tolist() for key, sums in self._sums.items()} | {TOKENS: [self._tokens, 0]}
        parts, now = gather_object([own]), time.monotonic()
        totals = {key: sum(sums[key][0] for sums in parts if key in sums) for part in parts for key in part}
        counts = {key: sum(sums[key][1] for sums in parts if key in sums) for key in totals}
        logs = {"tokens_per_second": totals.pop(TOKENS) / (now - self._log_started)}
        logs |= {key: total / counts[key] for key, total in totals.items() if counts[key]}
        self._sums, self._tokens, self._log_started = {}, 0, now
        return logs

    def _stop_if_not_finite(self) -> None:
        """Raise TrainingFailed, in all processes, for the first loss since the last log line that is not finite."""
        steps, losses = zip(*self._losses, strict=True)
        values = zip(steps, torch.stack(losses).tolist(), strict=True)
        self._losses = []
        bad = [(step, loss) for step, loss in values if not math.isfinite(loss)]
        if found := gather_object(bad[:1]):
            step, loss = min(found)
            self.discard_checkpoint(step)  # its weights gave this loss
            raise TrainingFailed(
                f"the loss is {loss} at step {step + 1}; checkpoints of earlier steps are kept. Lower "
                "training.learning_rate or module_learning_rate"
            )

    def _stop_if_dead(self, logs: dict[str, float]) -> None:
        # Over all numbers: in a user's own data their roles are seldom known.
        one_sided = logs.get("gate_open") in (0, 1)
        if one_sided and logs["gate_saturated"] == 1 and logs["embedding_rms"] < UNMOVED:
            raise TrainingFailed(
                f"the gate saturated at step {self.state.global_step} ({'open' if logs['gate_open'] else 'closed'} for "
                f"every number, |z| > {SATURATED:g}) before the embeddings moved (RMS {logs['embedding_rms']:.3g}): "
                "it can learn nothing more. Lower ani.penalty, raise ani.penalty_ramp, or lower "
                "training.module_learning_rate"
            )
