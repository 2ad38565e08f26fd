"""Profiles of Hypothesis, and combinations of arguments.

`default` draws the same examples in every run, so that a commit has one verdict; `deep` (HYPOTHESIS_PROFILE=deep, or
--hypothesis-profile deep; `make stress`) draws ten times as many, new ones in every run, and prints what reproduces a
failure.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

DEFAULT = 100


def register_profiles() -> None:
    """Register and load the profile; call it before the tests are collected."""
    settings.register_profile("default", deadline=None, print_blob=True, max_examples=DEFAULT, derandomize=True)
    default = settings.get_profile("default")
    settings.register_profile("deep", default, max_examples=10 * DEFAULT, derandomize=False)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def deep() -> bool:
    """Whether the profile is `deep`."""
    return settings().max_examples > DEFAULT


def examples(count: int) -> settings:
    """`count` examples in the default profile, ten times as many in `deep`."""
    return settings(max_examples=count * settings().max_examples // DEFAULT)


def cover(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test so that any two arguments' values meet; in `make stress`, all of them do."""
    whole = list(itertools.product(*values.values()))
    pairs = {row: set(itertools.combinations(enumerate(row), 2)) for row in whole}
    missing: set[Any] = set().union(*pairs.values())
    chosen = []
    while missing:
        chosen.append(max(whole, key=lambda row: len(missing & pairs[row])))
        missing -= pairs[chosen[-1]]
    return pytest.mark.parametrize(tuple(values), whole if deep() else chosen)
