"""`ani compare`: carries out the missing runs, here or on a cluster, and writes the tables.

A comparison that is started again continues: a hash of recipe and data identifies a run, and finished steps are kept.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from accelerate.utils import release_memory
from rich.console import Console

from ani.compare.cluster import ENDING, PARENT, Cluster
from ani.compare.plan import ComparedRun, Plan, Probe, asks_merged, load_plan
from ani.compare.tables import merged_tables, notes_of, write_report
from ani.devices import where
from ani.errors import InputError, TrainingFailed
from ani.evaluation.engines import Machine
from ani.evaluation.evaluate import LoadedTask, answer
from ani.evaluation.model_spec import ModelSpec
from ani.files import only_process_in, replacing_directory, replacing_file
from ani.models import load_model
from ani.probing.run import probe
from ani.results.records import LAYERS, SELECTION
from ani.results.tables import Fitted
from ani.settings import save_settings
from ani.terminal import training_lines
from ani.training.checkpoints import ADAPTER
from ani.training.run import PROBE, train

COMPARISON_FILE = "comparison.yaml"
HASH = "hash"
"""File with a run's hash."""

Job = ComparedRun | Probe
Start = Callable[[Sequence[Job], Plan, Console], Iterable[tuple[Job, int]]]
"""Carries out jobs; yields each as it ends, with its exit code."""


def run_comparison(
    path: str | Path,
    console: Console,
    overrides: Sequence[str] = (),
    *,
    start: Start,
    machine: Machine | None = None,
) -> Path:
    """Carry out a comparison, or continue it, and return the report, one HTML file. The same folder gets the results of
    all runs, one JSON-lines file per task, and the tables, `comparison.md`.

    `path`, `overrides` and `machine` are arguments of `load_plan`; `start` carries out the runs. Raises InputError if
    the comparison is not valid or another process works on it, and TrainingFailed if runs failed; the other runs are
    finished.
    """
    plan = load_plan(path, overrides, machine)
    with only_process_in(plan.folder):
        named = plan.folder / COMPARISON_FILE
        if not named.is_file() and any(not entry.name.startswith(".") for entry in plan.folder.iterdir()):
            raise InputError(f"{plan.folder} is not empty and contains no {COMPARISON_FILE}; name another output")
        save_settings(plan.comparison, named)
        notes = notes_of(plan)
        for note in notes:
            console.print(note, highlight=False, markup=False)
        for run in plan.runs:
            _settle(run)
        failed = [job.name for job, code in start(plan.missing_probes, plan, console) if code]
        if plan.comparison.probe and not failed:
            for name in (SELECTION, LAYERS):  # the report reads the curve in the folder of the answers
                with replacing_file(plan.folder / name) as file:
                    file.write((plan.probe(plan.base).folder / name).read_text(encoding="utf-8"))
        waiting = [run for run in plan.runs if not run.is_finished(plan.tasks)]
        page = write_report(plan, tables := merged_tables(plan), notes)
        for job, code in start(waiting, plan, console):
            if code:
                failed.append(job.name)
            else:
                page = write_report(plan, tables := merged_tables(plan), notes)
        for table in tables:
            console.print(Fitted(table))
    if failed:
        raise TrainingFailed(f"{', '.join(failed)} failed (errors above); the other runs are finished: {page}")
    return page


def in_this_process(jobs: Sequence[Job], plan: Plan, console: Console) -> Iterator[tuple[Job, int]]:
    """Carry out jobs one after another in this process; an error of a job ends the comparison."""
    for job in jobs:
        announce(job, plan, console)
        carry_out(job, plan, console)
        yield job, 0


def in_own_processes(arguments: Sequence[str]) -> Start:
    """Carry out jobs one after another, each in its own process, `ani compare ARGUMENTS --run NAME`: vLLM frees no
    memory before its process ends, and a GPU in exclusive mode admits one process."""

    def start(jobs: Sequence[Job], plan: Plan, console: Console) -> Iterator[tuple[Job, int]]:
        for job in jobs:
            announce(job, plan, console)
            env = {**os.environ, PARENT: str(os.getpid())}
            process = subprocess.Popen([sys.executable, *run_command(arguments, job.name, plan)], env=env)
            yield job, _ended(process, job.name)

    return start


def on_cluster(arguments: Sequence[str], cluster: Cluster) -> Start:
    """Carry out jobs on a Ray cluster, each in its own process."""

    def start(jobs: Sequence[Job], plan: Plan, console: Console) -> Iterator[tuple[Job, int]]:
        named = {job.name: job for job in jobs}
        commands = {name: run_command(arguments, name, plan) for name in named}
        for name, code, said in cluster.carry_out(commands, plan.folder):
            announce(named[name], plan, console)
            sys.stderr.write(said)
            yield named[name], code

    return start


def run_command(arguments: Sequence[str], name: str, plan: Plan) -> list[str]:
    """The arguments of Python that carry out one run by this program: `-m ani`, or the script of a user's own tasks."""
    program = Path(sys.argv[0])
    ours = ["-m", "ani"] if program.name in ("ani", "cli.py", "__main__.py") else [str(program)]
    return [*ours, "compare", *arguments, f"backend={plan.backend}", "--run", name]


