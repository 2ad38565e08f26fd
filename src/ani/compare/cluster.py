"""Runs `ani` commands on a Ray cluster (`--ray`), each in a process of its own on some node."""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed, wait
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple
from uuid import uuid4

from ani.devices import DEVICE
from ani.errors import InputError, one_line
from ani.evaluation.engines import Machine

PARENT = "ANI_PARENT"
"""Environment variable: id of the process that started this one."""
ENDING = 300
"""Seconds to wait for another process that works on the same run and is about to end."""
RETRIES = 3
"""Maximum number of new starts of a command, on any node, after its process or node has ended."""


class Cluster(NamedTuple):
    """A connected Ray cluster; this process uses no GPU."""

    machine: Machine
    """Hardware of a node."""
    gpus: int
    """Number of GPUs of each process."""

    def carry_out(self, commands: Mapping[str, Sequence[str]], folder: Path) -> Iterator[tuple[str, int, str]]:
        """Run `commands`, Python's arguments by name; yields name, exit code and standard error of each as it ends.
        Raises InputError if a node does not see `folder`, the folder of the results."""
        import ray

        here, mark = os.getcwd(), folder.resolve() / f".ray-{uuid4().hex}"

        # Ray sends the code of a nested function. A worker that imported this module would import torch, which can
        # crash next to Ray's own libraries.
        def work(command: Sequence[str]) -> tuple[int | None, str]:
            """Exit code and standard error; None: this node doesn't see the driver's files."""
            if not mark.is_file():
                return None, gethostname()
            with tempfile.TemporaryFile("w+") as said:
                env = {**os.environ, PARENT: str(os.getpid())}
                process = subprocess.Popen([sys.executable, *command], cwd=here, env=env, stderr=said)
                try:
                    while process.poll() is None:
                        time.sleep(0.2)  # ray.cancel interrupts only Python code
                finally:
                    process.terminate()
                    process.wait()
                said.seek(0)
                if process.returncode < 0 or process.returncode >= 128:
                    raise ChildProcessError(f"its process was ended with code {process.returncode}: {said.read()}")
                return process.returncode, said.read()

        task = ray.remote(num_gpus=self.gpus, max_retries=RETRIES, retry_exceptions=True)(work)
        mark.touch()
        # Futures, because a signal that interrupts Ray's own waiting loses its exit code.
        refs = [task.options(name=name).remote(command) for name, command in commands.items()]
        running = {ref.future(): name for ref, name in zip(refs, commands, strict=True)}
        try:
            for done in as_completed(running):
                name = running[done]
                try:
                    code, said = done.result()
                except ray.exceptions.RayError as error:
                    code, said = 1, f"{name}: {one_line(getattr(error, 'cause', error))}\n"
                if code is None:
                    raise InputError(f"node {said} has no {folder}; Ray needs a disk that all nodes share")
                for _ in os.walk(folder):  # NFS remembers what was not there a moment ago, until a folder is listed
                    pass
                yield name, code, said
        finally:
            for ref in refs:
                ray.cancel(ref)
            wait(running, timeout=ENDING)  # cancelled runs save a checkpoint
            mark.unlink(missing_ok=True)


@contextmanager
def on_ray(address: str | None, gpus: int | None) -> Iterator[Cluster | None]:
    """Connect to a Ray cluster.

    Args:
        address: Address for `ray.init`; `local` starts Ray on this machine. None: yields None.
        gpus: Number of GPUs of each process; None: 1. With `--device cpu`: 0.

    Raises:
        InputError: There is no such cluster, or none of its nodes has so many GPUs.
    """
    if address is None:
        if gpus is not None:
            raise InputError("--gpus-per-run needs --ray; without it each run has all GPUs of this machine")
        yield None
        return
    os.environ |= {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # Ray reads them when it is imported
    import ray

    # A worker has the environment of its node, not of this process.
    env = {name: value for name, value in os.environ.items() if name.startswith(("ANI_", "HF_", "VLLM_"))}
    gpus = gpus or 1
    if os.environ.get(DEVICE) == "cpu":
        gpus, env["CUDA_VISIBLE_DEVICES"] = 0, ""

    def look() -> list[Any]:
        code = "import json; from ani.evaluation.engines import this_machine; print(json.dumps(this_machine()))"
        found: list[Any] = json.loads(subprocess.check_output([sys.executable, "-c", code]))
        return found

    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, runtime_env={"env_vars": env}, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"--ray {address}: {one_line(error)}; local starts Ray on this machine") from error
    try:
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own would end this process with another exit code
        if gpus > max(node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]):
            raise InputError(f"--ray {address}: no node has {gpus} GPUs, as --gpus-per-run says; or use --device cpu")
        machine = Machine(*ray.remote(num_gpus=gpus)(look).remote().future().result())
        yield Cluster(machine, gpus)
    finally:
        ray.shutdown()
