"""A tenth of the table of families (docs/families.md): no family is worse than there. `make stress` checks all."""

import re
import warnings
from itertools import cycle

import pytest
import transformers

from ani.injection.methods import Policy
from tests.families.checks import RESULTS, examine
from tests.families.models import all_families
from tests.families.page import PAGE, published

TENTH = [family for family, result in published().items() if result != "base"][::10]


@pytest.mark.parametrize(("family", "policy"), [*zip(TENTH, cycle(["after", "terminal"]), strict=False)])
def test_no_family_is_worse(family: str, policy: Policy) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tiny models' settings
        found = examine(family, [policy])
    assert RESULTS.index(found.result) >= RESULTS.index(published()[family]), found


def test_every_family_is_on_the_page() -> None:
    if f"transformers {transformers.__version__}:" not in PAGE.read_text():
        pytest.skip("the page is of another version of transformers")
    assert list(published()) == list(all_families())


def test_the_page_is_of_the_version_that_is_pinned() -> None:
    """An upgrade of transformers fails until `python stress/families.py` has written a new page."""
    pinned = re.search(r"^transformers==(.+)$", (PAGE.parents[1] / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"transformers {pinned[1]}:" in PAGE.read_text()
