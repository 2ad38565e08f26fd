"""docs/paper.md: its rows are the deviations that tests/paper names, and say what the code does."""

import re
from typing import Any

import pytest
import yaml

from ani.compare.plan import variant_recipes
from tests.paper import facts, project
from tests.paper.deviations import defaults, ours

LITERALS = {**facts.DEVIATIONS, **{name: (None, value) for name, value in facts.UNSAID.items()}}


def rows() -> dict[str, list[str]]:
    """The first code of each cell by the row's name, of the tables of what is ours."""
    found: dict[str, list[str]] = {}
    for table in re.findall(
        r"^\| what \|.*\n\|[ -|]+\|\n((?:\|.*\n)+)", project.DOCS.joinpath("paper.md").read_text(), re.M
    ):
        for line in table.splitlines():
            name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
            assert name not in found
            found[name.replace("`", "")] = [code[1] for cell in cells if (code := re.search("`(.+?)`", cell))]
    return found


def value(code: str) -> Any:
    return code if re.match(r"[>#]", code) else yaml.safe_load(code)


def test_every_deviation_has_a_row_and_no_other() -> None:
    assert sorted(rows()) == sorted(LITERALS)


@pytest.mark.parametrize("name", LITERALS)
def test_a_row_says_what_the_code_does(name: str) -> None:
    paper, own = LITERALS[name]
    cells = [value(code) for code in rows()[name]]
    if name in facts.DEVIATIONS:
        assert cells.pop(0) == paper
    assert cells[0] == own == ours(name)


def test_a_setting_without_a_row_is_the_papers() -> None:
    known = {f"ani.{key}": fact for key, fact in {**facts.MODULE, **facts.ANI}.items()}
    known |= {f"training.{key}": fact for key, fact in facts.TRAINING.items()}
    known |= {f"lora.{key}": fact for key, fact in facts.LORA.items()}
    for section in ("ani", "training", "lora"):
        for key, default in getattr(defaults(), section):
            name = f"{section}.{key}"
            if name not in facts.NOT_OF_THE_METHOD and name not in LITERALS:
                assert default == known[name], name


def test_the_literal_row_has_the_papers_settings() -> None:
    literal = variant_recipes(project.RECIPES / "main-results.yaml")["ani-literal"]
    for name, (paper, _) in facts.DEVIATIONS.items():
        if "." in name and name not in facts.NEEDED:
            section, key = name.split(".")
            assert getattr(getattr(literal, section), key) == paper, name
    for section in ("ani", "training", "lora"):
        for key, found in getattr(literal, section):
            name = f"{section}.{key}"
            if name not in {*facts.DEVIATIONS, "ani.layer"}:
                assert found == getattr(getattr(defaults(), section), key), name
