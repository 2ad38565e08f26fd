"""The tables of a training log: no logged number is left out."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ani.results.records import TRAINING_LOG
from ani.training.recipe import load_recipe
from ani.training.run import train
from tests.json_lines import read_lines
from tests.report.test_page import Page, build


def columns(page: Page) -> list[list[str]]:
    """The columns of the page's tables, each without its name."""
    starts = [place for place, row in enumerate(page.rows) if row[0] == "Step"]
    tables = [page.rows[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    return [list(column) for table in tables for column in list(zip(*table[1:], strict=True))[1:]]


def test_every_logged_number_is_in_a_table(tiny_recipe: Callable[..., Path], tmp_path: Path) -> None:
    settings = load_recipe(tiny_recipe(training={"steps": 2, "log_every": 1}), ["ani.role_weight=0.1"])
    train(settings)
    log = Path(settings.output) / TRAINING_LOG
    shutil.copy(log, tmp_path)
    steps, shown = read_lines(log), columns(build(tmp_path))
    keys = {key for step in steps for key in step} - {"step", "epoch"}
    assert len(shown) == len(keys)
    for key in keys:
        assert ["–" if step.get(key) is None else f"{step[key]:.4g}" for step in steps] in shown, key


@pytest.mark.filterwarnings("error")
def test_a_diverged_run_can_be_shown(tmp_path: Path) -> None:
    lines = '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n{"step": 3, "loss": Infinity}\n'
    (tmp_path / TRAINING_LOG).write_text(lines)
    assert columns(build(tmp_path)) == [["2", "nan", "inf"]]
