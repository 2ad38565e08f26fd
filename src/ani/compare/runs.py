"""`ani compare`: starts the runs that are missing, here or on a cluster, and writes the tables.

Started again, it goes on: a run is known by a hash of recipe, data and code, and what it has done is not done again.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from ani.compare.cluster import Cluster
from ani.compare.one_run import carry_out
from ani.compare.plan import ComparedRun, Plan, Probe, load_plan
from ani.compare.tables import notes_of, show, write_report
from ani.errors import InputError, TrainingFailed
from ani.evaluation.engines import Machine
from ani.files import only_process_in, replacing_directory, replacing_file
from ani.launch import PARENT, this_program
from ani.results.records import LAYERS, SELECTION
from ani.settings import save_settings
from ani.training.checkpoints import ADAPTER

COMPARISON_FILE = "comparison.yaml"
HASH = "hash"
"""The file with a run's hash."""

Job = ComparedRun | Probe
Start = Callable[[Sequence[Job], Plan, Console], Iterable[tuple[Job, int]]]
"""Carries out jobs; gives each, as it ends, with its exit code."""


def run_comparison(
    path: str | Path,
    console: Console,
    overrides: Sequence[str] = (),
    *,
    start: Start | None = None,
    machine: Machine | None = None,
) -> Path:
    """Carry out a comparison, or go on with it, and return the report, one HTML file. Beside it lie the results of all
    runs, one JSON-lines file a task, and the tables, `comparison.md`.

    `path`, `overrides` and `machine` are as for `load_plan`; `start` carries out runs (None: in this process, one after
    another). Raises InputError if the comparison is not valid, or another process is at it, and TrainingFailed if runs
    failed; the others are finished.
    """
    plan = load_plan(path, overrides, machine)
    with only_process_in(plan.folder):
        named = plan.folder / COMPARISON_FILE
        if not named.is_file() and any(not entry.name.startswith(".") for entry in plan.folder.iterdir()):
            raise InputError(f"{plan.folder} is not empty and holds no {COMPARISON_FILE}; name another output")
        save_settings(plan.comparison, named)
        notes = notes_of(plan)
        for note in notes:
            console.print(note, highlight=False, markup=False)
        for run in plan.runs:
            _settle(run, plan.comparison.reuse, console)
        start = start or in_this_process
        failed = [job.name for job, code in start(plan.missing_probes, plan, console) if code]
        if plan.comparison.probe and not failed:
            for name in (SELECTION, LAYERS):  # the report looks for the curve beside the answers
                with replacing_file(plan.folder / name) as file:
                    file.write((plan.probe(plan.base).folder / name).read_text(encoding="utf-8"))
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
        announce(job, plan, console)
        carry_out(job, plan, console)
        yield job, 0


def in_own_processes(arguments: Sequence[str]) -> Start:
    """One after another, each as `ani compare ARGUMENTS --run NAME`: a card in exclusive mode can't hold this process's
    context beside vLLM's, and vLLM gives no memory back."""

    def start(jobs: Sequence[Job], plan: Plan, console: Console) -> Iterator[tuple[Job, int]]:
        for job in jobs:
            announce(job, plan, console)
            env = {**os.environ, PARENT: str(os.getpid())}
            process = subprocess.Popen([sys.executable, *run_command(arguments, job.name, plan)], env=env)
            yield job, _ended(process, job.name)

    return start


def on_cluster(arguments: Sequence[str], cluster: Cluster) -> Start:
    """On the nodes of a cluster, likewise."""

    def start(jobs: Sequence[Job], plan: Plan, console: Console) -> Iterator[tuple[Job, int]]:
        named = {job.name: job for job in jobs}
        commands = {name: run_command(arguments, name, plan) for name in named}
        for name, code, said in cluster.carry_out(commands, plan.folder):
            announce(named[name], plan, console)
            sys.stderr.write(said)
            yield named[name], code

    return start


def run_command(arguments: Sequence[str], name: str, plan: Plan) -> list[str]:
    """What follows Python's name in the command that carries out one run."""
    return [*this_program(), "compare", *arguments, f"backend={plan.backend}", "--run", name]


def _ended(process: "subprocess.Popen[bytes]", name: str) -> int:
    """The exit code of a run's process; raises ChildProcessError if it was killed, SystemExit if it was interrupted."""
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
    every: list[Job] = [*map(plan.probe, [plan.base, *(run.recipe for run in plan.runs)]), *plan.runs]
    jobs = {job.name: job for job in every}
    if name not in jobs:
        raise InputError(f"the comparison {path} has no run {name!r}; it has {', '.join(jobs)}")
    job = jobs[name]
    if isinstance(job, ComparedRun) and (job.folder / HASH).read_text() != job.hash:
        raise InputError(f"{name} is to be made of another recipe, other data or other code of ANI than stand here")
    carry_out(job, plan, console)


def announce(job: Job, plan: Plan, console: Console) -> None:
    """Say whose lines come next."""
    if isinstance(job, ComparedRun):
        console.rule(f"{plan.runs.index(job) + 1}/{len(plan.runs)} {job.name}")
    else:
        console.rule("The layers of the untrained model")


def _settle(run: ComparedRun, reuse: str | None, console: Console) -> None:
    """Give a run the folder that has its hash: one that stood here before, or a copy of another comparison's. What
    stands in its place is kept under its own hash."""
    folder, mark = run.folder, run.folder / HASH
    if folder.exists() and mark.read_text() != run.hash:
        folder.rename(folder.with_name(f"{folder.name}-{mark.read_text()}"))
    earlier = folder.with_name(f"{folder.name}-{run.hash}")
    if not folder.exists() and earlier.exists():
        earlier.rename(folder)
    for other in Path(reuse).glob(f"*/runs/**/{HASH}") if reuse is not None and not folder.exists() else ():
        if other.read_text() == run.hash and (run.seed is None or (other.parent / "training" / ADAPTER).is_dir()):
            with replacing_directory(folder) as copy:
                left_out = shutil.ignore_patterns("checkpoint-*", ".*")
                shutil.copytree(other.parent, copy, ignore=left_out, dirs_exist_ok=True)
            console.print(f"{run.name}: taken from {other.parent}", highlight=False, markup=False)
            return
    if not folder.exists():
        with replacing_directory(folder) as made:
            (made / HASH).write_text(run.hash)
