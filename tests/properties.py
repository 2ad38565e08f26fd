"""How far Hypothesis searches.

`default` draws the same examples in every run, so that a commit has one verdict; `deep` (HYPOTHESIS_PROFILE=deep, or
--hypothesis-profile deep; `make stress`) draws ten times as many, new ones in every run, and prints what reproduces a
failure. `hasty` (`stress/mutants.py`) doesn't look for a simpler failure than the first.
"""

import os

from hypothesis import Phase, settings

DEFAULT = 100


def register_profiles() -> None:
    """To be called before the tests are collected."""
    settings.register_profile("default", deadline=None, print_blob=True, max_examples=DEFAULT, derandomize=True)
    default = settings.get_profile("default")
    settings.register_profile("deep", default, max_examples=10 * DEFAULT, derandomize=False)
    settings.register_profile("hasty", default, phases=[Phase.explicit, Phase.generate])
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def deep() -> bool:
    """Whether every pair of what is combined is tried, and not each once."""
    return settings().max_examples > DEFAULT


def examples(count: int) -> settings:
    """So many examples by default, and as many times more as the profile has. The first is the simplest of all."""
    return settings(max_examples=count * settings().max_examples // DEFAULT)
