import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

import ani
from ani import InputError
from ani.injection.attach import ani_module, base_model
from ani.models import load_model, load_tokenizer
from ani.training import trainer as trainer_module
from ani.training.recipe import load_recipe
from ani.training.trainer import (
    ADAPTER,
    COMPLETE,
    LOG_FILE,
    RECIPE_FILE,
    AniTrainer,
    TrainingFailed,
    prepare,
    resume_recipe,
    train,
)

Write = Callable[..., Path]


def log_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / LOG_FILE).read_text().splitlines()]


def weights_of(adapter: Path) -> dict[str, torch.Tensor]:
    return {
        f"{file.name}:{name}": tensor
        for file in sorted(adapter.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same_run(run: Path, reference: Path) -> None:
    """The same loss curve and the same weights; only the speed may differ."""
    lines, expected = log_of(run), log_of(reference)
    assert [line["step"] for line in lines] == [line["step"] for line in expected]
    for line, other in zip(lines, expected, strict=True):
        assert line.keys() == other.keys()
        for key in line.keys() - {"tokens_per_second"}:
            assert line[key] == pytest.approx(other[key], abs=1e-6, rel=1e-6), (line["step"], key)
    weights, others = weights_of(run / ADAPTER), weights_of(reference / ADAPTER)
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], atol=1e-6, rtol=1e-6, msg=name)


def interrupt_at(step: int) -> Callable[[dict[str, Any]], None]:
    def on_log(line: dict[str, Any]) -> None:
        if line["step"] >= step:
            raise KeyboardInterrupt

    return on_log


def test_the_loss_falls_and_the_adapter_loads(tiny_recipe: Write, tmp_path: Path, tiny_model: Path) -> None:
    lines: list[dict[str, Any]] = []
    recipe = load_recipe(tiny_recipe(), ["training.steps=30", "training.gradient_accumulation=1"])
    model = train(recipe, on_log=lines.append)
    assert not model.training
    # Steps 3, 6, …: a checkpoint is logged too.
    assert [line["step"] for line in lines][:4] == [2, 3, 4, 6]
    assert {line["steps"] for line in lines} == {30}
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]

    loaded = load_model(str(tiny_model), dtype="float32")
    tokenizer = load_tokenizer(str(tiny_model))
    ani.load_adapter(loaded, tokenizer, tmp_path / "run" / ADAPTER)
    encoded = tokenizer("Room 505 holds 10 of 1,234 people", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        expected, found = model(input_ids=encoded).logits, loaded(input_ids=encoded).logits
        torch.testing.assert_close(found, expected)
        untrained = LlamaForCausalLM.from_pretrained(tiny_model)(input_ids=encoded).logits
    assert not torch.allclose(found, untrained, atol=1e-2)


def test_what_a_run_leaves(tiny_recipe: Write, tmp_path: Path) -> None:
    recipe = load_recipe(tiny_recipe(data=[{"kind": "diagnostic", "count": 48}]))
    train(recipe)
    run = tmp_path / "run"
    assert sorted(path.name for path in run.iterdir()) == [
        ADAPTER,
        "checkpoint-3",
        "checkpoint-6",
        RECIPE_FILE,
        LOG_FILE,
    ]
    assert load_recipe(run / RECIPE_FILE) == recipe
    for step in (3, 6):
        names = {path.name for path in (run / f"checkpoint-{step}").iterdir()}
        assert {ADAPTER, COMPLETE, "optimizer.pt", "trainer_state.json"} <= names
    files = {path.name for path in (run / ADAPTER).iterdir()}
    assert files == {
        "README.md",
        "ani_config.json",
        "ani.safetensors",
        "adapter_config.json",
        "adapter_model.safetensors",
    }

    log = log_of(run)
    assert [line["step"] for line in log] == [2, 3, 4, 6]
    shares = {"gate_open", "gate_open_quantitative", "gate_open_nominal", "gate_saturated"}
    others = {
        "loss",
        "grad_norm",
        "learning_rate",
        "epoch",
        "step",
        "tokens_per_second",
        "embedding_ratio",
        "embedding_rms",
        "gate_undecided",
        "gate_logit_quantitative",
        "gate_logit_nominal",
    }
    for line in log:
        assert line.keys() == shares | others
        assert all(0 <= line[key] <= 1 for key in shares)
        assert 0 <= line["gate_undecided"] <= 0.25
        assert line["tokens_per_second"] > 0
    assert log[-1]["embedding_rms"] > 0


def test_the_checkpoint_limit_keeps_the_newest(tiny_recipe: Write, tmp_path: Path) -> None:
    train(load_recipe(tiny_recipe(), ["training.save_every=1", "training.steps=4"]))
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]


