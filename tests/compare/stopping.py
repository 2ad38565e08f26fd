"""`ani`, but on a cluster a process stops for good, where a test kills its node: one that trains, one that answers."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ani.cli
from ani.compare import runs
from ani.evaluation.tasks.gates import Gates

lines, answer = runs.training_lines, Gates.answer


def stop(name: str) -> None:
    mark = Path(name)
    if not mark.exists():
        mark.with_suffix(".partial").write_text(str(os.getpid()))
        mark.with_suffix(".partial").rename(mark)
        time.sleep(600)


def stopping_lines(console: Any) -> Callable[[dict[str, Any]], None]:
    def show(line: dict[str, Any]) -> None:
        lines(console)(line)
        if line["step"] == 3 and "early, seed 0" in sys.argv:
            stop("trains")

    return show


def stopping_answer(*args: Any) -> Iterator[Any]:
    for count, answered in enumerate(answer(*args)):
        if count == 2 and "late, seed 0" in sys.argv:
            stop("answers")
        yield answered


runs.training_lines, Gates.answer = stopping_lines, stopping_answer  # type: ignore[method-assign]
ani.cli.main()
