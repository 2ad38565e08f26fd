"""One model of a comparison: how it is trained, and how it answers; knows nothing of the other ones' results.

Each step leaves its result when it is done and is skipped where that exists.
"""

import ctypes
import gc
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from ani.answerers import Candidate
from ani.errors import InputError, TrainingFailed
from ani.files import only_process_in, replacing_directory
from ani.injection.adapter import CONFIG_FILE, load_adapter
from ani.injection.methods import METHODS, Method
from ani.launch import ONE_PROCESS, Processes, end_with_parent
from ani.models import load_config, load_model, load_tokenizer
from ani.progress import training_lines
from ani.results.files import SELECTION, task_file
from ani.serving.merge import merge
from ani.serving.vllm_plugin import check_merged
from ani.tasks import Posed, ask, pose
from ani.tasks.answering import Answerer
from ani.tasks.benchmarks import Benchmark
from ani.tasks.task import Task
from ani.terminal import only_ours
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import ProbeSettings, Recipe
from ani.training.run import PROBE, paper_layer, train
from ani.untrusted.text import read_json_object

REFERENCE = "reference"
MERGED = "merged"
Backend = Literal["transformers", "vllm"]


class Cell(NamedTuple):
    """One model to evaluate: a variant trained with a seed; or the reference, or a variant that trains nothing (seed
    None)."""

    variant: str
    seed: int | None
    recipe: Recipe
    folder: Path

    @property
    def name(self) -> str:
        return self.variant if self.seed is None else f"{self.variant}, seed {self.seed}"

    @property
    def method(self) -> Method:
        return METHODS["ani" if self.variant == REFERENCE else self.recipe.method]

    @property
    def training(self) -> Path:
        return self.folder / "training"

    def asked(self, posed: Sequence[Posed]) -> list[Posed]:
        """The tasks that this model can be asked."""
        ani = self.recipe.ani
        gate = self.seed is not None and ani is not None and ani.gate != "open"
        numbers = ani is not None and ani.values != "results"
        wanted = [each for each in posed if gate or not each.task.needs_gate]
        return [each for each in wanted if numbers or not each.task.gates_numbers]

    def missing(self, posed: Sequence[Posed]) -> list[Posed]:
        """Those of them that it has not answered."""
        return [each for each in self.asked(posed) if not task_file(self.folder, each.task.name).is_file()]

    def is_finished(self, posed: Sequence[Posed]) -> bool:
        return not self.missing(posed)


def reuse_probe(cell: Cell, cells: Sequence[Cell], base: Recipe | None, folder: Path) -> None:
    """Recipes that probe the same model alike find the same layer: give this one what another cell has found, or what
    was found in the comparison's folder by its recipe (None: it isn't probed)."""
    ani = cell.recipe.ani
    if cell.seed is None or ani is None or ani.layer != "auto" or (cell.training / PROBE).exists():
        return
    what = ("dtype", "quantization", "probing")
    probed = [(other.recipe, other.training / PROBE) for other in cells]
    if base is not None:
        probed.insert(0, (base, folder / PROBE))
    places = [place for by, place in probed if all(getattr(by, key) == getattr(cell.recipe, key) for key in what)]
    if found := next((place for place in places if (place / SELECTION).is_file()), None):
        with replacing_directory(cell.training / PROBE) as copy:
            shutil.copytree(found, copy, dirs_exist_ok=True)


def what_makes(cell: Cell) -> Any:
    """What makes a cell's model: equal for two cells of which one would be trained and loaded just as the other."""
    recipe = cell.recipe
    if cell.seed is None:
        return cell.method, recipe.model, recipe.dtype, recipe.quantization
    changes: dict[str, Any] = {"output": ""}
    if recipe.ani is None or recipe.ani.layer != "auto":
        changes["probe"] = ProbeSettings()
    if recipe.ani is not None and recipe.ani.layer == "paper":
        changes["ani"] = recipe.ani.model_copy(update={"layer": paper_layer(recipe.model, load_config(recipe.model))})
    return recipe.model_copy(update=changes)


def train_cell(cell: Cell, console: Console) -> None:
    """Train the cell's model, or go on with it, if it is trained at all; raises TrainingFailed."""
    if cell.seed is None:
        return
    if not (cell.training / ADAPTER).is_dir():
        try:
            train(cell.recipe, resume=True, on_log=training_lines(console), console=console)
        except TrainingFailed as error:
            raise TrainingFailed(f"{cell.name}: {error}") from error
    with only_process_in(cell.training):
        for checkpoint in cell.training.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    give_memory_back()


