"""Console, progress, error messages and exit codes of all commands."""

import errno
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ani.errors import InputError, TrainingFailed, how_to_install
from ani.files import is_main

console = Console() if sys.stdout.isatty() else Console(width=120)
console.quiet = not is_main()  # only one of several processes prints
SILENT = Console(quiet=True)


def console_for(as_json: bool) -> Console:
    """The console for progress and tables; a silent one if a script reads JSON."""
    return SILENT if as_json else console


def say_where(what: str, where: Path | str, how: str = "") -> None:
    """Print where a command has written its result."""
    console.print(f"The {what}: [bold]{escape(str(where))}[/bold]{how}", soft_wrap=True)


# typer is built on click or on its own copy of it, by version; this is the base of either's usage errors.
_UsageError: Any = typer.BadParameter.__bases__[0]


def run(app: typer.Typer) -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 bad input, 130 interrupted, 143 ended by SIGTERM."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers' bars too
    only_ours()
    try:
        code = app(standalone_mode=False)  # what a command returns, or the code of an Exit such as Ctrl-C's
        if code == 130:
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except InputError as error:
        _fail(str(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        _say("[yellow]interrupted:[/yellow]", "start the same command again")
        sys.exit(130)
    except OSError as error:
        wrong_path = (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
        if not isinstance(error, wrong_path) and error.errno != errno.EROFS:
            _unexpected(error)
        _fail(f"{error.filename}: {error.strerror}; name another path", 2)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(2)
        _fail(error.format_message(), 2)
    except ModuleNotFoundError as error:
        extra = {"gradio": "playground", "ray": "cluster"}.get(error.name or "", "train,eval")
        _fail(f"the package {error.name} is missing; {how_to_install(extra)}", 2)
    except Exception as error:
        _unexpected(error)


def only_ours() -> None:
    """Print our own warnings only; those of other libraries, and logs, are shown with `ANI_TRACEBACK=1`."""
    if not os.environ.get("ANI_TRACEBACK"):
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch reads both when it is imported
        os.environ.setdefault("TORCH_LOGS", "-all")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        logging.getLogger().addHandler(logging.NullHandler())  # without a handler Python prints the logs of libraries
        warnings.showwarning = _note


@contextmanager
def resumable(how: str | Callable[[], str]) -> Iterator[None]:
    """Print `how` to continue after Ctrl-C or SIGTERM."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        if not console.quiet:
            _say("[yellow]interrupted:[/yellow]", how if isinstance(how, str) else how())
        raise SystemExit(130 if isinstance(end, KeyboardInterrupt) else end.code) from end


def _note(
    message: Warning | str, category: object, filename: str, lineno: int, file: object = None, line: object = None
) -> None:
    if Path(filename).is_relative_to(Path(__file__).parent):
        _say("[yellow]note:[/yellow]", str(message))


def _terminated(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
    sys.exit(143)  # an exception, so that files and locks are cleaned up


def _unexpected(error: Exception) -> NoReturn:
    if os.environ.get("ANI_TRACEBACK"):
        raise error
    hint = f"{type(error).__name__}: {error} (set ANI_TRACEBACK=1 for the traceback)"
    _fail(str(error) if isinstance(error, TrainingFailed) else hint, 1)


def _fail(message: str, code: int) -> NoReturn:
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:  # the signal's exception broke what it ended, as an import
        sys.exit(143)
    _say("[bold red]error:[/bold red]", message)
    sys.exit(code)


def _say(mark: str, message: str) -> None:
    Console(stderr=True).print(f"{mark} {escape(' '.join(message.split()))}", soft_wrap=True, highlight=False)


def chosen(what: str, text: str, known: Collection[str]) -> list[str]:
    """The names in a comma-separated list; raises InputError if a name is unknown or there is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        near = [close for name in unknown for close in get_close_matches(name.lower(), known, n=1)]
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise InputError(f"unknown {what} {', '.join(unknown) or text!r}; {hint}known are {', '.join(known)}")
    return names


def integers(option: str, text: str) -> list[int]:
    """The integers in a comma-separated list; raises InputError for anything else."""
    names = [name.strip() for name in text.split(",")]
    if not all(name.isdecimal() for name in names):
        raise InputError(f"{option} must be numbers such as 4,9,14, not {text!r}")
    return [int(name) for name in names]


def name_and_value(option: str, entry: str) -> tuple[str, str]:
    """The two sides of NAME=VALUE; raises InputError for anything else."""
    name, sign, value = entry.partition("=")
    if not (name and sign and value):
        raise InputError(f"{option} must be like gsm8k=PATH, not {entry!r}")
    return name.strip(), value


# --- progress, in lines that also read well in a log file -------------------------------------------------------------


SECONDS_BETWEEN_LINES = 20.0
"""Shortest time between two progress lines where the console is not a terminal."""


@contextmanager
def counting(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how much of `total` is done, as a bar in a terminal, else as a line every `SECONDS_BETWEEN_LINES`. The block
    calls the yielded function with each finished amount."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(what, total=total)
        (task,), shown = progress.tasks, 0.0

        def count(amount: int) -> None:
            nonlocal shown
            progress.advance(task.id, amount)
            passed = task.elapsed or 0.0
            if not console.is_terminal and passed - shown >= SECONDS_BETWEEN_LINES and not task.finished:
                shown = passed
                console.print(f"{what}: {task.completed:.0f} of {total} after {_duration(passed)}", highlight=False)

        yield count
    console.print(f"{what}: {total} in {_duration(task.elapsed or 0.0)}")


def training_lines(console: Console) -> Callable[[dict[str, Any]], None]:
    """A function that prints lines of the training log: step, loss, open gates by role, tokens per second and time
    left."""
    first: tuple[float, int] | None = None

    def show(line: dict[str, Any]) -> None:
        nonlocal first
        now = time.monotonic()
        first = first or (now, line["step"])
        parts = [f"step {line['step']:>4}/{line['steps']}", f"loss {line['loss']:.3f}"]
        roles = {"gate_open_quantitative": "quantities ", "gate_open_nominal": "names "}
        labels = roles if roles.keys() & line.keys() else {"gate_open": ""}
        if gates := [f"{label}{line[key]:.0%}" for key, label in labels.items() if key in line]:
            parts.append("gates open: " + ", ".join(gates))
        parts.append(f"{line['tokens_per_second']:.0f} prompt and answer tokens/s")
        if line["step"] > first[1]:
            left = (now - first[0]) / (line["step"] - first[1]) * (line["steps"] - line["step"])
            parts.append(f"{_duration(left)} left")
        console.print("  " + " · ".join(parts), highlight=False, soft_wrap=True)

    return show


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
