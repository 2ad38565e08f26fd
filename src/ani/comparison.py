"""`ani compare`: variants of a training recipe × seeds, trained and evaluated alike; knows nothing of the command line.

Each step of a cell (a variant with a seed) leaves its result when it is done and is skipped where that exists, so an
interrupted comparison goes on.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from rich.console import Console
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ani.cells import (
    REFERENCE,
    Backend,
    Cell,
    ask_loaded,
    ask_merged,
    asks_merged,
    give_memory_back,
    injection,
    not_served,
    reuse_probe,
    train_cell,
    what_makes,
)
from ani.errors import InputError
from ani.files import only_process_in, replacing_directory, replacing_file
from ani.hardware import default_dtype, where
from ani.injection.adapter import CONFIG_FILE
from ani.injection.attach import check_layer
from ani.launch import Processes
from ani.models import load_config, load_model, load_tokenizer
from ani.probing.run import probe
from ani.provenance import code_version, data_names, digests, provenance
from ani.report import build_report
from ani.results.files import LAYERS, RUN, SELECTION, TRAINING_LOG, read_records, task_file, write_json, write_records
from ani.results.tables import Fitted, Table, markdown
from ani.serving.vllm_plugin import need_vllm
from ani.settings import Section, load_settings, save_settings, validated
from ani.tasks import Posed, clear_answers, pose, presented, task_class
from ani.tasks.task import Task
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import Recipe, load_recipe
from ani.training.run import PROBE, check, paper_layer
from ani.untrusted.text import one_line

PLAN_FILE = "comparison.yaml"
DEMO = Path(__file__).parent / "recipes" / "demo-comparison.yaml"
COMMON = ("model", "output", "seed", "data_seed")
"""Keys of the training recipe that no variant may set."""


class _Design(Section):
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[0], min_length=1)
    """Of initialization, dropout and order of examples. Training data and problems are the same for all."""
    more_seeds: dict[str, list[Annotated[int, Field(ge=0)]]] = Field(default={})
    """Variant: its further seeds, where the seeds of all are too dear."""
    reference: bool = True
    """Also evaluate the model as it is before training."""
    baseline: str | None = None
    """The variant (or `reference`) whose answers the others' are compared to in pairs."""
    probe: bool = False
    """Also probe the untrained model's layers, as the training recipe's `probe` says, for the plot of accuracy over
    probe accuracy (paper, Figure "Layer Sensitivity Analysis")."""
    backend: Literal["auto", "transformers", "vllm"] = "auto"
    """Of benchmarks: vLLM reads what merging makes of each model, in 16 bits where the hardware computes in them, and
    what it can't serve is read so by transformers; other tasks are for transformers and the recipe's precision. `auto`:
    vLLM where it is installed and there is a GPU."""
    evaluation: dict[str, Any]
    """What every model is asked: tasks by name, with their settings; one that is `null` is left out."""


