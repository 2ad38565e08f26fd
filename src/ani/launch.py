"""Several processes of one command: those of torchrun or `accelerate launch`, and those that a comparison starts."""

import ctypes
import os
import signal
import sys
from pathlib import Path

from ani.errors import InputError

PARENT = "ANI_PARENT"
"""Environment variable: id of the process that started this one."""
ENDING = 300
"""Seconds to wait for another process that works on the same run and is about to end."""


def need_one_process(command: str) -> None:
    """Raise InputError if torchrun or `accelerate launch` started several processes."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(f"ani {command} runs in one process; start it without torchrun or accelerate launch")


def this_program() -> list[str]:
    """Python's arguments that start this program: `-m ani`, or the script of a user who registers tasks."""
    program = Path(sys.argv[0])
    return ["-m", "ani"] if program.name in ("ani", "cli.py", "__main__.py") else [str(program)]


def end_with_parent(parent: str | None = None) -> None:
    """Exit when the process that started this one dies (Linux: PR_SET_PDEATHSIG), or if `parent`, its id, is dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG
    if parent is not None and os.getppid() != int(parent):
        sys.exit(143)
