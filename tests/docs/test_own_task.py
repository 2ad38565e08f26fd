"""docs/examples/own_task.py: the file runs as the page says, by itself and in a comparison."""

import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from ani.evaluation.tasks import TASKS, task_class
from tests.refusals import refused

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "examples" / "own_task.py"


@pytest.fixture(autouse=True)
def larger() -> Iterator[Any]:
    """The file's task, registered."""
    with patch.dict(TASKS):
        runpy.run_path(str(FILE))
        yield TASKS["larger"]


def started(file: Path, *arguments: Any) -> int:
    """Run a file as a command line; returns its exit code."""
    with patch.object(sys, "argv", [str(file), *map(str, arguments)]), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(file), run_name="__main__")
    return int(str(ended.value.code))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the file as a command line; returns its exit code and what it printed."""
    return lambda *arguments: (started(FILE, *arguments), "".join(capsys.readouterr()))


def test_it_is_as_short_as_the_page_says() -> None:
    (promised,) = re.findall(r"^# A task in (\d+) lines$", (ROOT / "docs" / "own-task.md").read_text(), re.MULTILINE)
    assert len(FILE.read_text().splitlines()) <= int(promised)


@pytest.mark.parametrize(
    ("output", "prediction", "correct"),
    [(" 9.9, as", "9.9", True), ("9.90", "9.90", True), ("9.11", "9.11", False), ("the first", None, False)],
)
def test_its_judgement(output: str, prediction: str | None, correct: bool, larger: Any) -> None:
    backend = SimpleNamespace(generate=lambda *_, **__: [(0, output)])
    ((_, (record,)),) = larger().answer(backend, [("9.9", "9.11")])
    assert (record.prediction, record.correct) == (prediction, correct)
    pairs = larger().questions(seed=0)
    assert len(set(pairs)) == 100 and pairs == larger().questions(seed=0) != larger().questions(seed=1)


def test_the_command_line_knows_it_and_none_without_the_file(
    run: Callable[..., tuple[int, str]], tiny_model: Path, tmp_path: Path
) -> None:
    task = ["eval", "--model", tiny_model, "--tasks", "larger", "--out", tmp_path]
    code, out = run(*task, "--limit", 3, "--json")
    assert code == 0 and json.loads(out.splitlines()[0])["larger"]["total"] == 3
    facts = json.loads((tmp_path / "run.json").read_text())["settings"]["larger"]
    assert (facts["count"], facts["seed"]) == (3, 0)
    assert run("report", tmp_path)[0] == 0
    page = (tmp_path / "report.html").read_text()
    assert "The larger number" in page and "n = 3" in page
    code, out = run(*task, "--limit", 20_000)
    assert code == 2 and "larger: count" in out and "20000" in out
    TASKS.pop("larger")
    refused(lambda: task_class("larger"), "larger")


def test_a_comparison_asks_it(
    run: Callable[..., tuple[int, str]], tiny_recipe: Callable[..., Path], tmp_path: Path
) -> None:
    recipe, evaluation = tiny_recipe(training={"steps": 1, "save_every": 1}), {"larger": {"count": 3}}
    comparison = {"output": str(tmp_path / "compared"), "recipe": str(recipe), "evaluation": evaluation}
    comparison |= {"variants": {"sft": ["method=sft"]}, "reference": False}  # one run: its process must know the task
    file = tmp_path / "comparison.yaml"
    file.write_text(yaml.safe_dump(comparison, sort_keys=False))
    code, out = run("compare", file)
    assert code == 0, out
    table = (tmp_path / "compared" / "comparison.md").read_text()
    assert re.findall(r"^\| (\w+) \|.*n = 3\b", table, re.MULTILINE) == ["sft"]
    code, out = run("compare", file, "evaluation.larger.cuont=3")
    assert code == 2 and "evaluation.larger.cuont" in out
