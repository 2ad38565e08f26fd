"""A comparison's settings, and its runs: variants × seeds."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ani.errors import InputError
from ani.evaluation.engines import Machine, VllmSettings, this_machine
from ani.evaluation.evaluate import LoadedTask, known_hashes, load_tasks
from ani.evaluation.task import Task
from ani.evaluation.tasks import task_class
from ani.evaluation.tasks.benchmarks import Benchmark
from ani.injection.adapter import Adapter
from ani.injection.model_parts import check_layer
from ani.models import load_config, load_tokenizer
from ani.results.records import SELECTION, task_file
from ani.revisions import pinned
from ani.serving.plugin import why_not_vllm
from ani.settings import Section, load_settings, validated
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import ProbeSettings, Recipe, load_recipe
from ani.training.run import PROBE, check, paper_layer

REFERENCE = "reference"
DEMO = Path(__file__).parent.parent / "recipes" / "demo-comparison.yaml"
COMMON = ("model", "output", "seed", "data_seed")
"""Keys of the training recipe that no variant may set."""

BackendName = Literal["transformers", "vllm"]


class Comparison(Section):
    """Settings of a comparison: a training recipe, the changes that each variant makes to it, and the tasks."""

    output: str
    """Directory for all results."""
    recipe: str
    """The training recipe, relative to the comparison's file."""
    model: str | None = None
    """Base model of all runs, a hub name (or `NAME@REVISION`) or a directory; null: the recipe's."""
    overrides: list[str] = Field(default=[])
    """Changes to the recipe for all variants, `key=value`."""
    variants: dict[str, list[str]] = Field(default={})
    """Further changes to the recipe by the variant's name."""
    models: dict[str, str] = Field(default={})
    """Further models that are evaluated and not trained, by the row's name."""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[0], min_length=1)
    """Seeds of initialization, dropout and order of examples; `3` means 0, 1 and 2. Training data and problems are the
    same for all seeds."""
    more_seeds: dict[str, list[Annotated[int, Field(ge=0)]]] = Field(default={})
    """Additional seeds by variant."""
    reference: bool = True
    """Also evaluate the untrained model."""
    baseline: str | None = None
    """The row (a variant, a model or `reference`) to which the others are compared in pairs."""
    probe: bool = False
    """Also probe the untrained model's layers, with the settings `probe` of the training recipe, for the chart of task
    accuracy and probe accuracy (paper, Figure "Layer Sensitivity Analysis")."""
    backend: Literal["auto", "transformers", "vllm"] = "auto"
    """Engine for benchmarks. `vllm` reads merged checkpoints in 16 bits where the hardware computes in 16 bits;
    transformers reads the merged checkpoints that vLLM can't serve. `auto`: vLLM where it is installed and uses a GPU.
    All other tasks are evaluated by transformers in the recipe's precision."""
    vllm: VllmSettings = VllmSettings()
    """Settings of vLLM's engine. A run has one engine on `tensor_parallel_size` cards."""
    evaluation: dict[str, Any]
    """Tasks for every model, with their settings, by name; `null` leaves a task out."""
    published: dict[str, dict[str, float]] = Field(default={})
    """Published values that the report shows next to the measured ones, by variant (or `reference`) and column: percent
    for `math`, `gsm8k`, `mmlu` and for additions by length, such as `12 digits`; percentage points over the baseline
    for `levels 1–3 gain` and `levels 4–5 gain` of MATH."""

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> Any:
        return [*range(seeds)] if type(seeds) is int and seeds < 1000 else seeds

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not {**self.variants, **self.models}:
            raise ValueError("variants must name a row, such as sft: [method=sft]")
        for name in [*self.variants, *self.models]:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name == REFERENCE:
                raise ValueError(
                    f"variant {name!r} needs another name: one of letters, digits, '.', '_' and '-', because it names "
                    f"a directory, and not {REFERENCE!r}, the untrained model"
                )
        if both := self.variants.keys() & self.models.keys():
            raise ValueError(f"variants and models share the name {min(both)!r}")
        for name, more in {"": [], **self.more_seeds}.items():
            if name and name not in self.variants:
                raise ValueError(f"more_seeds: there is no variant {name!r}")
            if len({*self.seeds, *more}) < len(self.seeds) + len(more):
                raise ValueError(f"seeds must be distinct, not {[*self.seeds, *more]}")
        known = [*([REFERENCE] if self.reference else []), *self.models, *self.variants]
        if unknown := [name for name in self.published if name not in known]:
            raise ValueError(f"published: there is no variant {unknown[0]!r}")
        if self.baseline is not None and self.baseline not in known:
            raise ValueError(f"baseline {self.baseline!r} must be one of {known}")
        return self