class Comparison(_Design):
    """What the user writes: one training recipe, and what each variant changes in it."""

    output: str
    """Directory for everything it makes."""
    recipe: str
    """The training recipe; relative to the comparison's file."""
    model: str | None = None
    """The base model of all, a hub name or a directory; null: the recipe's."""
    overrides: list[str] = Field(default=[])
    """Changes to the recipe for all variants, `key=value`."""
    variants: dict[str, list[str]] = Field(min_length=1)
    """Name: its further changes."""
    reuse: str | None = None
    """Folder of comparisons: what one of them has trained by the same recipe and code, on the same data with the same
    seed, is copied, and so are its answers to the same questions."""

    published: dict[str, dict[str, float]] = Field(default={})
    """Variant (or `reference`): what a paper gives for it, in percent: `math`, `gsm8k`, `mmlu`, or additions by length,
    such as `12 digits`; or in points over the baseline, of MATH: `levels 1–3 gain`, `levels 4–5 gain`. The report shows
    it beside what was measured."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in self.variants:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name == REFERENCE:
                raise ValueError(
                    f"variant {name!r} needs another name: a directory is called by it, so letters, digits, '.', '_' "
                    f"and '-'; {REFERENCE!r} is the untrained model"
                )
        for name, more in {"": [], **self.more_seeds}.items():
            if name and name not in self.variants:
                raise ValueError(f"more_seeds: there is no variant {name!r}")
            if len({*self.seeds, *more}) < len(self.seeds) + len(more):
                raise ValueError(f"seeds must be distinct, not {[*self.seeds, *more]}")
        known = [*([REFERENCE] if self.reference else []), *self.variants]
        if unknown := [name for name in self.published if name not in known]:
            raise ValueError(f"published: there is no variant {unknown[0]!r}")
        if self.baseline is not None and self.baseline not in known:
            raise ValueError(f"baseline {self.baseline!r} must be one of {known}")
        return self


class Plan(_Design):
    """A comparison with every recipe spelled out, `comparison.yaml` in its folder."""

    backend: Backend = "transformers"
    base: Recipe
    variants: dict[str, Recipe]
    files: dict[str, str] = Field(default={})
    """Of the data: `digests`."""
    code: list[str] = Field(default=[])
    """The programs that have worked at it, one after another: `code_version`."""


class _Prepared(NamedTuple):
    """All that can be told before the first file is touched."""

    comparison: Comparison
    plan: Plan
    folder: Path
    tokenizer: PreTrainedTokenizerBase
    posed: list[Posed]
    cells: list[Cell]


def _prepared(path: str | Path, overrides: Sequence[str], recipe_overrides: Sequence[str] = ()) -> _Prepared:
    comparison = load_settings(path, Comparison, overrides)
    comparison = comparison.model_copy(update={"overrides": [*comparison.overrides, *recipe_overrides]})
    tasks = evaluation_tasks(comparison, f"recipe {path}")
    plan = _plan(comparison, tasks, Path(path).parent)
    tokenizer, folder = load_tokenizer(plan.base.model), Path(comparison.output)
    config = load_config(plan.base.model)
    _check_variants(plan, config)
    assert plan.base.data_seed is not None  # `_plan` set it
    posed = pose(tasks, tokenizer, config, plan.base.data_seed)
    return _Prepared(comparison, plan, folder, tokenizer, posed, _cells(plan, folder))


def _check_variants(plan: Plan, config: PreTrainedConfig) -> None:
    """Raises InputError for what training would refuse when a variant's turn comes, perhaps after a day of others."""
    depth = config.get_text_config().num_hidden_layers
    for name, recipe in plan.variants.items():
        if not recipe.trains:
            continue
        try:
            check(recipe, resume=True, processes=1)
            if recipe.ani is not None and recipe.ani.layer != "auto":
                layer = paper_layer(recipe.model, config) if recipe.ani.layer == "paper" else recipe.ani.layer
                check_layer(layer, depth, config.model_type)
        except InputError as error:
            raise InputError(f"variant {name!r}: {error}") from error


