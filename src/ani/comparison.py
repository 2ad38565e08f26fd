"""`ani compare`: variants of a training recipe × seeds, trained and evaluated alike; knows nothing of the command line.

Each step of a cell (a variant with a seed) leaves its result when it is done and is skipped where that exists, so an
interrupted comparison goes on.
"""

import gc
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, field_validator, model_validator
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from ani.data.arithmetic import ArithmeticProblem, Operation, arithmetic_problems
from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences
from ani.errors import InputError, TrainingFailed
from ani.evaluation.arithmetic import PAPER_DIGITS, evaluate_arithmetic
from ani.evaluation.benchmarks import Benchmark, evaluate_benchmark, load_benchmark, prompt_room
from ani.evaluation.gating import evaluate_gating
from ani.evaluation.language import LanguageText, evaluate_language, language_texts
from ani.evaluation.results import read_records, write_json, write_records
from ani.evaluation.tasks.data import BenchmarkName
from ani.files import alone, replacing_directory, replacing_file
from ani.injection.adapter import CONFIG_FILE, load_adapter
from ani.injection.methods import METHODS, Method
from ani.models import load_config, load_model, load_tokenizer, need_chat_template
from ani.probing.run import LAYERS, SELECTION, probe
from ani.progress import counting, training_lines
from ani.provenance import provenance
from ani.report import build_report, comparison_markdown, comparison_tables
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import Recipe, Section, load_recipe, load_settings, save_recipe
from ani.training.run import PROBE, train
from ani.untrusted import read_json_object

PLAN_FILE = "comparison.yaml"
ARITHMETIC = "arithmetic.jsonl"
GATING = "gating.jsonl"
LANGUAGE = "language.jsonl"
REFERENCE = "reference"
COMMON = ("model", "output", "seed", "data_seed")
"""Keys of the training recipe that no variant may set."""


class ArithmeticTask(Section):
    """N-digit arithmetic, answered by generation."""

    count: int = Field(ge=1)
    """Problems for each length and operation; the paper has 100."""
    digits: list[int] = Field(default=list(PAPER_DIGITS))
    """Lengths of the operands."""
    operations: list[Operation] = Field(default=["addition"])
    """Of `addition`, `subtraction` and `multiplication`."""


class GatingTask(Section):
    """Held-out sentences whose numbers have known roles; for models with a gate."""

    count: int = Field(ge=1)
    """Sentences."""


class LanguageTask(Section):
    """Perplexity on texts without numbers and on sentences whose numbers are names: shows damage."""

    texts: str
    """A JSONL file, or a data set on the hub; no text of it should stand in the training data."""
    field: str = "text"
    """The key of the text in each record."""
    count: int = Field(ge=1)
    """Texts without numbers, and as many sentences."""


class BenchmarkTask(Section):
    """GSM8K, MATH or MMLU."""

    name: BenchmarkName
    data: str | None = None
    """A hub name, a JSONL file or a directory of them; None: the set on the hub."""
    limit: int | None = Field(default=None, ge=1)
    """Questions; None: all."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Of an answer; None: 512 of GSM8K, 2,048 of MATH."""


class Evaluation(Section):
    """What every cell is asked. A task that is `null` or missing is left out."""

    arithmetic: list[ArithmeticTask] | None = Field(default=None, min_length=1)
    """One, or several where operations have other lengths or counts."""
    benchmarks: list[BenchmarkTask] | None = Field(default=None, min_length=1)
    """Each at most once."""
    gating: GatingTask | None = None
    """The gate's decisions."""
    language: LanguageTask | None = None
    """What plain language costs."""

    @field_validator("arithmetic", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _asked_once(self) -> Self:
        asked = [(op, n) for task in self.arithmetic or [] for op in task.operations for n in task.digits]
        if twice := [pair for pair, times in Counter(asked).items() if times > 1]:
            raise ValueError(f"evaluation.arithmetic asks {twice[0][0]} of {twice[0][1]} digits more than once")
        names = [task.name for task in self.benchmarks or []]
        if more := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"evaluation.benchmarks asks {more[0]} more than once")
        return self

    @property
    def for_all(self) -> bool:
        """Whether there is a task for models without a gate as well, whose answers have pairs."""
        return any(task is not None for task in (self.arithmetic, self.benchmarks, self.language))


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
    evaluation: Evaluation
    """What every model is asked."""


