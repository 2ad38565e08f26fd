import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig

import ani
from ani import InputError
from ani.injection.attach import ani_module, base_model
from ani.models import training_autocast
from ani.probing.selection import PAPER_LAYERS, PUBLISHED
from ani.training import dry_run as dry_run_module
from ani.training.dry_run import DryRun, dry_run, dry_run_record
from ani.training.recipe import load_recipe
from ani.training.run import prepare, train
from tests.refusals import refused

Write = Callable[..., Path]
needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


def planned(recipe: Path, *overrides: str) -> DryRun:
    return dry_run(load_recipe(recipe, overrides))


# --- full scale, without the hub ---


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("mistralai/Mistral-7B-v0.3", 7_248_023_552),
    ],
)
def test_the_papers_models_have_their_published_sizes(tmp_path: Path, name: str, total: int) -> None:
    recipe = tmp_path / "recipe.yaml"
    data = [{"kind": "hub", "name": "someone/maths", "limit": 6400}]
    recipe.write_text(yaml.safe_dump({"model": name, "output": "run", "ani": {"layer": "paper"}, "data": data}))
    plan = planned(recipe)
    assert plan.parameters.base == total
    assert plan.layer == PAPER_LAYERS[name.split("/")[1].removesuffix("-Instruct")]
    assert plan.published_shape
    shape = PUBLISHED[name.removesuffix("-Instruct")]
    h, i, layers = (shape[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    q, kv = 128 * shape["num_attention_heads"], 128 * 8
    assert plan.parameters.lora == layers * 64 * (2 * (h + q) + 2 * (h + kv) + 3 * (h + i))
    # W_P of 33 features; the gate's norm, its layer of 128, and its output.
    assert plan.parameters.module == 33 * h + h + 128 * (2 * h + 1) + 129
    head = shape["vocab_size"] * h * (1 if shape["tie_word_embeddings"] else 2)
    assert plan.memory.weights == pytest.approx((total - head) * 4.127 / 8 + head * 2, rel=1e-3)
    assert plan.steps == 6400 / 32
    assert plan.tokens == 6400 * 4096


def test_a_config_that_can_be_read_wins(tiny_recipe: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2)
    monkeypatch.setattr(dry_run_module, "load_config", lambda name: config)
    plan = planned(tiny_recipe(model="Qwen/Qwen3-8B", lora=None))
    assert not plan.published_shape
    assert (plan.hidden_size, plan.num_hidden_layers, plan.parameters.lora) == (64, 2, 0)


# --- against what training really holds ---


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@pytest.mark.parametrize(
    "settings",
    [
        ["dtype=float32"],
        ["dtype=bfloat16", "ani.gate=open"],
        ["dtype=float32", "lora=null", "ani.encoders=[fourier, bits]"],
        ["dtype=bfloat16", "method=sft", "lora.target_modules=[q_proj, down_proj]"],
        pytest.param(["dtype=float32", "quantization=nf4"], marks=needs_bitsandbytes),
        pytest.param(["dtype=bfloat16", "quantization=nf4"], marks=needs_bitsandbytes),
        pytest.param(["dtype=float16", "quantization=nf4"], marks=needs_bitsandbytes),
    ],
)
def test_weights_gradients_and_moments_are_those_of_a_step(tiny_recipe: Write, settings: list[str]) -> None:
    recipe = load_recipe(tiny_recipe(), settings)
    plan = dry_run(recipe)
    model, tokenizer = prepare(recipe)
    inputs = tokenizer("Room 505 holds 10 people", return_tensors="pt")["input_ids"]
    labels = inputs.clone()
    labels[:, :-6] = -100
    model.train()(input_ids=inputs, labels=labels).loss.backward()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable)
    optimizer.step()

    weights = 0
    for parameter in model.parameters():
        if not parameter.requires_grad:
            weights += bytes_of(parameter)
            if (state := getattr(parameter, "quant_state", None)) is not None:
                weights += bytes_of(state.absmax) + bytes_of(state.state2.absmax)
    assert plan.memory.weights == weights
    assert plan.memory.trainable == sum(map(bytes_of, trainable))
    assert plan.memory.gradients == sum(bytes_of(p.grad) for p in trainable if p.grad is not None)
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert plan.memory.optimizer == sum(map(bytes_of, moments))
    assert plan.memory.total == sum(plan.memory[:-1])
    module_size = 0 if recipe.ani is None else sum(p.numel() for p in ani_module(model).parameters())
    assert plan.parameters.module == module_size
    assert plan.parameters.lora == sum(p.numel() for p in trainable) - module_size


@pytest.mark.parametrize(
    "settings",
    [
        ["dtype=float32", "lora.dropout=0"],
        ["dtype=float32", "lora.dropout=0.1"],
        ["dtype=bfloat16", "lora.dropout=0"],
        ["dtype=bfloat16", "lora.dropout=0.1"],
        ["dtype=float32", "lora=null"],
        ["dtype=bfloat16", "lora.dropout=0", "attention=eager"],
        pytest.param(["dtype=bfloat16", "quantization=nf4", "lora.dropout=0"], marks=needs_bitsandbytes),
    ],
)
def test_activations_are_an_upper_bound_of_what_autograd_keeps(tiny_recipe: Write, settings: list[str]) -> None:
    recipe = load_recipe(tiny_recipe(), ["attention=sdpa", "training.max_length=128", *settings])
    memory = dry_run(recipe).memory
    model, tokenizer = prepare(recipe)
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    text = "Room 505 holds 10 people. " * 40
    inputs = tokenizer([text] * 4, return_tensors="pt")["input_ids"][:, :128]
    labels = inputs.clone()
    labels[:, :8] = -100
    saving = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with saving, training_autocast(base_model(model)):
        outputs = model.train()(input_ids=inputs, labels=labels)
    measured = sum(storage.nbytes() for storage in kept.values())
    assert outputs.loss.requires_grad
    assert measured <= memory.activations + memory.logits <= 3 * measured


@pytest.mark.parametrize("checkpointing", [False, True])
def test_operations_are_those_that_torch_counts(tiny_recipe: Write, checkpointing: bool) -> None:
    recipe = load_recipe(tiny_recipe(training={"gradient_checkpointing": checkpointing}), ["method=sft"])
    plan = dry_run(recipe)
    model, tokenizer = prepare(recipe)
    cast(Any, model).enable_input_require_grads()  # else the first layer's backward pass is shorter
    if checkpointing:
        cast(Any, model).gradient_checkpointing_enable()
    inputs = tokenizer("Room 505 holds 10 people", return_tensors="pt")["input_ids"]
    with FlopCounterMode(display=False) as counter:
        model.train()(input_ids=inputs, labels=inputs).loss.backward()
    counts = counter.get_flop_counts()["Global"]
    linear = sum(count for operation, count in counts.items() if "mm" in str(operation) and "bmm" not in str(operation))
    assert plan.tokens is not None and plan.flops is not None
    # What isn't computed again: the head, which counts in a tiny model, and a layer's last step, which hardly does.
    head = model.get_output_embeddings().weight.numel() * 2 * inputs.numel() * int(checkpointing)
    assert plan.flops / plan.tokens * inputs.numel() == pytest.approx(linear + head, rel=0.005 * checkpointing)


def test_checkpointing_keeps_one_layer_and_the_hidden_states(tiny_recipe: Write) -> None:
    whole = planned(tiny_recipe()).memory
    less = planned(tiny_recipe(), "training.gradient_checkpointing=true").memory
    assert less.activations == whole.activations / 3 + 3 * (4 * 64) * 32 * 4  # layers × tokens × width × float32
    assert less._replace(activations=0, total=0) == whole._replace(activations=0, total=0)


# --- data and steps ---


@pytest.mark.parametrize(
    ("settings", "steps"),
    [(["training.steps=2"], 2), (["training.epochs=1.5"], 6), (["training.gradient_accumulation=50"], 1)],
)
def test_steps_are_those_of_the_trainer(tiny_recipe: Write, settings: list[str], steps: int) -> None:
    recipe = load_recipe(tiny_recipe(training={"steps": None, "log_every": 1}), settings)
    plan = dry_run(recipe)
    assert plan.steps == steps
    assert plan.tokens == steps * 4 * recipe.training.gradient_accumulation * 64
    lines: list[dict[str, Any]] = []
    train(recipe, on_log=lines.append)
    assert lines[-1]["steps"] == steps


def test_what_data_is_needed(tiny_recipe: Write, tmp_path: Path) -> None:
    (tmp_path / "here.jsonl").write_text("{}")
    data = [
        {"kind": "jsonl", "path": str(tmp_path / "here.jsonl"), "limit": 8},
        {"kind": "jsonl", "path": "gone.jsonl"},
        {"kind": "hub", "name": "someone/maths", "split": "test"},
        {"kind": "gsm8k", "limit": 5},
        {"kind": "gsm8k", "path": "gone.jsonl"},
        {"kind": "calculations", "count": 9, "operations": ["division"], "operands": [2, 3]},
        {"kind": "calculation-sentences", "count": 7},
        {"kind": "asked-chats", "count": 6},
        {"kind": "unasked-chats", "count": 5},
        {"kind": "math", "limit": 4},
    ]
    record = dry_run_record(planned(tiny_recipe(data=data, training={"steps": None})))
    assert record["data"] == [
        {"kind": "jsonl", "what": str(tmp_path / "here.jsonl"), "rows": 8, "exists": True},
        {"kind": "jsonl", "what": "gone.jsonl", "rows": None, "exists": False},
        {"kind": "hub", "what": "someone/maths, split test", "rows": None, "exists": None},
        {"kind": "gsm8k", "what": "openai/gsm8k", "rows": 5, "exists": None},
        {"kind": "gsm8k", "what": "gone.jsonl", "rows": None, "exists": False},
        {"kind": "calculations", "what": "division of 2, 3 operands", "rows": 9, "exists": None},
        {
            "kind": "calculation-sentences",
            "what": "sentences with calculations that are meant or not",
            "rows": 8,
            "exists": None,
        },
        {"kind": "asked-chats", "what": "prompts that ask for a calculation", "rows": 6, "exists": None},
        {"kind": "unasked-chats", "what": "chats with a calculation that isn't asked for", "rows": 5, "exists": None},
        {"kind": "math", "what": "EleutherAI/hendrycks_math", "rows": 4, "exists": None},
    ]
    assert (record["steps"], record["tokens"]) == (None, None)
    assert json.loads(json.dumps(record)) == record
    assert not (tmp_path / "run").exists()


def test_auto_is_left_to_probing(tiny_recipe: Write) -> None:
    auto, fixed, sft = (planned(tiny_recipe(), key) for key in ("ani.layer=auto", "ani.layer=1", "method=sft"))
    assert [(plan.layer, plan.probes) for plan in (auto, fixed, sft)] == [(None, True), (1, False), (None, False)]
    assert auto.parameters == fixed.parameters == sft.parameters._replace(module=fixed.parameters.module)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model=someone/unknown"], "no model 'someone/unknown'"),
        (["ani.layer=3"], "layer=3 does not exist"),
        (["ani.layer=paper"], "the shape of none of them"),
        (["quantization=nf4", "lora=null"], "through LoRA only"),
        (["lora.target_modules=[nope]"], "lora.target_modules: …nope"),
        (["data.0.digits=[1]", "data.0.count=1000"], "lower count"),
        (["data.0={kind: calculations, count: 1000, digits: [1], operands: [2]}"], "lower count"),
        (
            ["data.0={kind: diagnostic, count: 43559}"],
            "data of kind: diagnostic has count=43559, but there are 43558 sentences to train on at most: lower count",
        ),
    ],
)
def test_what_training_would_refuse(tiny_recipe: Write, settings: list[str], message: str) -> None:
    refused(lambda: planned(tiny_recipe(), *settings), message)


FULL_SCALE = sorted((Path(ani.__file__).parent / "recipes" / "paper").glob("*.yaml"))


@pytest.mark.parametrize("path", FULL_SCALE, ids=lambda path: path.name)
def test_the_full_scale_recipes_can_be_run_dry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> None:
        raise InputError(f"no model {name!r}")

    monkeypatch.setattr(dry_run_module, "load_config", unreachable)
    raw = yaml.safe_load(path.read_text())
    train = path.parent / raw.get("recipe", path.name)
    for changes in raw.get("variants", {"": []}).values():
        needs = dry_run(load_recipe(train, raw.get("overrides", []), changes))
        assert needs.parameters.base > 4e9
        assert needs.data[0].what == "runs/paper-set/train.jsonl"
