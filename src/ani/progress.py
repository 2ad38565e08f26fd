"""Progress of long work on a terminal, in lines that also read well in a log file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def counting(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how much of `total` is done; the block calls what it is given with each amount."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda amount: progress.update(task, advance=amount)
    console.print(f"{what}: {total} in {_duration(time.monotonic() - started)}")


def training_lines(console: Console) -> Callable[[dict[str, Any]], None]:
    """A printer of training log lines: step, loss, open gates by role, tokens/s and the time left."""
    first: tuple[float, int] | None = None

    def show(line: dict[str, Any]) -> None:
        nonlocal first
        now = time.monotonic()
        first = first or (now, line["step"])
        parts = [f"step {line['step']:>4}/{line['steps']}", f"loss {line['loss']:.3f}"]
        roles = [("quantitative", "quantities"), ("nominal", "names")]
        gates = [f"{label} {line[f'gate_open_{role}']:.0%}" for role, label in roles if f"gate_open_{role}" in line]
        if not gates and "gate_open" in line:
            gates = [f"{line['gate_open']:.0%}"]
        if gates:
            parts.append("gates open: " + ", ".join(gates))
        parts.append(f"{line['tokens_per_second']:.0f} tokens/s")
        if line["step"] > first[1]:
            left = (now - first[0]) / (line["step"] - first[1]) * (line["steps"] - line["step"])
            parts.append(f"{_duration(left)} left")
        console.print("  " + " · ".join(parts), highlight=False, soft_wrap=True)

    return show


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
