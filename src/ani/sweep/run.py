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
from ani.models import load_model
from ani.probing.run import probe
from ani.results.files import LAYERS, SELECTION
from ani.settings import save_settings
from ani.sweep.plan import Plan, SweepRun, load_plan
from ani.sweep.runs import carry_out, give_memory_back
from ani.sweep.tables import notes_of, show, write_report
from ani.training.checkpoints import ADAPTER

COMPARISON_FILE = "comparison.yaml"

Start = Callable[[Sequence[SweepRun], Plan, Console], Iterable[tuple[SweepRun, int]]]
"""Carries out runs; gives each, as it ends, with its exit code."""


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
        save_settings(plan.comparison, plan.folder / COMPARISON_FILE)
        notes = notes_of(plan)
        for note in notes:
            console.print(note, highlight=False, markup=False)
        _probe(plan, console)
        if plan.comparison.reuse is not None:
            for run in plan.runs:
                _take(run, Path(plan.comparison.reuse), console)
        waiting = [run for run in plan.runs if not run.is_finished(plan.tasks)]
        failed, left = [], len(waiting)
        for run, code in (start or in_this_process)(waiting, plan, console):
            left -= 1
            if code:
                failed.append(run.name)
            elif left:
                show(plan, console)
        page = write_report(plan, show(plan, console), notes)
    if failed:
        raise TrainingFailed(f"{', '.join(failed)} failed, as said above; the other runs are finished: {page}")
    return page


def in_this_process(runs: Sequence[SweepRun], plan: Plan, console: Console) -> Iterator[tuple[SweepRun, int]]:
    """One after another; what a run raises ends the comparison."""
    for run in runs:
        _announce(run, plan, console)
        carry_out(run, plan, console)
        yield run, 0


def in_own_processes(arguments: Sequence[str]) -> Start:
    """One after another, each as `ani compare ARGUMENTS --run NAME`: a card in exclusive mode can't hold this process's
    context beside vLLM's, and vLLM gives no memory back."""

    def start(runs: Sequence[SweepRun], plan: Plan, console: Console) -> Iterator[tuple[SweepRun, int]]:
        for run in runs:
            _announce(run, plan, console)
            yield run, ended(subprocess.Popen(run_command(arguments, run.name)), run.name)

    return start


def run_command(arguments: Sequence[str], name: str) -> list[str]:
    """The command that carries out one run; a program that registers tasks of its own is called by its own name."""
    program = Path(sys.argv[0])
    this = ["-m", "ani.cli"] if program.name in ("ani", "cli.py", "__main__.py") else [str(program)]
    return [sys.executable, *this, "compare", *arguments, "--run", name]


def ended(process: "subprocess.Popen[bytes]", name: str) -> int:
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
    """What the process of one run does; raises InputError if the comparison has no run of this name."""
    plan = load_plan(path, overrides)
    run = next((run for run in plan.runs if run.name == name), None)
    if run is None:
        names = ", ".join(run.name for run in plan.runs)
        raise InputError(f"the comparison {path} has no run {name!r}; it has {names}")
    carry_out(run, plan, console)


def _announce(run: SweepRun, plan: Plan, console: Console) -> None:
    console.rule(f"{plan.runs.index(run) + 1}/{len(plan.runs)} {run.name}")


def _probe(plan: Plan, console: Console) -> None:
    """Probe the untrained model where that is wanted by the comparison or by runs that look for their layer, once for
    all that probe alike."""
    wanted = [plan.base] if plan.comparison.probe else []
    untrained = [run.recipe for run in plan.runs if not run.is_trained]
    wanted += [recipe for recipe in untrained if recipe.ani is not None and recipe.ani.layer == "auto"]
    for recipe in wanted:
        folder = plan.probe_folder(recipe)
        if not (folder / SELECTION).is_file():
            console.rule("The layers of the untrained model")
            model = load_model(recipe.model, dtype=recipe.dtype, quantization=recipe.quantization)
            selection = probe(model, plan.tokenizer, folder, **recipe.probing, console=console)
            console.print(selection.reason, highlight=False)
            del model
            give_memory_back()
    if plan.comparison.probe:
        for name in (SELECTION, LAYERS):  # the report looks for them beside the answers
            with replacing_file(plan.folder / name) as file:
                file.write((plan.probe_folder(plan.base) / name).read_text(encoding="utf-8"))


def _take(run: SweepRun, place: Path, console: Console) -> None:
    """Copy a run that another comparison has of the same recipe, data and code."""
    found = [other for other in place.glob(f"*/runs/**/*-{run.folder.name[-8:]}") if other != run.folder]
    for other in found:
        if not run.folder.exists() and (run.seed is None or (other / "training" / ADAPTER).is_dir()):
            with replacing_directory(run.folder) as copy:
                shutil.copytree(other, copy, ignore=shutil.ignore_patterns("checkpoint-*", ".*"), dirs_exist_ok=True)
            console.print(f"{run.name}: taken from {other}", highlight=False, markup=False)
