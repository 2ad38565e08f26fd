import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import PreTrainedConfig, Qwen3Config

from ani import InputError
from ani.injection.attach import ani_module
from ani.probing.run import SELECTION
from ani.training import run as run_module
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import load_recipe
from ani.training.run import PROBE, RECIPE_FILE, resume_recipe, train, with_layer
from tests import test_cli

run = test_cli.run
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
    assert (chosen["data"], chosen["held_out"], chosen["sentences"]) == ("contrastive", None, 250)
    assert chosen["policy"] == "after"  # the recipe's own
    assert json.loads((run / ADAPTER / "ani_config.json").read_text())["layer"] == chosen["layer"]
    assert ani_module(model).config.layer == chosen["layer"]
    assert "".join(chosen["reason"].split()) in "".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert load_recipe(run / RECIPE_FILE) == recipe  # it still says auto
    assert json.loads((run / PROBE / "run.json").read_text())["model"] == recipe.model


@pytest.mark.parametrize("layer", [0, 2])
def test_whatever_was_found_is_what_is_trained(
    auto_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    def found(model: Any, tokenizer: Any, out: Path, **settings: Any) -> Any:
        asked.append(settings)
        return type("Found", (), {"layer": layer, "reason": "so"})

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(run_module, "probe", found)
    model = train(load_recipe(auto_recipe(), ["training.steps=1", "probe.held_out=other.jsonl"]))
    assert ani_module(model).config.layer == layer
    assert json.loads((tmp_path / "run" / ADAPTER / "ani_config.json").read_text())["layer"] == layer
    assert [(s["data"], s["held_out"], s["sentences"]) for s in asked] == [("contrastive", "other.jsonl", 240)]


def test_a_resumed_run_does_not_probe_again(
    auto_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(auto_recipe()), on_log=stop)
    assert not (run / ADAPTER).exists()
    before = contents(run / PROBE)
    assert SELECTION in before

    def again(*args: Any, **settings: Any) -> None:
        pytest.fail("probed again")

    monkeypatch.setattr(run_module, "probe", again)
    console = Console(file=StringIO())
    train(resume_recipe(run), resume=True, console=console)
    assert contents(run / PROBE) == before
    layer = json.loads((run / PROBE / SELECTION).read_text())["layer"]
    assert json.loads((run / ADAPTER / "ani_config.json").read_text())["layer"] == layer


def test_a_run_killed_while_it_probes_can_be_resumed(
    auto_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "probe", killed)
        with pytest.raises(KeyboardInterrupt):
            train(load_recipe(auto_recipe(), ["training.steps=1"]))
    train(resume_recipe(tmp_path / "run"), resume=True)
    assert (tmp_path / "run" / ADAPTER).is_dir()
    assert (tmp_path / "run" / PROBE / SELECTION).is_file()


def test_results_that_are_there_are_read(auto_recipe: Write, tmp_path: Path) -> None:
    recipe = load_recipe(auto_recipe())
    folder = tmp_path / "run" / PROBE
    folder.mkdir(parents=True)
    (folder / SELECTION).write_text('{"layer": 2}')
    assert with_layer(recipe).ani.layer == 2
    assert recipe.ani.layer == "auto"
    number = load_recipe(auto_recipe(), ["ani.layer=1"])
    assert with_layer(number) == number


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["probe.sentences=20"], "needs 30 of each; give more sentences"),
        (["probe.data=gone.jsonl"], r"gone\.jsonl"),
        (["probe.held_out=gone.jsonl"], r"gone\.jsonl"),
        (["model=no/such-model"], "no/such-model"),
    ],
)
def test_a_layer_that_cannot_be_found_leaves_nothing(
    auto_recipe: Write, tmp_path: Path, settings: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(load_recipe(auto_recipe(), settings))
    assert not (tmp_path / "run").exists()


def test_a_probe_that_fails_on_resume_leaves_the_run(
    auto_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    def unreadable(*args: Any, **settings: Any) -> None:
        raise InputError("gone")

    for error, stop in ((KeyboardInterrupt, killed), (InputError, unreadable)):
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(run_module, "probe", stop)
            train(load_recipe(auto_recipe(), ["training.steps=1"]), resume=True)
        assert (tmp_path / "run" / RECIPE_FILE).is_file()


# --- the paper's layer ---


def test_the_paper_layer_goes_by_the_configuration(
    tiny_recipe: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the weights."""
    recipe = load_recipe(tiny_recipe(), ["ani.layer=paper", "model=somebody/fine-tuned"])
    names: list[str] = []

    def config(name: str) -> PreTrainedConfig:
        names.append(name)
        return Qwen3Config(num_hidden_layers=36, hidden_size=4096, vocab_size=151_936)

    monkeypatch.setattr(run_module, "load_config", config)
    assert with_layer(recipe).ani.layer == 24
    assert names == ["somebody/fine-tuned"]
    assert with_layer(recipe).ani.config().layer == 24


def test_the_paper_layer_of_another_model_is_refused(tiny_recipe: Write, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        train(load_recipe(tiny_recipe(), ["ani.layer=paper"]))
    message = str(caught.value)
    for part in ("ani.layer: paper", "Qwen3-8B", "Mistral-7B-v0.3", str(tiny_model), "write a number, or auto"):
        assert part in message
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="no model 'no/such-model'"):
        train(load_recipe(tiny_recipe(), ["ani.layer=paper", "model=no/such-model"]))


# --- the command line ---


def test_ani_train_prints_the_reason(run: Callable[..., test_cli.Done], auto_recipe: Write, tmp_path: Path) -> None:
    done = run("train", auto_recipe(), "training.steps=1", "training.log_every=1")
    assert done.code == 0, done
    reason = json.loads((tmp_path / "run" / PROBE / SELECTION).read_text())["reason"]
    shown = "".join(done.out.split())
    assert "".join(reason.split()) in shown
    assert shown.index("layersprobed:4in") < shown.index("".join(reason.split())) < shown.index("step1/1")


def test_ani_train_refuses_in_one_line(run: Callable[..., test_cli.Done], auto_recipe: Write) -> None:
    test_cli.assert_refused(run("train", auto_recipe(), "probe.sentences=20"), "needs 30 of each")
    test_cli.assert_refused(run("train", auto_recipe(), "ani.layer=paper"), "ani.layer: paper", "auto")
    test_cli.assert_refused(run("train", auto_recipe(), "ani.layer=best"), "ani.layer")
    test_cli.assert_refused(run("train", auto_recipe(), "probe.sentences=0"), "probe.sentences")
