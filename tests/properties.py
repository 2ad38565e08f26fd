"""How far Hypothesis searches; knows nothing about the properties.

`default` draws anew in every run, and prints what reproduces a failure; `deep` (HYPOTHESIS_PROFILE=deep, or
--hypothesis-profile deep; `make stress`) draws ten times as much.
"""

import os

from hypothesis import settings

DEFAULT = 100


def register_profiles() -> None:
    """To be called before the tests are collected."""
    settings.register_profile("default", deadline=None, print_blob=True, max_examples=DEFAULT, derandomize=False)
    settings.register_profile("deep", settings.get_profile("default"), max_examples=10 * DEFAULT)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def examples(count: int) -> settings:
    """So many examples by default, and as many times more as the profile has. The first is the simplest of all."""
    return settings(max_examples=count * settings().max_examples // DEFAULT)
