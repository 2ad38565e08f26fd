"""Times two ways of doing the same in turns and tells the ratio; knows nothing about what they do."""

import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table


def ratios(ours: Callable[[], object], theirs: Callable[[], object], repeats: int, warmup: int = 2) -> list[float]:
    """Wall time of ours over theirs, pair by pair, so that a machine that changes its speed changes both."""
    found = []
    for repeat in range(warmup + repeats):
        # The order alternates: whatever the first call leaves in the caches helps each side equally often.
        pair = (ours, theirs) if repeat % 2 else (theirs, ours)
        times = {}
        for function in pair:
            start = time.perf_counter()
            function()
            times[function] = time.perf_counter() - start
        if repeat >= warmup:
            found.append(times[ours] / times[theirs])
    return found


def table(title: str) -> Table:
    """An empty table of ratios."""
    return Table("measure", "median", "min–max", "pairs", "aim", title=title)


def add(rows: Table, measure: str, found: list[float], aim: str) -> None:
    """Add a row: the median ratio with its spread."""
    spread = f"{min(found):.3f}–{max(found):.3f}"
    rows.add_row(measure, f"{statistics.median(found):.3f}", spread, str(len(found)), aim)


def show(rows: Table) -> None:
    """Print the table."""
    Console().print(rows)