def run_comparison(
    path: str | Path,
    console: Console,
    overrides: Sequence[str] = (),
    recipe_overrides: Sequence[str] = (),
    *,
    asked_by: Callable[[str], None] | None = None,
) -> Path:
    """Carry out a comparison, or go on with it.

    Args:
        path: Of the comparison, a YAML file (`Comparison`).
        console: Where progress and tables go.
        overrides: Changes to the comparison, `key=value`.
        recipe_overrides: Further changes to the training recipe for all variants.
        asked_by: Called with a cell's name: has several processes call `ask_cell`, to ask what isn't for vLLM. None:
            this process asks.

    Returns:
        The report, one HTML file. Beside it lie the results of all cells, one JSON-lines file a task, and the tables,
        `comparison.md`.

    Raises:
        InputError: If the comparison is not valid, its folder holds another one, or another process is at it.
        TrainingFailed: If a cell can't be trained; what is finished stays.
    """
    comparison, plan, folder, tokenizer, posed, cells = _prepared(path, overrides, recipe_overrides)
    tasks = [each.task for each in posed]
    with only_process_in(folder):
        plan = _claim(plan, folder)
        notes = _notes(plan, tasks, cells)
        for note in (where(plan.base.dtype), *notes):
            console.print(note, highlight=False, markup=False)
        if plan.probe:
            _probe(plan, folder, tokenizer, console)
        others = [] if comparison.reuse is None else _others(Path(comparison.reuse), folder, console)
        for number, cell in enumerate(cells, start=1):
            console.rule(f"{number}/{len(cells)} {cell.name}")
            for other_plan, other in others:
                _take(cell, plan, posed, other, other_plan, console)
            if finished := cell.is_finished(posed):
                console.print("finished already")
            else:
                reuse_probe(cell, cells, plan.base if plan.probe else None, folder)
                train_cell(cell, console)
                ask_merged(cell, posed, plan.backend, console)
                if asked_by is None:
                    ask_loaded(cell, posed, tokenizer, plan.backend, console)
                elif cell.missing(posed):
                    asked_by(cell.name)
            clear_answers(cell.folder, tasks)
            if not (cell.folder / RUN).is_file():
                write_json(cell.folder / RUN, _cell_facts(cell, plan, posed))
            if not finished and number < len(cells):
                _show(_merge(folder, cells, posed), plan, console)
        tables = _show(_merge(folder, cells, posed), plan, console)
        title = f"Comparison {folder.resolve().name}"
        with replacing_file(folder / "comparison.md") as file:
            file.write("\n\n".join([f"# {title}", *notes, markdown(tables)]))
        trained = [cell for cell in cells if cell.seed is not None]
        facts: dict[str, Any] = {"title": title, "model": plan.base.model, "baseline": plan.baseline}
        (folder / TRAINING_LOG).unlink(missing_ok=True)
        if len(trained) == 1:  # the page shows what was trained, and how
            shutil.copy(trained[0].training / TRAINING_LOG, folder)
            facts |= {"adapter": str(trained[0].training / ADAPTER), **injection(trained[0])}
        facts |= {
            "cells": [
                {"variant": cell.variant, "seed": cell.seed, **({} if cell.seed is None else injection(cell))}
                for cell in cells
            ],
            "published": comparison.published,
            "notes": notes,
            "settings": comparison.model_dump(mode="json", exclude={"published"}),
            **provenance(),
        }
        write_json(folder / RUN, facts)
        return build_report(folder)


def ask_cell(
    path: str | Path, name: str, processes: Processes, console: Console, overrides: Sequence[str] = ()
) -> None:
    """What each of several processes does when a comparison's trained model is to be asked; `name` is the cell's."""
    _, plan, _, tokenizer, posed, cells = _prepared(path, overrides)
    cell = next(each for each in cells if each.name == name)
    ask_loaded(cell, posed, tokenizer, plan.backend, console, processes)


def evaluation_tasks(design: Comparison | Plan, where: str) -> list[Task]:
    """The tasks of `evaluation`, in its order; `benchmarks: [{name: gsm8k, ...}]` is another way to write
    `gsm8k: {...}`.

    Raises:
        InputError: A task is unknown, asked twice, or its settings aren't valid; or there is none that every model can
            be asked, where one is needed.
    """
    wanted = {name: settings for name, settings in design.evaluation.items() if settings is not None}
    listed = wanted.pop("benchmarks", [])
    for each in listed if isinstance(listed, list) else [listed]:
        if not isinstance(each, dict) or not isinstance(name := each.get("name"), str):
            raise InputError(f"{where}: evaluation.benchmarks must be a list such as [{{name: gsm8k, limit: 100}}]")
        if name in wanted:
            raise InputError(f"{where}: evaluation.benchmarks asks {one_line(name, 80)} more than once")
        wanted[name] = {key: value for key, value in each.items() if key != "name"}
    try:
        kinds = {name: task_class(name) for name in wanted}
    except InputError as error:
        raise InputError(f"{where}: evaluation: {error}") from error
    tasks = {name: validated(kind, wanted[name], where, f"evaluation.{name}") for name, kind in kinds.items()}
    for_all = any(not task.needs_gate for task in tasks.values())
    if not tasks:
        raise InputError(f"{where}: evaluation needs a task, such as arithmetic: {{count: 100}}")
    if design.reference and not for_all:
        raise InputError(f"{where}: the untrained model has no gate to evaluate; set reference: false")
    if design.baseline is not None and not for_all:
        raise InputError(f"{where}: baseline needs a task that every model is asked, such as arithmetic")
    return list(tasks.values())


