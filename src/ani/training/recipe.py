"""One validated training recipe, from YAML and `key=value` overrides; knows nothing about how it is carried out."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ani.data.arithmetic import MOST_DIGITS
from ani.errors import InputError
from ani.files import replacing_file
from ani.injection.adapter import check_pattern
from ani.injection.config import AniConfig, InjectionSettings
from ani.injection.methods import METHODS, MethodName, unknown_method
from ani.models import DTypeName, Quantization
from ani.untrusted import DEEPEST, one_line, parse_yaml, read_text

LARGEST_INTEGER = 2**32 - 1
"""What NumPy takes as a seed."""

REMOVED: dict[str, Any] = {"training.number_token_loss": 0.0}
"""Settings of earlier versions, which wrote all of them into each run's recipe: the one value still accepted."""


class Section(BaseModel):
    """A part of a recipe: it can't be changed, and has no other keys than its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _in_bounds(self) -> Self:
        for key, value in self:
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
                    raise ValueError(f"{key} is {number}, but no integer may be above {LARGEST_INTEGER}: lower it")
        return self


class LoraSettings(Section):
    """PEFT's LoRA (paper, "Hyperparameters")."""

    r: int = Field(default=64, ge=1)
    """Rank."""
    alpha: int = Field(default=128, ge=1)
    """The update counts alpha / r times."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """On the update's input."""
    target_modules: str | list[str] = "all-linear"
    """Modules by name, or `all-linear`: all but the output embedding; a text is a regular expression."""

    @field_validator("target_modules")
    @classmethod
    def _loads_again(cls, targets: str | list[str]) -> str | list[str]:
        if isinstance(targets, str):
            check_pattern(targets)
        return targets


class AniSettings(InjectionSettings):
    """Settings of the ANI module; its layer may be left to be found."""

    layer: Annotated[int, Field(ge=0)] | Literal["auto", "paper"]
    """As in AniConfig; `auto`: probe the model first (`probe` says how); `paper`: what the paper takes for a model of
    this shape."""

    def config(self) -> AniConfig:
        """The module's settings, once the layer is known (`ani.training.run.with_layer`)."""
        return AniConfig(**self.model_dump())


class ProbeSettings(Section):
    """What `ani.layer: auto` probes with (`ani.probing`)."""

    data: str = "contrastive"
    """Labelled sentences: a file, a directory, or our own set."""
    held_out: str | None = None
    """Likewise, to test on; null: `data` itself, domain by domain."""
    sentences: int | None = Field(default=None, ge=1)
    """How many at most; null: all of a file, 4,000 of our own set."""


class ArithmeticData(Section):
    """N-digit arithmetic from our generator; lengths and operations in equal parts."""

    kind: Literal["arithmetic"]
    count: int = Field(ge=1)
    """Examples in all."""
    digits: list[Annotated[int, Field(ge=1, le=MOST_DIGITS)]] = [2, 4, 6, 8, 10, 12]
    """Lengths of the operands."""
    operations: list[Literal["addition", "subtraction", "multiplication"]] = ["addition"]
    """One or several."""


class DiagnosticData(Section):
    """Sentences with names and quantities from our generator, with their roles."""

    kind: Literal["diagnostic"]
    count: int = Field(ge=1)
    """Sentences."""


class JsonlData(Section):
    """The user's own examples (`ani.data.sources`)."""

    kind: Literal["jsonl"]
    path: str
    """A JSON-lines file."""
    limit: int | None = Field(default=None, ge=1)
    """The first so many examples; null: all."""


class HubData(Section):
    """A dataset on the hub with prompt and completion, or messages."""

    kind: Literal["hub"]
    name: str
    """On the hub."""
    split: str = "train"
    """Its part."""
    limit: int | None = Field(default=None, ge=1)
    """The first so many examples; null: all."""


DataSource = Annotated[ArithmeticData | DiagnosticData | JsonlData | HubData, Field(discriminator="kind")]


