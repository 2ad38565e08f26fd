"""Reads, overrides, validates and writes settings in YAML; unknown keys are refused."""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from ani.errors import UNKNOWN_KEY, InputError, first_problem, one_line
from ani.files import replacing_file
from ani.text_files import read_text

LARGEST_INTEGER = 2**32 - 1
"""The largest seed of NumPy."""


class Section(BaseModel):
    """Base of settings: immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, raw: Any) -> Any:
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        # Missing keys are reported first.
        for key in raw if isinstance(raw, dict) and required <= raw.keys() else ():
            if key not in cls.model_fields:
                (nearest,) = difflib.get_close_matches(str(key)[:80], cls.model_fields, n=1, cutoff=0.0)
                given = {"key": one_line(key, 80), "nearest": nearest}
                raise PydanticCustomError(UNKNOWN_KEY, "unknown key '{key}'; did you mean '{nearest}'?", given)
        return raw

    @model_validator(mode="after")
    def _in_bounds(self) -> Self:
        for key, value in self:
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
                    raise ValueError(f"{key} is {number}, but no integer may be above {LARGEST_INTEGER}: lower it")
        return self


S = TypeVar("S", bound=Section)


def read_settings(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises InputError if the file is missing or contains no mapping."""
    path = Path(path)
    if not os.path.exists(path):  # pathlib raises where a name is too long
        raise InputError(f"recipe {one_line(path)} does not exist")
    raw = parse_yaml(read_text(path), f"recipe {path}")
    if not isinstance(raw, dict):
        raise InputError(f"recipe {path} must be a mapping of keys to values")
    return raw


def validated(kind: type[S], raw: Any, where: str, key: str = "") -> S:
    """Settings of class `kind` from `raw`, the value of `key` in the file `where`. Raises InputError if a key is
    unknown (with the most similar known key), or a value has the wrong type."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error, key)}") from error


def load_settings(path: str | Path, kind: type[S], overrides: Sequence[str] = ()) -> S:
    """Read a YAML file and apply dotted changes such as `training.steps=100` or `data.0.count=10`; raises InputError as
    `read_settings`, `override` and `validated`."""
    raw = read_settings(path)
    override(raw, overrides)
    return validated(kind, raw, f"recipe {path}")


def save_settings(settings: Section, path: Path) -> None:
    """Write settings, defaults included, as YAML."""
    with replacing_file(path) as file:
        yaml.safe_dump(settings.model_dump(mode="json"), file, sort_keys=False, allow_unicode=True)


def override(raw: dict[str, Any], changes: Sequence[str]) -> None:
    """Apply dotted changes `key=value` in place; raises InputError if a key does not exist in a list or value."""
    for change in changes:
        key, equals, text = change.partition("=")
        shown = one_line(change, 80)
        if not equals or not key:
            raise InputError(f"override {shown!r} must have the form key=value, such as training.steps=100")
        value = parse_yaml(text, f"override {shown!r}: the value")
        target: Any = raw
        *parents, last = key.split(".")
        for name in parents:
            if isinstance(target, dict) and target.get(name) is None:
                target[name] = {}
            target = target[_place(target, name, shown)]
            if not isinstance(target, dict | list):
                raise InputError(f"override {shown!r}: {name!r:.80} is a value, not a section")
        target[_place(target, last, shown)] = value


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; raises InputError, which names the text `where`, if it is not valid."""
    try:
        return yaml.safe_load(text)
    except Exception as error:  # PyYAML raises errors of any class for `!!timestamp x` or `!!int _`
        raise InputError(f"{where} is not valid YAML: {one_line(error)}") from error


def _place(items: dict[str, Any] | list[Any], name: str, override: str) -> str | int:
    if isinstance(items, dict):
        return name
    if not re.fullmatch("[0-9]{1,6}", name) or int(name) >= len(items):
        raise InputError(f"override {override!r}: {name!r:.80} must be an index from 0 to {len(items) - 1}")
    return int(name)
