"""The YAML files of this package."""

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def read_templates(file: str) -> dict[str, Any]:
    """Parses a YAML file of this package."""
    loaded: dict[str, Any] = yaml.safe_load(resources.files(__package__).joinpath(file).read_text("utf-8"))
    return loaded
