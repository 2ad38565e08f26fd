"""`ani compare`: every run in a process of its own, one after another or over a Ray cluster; then the tables.

Started again, it goes on: a run's folder is named by a hash of recipe, data and code, and what stands there is not done
again.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from ani.errors import InputError, TrainingFailed
from ani.files import only_process_in, replacing_directory, replacing_file
from ani.hardware import where
from ani.results.files import LAYERS, SELECTION
from ani.settings import save_settings
from ani.sweep.plan import Plan, Probe, SweepRun, load_plan
from ani.sweep.runs import carry_out
from ani.sweep.tables import notes_of, show, write_report
from ani.training.checkpoints import ADAPTER

COMPARISON_FILE = "comparison.yaml"

Job = SweepRun | Probe
Start = Callable[[Sequence[Job], Plan, Console], Iterable[tuple[Job, int]]]
"""Carries out jobs; gives each, as it ends, with its exit code."""


def run_comparison(
    path: str | Path,
    console: Console,
    overrides: Sequence[str] = (),
    *,
    start: Start | None = None,
) -> Path:
    """Carry out a comparison, or go on with it.

    Args:
        path: Of the comparison, a YAML file (`ani.sweep.plan.Comparison`).
        console: Where progress and tables go.
        overrides: Changes to the comparison, `key=value`.
        start: How runs are carried out; None: in this process, one after another.

    Returns:
        The report, one HTML file. Beside it lie the results of all runs, one JSON-lines file a task, and the tables,
        `comparison.md`.

    Raises:
        InputError: If the comparison is not valid, or another process is at it.
        TrainingFailed: If runs failed; the others are finished.
    """
    plan = load_plan(path, overrides)
    with only_process_in(plan.folder):
        named = plan.folder / COMPARISON_FILE
        if not named.is_file() and any(not entry.name.startswith(".") for entry in plan.folder.iterdir()):
            raise InputError(f"{plan.folder} is not empty and holds no {COMPARISON_FILE}; name another output")
        save_settings(plan.comparison, named)
        notes = notes_of(plan)
        for note in (where(plan.base.dtype), *notes):
            console.print(note, highlight=False, markup=False)
        if plan.comparison.reuse is not None:
            for run in plan.runs:
                _take(run, Path(plan.comparison.reuse), console)
        start = start or in_this_process
        failed = [job.name for job, code in start(plan.missing_probes, plan, console) if code]
        if plan.comparison.probe and not failed:
            _show_probe(plan)
        waiting = [run for run in plan.runs if not run.is_finished(plan.tasks)]
        left = len(waiting)
        for job, code in start(waiting, plan, console):
            left -= 1
            if code:
                failed.append(job.name)
            elif left:
                show(plan, console)
        page = write_report(plan, show(plan, console), notes)
    if failed:
        raise TrainingFailed(f"{', '.join(failed)} failed, as said above; the other runs are finished: {page}")
    return page


def in_this_process(jobs: Sequence[Job], plan: Plan, console: Console) -> Iterator[tuple[Job, int]]:
    """One after another; what a job raises ends the comparison."""
    for job in jobs:
        _announce(job, plan, console)
        carry_out(job, plan, console)
        yield job, 0


def in_own_processes(arguments: Sequence[str]) -> Start:
    """One after another, each as `ani compare ARGUMENTS --run NAME`: a card in exclusive mode can't hold this process's
    context beside vLLM's, and vLLM gives no memory back."""

    def start(jobs: Sequence[Job], plan: Plan, console: Console) -> Iterator[tuple[Job, int]]:
        for job in jobs:
            _announce(job, plan, console)
            yield job, _ended(subprocess.Popen(run_command(arguments, job.name)), job.name)

    return start


def run_command(arguments: Sequence[str], name: str) -> list[str]:
    """The command that carries out one run; a program that registers tasks of its own is called by its own name."""
    program = Path(sys.argv[0])
    this = ["-m", "ani.cli"] if program.name in ("ani", "cli.py", "__main__.py") else [str(program)]
    return [sys.executable, *this, "compare", *arguments, "--run", name]


def _ended(process: "subprocess.Popen[bytes]", name: str) -> int:
    """The exit code of a run's process.

    Raises:
        ChildProcessError: It was killed.
        SystemExit: It was interrupted.
    """
    try:
        code = process.wait()
    except BaseException:
        process.terminate()  # SIGTERM reaches this process alone
        process.wait()
        raise
    if code < 0:
        raise ChildProcessError(f"the process of {name} was ended by signal {-code}; is there memory for it?")
    if code >= 128:
        raise SystemExit(code)
    return code


def carry_out_one(path: str | Path, overrides: Sequence[str], name: str, console: Console) -> None:
    """What the process of one job does; raises InputError if the comparison has none of this name."""
    plan = load_plan(path, overrides)
    every: list[Job] = [*plan.missing_probes, *plan.runs]
    jobs = {job.name: job for job in every}
    if name not in jobs:
        raise InputError(f"the comparison {path} has no run {name!r}; it has {', '.join(jobs)}")
    carry_out(jobs[name], plan, console)


def _announce(job: Job, plan: Plan, console: Console) -> None:
    if isinstance(job, SweepRun):
        console.rule(f"{plan.runs.index(job) + 1}/{len(plan.runs)} {job.name}")
    else:
        console.rule("The layers of the untrained model")


def _show_probe(plan: Plan) -> None:
    """The report looks for the curve beside the answers."""
    for name in (SELECTION, LAYERS):
        with replacing_file(plan.folder / name) as file:
            file.write((plan.probe(plan.base).folder / name).read_text(encoding="utf-8"))


def _take(run: SweepRun, place: Path, console: Console) -> None:
    """Copy a run that another comparison has of the same recipe, data and code."""
    found = [other for other in place.glob(f"*/runs/**/*-{run.folder.name[-8:]}") if other != run.folder]
    for other in found:
        if not run.folder.exists() and (run.seed is None or (other / "training" / ADAPTER).is_dir()):
            with replacing_directory(run.folder) as copy:
                shutil.copytree(other, copy, ignore=shutil.ignore_patterns("checkpoint-*", ".*"), dirs_exist_ok=True)
            console.print(f"{run.name}: taken from {other}", highlight=False, markup=False)