def _notes(plan: Plan, tasks: Sequence[Task], cells: Sequence[Cell]) -> list[str]:
    """The precision of the answers; and a line for each variant that learns from other data, or otherwise than the
    recipe says: its row costs more or less than the others. The module's learning rate costs nothing, and most methods
    have no module."""
    computed = str(default_dtype() if plan.base.dtype == "auto" else plan.base.dtype).removeprefix("torch.")
    weights = "" if plan.base.quantization == "none" else f" on weights in {plan.base.quantization}"
    notes = [f"All rows are computed by transformers in {computed}{weights}."]
    if merged := [task.name for task in tasks if asks_merged(task, plan.backend)]:
        served = str(default_dtype()).removeprefix("torch.")
        others = " and ".join(dict.fromkeys(cell.variant for cell in cells if not_served(cell)))
        but = f", of {others} by transformers on the same" if others else ""
        notes[0] = f"{notes[0][:-1]}; {' and '.join(merged)} by vLLM on merged weights in {served}{but}."
    if len(plan.code) > 1:
        notes.append(f"ANI's code changed while this was made; the programs, in turn: {', '.join(plan.code)}.")
    for name, recipe in plan.variants.items():
        budget = ("data", "training", "lora", "quantization", "dtype")
        training = recipe.training.model_copy(update={"module_learning_rate": plan.base.training.module_learning_rate})
        alike = recipe.model_copy(update={"training": training})
        changed = [key for key in budget if getattr(alike, key) != getattr(plan.base, key)]
        if changed and recipe.trains:
            notes.append(f"{name} has other {' and '.join(changed)} than the recipe: its budget is not the others'.")
    return notes


def variant_recipes(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Recipe]:
    """What each variant of a comparison trains; raises InputError if the comparison is not valid."""
    comparison = load_settings(path, Comparison, overrides)
    variants = _plan(comparison, evaluation_tasks(comparison, f"recipe {path}"), Path(path).parent).variants
    return {name: recipe for name, recipe in variants.items() if recipe.trains}


def _plan(comparison: Comparison, tasks: Sequence[Task], directory: Path) -> Plan:
    file = directory / comparison.recipe
    changes = [*comparison.overrides, *([f"model={json.dumps(comparison.model)}"] if comparison.model else [])]
    base = load_recipe(file, changes)
    common = {"data_seed": base.seed if base.data_seed is None else base.data_seed}
    variants: dict[str, Recipe] = {}
    for name, overrides in comparison.variants.items():
        try:
            recipe = load_recipe(file, changes, overrides)
        except InputError as error:
            raise InputError(f"variant {name!r}: {error}") from error
        for key in COMMON:
            if getattr(recipe, key) != getattr(base, key):
                raise InputError(
                    f"variant {name!r} must not set {key}: it is the same for all, or the comparison's own"
                )
        if not recipe.trains and name in comparison.more_seeds:
            raise InputError(f"more_seeds: variant {name!r} trains nothing, so it is the same with every seed")
        variants[name] = recipe.model_copy(update={**common, "output": f"cells/{name}"})
    backend = comparison.backend
    if backend == "auto" and (begun := Path(comparison.output) / PLAN_FILE).is_file():
        backend = load_settings(begun, Plan).backend
    if backend == "auto":
        backend = "vllm" if torch.cuda.is_available() and find_spec("vllm") else "transformers"
    if backend == "vllm":
        try:
            need_vllm()
        except InputError as error:
            raise InputError(f"{error}; or set backend: transformers") from error
    return Plan(
        base=base.model_copy(update={**common, "output": f"cells/{REFERENCE}"}),
        variants=variants,
        **{
            **{key: getattr(comparison, key) for key in _Design.model_fields},
            "backend": backend,
            "evaluation": _spelled_out(tasks),
        },
    )


