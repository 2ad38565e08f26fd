"""Work in forks of this process, whose imports needn't be made again."""

import multiprocessing
import warnings
from collections.abc import Callable
from typing import Any


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
