import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ani.probing.run import SELECTION
from ani.training import run as run_module
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import load_recipe
from ani.training.run import PROBE, RECIPE_FILE, resume_recipe, train
from tests.refusals import refused
from tests.training.runs import interrupted

Write = Callable[..., Path]


@pytest.fixture
def auto_recipe(tiny_recipe: Write) -> Callable[..., Path]:
    """A recipe whose layer is to be found, with few sentences to find it by."""
    return lambda **changes: tiny_recipe(ani={"layer": "auto"}, probe={"sentences": 240}, **changes)


def test_a_resumed_run_does_not_probe_again(
    auto_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(auto_recipe()), on_log=interrupted)
    assert not (run / ADAPTER).exists()
    before = (run / PROBE / SELECTION).stat().st_mtime_ns

    monkeypatch.setattr(run_module, "probe", None)  # not again
    shown = StringIO()
    train(resume_recipe(run), resume=True, console=Console(file=shown, width=9999))
    assert (run / PROBE / SELECTION).stat().st_mtime_ns == before
    found = json.loads((run / PROBE / SELECTION).read_text())
    assert json.loads((run / ADAPTER / "ani_config.json").read_text())["module"]["layer"] == found["layer"]
    assert found["reason"] in shown.getvalue()
    assert load_recipe(run / RECIPE_FILE).ani.layer == "auto"  # it still says so


def test_a_layer_that_cannot_be_found_leaves_nothing(auto_recipe: Write, tmp_path: Path) -> None:
    for wrong, message in (
        ("sentences=20", "needs 30 of each; give more sentences"),
        ("data=gone.jsonl", "gone.jsonl"),
    ):
        refused(lambda wrong=wrong: train(load_recipe(auto_recipe(), [f"probe.{wrong}"])), message)
        assert not (tmp_path / "run").exists()


# --- the paper's layer ---


def test_the_paper_layer_of_another_model_is_refused(tiny_recipe: Write, tiny_model: Path, tmp_path: Path) -> None:
    models = ("Qwen3-8B", "Mistral-7B-v0.3", str(tiny_model))
    recipe = load_recipe(tiny_recipe(), ["ani.layer=paper"])
    refused(lambda: train(recipe), "ani.layer: paper", *models, "write a number, or auto")
    assert not (tmp_path / "run").exists()