def _data(recipe: Recipe) -> dict[str, Any]:
    """The settings that name what a recipe learns from, and what its layer is found by."""
    return recipe.model_dump(mode="json", include={"data", "probe"})


def _spelled_out(tasks: Sequence[Task]) -> dict[str, Any]:
    return {task.name: task.model_dump(mode="json") for task in tasks}


def _cells(plan: Plan, folder: Path) -> list[Cell]:
    """Seed after seed, so that all variants can be compared as early as possible."""
    cells = [Cell(REFERENCE, None, plan.base, folder / plan.base.output)] if plan.reference else []
    untrained = {name: recipe for name, recipe in plan.variants.items() if not recipe.trains}
    cells += [Cell(name, None, recipe, folder / recipe.output) for name, recipe in untrained.items()]
    order = [(name, seed) for seed in plan.seeds for name in plan.variants if name not in untrained]
    order += [(name, seed) for name, more in plan.more_seeds.items() for seed in more]
    for name, seed in order:
        recipe = plan.variants[name]
        place = folder / recipe.output / f"seed-{seed}"
        changes = {"seed": seed, "output": str(place / "training")}
        cells.append(Cell(name, seed, recipe.model_copy(update=changes), place))
    return cells


_UNKNOWN = "one that didn't say so"
_MAY_GROW = ("variants", "seeds", "more_seeds", "baseline", "files", "code")


def _claim(plan: Plan, folder: Path) -> Plan:
    """Write the plan before anything else is made, so that nothing of another comparison is ever reused.

    A comparison may be given further variants and seeds, or less of them; what is the same keeps its cells. Returns the
    plan with its data's digests, and all programs that have worked at it.
    """
    file = folder / PLAN_FILE
    named = data_names([*map(_data, (plan.base, *plan.variants.values())), plan.evaluation])
    plan = plan.model_copy(update={"files": digests(named), "code": [code_version()]})
    if not file.is_file():
        if any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no {PLAN_FILE}; name another output")
        save_settings(plan, file)
        return plan
    found = load_settings(file, Plan)
    found = found.model_copy(update={"evaluation": _spelled_out(evaluation_tasks(found, str(file)))})
    changed = [key for key in Plan.model_fields if key not in _MAY_GROW and getattr(found, key) != getattr(plan, key)]
    changed += [
        f"variant {name}"
        for name in plan.variants
        if found.variants.get(name, plan.variants[name]) != plan.variants[name]
    ]
    if changed:
        raise InputError(
            f"{folder} holds another comparison, with other {' and '.join(changed)}; remove it, or name another output"
        )
    if other := [path for path, digest in plan.files.items() if found.files.get(path, digest) != digest]:
        raise InputError(
            f"{' and '.join(other)} has changed since the comparison in {folder} was begun; put it back as it was, or "
            "name another output"
        )
    plan = plan.model_copy(update={"code": [*dict.fromkeys([*(found.code or [_UNKNOWN]), *plan.code])]})
    # Left out variants stay in the plan: should they come back, their cells must be theirs.
    kept = {"variants": {**found.variants, **plan.variants}, "files": {**found.files, **plan.files}}
    grown = plan.model_copy(update=kept)
    if grown != found:
        save_settings(grown, file)
    return plan


def _probe(plan: Plan, folder: Path, tokenizer: PreTrainedTokenizerBase, console: Console) -> None:
    if (folder / LAYERS).is_file():
        return
    console.rule("The layers of the untrained model")
    model = load_model(plan.base.model, dtype=plan.base.dtype, quantization=plan.base.quantization)
    selection = probe(model, tokenizer, folder / PROBE, **plan.base.probing, console=console)
    console.print(selection.reason, highlight=False)
    for name in (SELECTION, LAYERS):  # the report looks for them beside the answers
        with replacing_file(folder / name) as file:
            file.write((folder / PROBE / name).read_text(encoding="utf-8"))
    del model
    give_memory_back()  # to vLLM, which another process starts