def ask_loaded(
    cell: Cell,
    posed: Sequence[Posed],
    tokenizer: PreTrainedTokenizerBase,
    backend: Backend,
    console: Console,
    processes: Processes = ONE_PROCESS,
) -> None:
    """Ask the trained model what is missing after `ask_merged`; of several processes all call this."""
    missing = cell.missing(posed)
    if own := [each for each in missing if not asks_merged(each.task, backend)]:
        # The saved adapter, not the model that training left: results are the same whether or not it was interrupted.
        model = load_model(cell.recipe.model, dtype=cell.recipe.dtype, quantization=cell.recipe.quantization)
        if cell.seed is not None:
            load_adapter(model, tokenizer, cell.training / ADAPTER)
        answerer = Answerer(model, tokenizer, cell.method)
        ask(own, answerer, cell.folder, console=console, of=cell.name, processes=processes)
        del model, answerer
        give_memory_back()
    if others := [each for each in missing if asks_merged(each.task, backend)]:  # what vLLM can't serve
        answerer = _merged(cell, "transformers").load([each.task for each in others])
        ask(others, answerer, cell.folder, console=console, of=cell.name, processes=processes)
        del answerer
        give_memory_back()
        if processes.main:
            shutil.rmtree(cell.folder / MERGED, ignore_errors=True)


def give_memory_back() -> None:
    """What a model's training or answers took, before the next one needs as much."""
    gc.collect()  # a trainer's cycles keep its model
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # glibc keeps gigabytes of freed activations
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def asks_merged(task: Task, backend: Backend) -> bool:
    """Whether a task's answers are those of the merged checkpoint, as vLLM serves it."""
    return backend == "vllm" and isinstance(task, Benchmark)


def not_served(cell: Cell) -> str | None:
    """Why vLLM can't serve what merging makes of the cell's model; None: it can."""
    recipe = cell.recipe
    if cell.method.decoding is not None:
        return "it isn't made to write results"
    if cell.seed is None or recipe.ani is None:
        return None
    try:
        check_merged(load_config(recipe.model), recipe.ani.combine, cell.variant)
    except InputError as error:
        return str(error)
    return None


def _merged(cell: Cell, backend: Backend) -> Candidate:
    """What merging makes of the cell's model."""
    model = cell.recipe.model if cell.seed is None else str(cell.folder / MERGED)
    return Candidate(model, None, backend, None, forced=cell.method.decoding is not None)


def ask_merged(cell: Cell, posed: Sequence[Posed], backend: Backend, console: Console) -> None:
    """Ask the checkpoint that serving would have what is missing, in a process of its own: vLLM gives no memory back.
    What it can't serve is merged, and left to `ask_loaded`.

    Args:
        cell: Which.
        posed: All tasks.
        backend: Of the comparison.
        console: For progress.

    Raises:
        ChildProcessError: That process was killed.
    """
    tasks = [each.task for each in cell.missing(posed) if asks_merged(each.task, backend)]
    merged = cell.folder / MERGED
    if not tasks:
        shutil.rmtree(merged, ignore_errors=True)  # of a process that was killed when it had answered
        return
    if cell.seed is not None and not merged.is_dir():  # kept answers know the files by their times
        merge(cell.training / ADAPTER, merged, model=cell.recipe.model)
    if (reason := not_served(cell)) is not None:
        console.print(f"{cell.name}: by transformers, not vLLM ({reason})", highlight=False, markup=False)
        return
    try:
        by_itself(_answer, _merged(cell, "vllm"), tasks, cast(int, cell.recipe.data_seed), cell.folder, cell.name)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"the process that answers {cell.name}'s benchmarks was killed; is there memory for it?"
        ) from error
    shutil.rmtree(merged, ignore_errors=True)


def by_itself(work: Callable[..., None], *arguments: Any) -> None:
    """Do `work` in a process of its own, which ends with this one; raises what it raises, BrokenProcessPool if it is
    killed."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            pool.submit(_quietly, work, *arguments).result()
        except (KeyboardInterrupt, SystemExit):  # SIGTERM reaches this process alone
            for process in active_children():
                process.terminate()
            raise


def _quietly(work: Callable[..., None], *arguments: Any) -> None:
    end_with_parent()
    only_ours()
    work(*arguments)


def _answer(candidate: Candidate, tasks: Sequence[Task], seed: int, folder: Path, name: str) -> None:
    posed = pose(tasks, load_tokenizer(candidate.model), load_config(candidate.model), seed)
    ask(posed, candidate.load(tasks), folder, console=Console(), of=name)


def injection(cell: Cell) -> dict[str, Any]:
    """The layer and policy of a trained cell's adapter, if it has a module."""
    config = read_json_object(cell.training / ADAPTER / CONFIG_FILE)
    return {key: config[key] for key in ("layer", "policy") if key in config}
