"""The section about training, from logs as training writes them: nothing that was logged is passed over in silence."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from ani.report.training import TrainingStep, training_section
from ani.results.records import TRAINING_LOG, read_records
from ani.results.sections import Lines
from ani.training.recipe import load_recipe
from ani.training.run import train
from tests.json_lines import read_lines
from tests.report.test_page import Page, build, write


def fresh(recipe: Path) -> Path:
    """Of a run with all that can be logged: roles, numbers in answers, LoRA."""
    settings = load_recipe(recipe, ["ani.role_weight=0.1"])
    train(settings)
    return Path(settings.output) / TRAINING_LOG


def need_every_key(log: Path, page: Page) -> None:
    """Each logged key is a line whose course the page tells in words, or is named as not drawn."""
    steps = read_lines(log)
    section = training_section(read_records(log, TrainingStep))
    left_out = set(section.notes[-1].removeprefix("Logged, but not drawn: ").removesuffix(".").split(", "))
    panels = [lines for figure in section.figures for lines in cast(Lines, figure.chart).panels.values()]
    drawn = [line.points for lines in panels for line in lines]
    told = " ".join(page.labels)
    for key in {key for step in steps for key in step} - {"step"} - left_out:
        points = [(step["step"], step[key]) for step in steps if key in step]
        assert points in drawn, key
        for step, value in (points[0], points[-1]):
            assert f" {value:{'.1%' if key.startswith('gate_open') else '.3g'}} at step {step}" in told, key
    assert left_out == {"epoch"}
    assert section.notes[-1] in page.text


def test_every_logged_key_is_drawn_or_named(tiny_recipe: Callable[..., Path], tmp_path: Path) -> None:
    log = fresh(tiny_recipe())
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(log, folder)
    need_every_key(log, build(folder))


def test_keys_that_nobody_knows(tmp_path: Path) -> None:
    log: list[dict[str, Any]] = [
        {"step": step, "loss": 1.0, "$own$ <b>": step / 2, "huge": 10**400, "phase": "late", "done": True, "epoch": 1.0}
        for step in (1, 2)
    ]
    write(tmp_path, TRAINING_LOG, log)
    page = build(tmp_path)
    assert "Logged, but not drawn: done, epoch, huge, phase." in page.text
    assert "Further quantities over steps. $own$ <b>: 0.5 at step 1, 1 at step 2." in page.labels