def _others(place: Path, folder: Path, console: Console) -> list[tuple[Plan, Cell]]:
    """The cells of the comparisons that lie in a place, but for this one's own and those that another program made."""
    found = []
    for file in sorted(place.glob(f"*/{PLAN_FILE}")):
        if file.parent.samefile(folder):
            continue
        plan = load_settings(file, Plan)
        if plan.code == [code_version()]:
            found += [(plan, cell) for cell in _cells(plan, file.parent)]
        else:
            console.print(f"nothing is taken from {file.parent}: ANI's code was another", highlight=False, markup=False)
    return found


def _take(cell: Cell, plan: Plan, posed: Sequence[Posed], other: Cell, of: Plan, console: Console) -> None:
    """Copy what another comparison's cell has and this one lacks, if both are the same model."""

    def unchanged(settings: Any) -> bool:
        return all(of.files.get(name) == plan.files.get(name) for name in data_names(settings))

    # The other's model needn't be at hand.
    same = cell.recipe.model == other.recipe.model and what_makes(cell) == what_makes(other)
    same = same and (cell.seed is None or unchanged(_data(what_makes(cell))))
    if not same or cell.is_finished(posed):
        return
    taken = []
    if cell.seed is not None:
        if (other.training / ADAPTER).is_dir() and not cell.training.exists():
            with replacing_directory(cell.training) as copy:
                ignored = shutil.ignore_patterns("checkpoint-*", ".*")
                shutil.copytree(other.training, copy, ignore=ignored, dirs_exist_ok=True)
            taken.append("training")
        configs = [each.training / ADAPTER / CONFIG_FILE for each in (cell, other)]  # with the weights' checksums
        if not all(file.is_file() for file in configs) or configs[0].read_bytes() != configs[1].read_bytes():
            return
    for task, _ in cell.asked(posed):
        source, own = (task_file(each.folder, task.name) for each in (other, cell))
        settings = plan.evaluation[task.name]
        asked_alike = of.evaluation.get(task.name) == settings and unchanged(settings)
        asked_alike &= asks_merged(task, of.backend) == asks_merged(task, plan.backend)
        if asked_alike and of.base.data_seed == plan.base.data_seed and source.is_file() and not own.is_file():
            with replacing_file(own) as file:
                file.write(source.read_text(encoding="utf-8"))
            taken.append(task.name)
    if taken:
        console.print(f"taken from {other.folder}: {', '.join(taken)}", highlight=False, markup=False)


def _cell_facts(cell: Cell, plan: Plan, posed: Sequence[Posed]) -> dict[str, Any]:
    """What a folder of one model's answers says of them, for `ani diff` and `ani report`."""
    served = not_served(cell) is None and any(asks_merged(task, plan.backend) for task, _ in posed)
    return {
        "title": cell.name,
        "model": plan.base.model,
        "backend": "vllm" if served else "transformers",
        "settings": {task.name: {**task.facts(questions), "seed": plan.base.data_seed} for task, questions in posed},
        **provenance(),
    }


def _merge(folder: Path, cells: Sequence[Cell], posed: Sequence[Posed]) -> dict[type[Task], list[Any]]:
    """Write the results of the finished cells into the folder."""
    finished = [cell for cell in cells if cell.is_finished(posed)]
    results: dict[type[Task], list[Any]] = {}
    for task, _ in posed:
        files = [(cell, task_file(cell.folder, task.name)) for cell in finished]
        records = [
            record.model_copy(update={"run": cell.variant, "seed": cell.seed})
            for cell, file in files
            if file.is_file()
            for record in read_records(file, task.record)
        ]
        if records:
            results[type(task)] = write_records(task_file(folder, task.name), records)
    return results


def _show(results: Mapping[type[Task], list[Any]], plan: Plan, console: Console) -> list[Table]:
    """Print the tables of the results so far, and return them."""
    tables = []
    for task, records in presented(results):
        runs = {record.run for record in records}
        tables += task.tables(records, plan.baseline if plan.baseline in runs else None)
    for table in tables:
        console.print(Fitted(table))
    return tables
