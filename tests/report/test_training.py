"""The tables of a training log: no logged number is left out."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ani.results.records import TRAINING_LOG
from ani.training.recipe import load_recipe
from ani.training.run import train
from tests.json_lines import read_lines
from tests.report.test_page import Page, build, write


def columns(page: Page) -> list[list[str]]:
    """The columns of the page's tables, each without its name."""
    starts = [place for place, row in enumerate(page.rows) if row[0] == "Step"]
    tables = [page.rows[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    return [list(column) for table in tables for column in list(zip(*table[1:], strict=True))[1:]]


def test_every_logged_number_is_in_a_table(tiny_recipe: Callable[..., Path], tmp_path: Path) -> None:
    settings = load_recipe(tiny_recipe(), ["ani.role_weight=0.1"])
    train(settings)
    log = Path(settings.output) / TRAINING_LOG
    shutil.copy(log, tmp_path)
    steps, shown = read_lines(log), columns(build(tmp_path))
    for key in {key for step in steps for key in step} - {"step", "epoch"}:
        assert ["–" if step.get(key) is None else f"{step[key]:.4g}" for step in steps] in shown, key


def test_unknown_names_and_values(tmp_path: Path) -> None:
    log: list[dict[str, Any]] = [
        {"step": step, "loss": 1.0, "$own$ <b>": step / 2, "huge": 10**400, "phase": "late", "epoch": 1.0}
        for step in (1, 2)
    ]
    write(tmp_path, TRAINING_LOG, log)
    page = build(tmp_path)
    assert sorted(page.charts) == ["Chart: $own$ <b>", "Chart: loss"]
    assert columns(page) == [["1", "1"], ["0.5", "1"]]


def test_a_resumed_run_counts_its_later_records(tmp_path: Path) -> None:
    steps = [{"step": step, "loss": loss} for step, loss in ((10, 3.0), (20, 9.0), (20, 2.0), (30, 1.0))]
    write(tmp_path, TRAINING_LOG, steps)
    assert columns(build(tmp_path)) == [["3", "2", "1"]]


@pytest.mark.filterwarnings("error")
def test_a_diverged_run_can_be_shown(tmp_path: Path) -> None:
    lines = '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n{"step": 3, "loss": Infinity}\n'
    (tmp_path / TRAINING_LOG).write_text(lines)
    assert columns(build(tmp_path)) == [["2", "nan", "inf"]]
