"""Starts the processes of one training, and reads what `accelerate launch` or torchrun started."""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

from ani.errors import InputError

PARENT = "ANI_PARENT"
"""Environment variable: the id of the process that starts a run's."""
ENDING = 300
"""Seconds to wait for another process that works on the same run, and is about to end."""
_FAILURES, _EXIT_CODE = "ani/failures", "ani/exit code"


def launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


def need_one_process(command: str) -> None:
    """Raises InputError if a launcher or srun started several, which a command can't share its work among."""
    if launched():
        raise InputError(f"ani {command} is the work of one process; start it without a launcher")
    if (tasks := _tasks()) > 1:
        raise InputError(f"ani {command} is the work of one process, and srun started {tasks}; say srun --ntasks 1")


def need_launcher(arguments: str) -> None:
    """Raises InputError if srun started several processes of `ani` with these arguments that don't know each other."""
    if not launched() and (tasks := _tasks()) > 1:
        raise InputError(
            f"srun started {tasks} processes that don't know each other; have it start one torchrun on each node: srun "
            "--ntasks-per-node 1 torchrun --nnodes $SLURM_NNODES --nproc-per-node gpu --rdzv-backend c10d "
            f"--rdzv-endpoint HOST:29500 -m ani.cli {arguments}, where HOST is the first node (docs/cluster.md)"
        )


def _tasks() -> int:
    """How many tasks srun started; 1 in an sbatch script, which has SLURM_NTASKS too."""
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))


def this_program() -> list[str]:
    """Arguments with which Python starts this program: `-m ani.cli`, or the script of a user who registers tasks."""
    program = Path(sys.argv[0])
    return ["-m", "ani.cli"] if program.name in ("ani", "cli.py", "__main__.py") else [str(program)]


def end_with_parent(parent: str | None = None) -> None:
    """Exit when the process that started this one dies (Linux: PR_SET_PDEATHSIG), or if `parent` was it and is dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG
    if parent is not None and os.getppid() != int(parent):
        sys.exit(143)


def fail(code: int, say: Callable[[], None]) -> NoReturn:
    """End this process. Of several that fail the first one says why, and its exit code is that of the others."""
    store = None
    if launched():
        try:
            store = shared_store()
            if store.add(_FAILURES, 1) > 1:
                # Not before the first one has spoken: the launcher ends it as soon as another one ends.
                store.wait([_EXIT_CODE], timedelta(minutes=1))
                sys.exit(int(store.get(_EXIT_CODE)))
        except (RuntimeError, ValueError):  # the first one was killed, or there is no launcher
            store = None
    say()
    if store is not None:
        store.set(_EXIT_CODE, str(code))
    sys.exit(code)


def launch(arguments: Sequence[str], *, processes: int, fsdp: bool = False) -> int:
    """Carry out `ani` with these arguments in several processes of this machine, as `accelerate launch` would; each
    takes a GPU where there are any. With `fsdp` training is fully sharded (FSDP 2); else each has a whole model (DDP).

    Not by a process of its own: that would write a traceback below the sentence of the one that failed, and end with 1.

    Returns the exit code of the process that failed first, or 128 and the signal that ended this one; else 0. Raises
    ChildProcessError if a process was killed, InputError if there are GPUs, but fewer.
    """
    import torch
    from accelerate.commands.launch import launch_command_parser, multi_gpu_launcher
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if 0 < torch.cuda.device_count() < processes:
        raise InputError(
            f"--processes {processes} needs a GPU for each, and this machine has {torch.cuda.device_count()}"
        )
    # `--multi_gpu` is also what makes it start several processes where there is no GPU; port 0 is any that is free.
    options: dict[str, object] = {
        "num_processes": processes,
        "num_machines": 1,
        "mixed_precision": "no",
        "dynamo_backend": "no",
        "gpu_ids": "all",
        "main_process_port": 0,
        "num_cpu_threads_per_process": max(1, torch.get_num_threads() // processes),
    }
    if fsdp:
        options |= {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": "true",
            "fsdp_cpu_ram_efficient_loading": "true",
        }
    given = [f"--{name}={value}" for name, value in options.items()]
    command = ["--use_fsdp" if fsdp else "--multi_gpu", *given, "-m", "ani.cli", *arguments]
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes speak for themselves
    # Told to end, a process finishes its batch and writes a checkpoint.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "300")
    try:
        # Not its `launch_command`, which takes what isn't said here from the user's configuration file.
        multi_gpu_launcher(launch_command_parser().parse_args(command))
    except SignalException as error:
        return 128 + cast(int, error.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            raise ChildProcessError(f"process {rank} was ended by {name}; is there memory for all of them?") from error
        return failure.exitcode
    return 0


@cache
def shared_store() -> Any:
    """The launcher's store (torch's `Store`), which all processes read and write."""
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://", timeout=timedelta(minutes=5)))[0]