# --- interrupted and resumed ---


@pytest.fixture(scope="module")
def unbroken(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, list[str]], Path]:
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
        (5, ["training.log_every=1"]),
        (5, ["training.log_every=5", "training.steps=11"]),  # log lines and checkpoints don't meet
        (4, ["training.log_every=1", "training.epochs=2", "training.steps=null", "training.warmup_steps=3"]),
        (7, ["training.log_every=1", "training.epochs=2", "training.steps=null"]),  # within the second epoch
        (4, ["training.log_every=1", "lora=null"]),
        (4, ["training.log_every=1", "training.gradient_checkpointing=true", "ani.policy=running"]),
    ],
)
def test_a_resumed_run_is_the_unbroken_one(
    tiny_recipe: Write,
    tmp_path: Path,
    unbroken: Callable[[Path, list[str]], Path],
    stop: int,
    settings: list[str],
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


def test_a_killed_run_resumes_to_the_same_end(
    tiny_recipe: Write, tmp_path: Path, unbroken: Callable[[Path, list[str]], Path]
) -> None:
    settings = ["training.steps=60", "training.save_every=5", "training.log_every=5"]
    run = tmp_path / "run"
    command = [sys.executable, "-m", "ani.cli", "train", str(tiny_recipe()), *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    try:
        while not (run / "checkpoint-10" / COMPLETE).exists():
            assert process.poll() is None, process.communicate()[0].decode()
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (run / ADAPTER).exists()
    assert log_of(run)[-1]["step"] < 60
    train(resume_recipe(run), resume=True)
    assert_same_run(run, unbroken(tmp_path / "recipe.yaml", settings))


def test_a_half_written_checkpoint_is_ignored_and_removed(
    tiny_recipe: Write, tmp_path: Path, unbroken: Callable[[Path, list[str]], Path]
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


def test_a_crash_while_a_checkpoint_is_written(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def crash(self: Any, output_dir: str) -> None:
        if output_dir.endswith("6"):
            raise OSError("disk full")
        original(self, output_dir)

    original = AniTrainer._save_optimizer_and_scheduler
    monkeypatch.setattr(AniTrainer, "_save_optimizer_and_scheduler", crash)
    with pytest.raises(OSError, match="disk full"):
        train(load_recipe(tiny_recipe()))
    assert (run / "checkpoint-3" / COMPLETE).is_file()
    assert not (run / "checkpoint-6" / COMPLETE).exists()
    monkeypatch.undo()
    steps: list[int] = []
    train(resume_recipe(run), resume=True, on_log=lambda line: steps.append(line["step"]))
    assert steps == [4, 6]


def test_finished_or_foreign_directories_are_refused(tiny_recipe: Write, tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = load_recipe(tiny_recipe(), ["training.steps=1"])
    train(recipe)
    before = sorted(path for path in run.rglob("*"))
    with pytest.raises(InputError, match="is finished"):
        resume_recipe(run)
    with pytest.raises(InputError, match="is not empty"):
        train(recipe)
    with pytest.raises(InputError, match="holds no recipe"):
        resume_recipe(run / ADAPTER)
    with pytest.raises(InputError, match="holds no recipe"):
        resume_recipe(tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        train(recipe.model_copy(update={"output": str(tmp_path / "file")}))
    assert sorted(path for path in run.rglob("*")) == before


def test_a_moved_run_resumes_where_it_lies_now(tiny_recipe: Write, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(tiny_recipe()), on_log=interrupt_at(4))
    moved = tmp_path / "[old] 1e5: #2"  # YAML and Rich would both read something into this name
    (tmp_path / "run").rename(moved)
    train(resume_recipe(moved), resume=True)
    assert (moved / ADAPTER).is_dir()
    assert not (tmp_path / "run").exists()


# --- failing ---


def test_a_loss_that_is_not_finite_stops_with_step_and_batch(tiny_recipe: Write, tmp_path: Path) -> None:
    recipe = load_recipe(
        tiny_recipe(), ["training.learning_rate=1e36", "training.save_every=1", "training.log_every=1"]
    )
    with pytest.raises(TrainingFailed) as caught:
        train(recipe)
    message = str(caught.value)
    assert "the loss is nan at step 2," in message
    assert "on a batch of 4 that begins with [" in message
    assert "module_learning_rate" in message
    # Its weights made the loss: nothing may resume from them.
    assert not (tmp_path / "run" / "checkpoint-1" / COMPLETE).exists()
    assert not (tmp_path / "run" / ADAPTER).exists()
    assert [line["step"] for line in log_of(tmp_path / "run")] == [1]


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


def without_roles(tmp_path: Path) -> str:
    path = tmp_path / "data.jsonl"
    lines = [json.dumps({"prompt": f"{i} + {i} =", "completion": f" {2 * i}"}) for i in range(10, 40)]
    path.write_text("\n".join(lines))
    return f"data=[{{kind: jsonl, path: '{path}'}}]"


@pytest.mark.parametrize(("bias", "state"), [(50.0, "open"), (-50.0, "closed")])
@pytest.mark.parametrize("roles", [True, False])
def test_a_gate_that_is_dead_from_the_start_stops_the_run(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bias: float, state: str, roles: bool
) -> None:
    overrides = ["training.module_learning_rate=1e-9", "training.log_every=1"]
    _with_bias(monkeypatch, bias)
    with pytest.raises(TrainingFailed) as caught:
        train(load_recipe(tiny_recipe(), [*overrides, *([] if roles else [without_roles(tmp_path)])]))
    assert f"the gate saturated at step 1 ({state} for every number" in str(caught.value)
    assert "ani.penalty" in str(caught.value)


def test_a_saturated_gate_that_has_learnt_goes_on(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_bias(monkeypatch, 50.0)
    train(load_recipe(tiny_recipe(), ["training.module_learning_rate=0.05", "training.log_every=2"]))
    last = log_of(tmp_path / "run")[-1]
    assert last["gate_saturated"] == 1
    assert last["embedding_rms"] > trainer_module.UNMOVED


def _with_bias(monkeypatch: pytest.MonkeyPatch, bias: float) -> None:
    def prepared(recipe: Any) -> Any:
        model, tokenizer = prepare(recipe)
        with torch.no_grad():
            ani_module(model).gate.outer.bias.fill_(bias)
        return model, tokenizer

    monkeypatch.setattr(trainer_module, "prepare", prepared)


def test_examples_without_a_completion_within_the_limit_are_left_out(tiny_recipe: Write, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    long = {"prompt": "12 " * 40, "completion": "3"}
    short = {"prompt": "12 + 3 =", "completion": " 15"}
    path.write_text("\n".join(map(json.dumps, [long, short, short])))
    settings = [f"data=[{{kind: jsonl, path: '{path}'}}]", "training.batch_size=1", "training.steps=3"]
    with pytest.warns(UserWarning, match="1 of 3 examples are left out"):
        train(load_recipe(tiny_recipe(), settings))  # with it, a batch of its own would have the loss 0 / 0
    path.write_text(json.dumps(long))
    with pytest.raises(InputError, match="max_length=64"):
        train(load_recipe(tiny_recipe(output=str(tmp_path / "other")), settings))
    assert not (tmp_path / "other").exists()


def test_nothing_is_left_behind_by_bad_input(tiny_recipe: Write, tmp_path: Path) -> None:
    bad = ["model=no/such-model", "ani.layer=3", "data=[{kind: jsonl, path: gone.jsonl}]", "data.1.count=1000000"]
    bad += ["quantization=nf4,lora=null"]
    for override in bad:
        with pytest.raises(InputError):
            train(load_recipe(tiny_recipe(), override.split(",") if "," in override else [override]))
        assert not (tmp_path / "run").exists()


# --- what is trained ---


def test_the_module_alone(tiny_recipe: Write, tmp_path: Path, tiny_model: Path) -> None:
    model = train(load_recipe(tiny_recipe(), ["lora=null"]))
    assert {path.name for path in (tmp_path / "run" / ADAPTER).iterdir()} == {
        "README.md",
        "ani_config.json",
        "ani.safetensors",
    }
    assert ani_module(model).projection.weight.abs().max() > 0
    ani.detach(model)
    original = LlamaForCausalLM.from_pretrained(tiny_model).state_dict()
    assert model.state_dict().keys() == original.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, original[name]), name


def test_lora_learns_beside_the_module_and_the_base_stays(tiny_recipe: Write, tiny_model: Path) -> None:
    model = train(load_recipe(tiny_recipe()))
    original = LlamaForCausalLM.from_pretrained(tiny_model).state_dict()
    moved = {name.split(".lora_")[1][0] for name, p in model.named_parameters() if "lora_B" in name and p.abs().max()}
    assert moved == {"B"}
    assert ani_module(model).projection.weight.abs().max() > 0
    for name, tensor in base_model(model).state_dict().items():
        plain = name.replace("base_layer.", "")
        if plain in original:
            assert torch.equal(tensor, original[plain]), name


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize("checkpointing", ["false", "true"])
def test_four_bit_weights(tiny_recipe: Write, tmp_path: Path, checkpointing: str) -> None:
    settings = ["quantization=nf4", "training.steps=2", f"training.gradient_checkpointing={checkpointing}"]
    model = train(load_recipe(tiny_recipe(), settings))
    kinds = {type(module).__name__ for module in model.modules()}
    assert "Linear4bit" in kinds
    assert ani_module(model).projection.weight.dtype == torch.float32
    assert ani_module(model).projection.weight.abs().max() > 0
    assert (tmp_path / "run" / ADAPTER / "adapter_model.safetensors").is_file()


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_gradients_through_four_bit_weights(tiny_recipe: Write) -> None:
    """They are those of a model that holds the dequantized weights."""
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit

    path = tiny_recipe(ani={"gate_dropout": 0.0}, lora={"r": 4, "alpha": 8, "dropout": 0.0})
    quantized, tokenizer = prepare(load_recipe(path, ["quantization=nf4"]))
    reference, _ = prepare(load_recipe(path))
    weights = {
        name: dequantize_4bit(module.weight.data, module.weight.quant_state)
        for name, module in quantized.named_modules()
        if isinstance(module, Linear4bit)
    }
    assert len(weights) == 3 * 7
    with torch.no_grad():
        for name, weight in weights.items():
            reference.get_submodule(name).weight.copy_(weight)
        trainable = {name: p for name, p in quantized.named_parameters() if p.requires_grad}
        for name, parameter in reference.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(trainable[name].normal_(std=0.1))
        ani_module(reference).scale = ani_module(quantized).scale
    input_ids = tokenizer("Room 505 holds 10 people", return_tensors="pt")["input_ids"]
    labels = input_ids.clone()
    labels[:, :-6] = -100
    for model in (quantized, reference):
        model.train()
        model(input_ids=input_ids, labels=labels).loss.backward()
    for name, parameter in reference.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(trainable[name].grad, parameter.grad, atol=1e-4, rtol=1e-3, msg=name)


def test_learning_rates_are_separate(tiny_recipe: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[dict[str, Any]] = []
    original = AniTrainer.create_optimizer

    def recorded(self: AniTrainer, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        optimizer = original(self, *args, **kwargs)
        module = {id(parameter) for parameter in ani_module(self.model).parameters()}
        groups.extend(
            {"lr": group["lr"], "ours": {id(p) in module for p in group["params"]}, "size": len(group["params"])}
            for group in optimizer.param_groups
        )
        return optimizer

    monkeypatch.setattr(AniTrainer, "create_optimizer", recorded)
    overrides = ["training.steps=1", "training.learning_rate=1e-3", "training.module_learning_rate=0"]
    with pytest.raises(InputError, match=r"training\.module_learning_rate"):
        load_recipe(tiny_recipe(), overrides)
    model = train(load_recipe(tiny_recipe(), [*overrides[:2], "training.module_learning_rate=1e-2"]))
    by_rate = {group["lr"]: group for group in groups[-2:]}
    assert by_rate[1e-2]["ours"] == {True}
    assert by_rate[1e-3]["ours"] == {False}
    assert by_rate[1e-2]["size"] == len(list(ani_module(model).parameters()))
    assert by_rate[1e-3]["size"] == sum("lora_" in name for name, _ in model.named_parameters())
    # Adam's first step is the learning rate in each weight with a gradient.
    assert ani_module(model).projection.weight.abs().max().item() == pytest.approx(1e-2, rel=1e-3)


def test_the_same_seed_gives_the_same_adapter(tiny_recipe: Write, tmp_path: Path) -> None:
    adapters = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        recipe = load_recipe(tiny_recipe(output=str(tmp_path / name)), ["training.steps=2", f"seed={seed}"])
        train(recipe)
        adapters.append(weights_of(tmp_path / name / ADAPTER))
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])
    assert not all(torch.equal(adapters[0][name], adapters[2][name]) for name in adapters[0])


@pytest.mark.parametrize("policy", ["terminal", "running"])
def test_leaving_out_the_prompts_logits_changes_nothing(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    original = AniTrainer.__init__

    def all_logits(self: AniTrainer, **kwargs: Any) -> None:
        original(self, **kwargs)
        assert self._keeps_logits
        self._keeps_logits = False

    settings = [f"ani.policy={policy}", "training.steps=3", "training.log_every=1"]
    train(load_recipe(tiny_recipe(), settings))
    monkeypatch.setattr(AniTrainer, "__init__", all_logits)
    train(load_recipe(tiny_recipe(output=str(tmp_path / "all")), settings))
    for line, other in zip(log_of(tmp_path / "run"), log_of(tmp_path / "all"), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert line["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