class ComparedRun(NamedTuple):
    """A model to train and evaluate: a variant with a seed; untrained models have no seed."""

    variant: str
    seed: int | None
    recipe: Recipe
    folder: Path
    """`runs/VARIANT/seed-N`."""
    hash: str
    """Hash of recipe and data, also in the folder's file `hash`."""

    @property
    def name(self) -> str:
        return self.variant if self.seed is None else f"{self.variant}, seed {self.seed}"

    @property
    def training(self) -> Path:
        return self.folder / "training"

    @property
    def is_trained(self) -> bool:
        return self.seed is None or (self.training / ADAPTER).is_dir()

    @property
    def why_not_vllm(self) -> str | None:
        """The reason why vLLM can't serve this run's merged model, or None."""
        ani = None if self.seed is None else self.recipe.ani
        return None if ani is None else why_not_vllm(load_config(self.recipe.model), ani)

    @property
    def injection(self) -> dict[str, Any]:
        """`layer` and `policy` of the trained adapter; empty for a run without ANI."""
        config = None if self.seed is None else Adapter.read(self.training / ADAPTER).settings.module
        return {} if config is None else {"layer": config.layer, "policy": config.policy}

    def asked(self, loaded: Sequence[LoadedTask]) -> list[LoadedTask]:
        """The tasks for this model: those about gates need a gate."""
        ani = self.recipe.ani
        gate = self.seed is not None and ani is not None and ani.gate != "open"
        return [each for each in loaded if gate or not each.task.needs_gate]

    def missing(self, loaded: Sequence[LoadedTask]) -> list[LoadedTask]:
        """The tasks for this model that it has not answered."""
        known = known_hashes(self.folder)
        return [
            each
            for each in self.asked(loaded)
            if known.get(each.task.name) != each.facts(self.recipe.data_seed, self.hash)["hash"]
            or not task_file(self.folder, each.task.name).is_file()
        ]

    def is_finished(self, loaded: Sequence[LoadedTask]) -> bool:
        return self.is_trained and not self.missing(loaded)


class Probe(NamedTuple):
    """A probing of the untrained model's layers, for all runs that choose their layer by the same settings."""

    recipe: Recipe
    folder: Path
    """`probe-HASH`."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_finished(self) -> bool:
        return (self.folder / SELECTION).is_file()


class Plan(NamedTuple):
    """A comparison, read and checked; nothing is written yet."""

    comparison: Comparison
    machine: Machine
    """Hardware that carries out the runs."""
    backend: BackendName
    """Engine for benchmarks."""
    base: Recipe
    variants: dict[str, Recipe]
    folder: Path
    tokenizer: PreTrainedTokenizerBase
    tasks: list[LoadedTask]
    runs: list[ComparedRun]
    """All runs, seed by seed, so that all variants can be compared early."""

    def probe(self, recipe: Recipe) -> Probe:
        """The probing that chooses the layer of a recipe."""
        probing = {**recipe.probing, "model": recipe.model, "dtype": recipe.dtype, "quantization": recipe.quantization}
        return Probe(recipe, self.folder / f"{PROBE}-{_hash(probing)}")

    @property
    def missing_probes(self) -> list[Probe]:
        """Probings that the comparison or an untrained run needs."""
        recipes = [self.base] if self.comparison.probe else []
        untrained = [run.recipe for run in self.runs if not run.is_trained]
        recipes += [recipe for recipe in untrained if recipe.ani is not None and recipe.ani.layer == "auto"]
        found = {probe.name: probe for probe in map(self.probe, recipes)}
        return [probe for probe in found.values() if not probe.is_finished]


def load_plan(path: str | Path, overrides: Sequence[str] = (), machine: Machine | None = None) -> Plan:
    """Read a comparison from a YAML file (`Comparison`) with changes `key=value`, and the questions of its tasks.

    `machine` carries out the runs; None: this machine. Raises InputError for everything that training or evaluation
    would refuse later.
    """
    comparison = load_settings(path, Comparison, overrides)
    tasks = evaluation_tasks(comparison, f"recipe {path}")
    base, variants = _recipes(comparison, Path(path).parent)
    base, variants = base.pinned(), {name: recipe.pinned() for name, recipe in variants.items()}
    machine = machine or this_machine()
    backend = comparison.backend
    if backend == "auto":
        backend = "vllm" if machine.serves_by_vllm else "transformers"
    if backend == "vllm" and (reason := why_not_vllm()):
        raise InputError(f"{reason}; or set backend: transformers")
    tokenizer, config, folder = load_tokenizer(base.model), load_config(base.model), Path(comparison.output)
    _check_variants(variants, config)
    assert base.data_seed is not None  # `_recipes` set it
    how = {"merged_weights": True, **comparison.vllm.model_dump(include={"max_model_len"}, exclude_defaults=True)}
    loaded = [
        each._replace(how=how) if asks_merged(each.task, backend) else each
        for each in load_tasks(tasks, tokenizer, config, base.data_seed)
    ]
    runs = _runs(comparison, base, variants, folder, config)
    return Plan(comparison, machine, backend, base, variants, folder, tokenizer, loaded, runs)


def asks_merged(task: Task, backend: BackendName) -> bool:
    """Return whether a task is asked of the merged checkpoint, as vLLM serves it."""
    return backend == "vllm" and isinstance(task, Benchmark)


def variant_recipes(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Recipe]:
    """The recipe of each variant; raises InputError if the comparison is not valid."""
    comparison = load_settings(path, Comparison, overrides)
    evaluation_tasks(comparison, f"recipe {path}")
    return _recipes(comparison, Path(path).parent)[1]


def evaluation_tasks(comparison: Comparison, where: str) -> list[Task]:
    """The tasks of `evaluation`, in its order. Raises InputError if a task is unknown, its settings are not valid, or
    there is no task for a reference or baseline."""
    wanted = {name: settings for name, settings in comparison.evaluation.items() if settings is not None}
    try:
        kinds = {name: task_class(name) for name in wanted}
    except InputError as error:
        raise InputError(f"{where}: evaluation: {error}") from error
    tasks = {name: validated(kind, wanted[name], where, f"evaluation.{name}") for name, kind in kinds.items()}
    for_all = any(not task.needs_gate for task in tasks.values())
    if not tasks:
        raise InputError(f"{where}: evaluation needs a task, such as arithmetic: {{count: 100}}")
    if comparison.reference and not for_all:
        raise InputError(f"{where}: the untrained model has no gate to evaluate; set reference: false")
    if comparison.baseline is not None and not for_all:
        raise InputError(f"{where}: baseline needs a task that every model is asked, such as arithmetic")
    return list(tasks.values())


def _recipes(comparison: Comparison, directory: Path) -> tuple[Recipe, dict[str, Recipe]]:
    """The comparison's recipe, and the recipe of each variant."""
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
                raise InputError(f"variant {name!r} must not set {key}: the comparison sets it for all variants")
        variants[name] = recipe.model_copy(update=common)
    return base.model_copy(update=common), variants