class Comparison(_Design):
    """What the user writes: one training recipe, and what each variant changes in it."""

    output: str
    """Directory for everything it makes."""
    recipe: str
    """The training recipe; relative to the comparison's file."""
    overrides: list[str] = Field(default=[])
    """Changes to the recipe for all variants, `key=value`."""
    variants: dict[str, list[str]] = Field(min_length=1)
    """Name: its further changes."""

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
        for_all = self.evaluation.for_all
        if not for_all and self.evaluation.gating is None:
            raise ValueError("evaluation needs a task, such as arithmetic: {count: 100}")
        if self.reference and not for_all:
            raise ValueError("the untrained model has no gate to evaluate; set reference: false")
        if self.baseline is not None:
            known = [*([REFERENCE] if self.reference else []), *self.variants]
            if not for_all or self.baseline not in known:
                raise ValueError(
                    f"baseline {self.baseline!r} must be one of {known}, with evaluation.arithmetic, "
                    "evaluation.benchmarks or evaluation.language"
                )
        return self


class Plan(_Design):
    """A comparison with every recipe spelled out, `comparison.yaml` in its folder."""

    base: Recipe
    variants: dict[str, Recipe]


class _Cell(NamedTuple):
    """One model to evaluate: a variant trained with a seed, or the reference (seed None)."""

    variant: str
    seed: int | None
    recipe: Recipe
    folder: Path

    @property
    def name(self) -> str:
        return self.variant if self.seed is None else f"{self.variant}, seed {self.seed}"

    @property
    def method(self) -> Method:
        return METHODS["ani" if self.seed is None else self.recipe.method]

    @property
    def training(self) -> Path:
        return self.folder / "training"


class _Tasks(NamedTuple):
    """What every cell is asked; None: left out."""

    problems: list[ArithmeticProblem] | None
    benchmarks: dict[str, Benchmark]
    """By result file."""
    sentences: list[DiagnosticSentence] | None
    texts: list[LanguageText] | None

    def files(self, cell: _Cell) -> list[Path]:
        """The results that a finished cell has."""
        gated = cell.seed is not None and cell.recipe.ani is not None and cell.recipe.ani.gate == "learned"
        wanted = {
            ARITHMETIC: self.problems is not None,
            **dict.fromkeys(self.benchmarks, True),
            GATING: self.sentences is not None and gated,
            LANGUAGE: self.texts is not None,
        }
        return [cell.folder / name for name, asked in wanted.items() if asked]


def run_comparison(path: str | Path, console: Console, overrides: Sequence[str] = ()) -> Path:
    """Carry out a comparison, or go on with it.

    Args:
        path: Of the comparison, a YAML file (`Comparison`).
        console: Where progress and tables go.
        overrides: Changes to the comparison, `key=value`.

    Returns:
        The report, one HTML file. Beside it lie the results of all cells, one JSON-lines file a task, and the tables,
        `comparison.md`.

    Raises:
        InputError: If the comparison is not valid, its folder holds another one, or another process is at it.
        TrainingFailed: If a cell can't be trained; what is finished stays.
    """
    comparison = load_settings(path, Comparison, overrides)
    plan = _plan(comparison, Path(path).parent)
    # All bad input is met before the first file is touched.
    tasks = _tasks(plan)
    tokenizer = load_tokenizer(plan.base.model)
    if tasks.benchmarks:
        need_chat_template(tokenizer, "evaluation.benchmarks")
    for benchmark in tasks.benchmarks.values():
        prompt_room(load_config(plan.base.model), benchmark)
    folder = Path(comparison.output)
    cells = _cells(plan, folder)
    with alone(folder):
        _claim(plan, folder)
        for note in _budget_notes(plan):
            console.print(note, highlight=False, markup=False)
        if plan.probe:
            _probe(plan, folder, tokenizer, console)
        for number, cell in enumerate(cells, start=1):
            console.rule(f"{number}/{len(cells)} {cell.name}")
            if finished := all(file.is_file() for file in tasks.files(cell)):
                console.print("finished already")
            else:
                _reuse_probe(cell, cells)
                _run_cell(cell, tasks, tokenizer, console)
            for answers in cell.folder.glob("*.answers"):
                answers.unlink()
            if not finished and number < len(cells):
                _print_tables(_merge(folder, cells, tasks), plan, console)
        results = _merge(folder, cells, tasks)
        _print_tables(results, plan, console)
        title = f"Comparison {folder.resolve().name}"
        with replacing_file(folder / "comparison.md") as file:
            notes = "".join(f"{note}\n\n" for note in _budget_notes(plan))
            file.write(f"# {title}\n\n{notes}{comparison_markdown(*results, plan.baseline)}")
        write_json(
            folder / "run.json",
            {
                "title": title,
                "model": plan.base.model,
                "baseline": plan.baseline,
                "cells": [_facts(cell) for cell in cells],
                "settings": comparison.model_dump(mode="json"),
                **provenance(),
            },
        )
        return build_report(folder)