class TrainingSettings(Section):
    """Optimization (paper, "Hyperparameters", for the defaults)."""

    learning_rate: float = Field(default=5e-5, gt=0)
    """Of the LoRA weights; constant."""
    module_learning_rate: float = Field(default=1e-3, gt=0)
    """Of the ANI module, which learns from zero."""
    batch_size: int = Field(default=1, ge=1)
    """Examples a forward pass."""
    gradient_accumulation: int = Field(default=32, ge=1)
    """Forward passes an optimizer step."""
    max_length: int = Field(default=4096, ge=8)
    """Tokens of an example; the rest is cut off."""
    epochs: float = Field(default=1.0, gt=0, le=1e6)
    """Times that all data is seen."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps; overrules `epochs`."""
    warmup_steps: int = Field(default=0, ge=0)
    """In which the learning rates rise from 0."""
    max_gradient_norm: float = Field(default=1.0, gt=0, allow_inf_nan=True)
    """Longer gradients are shortened to it; `.inf`: none is."""
    gradient_checkpointing: bool = True
    """Less memory, some time: activations are computed again in the backward pass."""
    log_every: int = Field(default=10, ge=1)
    """Steps between log lines."""
    save_every: int = Field(default=100, ge=1)
    """Steps between checkpoints, of which two are kept."""


class Recipe(Section):
    """Everything that a training run depends on. Keys that are left out have the paper's values."""

    model: str = "smollm2"
    """Directory, hub name, or `smollm2` (embedded)."""
    output: str
    """Directory for adapter, checkpoints and logs."""
    seed: int = Field(default=0, ge=0)
    """Of initialization, dropout and the order of examples."""
    data_seed: int | None = Field(default=None, ge=0)
    """Of the generated examples: runs whose `seed` alone differs then learn from the same ones. None: `seed`."""
    dtype: DTypeName = "auto"
    """Of the base model; `auto`: bfloat16 where the hardware computes in it, else float32."""
    quantization: Quantization = "nf4"
    """`nf4`: 4-bit base weights (QLoRA), by bitsandbytes."""
    method: MethodName = "ani"
    """A row of the paper's tables (`ani.injection.methods`)."""
    ani: AniSettings | None = None
    """The module, without what the method fixes; a method without a module has no use for it."""
    probe: ProbeSettings = ProbeSettings()
    """For `ani.layer: auto`."""
    lora: LoraSettings | None = LoraSettings()
    """`null`: train the module alone."""
    data: list[DataSource] = Field(min_length=1)
    """One source or more, shuffled together."""
    training: TrainingSettings = TrainingSettings()
    """Batches, steps and rates."""

    @field_validator("method")
    @classmethod
    def _known(cls, name: MethodName) -> MethodName:
        if name not in METHODS:
            raise ValueError(unknown_method(name))
        return name

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, raw: Any) -> Any:
        for key, accepted in REMOVED.items():
            name, _, setting = key.partition(".")
            section = raw.get(name) if isinstance(raw, dict) else None
            if isinstance(section, dict) and setting in section:
                if section[setting] != accepted:
                    raise ValueError(f"unknown key {key!r}: earlier versions had it; leave it out")
                raw = {**raw, name: {k: value for k, value in section.items() if k != setting}}
        return raw

    @model_validator(mode="before")
    @classmethod
    def _as_the_method_says(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        name, section = raw.get("method", "ani"), raw.get("ani")
        fixed = _fixed(name)
        if isinstance(section, AniSettings):
            section = section.model_dump()
        if section is None and "layer" in fixed:
            section = {}
        if not isinstance(section, dict):
            return raw  # pydantic says what is wrong
        for key, value in fixed.items():
            if key in section and _plain(section[key]) != _plain(value):
                raise ValueError(
                    f"method {name!r} has ani.{key}={value!r} of its own, not {section[key]!r:.80}: leave ani.{key} out"
                )
        return {**raw, "ani": {**section, **fixed}}

    @model_validator(mode="after")
    def _trainable(self) -> Self:
        if METHODS[self.method].settings is None:
            if self.lora is None:
                raise ValueError(f"method {self.method!r} trains LoRA weights only, so lora can't be null")
            object.__setattr__(self, "ani", None)  # it was valid, and stays out of what is written
        elif self.ani is None:
            raise ValueError(f"key 'ani' is missing: method {self.method!r} needs it, with a layer at least")
        return self


S = TypeVar("S", bound=Section)


def _fixed(method: object) -> Mapping[str, Any]:
    """What a method fixes of the section `ani`."""
    return (METHODS[method].settings or {}) if isinstance(method, str) and method in METHODS else {}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def load_recipe(path: str | Path, *overrides: Sequence[str]) -> Recipe:
    """Read a training recipe; see `load_settings`."""
    return load_settings(path, Recipe, *overrides)


def load_settings(path: str | Path, kind: type[S], *overrides: Sequence[str]) -> S:
    """Read a recipe of a kind and apply dotted overrides such as `training.steps=100` or `data.0.count=10`.

    Args:
        path: A YAML file.
        kind: What it shall hold.
        *overrides: Lists of them, each upon the last. A list that chooses a method does without what file and earlier
            lists say where the method has its own way; what the list itself says must not contradict it.

    Raises:
        InputError: If the file is missing or no YAML, a key is unknown (the nearest right one is named), or a value
            has the wrong type or contradicts the method.
    """
    path = Path(path)
    if not os.path.exists(path):  # pathlib raises where a name is too long
        raise InputError(f"recipe {one_line(path)} does not exist")
    raw = parse_yaml(read_text(path), f"recipe {path}")
    if not isinstance(raw, dict):
        raise InputError(f"recipe {path} must be a mapping of keys to values")
    parsed = [[_parsed(override) for override in each] for each in overrides]
    choices = [(i, override.value) for i, each in enumerate(parsed) for override in each if override.key == "method"]
    choosing, method = choices[-1] if choices else (None, None)
    for i, each in enumerate(parsed):
        if i == choosing and isinstance(raw.get("ani"), dict):
            raw["ani"] = {key: value for key, value in raw["ani"].items() if key not in _fixed(method)}
        for override in each:
            _apply(raw, *override)
    if kind is Recipe and "variants" in raw:
        raise InputError(f"recipe {path} is a comparison of variants; carry it out with ani compare")
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"recipe {path}: {_explain(error, kind)}") from error


