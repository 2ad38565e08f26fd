"""One of several processes that carry out a list of training jobs together.

    torchrun … distributed_worker.py jobs.json

A job: `recipe` and `overrides`, or `resume`; with `fsdp`; with `stop`, after which step it is interrupted in every
process; with `tell`, after which step the second process alone gets a SIGTERM, within the next step; or `cli`,
arguments of `ani`. What happened is written beside the jobs, a file a process.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ani.cli import app
from ani.errors import TrainingFailed
from ani.training.recipe import load_recipe
from ani.training.run import resume_recipe, train
from ani.training.trainer import AniTrainer

os.environ["FSDP_VERSION"] = "2"
os.environ["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP"
os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "true"

job: dict[str, Any] = {}
numbers: list[int] = []
logged, counted = AniTrainer.log, AniTrainer._count


def log(self: AniTrainer, logs: dict[str, float], start_time: float | None = None) -> None:
    logged(self, logs, start_time)
    if self.state.global_step == job.get("stop"):
        raise KeyboardInterrupt


def count(self: AniTrainer, inputs: dict[str, Any]) -> None:
    counted(self, inputs)
    numbers.append(len(inputs["numbers"]))
    if self.state.global_step == job.get("tell"):
        if os.environ["RANK"] == "1":
            signal.raise_signal(signal.SIGTERM)
        torch.distributed.barrier()  # the other may be batches ahead, and would end the step


def carry_out() -> dict[str, Any]:
    numbers.clear()
    os.environ["ACCELERATE_USE_FSDP"] = str(job.get("fsdp", False)).lower()
    if "cli" in job:
        app(job["cli"], standalone_mode=False)
        return {}
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
jobs = Path(sys.argv[1])
results = []
for job in json.loads(jobs.read_text()):  # noqa: B007 - the functions above read it
    results.append(carry_out())
(jobs.parent / f"results-{os.environ['RANK']}.json").write_text(json.dumps(results))