def _ended(process: "subprocess.Popen[bytes]", name: str) -> int:
    """The exit code of a run's process, below 0 if it was killed; raises SystemExit if it was interrupted."""
    try:
        code = process.wait()
    except BaseException:
        process.terminate()  # SIGTERM reaches this process alone
        process.wait()
        raise
    if code < 0:
        reason = f"was ended by signal {-code}, perhaps because memory ran out"
        sys.stderr.write(f"error: the process of {name} {reason}\n")
    if code >= 128:
        raise SystemExit(code)
    return code


def carry_out_one(path: str | Path, overrides: Sequence[str], name: str, console: Console) -> None:
    """Carry out the job of a comparison that has this name; raises InputError if there is none. Ends when the process
    that started this one dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG
    if (parent := os.environ.get(PARENT)) is not None and os.getppid() != int(parent):
        sys.exit(143)
    plan = load_plan(path, overrides)
    every: list[Job] = [*map(plan.probe, [plan.base, *(run.recipe for run in plan.runs)]), *plan.runs]
    jobs = {job.name: job for job in every}
    if name not in jobs:
        raise InputError(f"the comparison {path} has no run {name!r}; it has {', '.join(jobs)}")
    job = jobs[name]
    if isinstance(job, ComparedRun) and (job.folder / HASH).read_text() != job.hash:
        raise InputError(f"{name} was prepared with another recipe or other data; start the comparison again")
    carry_out(job, plan, console)


def announce(job: Job, plan: Plan, console: Console) -> None:
    """Print the name of a job."""
    if isinstance(job, ComparedRun):
        console.rule(f"{plan.runs.index(job) + 1}/{len(plan.runs)} {job.name}")
    else:
        console.rule("The layers of the untrained model")


def _settle(run: ComparedRun) -> None:
    """Make a run's folder, or find the earlier one with its hash. Another run in its place keeps its results in a
    folder with its own hash."""
    folder, mark = run.folder, run.folder / HASH
    if folder.exists() and mark.read_text() != run.hash:
        folder.rename(folder.with_name(f"{folder.name}-{mark.read_text()}"))
    if not folder.exists():
        if (earlier := folder.with_name(f"{folder.name}-{run.hash}")).exists():
            earlier.rename(folder)
        else:
            with replacing_directory(folder) as made:
                (made / HASH).write_text(run.hash)


# --- one run ---


def carry_out(job: ComparedRun | Probe, plan: Plan, console: Console) -> None:
    """Carry out or continue one job. Raises TrainingFailed if training fails, InputError if the model can't be loaded
    or another process works on the run."""
    console.print(where(job.recipe.dtype), highlight=False)
    # The comparison has its own lock. Another process in the run's folder lost its comparison or node and ends soon.
    with only_process_in(job.folder, wait=ENDING):
        if isinstance(job, ComparedRun):
            _train_and_ask(job, plan, console)
        elif not job.is_finished:
            _probe(job, plan, console)


def _probe(job: Probe, plan: Plan, console: Console) -> None:
    recipe = job.recipe
    model = load_model(recipe.model, dtype=recipe.dtype, quantization=recipe.quantization)
    selection = probe(model, plan.tokenizer, job.folder, **recipe.probing, console=console)
    console.print(selection.reason, highlight=False)
    del model
    release_memory()


def _train_and_ask(run: ComparedRun, plan: Plan, console: Console) -> None:
    """Train a run and ask it the missing tasks, those of vLLM last, because vLLM frees no memory."""
    _train(run, plan, console)
    missing = run.missing(plan.tasks)
    adapter = None if run.seed is None else str(run.training / ADAPTER)
    recipe, vllm = run.recipe, plan.comparison.vllm
    # The saved adapter, not the trained model in memory, so that an interruption changes no result.
    own = ModelSpec(recipe.model, adapter, dtype=recipe.dtype, quantization=recipe.quantization)
    _ask(run, [each for each in missing if not asks_merged(each.task, plan.backend)], own, console)
    merged = [each for each in missing if asks_merged(each.task, plan.backend)]
    if merged and (reason := run.why_not_vllm) is None:
        _ask(run, merged, ModelSpec(recipe.model, adapter, "vllm", vllm=vllm), console)
    elif merged:
        console.print(f"{run.name}: by transformers, not vLLM ({reason})", highlight=False, markup=False)
        model = ModelSpec(recipe.model, adapter).served(run.folder)
        _ask(run, merged, ModelSpec(model, vllm=vllm), console)
    ModelSpec.clear(run.folder)


def _train(run: ComparedRun, plan: Plan, console: Console) -> None:
    if run.seed is None:
        return
    if not run.is_trained:
        probed, ani = plan.probe(run.recipe), run.recipe.ani
        if ani is not None and ani.layer == "auto" and probed.is_finished and not run.training.exists():
            with replacing_directory(run.training / PROBE) as copy:
                shutil.copytree(probed.folder, copy, dirs_exist_ok=True)
        try:
            train(run.recipe, resume=True, on_log=training_lines(console), console=console)
        except TrainingFailed as error:
            raise TrainingFailed(f"{run.name}: {error}") from error
    with only_process_in(run.training):
        for checkpoint in run.training.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    release_memory()  # the reference cycles of a trainer keep its model


def _ask(run: ComparedRun, tasks: list[LoadedTask], spec: ModelSpec, console: Console) -> None:
    if not tasks:
        return
    load = partial(spec.load, [each.task for each in tasks], run.folder)
    seed, facts = run.recipe.data_seed, {**spec.facts, "fingerprint": run.hash}
    for _ in answer(tasks, load, run.folder, seed=seed, console=console, facts=facts, name=run.name):
        pass
    release_memory()
