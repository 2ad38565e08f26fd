from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ani.errors import TrainingFailed
from ani.results.records import TRAINING_LOG
from ani.training.checkpoints import ADAPTER, COMPLETE
from ani.training.recipe import load_recipe
from ani.training.run import RECIPE_FILE, resume_recipe, train
from ani.training.trainer import AniTrainer
from tests.training.runs import assert_same_run, interrupt_at, log_of

Write = Callable[..., Path]


def test_what_a_run_leaves(tiny_recipe: Write, tmp_path: Path) -> None:
    recipe = load_recipe(tiny_recipe(data=[{"kind": "diagnostic", "count": 48}]))
    train(recipe)
    run = tmp_path / "run"
    left = [ADAPTER, "checkpoint-3", "checkpoint-6", RECIPE_FILE, TRAINING_LOG]
    assert sorted(path.name for path in run.iterdir()) == left
    assert load_recipe(run / RECIPE_FILE) == recipe
    for step in (3, 6):
        names = {path.name for path in (run / f"checkpoint-{step}").iterdir()}
        assert {ADAPTER, COMPLETE, "optimizer.pt", "trainer_state.json"} <= names
    files = {"README.md", "ani_config.json", "ani.safetensors", "adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in (run / ADAPTER).iterdir()} == files

    log = log_of(run)
    assert [line["step"] for line in log] == [2, 3, 4, 6]
    shares = {"gate_open", "gate_open_quantitative", "gate_open_nominal", "gate_saturated"}
    others = {"loss", "grad_norm", "learning_rate", "epoch", "step", "tokens_per_second", "embedding_ratio"}
    others |= {"embedding_rms", "gate_undecided", "gate_logit_quantitative", "gate_logit_nominal"}
    for line in log:
        assert line.keys() == shares | others
        assert all(0 <= line[key] <= 1 for key in shares)
        assert 0 <= line["gate_undecided"] <= 0.25
        assert line["tokens_per_second"] > 0
    assert log[-1]["embedding_rms"] > 0


Unbroken = Callable[[Path, list[str]], Path]


@pytest.fixture(scope="module")
def unbroken(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """Train a recipe without interruption, once for every set of overrides."""
    done: dict[tuple[str, ...], Path] = {}

    def run(recipe: Path, overrides: list[str]) -> Path:
        key = (recipe.read_text().replace(str(recipe.parent), ""), *overrides)
        if key not in done:
            output = tmp_path_factory.mktemp("unbroken") / "run"
            train(load_recipe(recipe, overrides).model_copy(update={"output": str(output)}))
            done[key] = output
        return done[key]

    return run


@pytest.mark.parametrize(
    ("stop", "settings"),
    [
        (1, ["training.log_every=1"]),  # before the first checkpoint
        (5, ["training.log_every=5", "training.steps=11"]),  # log lines and checkpoints don't meet
        (7, ["training.log_every=1", "training.epochs=2", "training.steps=null", "lora=null"]),  # in the second epoch
        (5, ["training.log_every=1", "training.decay=0.5", "training.warmup_steps=2"]),
        (4, ["training.log_every=1", "training.gradient_checkpointing=true", "dtype=bfloat16"]),
    ],
)
def test_a_resumed_run_is_the_unbroken_one(
    tiny_recipe: Write, tmp_path: Path, unbroken: Unbroken, stop: int, settings: list[str]
) -> None:
    recipe = load_recipe(tiny_recipe(), settings)
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(recipe, on_log=interrupt_at(stop))
    assert not (run / ADAPTER).exists()
    resumed = resume_recipe(run)
    assert resumed == recipe
    train(resumed, resume=True)
    assert_same_run(run, unbroken(tmp_path / "recipe.yaml", settings))


def test_a_half_written_checkpoint_is_ignored_and_removed(
    tiny_recipe: Write, tmp_path: Path, unbroken: Unbroken
) -> None:
    settings = ["training.log_every=1", "training.save_every=2"]
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(tiny_recipe(), settings), on_log=interrupt_at(5))
    (run / "checkpoint-4" / COMPLETE).unlink()
    (run / "checkpoint-4" / "optimizer.pt").write_bytes(b"half")
    (run / "checkpoint-5").mkdir()
    steps: list[int] = []
    train(resume_recipe(run), resume=True, on_log=lambda line: steps.append(line["step"]))
    assert steps == [3, 4, 5, 6]  # from checkpoint 2, not 4 or 5
    assert not (run / "checkpoint-5").exists()
    assert_same_run(run, unbroken(tmp_path / "recipe.yaml", settings))


def test_weights_that_are_not_finite_are_not_saved(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = AniTrainer._count

    def poison(trainer: AniTrainer, inputs: dict[str, Any]) -> None:
        count(trainer, inputs)
        if trainer.state.global_step == 2:
            next(p for p in trainer.model.parameters() if p.requires_grad).data.fill_(float("nan"))

    monkeypatch.setattr(AniTrainer, "_count", poison)
    with pytest.raises(TrainingFailed, match="no longer finite after step 3"):
        train(load_recipe(tiny_recipe(), ["training.save_every=1", "training.gradient_accumulation=1"]))
    assert (tmp_path / "run" / "checkpoint-2" / COMPLETE).is_file()
    assert not (tmp_path / "run" / "checkpoint-3").exists()