def save_recipe(recipe: Section, path: Path) -> None:
    """Write a recipe as YAML, every default spelled out."""
    with replacing_file(path) as file:
        yaml.safe_dump(recipe.model_dump(mode="json"), file, sort_keys=False, allow_unicode=True)


class _Override(NamedTuple):
    key: str
    value: Any
    text: str
    """All of it, for messages."""


def _parsed(override: str) -> _Override:
    key, equals, value = override.partition("=")
    text = one_line(override, 80)
    if not equals or not key:
        raise InputError(f"override {text!r} must have the form key=value, such as training.steps=100")
    return _Override(key, parse_yaml(value, f"override {text!r}: the value"), text)


def _apply(raw: dict[str, Any], key: str, value: Any, override: str) -> None:
    target: Any = raw
    *parents, last = key.split(".")
    if len(parents) > DEEPEST:
        raise InputError(f"override {override!r} names a key in {len(parents)} sections; recipes have three at most")
    for name in parents:
        if isinstance(target, list):
            target = _item(target, name, override)
        else:
            if target.get(name) is None:
                target[name] = {}
            target = target[name]
        if not isinstance(target, dict | list):
            raise InputError(f"override {override!r}: {name!r:.80} is a value, not a section")
    if isinstance(target, list):
        _item(target, last, override)
        target[int(last)] = value
    else:
        target[last] = value


def _item(items: list[Any], name: str, override: str) -> Any:
    if not re.fullmatch("[0-9]{1,6}", name) or int(name) >= len(items):
        raise InputError(f"override {override!r}: {name!r:.80} must be an index from 0 to {len(items) - 1}")
    return items[int(name)]


def _explain(error: ValidationError, kind: type[Section]) -> str:
    first = error.errors()[0]
    # Under data.<index> and ani.layer pydantic names the kind too, which is no key.
    location = [part for i, part in enumerate(first["loc"]) if not (i == 2 and first["loc"][0] in ("ani", "data"))]
    where = one_line(".".join(map(str, location)), 80)
    if first["type"] == "extra_forbidden":
        known = _known_keys(kind, first["loc"][:-1])
        nearest = difflib.get_close_matches(str(location[-1])[:80], known, n=1, cutoff=0.0)
        return f"unknown key {where!r}; did you mean {nearest[0]!r}?" if nearest else f"unknown key {where!r}"
    if first["type"] == "missing":
        return f"key {where!r} is missing"
    message = one_line(first["msg"].removeprefix("Value error, "))
    return f"{where}: {message} (got {one_line(repr(first['input']))})" if where else message


def _known_keys(kind: type[Section], location: tuple[int | str, ...]) -> list[str]:
    section: Any = kind
    kinds = {get_args(source.model_fields["kind"].annotation)[0]: source for source in _sections(DataSource)}
    for part in location:
        if isinstance(part, int):
            continue
        if part in section.model_fields:
            section = next(_sections(section.model_fields[part].annotation), section)
        elif part in kinds:
            section = kinds[part]
    return list(section.model_fields)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)
