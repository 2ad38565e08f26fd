"""`ResumableTrainer`: saves checkpoints, and resumes from the last complete one; incomplete ones are deleted.

`ani.training.run` starts or resumes a run. A checkpoint doesn't depend on the processes that wrote it: what FSDP 2
sharded is put together first.
"""

import itertools
import json
import math
import os
import shutil
import signal
import threading
from copy import copy
from pathlib import Path
from typing import Any, Self, cast

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, gather_object
from peft import PeftModel, set_peft_model_state_dict
from peft.utils import load_peft_weights
from rich.console import Console
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import Trainer, TrainerCallback
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState

from ani.errors import TrainingFailed
from ani.files import naming_full_disk, replacing_file
from ani.injection.adapter import full_tensor, save_adapter
from ani.injection.adapter_files import PEFT_CONFIG_FILE, WEIGHTS_FILE
from ani.injection.attach import ani_module, is_attached
from ani.injection.methods import MethodName
from ani.launch import launched, shared_store
from ani.results.records import TRAINING_LOG

ADAPTER = "adapter"
COMPLETE = "complete"
"""Marks a checkpoint whose every file was written."""
KEPT = 2
"""Checkpoints. The Trainer's own limit goes by time, and would keep one that a kill left half-removed."""


class ResumableTrainer(Trainer):
    """transformers' Trainer with our adapter directory and a mark in each checkpoint, under DDP and FSDP 2. `method` is
    the name that adapters carry."""

    model: torch.nn.Module
    SINCE_LOG: tuple[str, ...] = ("_tr_loss",)
    """Attributes that sum up what the next log line tells."""

    def __init__(self, *, method: MethodName = "ani", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.method: MethodName = method
        self.folder = Path(cast(str, self.args.output_dir))

    def carry_out(self, *, resume: bool, console: Console) -> None:
        """Train, or go on from the last complete checkpoint, and leave the adapter. After SIGINT or SIGTERM it raises
        KeyboardInterrupt or SystemExit, with a checkpoint or, at the last step, the adapter."""
        checkpoint = None
        if resume:
            with self.args.main_process_first(local=False):  # it removes what the others shall not see
                checkpoint = _last_checkpoint(self.folder)
        with _StopWhenTold(self, console) as stop:
            self.add_callback(stop)
            if checkpoint is None or not self._ended(checkpoint):
                self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if self.state.global_step < self.state.max_steps:
            stop.end()
        self.save_model()
        self.accelerator.wait_for_everyone()
        stop.end()

    def _ended(self, checkpoint: Path) -> bool:
        """Take over a checkpoint that has no step after it: the Trainer would make one more."""
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if state.global_step < (self.args.max_steps if self.args.max_steps > 0 else state.max_steps):
            return False
        self.state = state
        self._load_from_checkpoint(str(checkpoint))
        self.write_log()
        return True

    def remember(self) -> None:
        """Snapshot what a running step changes beside gradients: sums and random generators."""
        found = {name: getattr(self, name) for name in self.SINCE_LOG}
        # A tensor is added to in place; a list or dict gets new ones.
        self._whole = {name: each.clone() if torch.is_tensor(each) else copy(each) for name, each in found.items()}
        self._random = [(torch, torch.get_rng_state())]
        if self.args.device.type == "cuda":
            self._random += [(torch.cuda, torch.cuda.get_rng_state())]

    def forget_unfinished(self) -> None:
        """Restore the snapshot of the last whole step; gradients stay."""
        vars(self).update(self._whole)
        for generator, state in self._random:
            generator.set_rng_state(state)

    def write_log(self) -> None:
        """Write all log lines up to now, those of the run that this one resumes too."""
        if self.accelerator.is_main_process:
            with replacing_file(self.folder / TRAINING_LOG) as file:
                for line in self.state.log_history:
                    if "loss" in line:
                        file.write(json.dumps({key: v for key, v in line.items() if math.isfinite(v)}) + "\n")

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if sharded() and state.distributed_type == DistributedType.MULTI_CPU:
            # accelerate heeds FSDP's settings on accelerators only; torch can do it on CPUs too.
            state.fsdp_plugin = FullyShardedDataParallelPlugin()
            state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.is_fsdp_enabled = True

    # --- saving ---

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        parameters = list(self.model.parameters())
        trained = (p.to_local() if isinstance(p, DTensor) else p for p in parameters if p.requires_grad)
        if not all(gather_object([all(bool(torch.isfinite(p).all()) for p in trained)])):
            raise TrainingFailed(
                f"the weights are no longer finite after step {self.state.global_step}; checkpoints of earlier steps "
                "are kept. Lower training.learning_rate or module_learning_rate"
            )
        if self.accelerator.is_main_process or any(isinstance(parameter, DTensor) for parameter in parameters):
            save_adapter(self.model, Path(output_dir or self.folder) / ADAPTER, method=self.method)

    def discard_checkpoint(self, step: int) -> None:
        """Let nobody resume from a step whose weights turned out to be bad."""
        (self.folder / f"checkpoint-{step}" / COMPLETE).unlink(missing_ok=True)

    @property
    def _checkpoint(self) -> Path:
        return self.folder / f"checkpoint-{self.state.global_step}"

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.control.should_log |= self.control.should_save  # sums since the last log line aren't in a checkpoint
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        try:
            with naming_full_disk(self._checkpoint):
                super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                (self._checkpoint / COMPLETE).touch()
        except BaseException:
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            raise
        if self.accelerator.is_main_process:
            for _, old in sorted(_checkpoints(self.folder))[:-KEPT]:
                (old / COMPLETE).unlink(missing_ok=True)  # first, so that half of it is never taken for a whole one
                shutil.rmtree(old)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        assert self.optimizer is not None and self.lr_scheduler is not None
        state = self.optimizer.state_dict()
        state["state"] = {
            index: {key: full_tensor(value) for key, value in entry.items()} for index, entry in state["state"].items()
        }
        if self.accelerator.is_main_process:
            torch.save(state, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    # --- loading ---

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


_runs = itertools.count()


class _StopWhenTold(TrainerCallback):
    """While it is entered, Ctrl-C (SIGINT) and SIGTERM end training after the running batch, with a checkpoint of the
    last whole step; a second Ctrl-C ends it at once."""

    def __init__(self, trainer: ResumableTrainer, console: Console) -> None:
        self.trainer, self.console = trainer, console
        self.signal: int | None = None
        self._before: dict[int, Any] = {}
        self._saved = 0  # the step
        self._batches = 0
        self._key = f"ani/batches of training {next(_runs)}"  # the same in all processes

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other is told
            self._before = {number: signal.signal(number, self._tell) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _tell(self, number: int, frame: object) -> None:
        # A launcher passes Ctrl-C on to processes that have it already.
        if self.signal == number == signal.SIGINT and not launched():
            raise KeyboardInterrupt
        self.signal = number
        at_once = "" if launched() else "; Ctrl-C again: at once"
        what = "ending after this batch, with a checkpoint of the last whole step"
        self.console.print(what + at_once, highlight=False, soft_wrap=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = state.global_step

    on_save = on_train_begin

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The optimizer hasn't stepped, and FSDP has no layer gathered.
        if self._ends():
            self.trainer.forget_unfinished()
            control.should_save, control.should_training_stop = state.global_step > self._saved, True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.remember()
        if self._ends():
            control.should_save = control.should_training_stop = True

    def _ends(self) -> bool:
        """Whether training ends after this batch. Of several processes the first that comes here decides it for all:
        so none waits for another, and FSDP, whose processes share every batch, has none half done."""
        if not launched():
            return self.signal is not None
        store, told = shared_store(), f"{self._key}: told"
        if self.signal is not None:
            store.set(told, str(self.signal))
        elif store.check([told]):
            self.signal = int(store.get(told))
        last = f"{self._batches} 0" if self._batches else ""
        self._batches += 1
        found = store.compare_set(self._key, last, f"{self._batches} {self.signal or 0}")
        batches, number = map(int, found.split())
        if batches != self._batches or number == 0:
            return False
        self.signal = number
        return True

    def end(self) -> None:
        """End the process as it was told to, if it was."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise SystemExit(128 + self.signal)


def sharded() -> bool:
    """Whether accelerate's launcher asks for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


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


def _checkpoints(output: Path) -> list[tuple[int, Path]]:
    numbered = ((path.name.removeprefix("checkpoint-"), path) for path in output.glob("checkpoint-*"))
    return [(int(step), path) for step, path in numbered if step.isdecimal()]  # others are the user's own
