"""Times two ways of doing the same in turns, and shows ratios beside their aims."""

import argparse
import json
import operator
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from rich.table import Table

from ani.models import DTypeName

ROWS = "ANI_BENCHMARK_ROWS"
"""Environment variable: a file to which `add` also appends each row, as JSON, for the table of `all.py`."""
_COMPARE = {"≤": operator.le, "≥": operator.ge, "<": operator.lt, ">": operator.gt}


def parser(description: str | None, repeats: int) -> argparse.ArgumentParser:
    """Options for the model, its dtype, and the number of pairs."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--model", default="smollm2", help="directory, or name on the hub")
    made.add_argument("--dtype", choices=get_args(DTypeName), default="auto", help="dtype of the weights")
    made.add_argument("--repeats", type=int, default=repeats, help="pairs of runs")
    return made


def ratios(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    repeats: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Time of ours over theirs, pair by pair, so that a machine that changes its speed changes both."""
    found = []
    for repeat in range(warmup + repeats):
        # The order alternates, so that filled caches help each side equally often.
        pair = (ours, theirs) if repeat % 2 else (theirs, ours)
        times = {}
        for function in pair:
            start = clock()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times[function] = clock() - start
        if repeat >= warmup:
            found.append(times[ours] / times[theirs])
    return found


def table(title: str) -> Table:
    """An empty table of ratios."""
    return Table("measure", "median", "min–max", "pairs", "aim", "", title=title)


def add(rows: Table, measure: str, found: Sequence[float], aim: str = "") -> None:
    """Add a row: the median ratio with its spread, and whether it meets the aim, such as `≤ 1.02` (empty: no aim)."""
    median, (sign, _, bound) = statistics.median(found), aim.partition(" ")
    spread = f"{_written(min(found))}–{_written(max(found))}" if len(found) > 1 else ""
    met = "" if not aim else "met" if _COMPARE[sign](median, float(bound)) else "missed"
    row = (measure, _written(median), spread, str(len(found)), aim, met)
    rows.add_row(*row)
    if ROWS in os.environ:
        with Path(os.environ[ROWS]).open("a", encoding="utf-8") as file:
            file.write(json.dumps([str(rows.title), *row]) + "\n")


def show(rows: Table) -> None:
    """Print the table."""
    Console(width=None if sys.stdout.isatty() else 150).print(rows)


def _written(value: float) -> str:
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.001 else f"{value:.1e}"
