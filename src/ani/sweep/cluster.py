"""`ani compare --ray`: the runs of a comparison as tasks of a Ray cluster, each around a process of its own."""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed, wait
from contextlib import contextmanager
from socket import gethostname
from typing import Any
from uuid import uuid4

from rich.console import Console

from ani.errors import InputError
from ani.launch import PARENT
from ani.models import DEVICE
from ani.sweep.plan import Machine, Plan
from ani.sweep.run import Job, Start, announce, run_command
from ani.sweep.runs import ENDING
from ani.untrusted.text import one_line

RETRIES = 3
"""How often a run is started again, on any node, after its process or node was ended."""


@contextmanager
def on_ray(arguments: Sequence[str], address: str, gpus: int) -> Iterator[tuple[Start, Machine]]:
    """Connect to a Ray cluster and give what starts runs there, and what they compute on: this process uses no card.

    Args:
        arguments: Of `ani compare`.
        address: As `ray.init` takes it; `local` starts Ray on this machine.
        gpus: That each run has for itself; with `--device cpu` it has none.

    Raises:
        InputError: There is no such cluster, or none of its nodes has so many GPUs.
    """
    os.environ |= {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # Ray reads them as it is imported
    import ray

    # A worker has the environment of its node, not of this process.
    env = {name: value for name, value in os.environ.items() if name.startswith(("ANI_", "HF_", "VLLM_"))}
    if os.environ.get(DEVICE) == "cpu":
        gpus, env["CUDA_VISIBLE_DEVICES"] = 0, ""

    # Ray sends the code of a function within one. A worker that imported this module would import torch, which can
    # crash beside Ray's own libraries.
    def look() -> list[Any]:
        code = "import json; from ani.sweep.plan import this_machine; print(json.dumps(this_machine()))"
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
        yield _starting(arguments, gpus), Machine(*ray.remote(num_gpus=gpus)(look).remote().future().result())
    finally:
        ray.shutdown()


def _starting(arguments: Sequence[str], gpus: int) -> Start:
    import ray

    def start(jobs: Sequence[Job], plan: Plan, console: Console) -> Iterator[tuple[Job, int]]:
        folder, mark = os.getcwd(), plan.folder.resolve() / f".ray-{uuid4().hex}"

        def carry_out(command: list[str]) -> tuple[int | None, str]:
            """Exit code and standard error; None: this node doesn't see the driver's files."""
            if not mark.is_file():
                return None, gethostname()
            with tempfile.TemporaryFile("w+") as said:
                env = {**os.environ, PARENT: str(os.getpid())}
                process = subprocess.Popen([sys.executable, *command], cwd=folder, env=env, stderr=said)
                try:
                    while process.poll() is None:
                        time.sleep(0.2)  # ray.cancel interrupts Python's code alone
                finally:
                    process.terminate()
                    process.wait()
                said.seek(0)
                if process.returncode < 0 or process.returncode >= 128:
                    raise ChildProcessError(f"its process was ended with code {process.returncode}: {said.read()}")
                return process.returncode, said.read()

        task = ray.remote(num_gpus=gpus, max_retries=RETRIES, retry_exceptions=True)(carry_out)
        mark.touch()
        # Futures, as a signal that interrupts Ray's own waiting loses its exit code.
        refs = [task.options(name=job.name).remote(run_command(arguments, job.name, plan)[1:]) for job in jobs]
        running = {ref.future(): job for ref, job in zip(refs, jobs, strict=True)}
        try:
            for done in as_completed(running):
                job = running[done]
                try:
                    code, said = done.result()
                except ray.exceptions.RayError as error:
                    code, said = 1, f"{job.name}: {one_line(getattr(error, 'cause', error))}\n"
                if code is None:
                    raise InputError(
                        f"{plan.folder} isn't there on the node {said}; Ray needs a disk that all nodes share"
                    )
                for _ in os.walk(job.folder):  # NFS remembers what was not there a moment ago, until a folder is listed
                    pass
                announce(job, plan, console)
                sys.stderr.write(said)
                yield job, code
        finally:
            for ref in refs:
                ray.cancel(ref)
            wait(running, timeout=ENDING)  # for those that were cancelled to save a checkpoint
            mark.unlink(missing_ok=True)

    return start
