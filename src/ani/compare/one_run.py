"""Carries out one run of a comparison: trains, then evaluates; a step whose result is there is skipped."""

import ctypes
import shutil
import sys
from functools import partial
from typing import Any

from accelerate.utils import release_memory
from rich.console import Console

from ani.compare.plan import ComparedRun, Plan, Probe, asks_merged
from ani.devices import where
from ani.errors import TrainingFailed
from ani.evaluation.evaluate import LoadedTask, answer
from ani.evaluation.model_spec import ModelSpec
from ani.files import only_process_in, replacing_directory
from ani.injection.adapter import Adapter
from ani.launch import ENDING
from ani.models import load_config, load_model
from ani.probing.run import probe
from ani.serving.plugin import why_not_vllm
from ani.terminal import training_lines
from ani.training.checkpoints import ADAPTER
from ani.training.run import PROBE, train


def carry_out(job: ComparedRun | Probe, plan: Plan, console: Console) -> None:
    """Probe, or train and ask one run, or go on with it. Raises TrainingFailed if it can't be trained, InputError if it
    can't be loaded or another process works on it."""
    console.print(where(job.recipe.dtype), highlight=False)
    # The comparison's own lock keeps others out: who holds this one lost its comparison or node, and is about to end.
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
    give_memory_back()


def _train_and_ask(run: ComparedRun, plan: Plan, console: Console) -> None:
    """vLLM's engine comes last, as it gives no memory back."""
    _train(run, plan, console)
    missing = run.missing(plan.tasks)
    adapter = None if run.seed is None else str(run.training / ADAPTER)
    recipe, vllm = run.recipe, plan.comparison.vllm
    # The saved adapter, not the model that training left: results are the same whether or not it was interrupted.
    own = ModelSpec(recipe.model, adapter, dtype=recipe.dtype, quantization=recipe.quantization)
    _ask(run, [each for each in missing if not asks_merged(each.task, plan.backend)], own, console)
    merged = [each for each in missing if asks_merged(each.task, plan.backend)]
    if merged and (reason := not_served(run)) is None:
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
    give_memory_back()


def _ask(run: ComparedRun, tasks: list[LoadedTask], spec: ModelSpec, console: Console) -> None:
    if not tasks:
        return
    load = partial(spec.load, [each.task for each in tasks], run.folder)
    seed, facts = run.recipe.data_seed, {**spec.facts, "fingerprint": run.hash}
    for _ in answer(tasks, load, run.folder, seed=seed, console=console, facts=facts, name=run.name):
        pass
    give_memory_back()


def give_memory_back() -> None:
    """Free the memory of a model that was trained or evaluated, before the next one is loaded."""
    release_memory()  # a trainer's cycles keep its model
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # glibc keeps gigabytes of freed activations


def not_served(run: ComparedRun) -> str | None:
    """Why vLLM can't serve what merging makes of the run's model; None: it can."""
    recipe = run.recipe
    if run.seed is None or recipe.ani is None:
        return None
    return why_not_vllm(load_config(recipe.model), recipe.ani)


def injection(run: ComparedRun) -> dict[str, Any]:
    """The layer and policy of a run's adapter, if it has one with a module."""
    if run.seed is None:
        return {}
    config = Adapter.read(run.training / ADAPTER).config
    return {} if config is None else {"layer": config.layer, "policy": config.policy}
