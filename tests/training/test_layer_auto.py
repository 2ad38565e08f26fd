import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ani.injection.model_parts import ani_module
from ani.probing.run import SELECTION
from ani.training import run as run_module
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import load_recipe
from ani.training.run import PROBE, RECIPE_FILE, resume_recipe, train, with_layer
from tests.refusals import refused
from tests.training.runs import interrupted

Write = Callable[..., Path]


@pytest.fixture
def auto_recipe(tiny_recipe: Write) -> Callable[..., Path]:
    """A recipe whose layer is to be found, with few sentences to find it by."""
    return lambda **changes: tiny_recipe(ani={"layer": "auto"}, probe={"sentences": 240}, **changes)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_the_layer_is_the_one_that_was_found(auto_recipe: Write, tmp_path: Path) -> None:
    recipe = load_recipe(auto_recipe(), ["training.steps=1", "probe.sentences=250", "ani.policy=after"])
    console = Console(file=StringIO(), width=400)
    model = train(recipe, console=console)
    run = tmp_path / "run"
    chosen = json.loads((run / PROBE / SELECTION).read_text())
    assert (chosen["data"], chosen["held_out"], chosen["sentences"]) == ("diagnostic", None, 250)
    assert chosen["policy"] == "after"  # the recipe's own, which has sentences of its own
    assert json.loads((run / ADAPTER / "ani_config.json").read_text())["module"]["layer"] == chosen["layer"]
    assert ani_module(model).config.layer == chosen["layer"]
    assert "".join(chosen["reason"].split()) in "".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert load_recipe(run / RECIPE_FILE) == recipe  # it still says auto
    assert json.loads((run / PROBE / "run.json").read_text())["model"] == recipe.model


def test_a_resumed_run_does_not_probe_again(
    auto_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(auto_recipe()), on_log=interrupted)
    assert not (run / ADAPTER).exists()
    before = contents(run / PROBE)
    assert SELECTION in before

    monkeypatch.setattr(run_module, "probe", None)  # not again
    shown = StringIO()
    train(resume_recipe(run), resume=True, console=Console(file=shown, width=9999))
    assert contents(run / PROBE) == before
    found = json.loads((run / PROBE / SELECTION).read_text())
    assert json.loads((run / ADAPTER / "ani_config.json").read_text())["module"]["layer"] == found["layer"]
    assert found["reason"] in shown.getvalue()


def test_results_that_are_there_are_read(auto_recipe: Write, tmp_path: Path) -> None:
    recipe = load_recipe(auto_recipe())
    folder = tmp_path / "run" / PROBE
    folder.mkdir(parents=True)
    selection = {"layer": 2, "stretch": [2, 2], "best": 2, "argmax": 1, "reason": "It was the best."}
    (folder / SELECTION).write_text(json.dumps(selection))
    shown = StringIO()
    assert with_layer(recipe, Console(file=shown)).ani.layer == 2
    assert shown.getvalue() == ""  # the comparison whose model this is has said it
    assert recipe.ani.layer == "auto"
    number = load_recipe(auto_recipe(), ["ani.layer=1"])
    assert with_layer(number) == number


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["probe.sentences=20"], "needs 30 of each; give more sentences"),
        (["probe.data=gone.jsonl"], "gone.jsonl"),
        (["probe.held_out=gone.jsonl"], "gone.jsonl"),
        (["model=no/such-model"], "no/such-model"),
    ],
)
def test_a_layer_that_cannot_be_found_leaves_nothing(
    auto_recipe: Write, tmp_path: Path, settings: list[str], message: str
) -> None:
    refused(lambda: train(load_recipe(auto_recipe(), settings)), message)
    assert not (tmp_path / "run").exists()


# --- the paper's layer ---


def test_the_paper_layer_of_another_model_is_refused(tiny_recipe: Write, tiny_model: Path, tmp_path: Path) -> None:
    models = ("Qwen3-8B", "Mistral-7B-v0.3", str(tiny_model))
    recipe = load_recipe(tiny_recipe(), ["ani.layer=paper"])
    refused(lambda: train(recipe), "ani.layer: paper", *models, "write a number, or auto")
    assert not (tmp_path / "run").exists()
    refused(lambda: train(recipe.model_copy(update={"model": "no/such-model"})), "no model 'no/such-model'")
