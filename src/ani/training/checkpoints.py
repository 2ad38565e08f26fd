"""`ResumableTrainer`: saves complete checkpoints, and resumes from the last one to the same loss curve."""

import json
import math
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any, Self, cast

import torch
from accelerate.utils import gather_object
from peft import PeftModel, set_peft_model_state_dict
from peft.utils import load_peft_weights
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState

from ani.errors import TrainingFailed
from ani.files import replacing_file
from ani.injection.adapter import save_adapter
from ani.injection.adapter_files import PEFT_CONFIG_FILE, WEIGHTS_FILE
from ani.injection.methods import MethodName
from ani.injection.model_parts import ani_module, is_attached
from ani.results.records import TRAINING_LOG

ADAPTER = "adapter"
COMPLETE = "complete"
"""Name of an empty file that marks a checkpoint as completely written."""
KEPT = 2
"""Number of checkpoints that are kept."""


class ResumableTrainer(Trainer):
    """transformers' Trainer with our adapter directory and the mark `COMPLETE` in each checkpoint. `method` is the name
    that adapters carry."""

    model: torch.nn.Module

    def __init__(self, *, method: MethodName = "ani", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.method: MethodName = method
        self.folder = Path(cast(str, self.args.output_dir))

    def carry_out(self, *, resume: bool) -> None:
        """Train from the start or from the last complete checkpoint, and save the adapter. After SIGINT or SIGTERM
        raises KeyboardInterrupt or SystemExit, with a checkpoint or, after the last step, the adapter."""
        checkpoint = None
        if resume:
            with self.args.main_process_first(local=False):  # it removes incomplete checkpoints
                checkpoint = _last_checkpoint(self.folder)
        with StopOnSignal(self) as stop:
            self.add_callback(stop)
            if checkpoint is None or not self._is_finished(checkpoint):
                self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            if self.state.global_step == self.state.max_steps:
                self.save_model()
                self.accelerator.wait_for_everyone()
        if stop.signal is not None:
            raise KeyboardInterrupt if stop.signal == signal.SIGINT else SystemExit(128 + stop.signal)

    def _is_finished(self, checkpoint: Path) -> bool:
        """True if a checkpoint is of the last step; it is then loaded, because the Trainer would make one step more."""
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if state.global_step < (self.args.max_steps if self.args.max_steps > 0 else state.max_steps):
            return False
        self.state = state
        self._load_from_checkpoint(str(checkpoint))
        self.write_log()
        return True

    def write_log(self) -> None:
        """Write all log lines, including those before the checkpoint that was resumed."""
        if self.accelerator.is_main_process:
            with replacing_file(self.folder / TRAINING_LOG) as file:
                for line in self.state.log_history:
                    if "loss" in line:
                        file.write(json.dumps({key: v for key, v in line.items() if math.isfinite(v)}) + "\n")

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the adapter in the checkpoint, or in the output folder; raises TrainingFailed if a weight is not
        finite."""
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
        """Prevent resuming from a step whose weights are known to be bad."""
        (self.folder / f"checkpoint-{step}" / COMPLETE).unlink(missing_ok=True)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.control.should_log |= self.control.should_save  # checkpoints lack the sums since the last log line
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        checkpoint = self.folder / f"checkpoint-{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                (checkpoint / COMPLETE).touch()
        except BaseException:
            shutil.rmtree(checkpoint, ignore_errors=True)
            raise
        if self.accelerator.is_main_process:
            for _, old in sorted(_checkpoints(self.folder))[:-KEPT]:
                (old / COMPLETE).unlink(missing_ok=True)  # first, so that a partly removed one is not complete
                shutil.rmtree(old)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        if self.is_fsdp_enabled and resume_from_checkpoint is not None:
            self._load_from_checkpoint(resume_from_checkpoint)
        return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if model is not None:  # sharded by FSDP; its weights were loaded before
            return
        directory = Path(resume_from_checkpoint) / ADAPTER
        if is_attached(self.model):
            ani_module(self.model).load_state_dict(load_file(directory / WEIGHTS_FILE))
        if (directory / PEFT_CONFIG_FILE).is_file():
            set_peft_model_state_dict(cast(PeftModel, self.model), load_peft_weights(str(directory), device="cpu"))


class StopOnSignal(TrainerCallback):
    """Within its block, SIGINT (Ctrl-C) and SIGTERM end training after the running step, with a checkpoint; a second
    Ctrl-C ends it at once. transformers' own `enable_jit_checkpoint` saves within a step, when the random generators
    have moved on: a resumed run would differ."""

    def __init__(self, trainer: Trainer) -> None:
        self.accelerator = trainer.accelerator
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        self.signal = number

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop if any process got a signal: all of them stop after the same step."""
        if self.accelerator.num_processes > 1:
            if self.signal is not None:
                self.accelerator.set_trigger()
            if self.accelerator.check_trigger():
                self.signal = self.signal or signal.SIGTERM
        if self.signal is not None:
            control.should_save = control.should_training_stop = True


def sharded() -> bool:
    """True if `accelerate launch` asks for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def last_step(directory: str | Path) -> int:
    """Step of a run's newest complete checkpoint, 0 without one."""
    return max((step for step, place in _checkpoints(Path(directory)) if (place / COMPLETE).is_file()), default=0)


def _last_checkpoint(output: Path) -> Path | None:
    """Remove incomplete checkpoints and return the newest complete one."""
    for _, directory in _checkpoints(output):
        if not (directory / COMPLETE).is_file():
            shutil.rmtree(directory)
    step = last_step(output)
    return output / f"checkpoint-{step}" if step else None


def _checkpoints(output: Path) -> list[tuple[int, Path]]:
    numbered = ((path.name.removeprefix("checkpoint-"), path) for path in output.glob("checkpoint-*"))
    return [(int(step), path) for step, path in numbered if step.isdecimal()]  # others are the user's own
