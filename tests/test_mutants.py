"""Each fault of stress/mutants.py changes a text that stands in the code, and names tests that exist."""

from pathlib import Path

import pytest

from stress.mutants import MUTANTS, Mutant, mutated

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_has_its_place_and_its_tests(mutant: Mutant) -> None:
    assert mutated(mutant) != (ROOT / "src/ani" / mutant.file).read_text(encoding="utf-8")
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests.split())