def _budget_notes(plan: Plan) -> list[str]:
    """A line for each variant that learns from other data, or otherwise than the recipe says: its row costs more or
    less than the others."""
    notes = []
    for name, recipe in plan.variants.items():
        budget = ("data", "training", "lora", "quantization", "dtype")
        changed = [key for key in budget if getattr(recipe, key) != getattr(plan.base, key)]
        if changed:
            notes.append(f"{name} has other {' and '.join(changed)} than the recipe: its budget is not the others'.")
    return notes


def variant_recipes(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Recipe]:
    """What each variant of a comparison trains; raises InputError if the comparison is not valid."""
    return _plan(load_settings(path, Comparison, overrides), Path(path).parent).variants


def _plan(comparison: Comparison, directory: Path) -> Plan:
    file = directory / comparison.recipe
    base = load_recipe(file, comparison.overrides)
    common = {"data_seed": base.seed if base.data_seed is None else base.data_seed}
    variants: dict[str, Recipe] = {}
    for name, overrides in comparison.variants.items():
        try:
            recipe = load_recipe(file, comparison.overrides, overrides)
        except InputError as error:
            raise InputError(f"variant {name!r}: {error}") from error
        for key in COMMON:
            if getattr(recipe, key) != getattr(base, key):
                raise InputError(
                    f"variant {name!r} must not set {key}: it is the same for all, or the comparison's own"
                )
        variants[name] = recipe.model_copy(update={**common, "output": f"cells/{name}"})
    return Plan(
        base=base.model_copy(update={**common, "output": f"cells/{REFERENCE}"}),
        variants=variants,
        **{key: getattr(comparison, key) for key in _Design.model_fields},
    )


def _tasks(plan: Plan) -> _Tasks:
    seed = plan.base.data_seed
    assert seed is not None  # `_plan` set it
    arithmetic, gating, language = plan.evaluation.arithmetic, plan.evaluation.gating, plan.evaluation.language
    problems = [
        problem
        for task in arithmetic or []
        for problem in arithmetic_problems(
            task.count * len(task.digits) * len(task.operations),
            digits=task.digits,
            operations=task.operations,
            split="test",
            seed=seed,
        )
    ]
    return _Tasks(
        problems or None,
        {
            f"{task.name}.jsonl": load_benchmark(
                task.name, data=task.data, limit=task.limit, seed=seed, max_new_tokens=task.max_new_tokens
            )
            for task in plan.evaluation.benchmarks or []
        },
        None if gating is None else diagnostic_sentences(gating.count, split="test", seed=seed),
        None if language is None else language_texts(language.texts, language.field, language.count, seed),
    )


def _cells(plan: Plan, folder: Path) -> list[_Cell]:
    """Seed after seed, so that all variants can be compared as early as possible."""
    cells = [_Cell(REFERENCE, None, plan.base, folder / plan.base.output)] if plan.reference else []
    order = [(name, seed) for seed in plan.seeds for name in plan.variants]
    order += [(name, seed) for name, more in plan.more_seeds.items() for seed in more]
    for name, seed in order:
        recipe = plan.variants[name]
        place = folder / recipe.output / f"seed-{seed}"
        changes = {"seed": seed, "output": str(place / "training")}
        cells.append(_Cell(name, seed, recipe.model_copy(update=changes), place))
    return cells


_MAY_GROW = ("variants", "seeds", "more_seeds", "baseline")


def _claim(plan: Plan, folder: Path) -> None:
    """Write the plan before anything else is made, so that nothing of another comparison is ever reused.

    A comparison may be given further variants and seeds, or less of them; what is the same keeps its cells.
    """
    file = folder / PLAN_FILE
    if not file.is_file():
        if any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no {PLAN_FILE}; name another output")
        save_recipe(plan, file)
        return
    found = load_settings(file, Plan)
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
    # Left out variants stay in the plan: should they come back, their cells must be theirs.
    grown = plan.model_copy(update={"variants": {**found.variants, **plan.variants}})
    if grown != found:
        save_recipe(grown, file)


def _probe(plan: Plan, folder: Path, tokenizer: PreTrainedTokenizerBase, console: Console) -> None:
    if (folder / LAYERS).is_file():
        return
    console.rule("The layers of the untrained model")
    model = load_model(plan.base.model, dtype=plan.base.dtype, quantization=plan.base.quantization)
    selection = probe(model, tokenizer, folder / PROBE, **plan.base.probe.model_dump(), console=console)
    console.print(selection.reason, highlight=False)
    for name in (SELECTION, LAYERS):  # the report looks for them beside the answers
        with replacing_file(folder / name) as file:
            file.write((folder / PROBE / name).read_text(encoding="utf-8"))


