"""Splits generated data into disjoint training and test parts, and draws distinct examples."""

from collections.abc import Callable, Hashable
from functools import cache
from importlib import resources
from itertools import count as counted
from typing import Any, Literal, TypeVar, get_args

import yaml

from ani.errors import InputError

Split = Literal["train", "test"]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def check_split(split: str, count: int = 0) -> None:
    """Raises InputError unless `split` is one, and `count` is not negative."""
    if split not in get_args(Split):
        raise InputError(f"split must be one of {', '.join(get_args(Split))}, not {split!r:.80}")
    if count < 0:
        raise InputError(f"count must not be negative, but is {count}")


def add_new(found: dict[K, V], draw: Callable[[], tuple[K, V] | None], attempts: int | None = None) -> bool:
    """Draw until a key is new, and add it with its value; a draw may give None. Returns False after that many attempts
    without success (None: never)."""
    for _ in counted() if attempts is None else range(attempts):
        drawn = draw()
        if drawn is not None and drawn[0] not in found:
            found[drawn[0]] = drawn[1]
            return True
    return False


@cache
def read_templates(file: str, package: str = "ani.data") -> dict[str, Any]:
    """The content of a YAML file of a package."""
    loaded: dict[str, Any] = yaml.safe_load(resources.files(package).joinpath(file).read_text("utf-8"))
    return loaded
