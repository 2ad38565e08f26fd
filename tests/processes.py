"""Work in several processes that share it, started as a launcher starts them; knows nothing about the tests."""

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import TCPStore

from ani.launch import Processes, join


def together(count: int, work: Callable[[Processes], Any]) -> list[int]:
    """Do `work` in so many processes; their exit codes by rank. Forked, as their imports take the longest."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}

    def started(rank: int) -> None:
        os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank), TORCHELASTIC_USE_AGENT_STORE="True")
        torch.set_num_threads(1)
        work(join())

    processes = [start(started, rank) for rank in range(count)]
    end = time.monotonic() + 120
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    waiting = [process for process in processes if process.is_alive()]
    for process in waiting:
        process.kill()
    assert not waiting, "a process waits for another one for ever"
    return [process.exitcode or 0 for process in processes]


def forked(work: Callable[[], Any]) -> int | None:
    """The exit code of `work` in a process of its own, as it changes what signals do."""
    process = start(work)
    process.join(120)
    return process.exitcode


def start(work: Callable[..., Any], *arguments: Any) -> Any:
    """A fork that does `work`."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        process.start()
    return process