def _reuse_probe(cell: _Cell, cells: Sequence[_Cell]) -> None:
    """Cells that probe the same model alike find the same layer: give this one what another one found."""
    ani = cell.recipe.ani
    if cell.seed is None or ani is None or ani.layer != "auto" or (cell.training / PROBE).exists():
        return
    what = ("dtype", "quantization", "probe")
    for other in cells:
        alike = all(getattr(other.recipe, key) == getattr(cell.recipe, key) for key in what)
        if alike and (other.training / PROBE / SELECTION).is_file():
            with replacing_directory(cell.training / PROBE) as copy:
                shutil.copytree(other.training / PROBE, copy, dirs_exist_ok=True)
            return


def _run_cell(cell: _Cell, tasks: _Tasks, tokenizer: PreTrainedTokenizerBase, console: Console) -> None:
    if cell.seed is not None:
        if not (cell.training / ADAPTER).is_dir():
            try:
                train(cell.recipe, resume=True, on_log=training_lines(console), console=console)
            except TrainingFailed as error:
                raise TrainingFailed(f"{cell.name}: {error}") from error
            gc.collect()  # the trainer's cycles would keep the model in memory beside the next one
        with alone(cell.training):
            for checkpoint in cell.training.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
    # The saved adapter, not the model that training left: results are the same whether or not it was interrupted.
    model = load_model(cell.recipe.model, dtype=cell.recipe.dtype, quantization=cell.recipe.quantization)
    if cell.seed is not None:
        load_adapter(model, tokenizer, cell.training / ADAPTER)
    for file in tasks.files(cell):
        if file.is_file():
            continue
        if file.name == ARITHMETIC:
            assert tasks.problems is not None
            with counting(console, f"problems, {cell.name}", len(tasks.problems)) as count:
                write_records(
                    file,
                    evaluate_arithmetic(
                        model, tokenizer, tasks.problems, run=cell.variant, method=cell.method, on_batch=count
                    ),
                )
        elif file.name in tasks.benchmarks:
            benchmark, answers = tasks.benchmarks[file.name], file.with_suffix(".answers")
            with counting(console, f"{benchmark.name}, {cell.name}", benchmark.questions) as count:
                write_records(
                    file,
                    evaluate_benchmark(
                        model, tokenizer, benchmark, method=cell.method, answers=answers, on_question=count
                    ),
                )
        elif file.name == LANGUAGE:
            assert tasks.texts is not None
            with counting(console, f"texts, {cell.name}", len(tasks.texts)) as count:
                write_records(
                    file,
                    evaluate_language(model, tokenizer, tasks.texts, rewrite=cell.method.pieces, on_text=count),
                )
        else:
            assert tasks.sentences is not None
            with counting(console, f"sentences, {cell.name}", len(tasks.sentences)) as count:
                write_records(file, evaluate_gating(model, tokenizer, tasks.sentences, count))


class _Results(NamedTuple):
    """The records of all finished cells, with run and seed."""

    answers: list[Any]
    decisions: list[Any]
    losses: list[Any]
    benchmarks: list[Any]


def _merge(folder: Path, cells: Sequence[_Cell], tasks: _Tasks) -> _Results:
    """Write the results of the finished cells into the folder."""
    finished = [cell for cell in cells if all(file.is_file() for file in tasks.files(cell))]

    def merged(name: str) -> list[Any]:
        records = [
            {**record, "run": cell.variant, "seed": cell.seed}
            for cell in finished
            if (cell.folder / name).is_file()
            for record in read_records(cell.folder / name)
        ]
        return write_records(folder / name, records) if records else []

    judged = [record for name in tasks.benchmarks for record in merged(name)]
    return _Results(merged(ARITHMETIC), merged(GATING), merged(LANGUAGE), judged)


def _print_tables(results: _Results, plan: Plan, console: Console) -> None:
    in_pairs = (*results.answers, *results.losses, *results.benchmarks)
    baseline = plan.baseline if any(record["run"] == plan.baseline for record in in_pairs) else None
    for table in comparison_tables(*results, baseline):
        console.print(table)


def _facts(cell: _Cell) -> dict[str, Any]:
    """For figures: which cell, and the layer and policy of its adapter if it has a module."""
    facts: dict[str, Any] = {"variant": cell.variant, "seed": cell.seed}
    if cell.seed is not None:
        config = read_json_object(cell.training / ADAPTER / CONFIG_FILE)
        facts |= {key: config[key] for key in ("layer", "policy") if key in config}
    return facts
