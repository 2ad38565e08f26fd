"""Starts `ani` in several processes of this machine, by accelerate; knows nothing about training."""

import logging
import os
from collections.abc import Sequence

import torch
from accelerate.commands.launch import launch_command, launch_command_parser
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from ani.errors import InputError

_FSDP = {
    "--fsdp_version": "2",
    "--fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "--fsdp_reshard_after_forward": "true",
    "--fsdp_cpu_ram_efficient_loading": "true",
}


def launch(arguments: Sequence[str], *, processes: int, fsdp: bool = False) -> int:
    """Run `ani` with these arguments as `accelerate launch` would, until all processes end.

    Args:
        arguments: As on the command line, without `ani` itself.
        processes: How many; each takes a GPU where there are any.
        fsdp: Fully sharded (FSDP 2) instead of a whole model in every process (DDP).

    Returns:
        The exit code of the process that failed first, 128 more than the signal that ended it; else 0.

    Raises:
        InputError: There are GPUs, but fewer.
    """
    gpus = torch.cuda.device_count()
    if 0 < gpus < processes:
        raise InputError(f"--processes {processes} needs a GPU for each, and this machine has {gpus}")
    if not gpus:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    # All that accelerate would warn that it chose by itself; port 0 is any that is free.
    options = {
        "--num_processes": str(processes),
        "--num_machines": "1",
        "--mixed_precision": "no",
        "--dynamo_backend": "no",
        "--main_process_port": "0",
        **(_FSDP if fsdp else {}),
    }
    command = ["--use_fsdp" if fsdp else "--multi_gpu", *(part for option in options.items() for part in option)]
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes speak for themselves
    try:
        launch_command(launch_command_parser().parse_args([*command, "-m", "ani.cli", *arguments]))
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code >= 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0