def _check_variants(variants: Mapping[str, Recipe], config: PreTrainedConfig) -> None:
    """Raise InputError for everything that training of a variant would refuse."""
    depth = config.get_text_config().num_hidden_layers
    for name, recipe in variants.items():
        try:
            check(recipe, resume=True)
            if recipe.ani is not None and recipe.ani.layer != "auto":
                layer = paper_layer(recipe.model, config) if recipe.ani.layer == "paper" else recipe.ani.layer
                check_layer(layer, depth, config.model_type)
        except InputError as error:
            raise InputError(f"variant {name!r}: {error}") from error


def _runs(
    comparison: Comparison, base: Recipe, variants: Mapping[str, Recipe], folder: Path, config: PreTrainedConfig
) -> list[ComparedRun]:
    trained = [(name, seed) for seed in comparison.seeds for name in variants]
    trained += [(name, seed) for name, more in comparison.more_seeds.items() for seed in more]
    runs = []
    for name, model in {**({REFERENCE: base.model} if comparison.reference else {}), **comparison.models}.items():
        recipe = base.model_copy(update={"model": pinned(model)})
        made_of = (recipe.model, recipe.dtype, recipe.quantization)
        runs.append(ComparedRun(name, None, recipe, folder / "runs" / name, _hash(made_of)))
    for name, seed in trained:
        recipe = variants[name].model_copy(update={"seed": seed})
        made_from = recipe.model_dump(mode="json", exclude={"output"})
        if recipe.ani is None or recipe.ani.layer != "auto":
            made_from["probe"] = ProbeSettings().model_dump(mode="json")
        if recipe.ani is not None and recipe.ani.layer == "paper":
            made_from["ani"]["layer"] = paper_layer(recipe.model, config)
        mark = _hash([made_from, _digests([*made_from["data"], made_from["probe"]])])
        place = folder / "runs" / name / f"seed-{seed}"
        recipe = recipe.model_copy(update={"output": str(place / "training")})
        runs.append(ComparedRun(name, seed, recipe, place, mark))
    return runs


def _hash(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]


def _digests(data: Sequence[Mapping[str, Any]]) -> list[str]:
    """SHA-256 of every file that the settings of data name, by itself or in a directory."""
    found = []
    for name in (each.get(key) for each in data for key in ("path", "name", "data", "held_out")):
        for file in [Path(name), *sorted(Path(name).rglob("*"))] if name and os.path.exists(name) else ():
            if file.is_file():
                with file.open("rb") as content:
                    found.append(hashlib.file_digest(content, "sha256").hexdigest())
    return found
