"""One of several processes that carry out a list of training jobs together.

    torchrun … distributed_worker.py jobs.json

A job: `recipe` and `overrides`, or `resume`; with `fsdp`; with `stop`, the step after which it is interrupted in every
process; with `signal`, the step within which the second process alone gets a SIGTERM; or `cli`, arguments of `ani`; or
`sft`, a model that TRL trains.
The results of each process are written beside the jobs.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import Trainer

from ani.cli import app
from ani.errors import TrainingFailed
from ani.training.checkpoints import sharded
from ani.training.recipe import load_recipe
from ani.training.run import resume_recipe, train
from ani.training.trainer import AniTrainer

os.environ["FSDP_VERSION"] = "2"
os.environ["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP"
os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "true"

job: dict[str, Any] = {}
numbers: list[int] = []
logged, counted, original = AniTrainer.log, AniTrainer._count, Trainer.create_accelerator_and_postprocess


def log(self: AniTrainer, logs: dict[str, float], start_time: float | None = None) -> None:
    logged(self, logs, start_time)
    if self.state.global_step == job.get("stop"):
        raise KeyboardInterrupt


def count(self: AniTrainer, inputs: dict[str, Any]) -> None:
    counted(self, inputs)
    numbers.append(len(inputs["numbers"]))
    if self.state.global_step == job.get("signal") and os.environ["RANK"] == "1":
        signal.raise_signal(signal.SIGTERM)


def with_fsdp_on_cpus(self: Trainer) -> None:
    """accelerate uses FSDP's settings on accelerators alone; torch can shard on CPUs too."""
    original(self)
    state = self.accelerator.state
    if sharded() and state.distributed_type == DistributedType.MULTI_CPU:
        state.fsdp_plugin = FullyShardedDataParallelPlugin()
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.is_fsdp_enabled = True


def carry_out() -> dict[str, Any]:
    numbers.clear()
    os.environ["ACCELERATE_USE_FSDP"] = str(job.get("fsdp", False)).lower()
    if "cli" in job:
        app(job["cli"], standalone_mode=False)
        return {}
    if "sft" in job:
        from by_trl import train_by_sft  # TRL's import takes seconds

        if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
            import deepspeed

            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would compile for a minute

        return {"sharded": train_by_sft(job["sft"], Path(job["out"]), batch_size=2)}
    lines: list[int] = []
    resume = "resume" in job
    recipe = resume_recipe(job["resume"]) if resume else load_recipe(job["recipe"], job["overrides"])
    try:
        model = train(recipe, resume=resume, on_log=lambda line: lines.append(line["step"]))
    except KeyboardInterrupt:
        return {"interrupted": True}
    except SystemExit as end:
        return {"ended": end.code}
    except TrainingFailed as error:
        return {"error": str(error)}
    return {
        "numbers": [*numbers],
        "lines": lines,
        "units": [name for name, module in model.named_modules() if isinstance(module, FSDPModule)],
        "sharded": all(isinstance(parameter, DTensor) for parameter in model.parameters()),
    }


warnings.simplefilter("ignore")
AniTrainer.log, AniTrainer._count = log, count
Trainer.create_accelerator_and_postprocess = with_fsdp_on_cpus  # type: ignore[method-assign]
jobs = Path(sys.argv[1])
results = []
for job in json.loads(jobs.read_text()):  # noqa: B007 - the functions above read it
    results.append(carry_out())
(jobs.parent / f"results-{os.environ['RANK']}.json").write_text(json.dumps(results))
