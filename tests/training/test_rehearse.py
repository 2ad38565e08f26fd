import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import MistralConfig

import ani
from ani.data.collator import NumberCollator
from ani.injection import attach as attach_module
from ani.injection.attach import ani_module, base_model, is_attached, number_locator
from ani.injection.gate import Gate
from ani.injection.methods import METHODS
from ani.injection.module import AniModule
from ani.models import training_autocast
from ani.probing.selection import PAPER_LAYERS, PUBLISHED
from ani.training import rehearse as rehearse_module
from ani.training.recipe import Recipe, load_recipe
from ani.training.rehearse import (
    Phase,
    Rehearsal,
    full_row,
    in_fresh_process,
    rehearse,
    rehearse_here,
)
from ani.training.run import prepare, train
from ani.training.trainer import learnt_columns, learnt_logits
from tests.refusals import refused

Write = Callable[..., Path]
PAPER = Path(ani.__file__).parent / "recipes" / "paper"


def rehearsed(recipe: Path, *overrides: str) -> Rehearsal:
    return rehearse(load_recipe(recipe, overrides))


def phases_of(found: Rehearsal) -> dict[str, Phase]:
    assert not found.faults
    return {phase.name: phase for phase in found.phases}


# --- full size, without the hub ---


def of_four_layers() -> None:
    """The shape of the paper's recipe with fewer layers: `stress/rehearsal.py` has them all."""
    PUBLISHED["Qwen/Qwen3-8B"] |= {"num_hidden_layers": 4}


def test_a_recipe_of_the_paper_at_full_width() -> None:
    recipe = load_recipe(PAPER / "train.yaml", ["training.steps=625", "ani.layer=2"])
    found = in_fresh_process(partial(planted, of_four_layers), recipe)
    phases = phases_of(found)
    assert list(phases) == ["weights", "gradients, AdamW", "forward", "backward", "update", "prefill", "decode"]
    assert found.published_shape and (found.layer, found.data) == (
        2,
        ["jsonl path=runs/paper-set/train.jsonl: missing"],
    )
    assert (found.steps, found.tokens) == (625, 625 * 32 * 4096)
    layers, h, i, q, kv, head = 4, 4096, 12_288, 4096, 1024, 2 * 151_936 * 4096
    # Each layer: its products, two norms, and those of queries and keys.
    base = head + h + layers * (2 * h * q + 2 * h * kv + 3 * h * i + 2 * h + 2 * 128)
    assert found.parameters["base"] == base
    assert found.parameters["lora"] == layers * 64 * (2 * (h + q) + 2 * (h + kv) + 3 * (h + i))
    # W_P of 32 features; the gate's norm, its layer of 128, and its output.
    assert found.parameters["module"] == 32 * h + h + 128 * (2 * h + 1) + 129
    weights = (base - head) * 4.127 / 8 + head * 2 + 4 * (found.parameters["lora"] + found.parameters["module"])
    assert phases["weights"].held == pytest.approx(weights, rel=1e-3)
    # 2 for each weight and token: forward, again for checkpointing, and back. The head: for 7/8, not again.
    operations = 6 * (base - head) + 4 * head / 2 * 7 / 8 + 8 * found.parameters["lora"]
    operations += layers * 4 * 4096 * h * (2 + 2.5) / 2  # causal attention: 4.5 times two products of T × T × h
    assert found.flops is not None and found.tokens is not None
    assert found.flops / found.tokens == pytest.approx(operations, rel=0.01)


def leaving_out_the_steps() -> None:
    rehearse_module._train = rehearse_module._answer = lambda *_: None


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("mistralai/Mistral-7B-v0.3", 7_248_023_552),
    ],
)
def test_the_papers_models_have_their_published_sizes(tiny_recipe: Write, name: str, total: int) -> None:
    recipe = load_recipe(tiny_recipe(model=name, ani={"layer": "paper"}), ["lora=null"])
    found = in_fresh_process(partial(planted, leaving_out_the_steps), recipe)
    assert found.parameters["base"] == total
    assert found.layer == PAPER_LAYERS[name.split("/")[1].removesuffix("-Instruct")]
    assert found.published_shape and name.removesuffix("-Instruct") in PUBLISHED


def of_another_shape_on_the_hub() -> None:
    config = MistralConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, sliding_window=16)
    rehearse_module.load_config = lambda name: config


def test_a_config_that_can_be_read_wins(tiny_recipe: Write) -> None:
    recipe = load_recipe(tiny_recipe(model="Qwen/Qwen3-8B", lora=None))
    found = in_fresh_process(partial(planted, of_another_shape_on_the_hub), recipe)
    assert not found.published_shape and not found.faults
    assert found.model == "Qwen/Qwen3-8B: mistral, 2 layers of width 64" and found.parameters["lora"] == 0


# --- against a training step on this machine ---


def bytes_of(tensor: torch.Tensor) -> int:
    """As CUDA's allocator rounds them."""
    return math.ceil(tensor.numel() * tensor.element_size() / 512) * 512


def buffers_of(model: torch.nn.Module) -> int:
    return sum({id(buffer): bytes_of(buffer) for buffer in model.buffers()}.values())


@pytest.mark.parametrize(
    "settings",
    [
        ["dtype=bfloat16", "ani.gate=open"],
        ["dtype=float32", "lora=null", "ani.encoders=[fourier, bits]"],
        ["dtype=bfloat16", "method=sft", "lora.target_modules=[q_proj, down_proj]"],
        ["dtype=float32", "quantization=nf4"],
        ["dtype=float16", "quantization=nf4"],
    ],
)
def test_weights_gradients_and_moments_are_those_of_a_step(tiny_recipe: Write, settings: list[str]) -> None:
    recipe = load_recipe(tiny_recipe(), settings)
    found = rehearse(recipe)
    phases = phases_of(found)
    model, _ = prepare(recipe)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = None
    weights = buffers_of(model) + sum(map(bytes_of, model.parameters()))
    for parameter in model.parameters():
        if (found_state := getattr(parameter, "quant_state", None)) is not None:
            state = found_state
            parts = (state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)
            weights += sum(map(bytes_of, parts))
    # bitsandbytes keeps a table of its own on the device.
    weights += bytes_of(state.state2.code) if state is not None else 0
    assert phases["weights"].held == weights
    assert phases["gradients, AdamW"].held - weights == 3 * sum(map(bytes_of, trainable))
    module = sum(p.numel() for p in ani_module(model).parameters()) if is_attached(model) else 0
    assert (found.parameters["module"], found.parameters["lora"]) == (
        module,
        sum(p.numel() for p in trainable) - module,
    )


@pytest.mark.parametrize("settings", [["dtype=float32"], ["dtype=bfloat16"], ["training.gradient_checkpointing=true"]])
def test_the_peak_is_that_of_a_step_on_a_cpu(tiny_recipe: Write, settings: list[str]) -> None:
    recipe = load_recipe(
        tiny_recipe(), ["attention=eager", "training.max_length=256", "ani.policy=terminal", *settings]
    )
    phases = phases_of(rehearse(recipe))
    model, tokenizer = prepare(recipe)
    cast(Any, model).config.use_cache = False
    if recipe.training.gradient_checkpointing:
        cast(Any, model).gradient_checkpointing_enable()
    collate = NumberCollator(tokenizer, number_locator(model))
    batch = collate([full_row(tokenizer, 256)] * 4)
    batch |= learnt_logits(base_model(model), batch["labels"], learnt_columns(batch["labels"]))
    del batch["attention_mask"]
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        with training_autocast(base_model(model)):
            loss = model.train()(**batch).loss
        loss.backward()
    now = peak = 0
    events = cast(Any, profile).kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    measured = max(phases["forward"].peak, phases["backward"].peak) - phases["gradients, AdamW"].held
    assert 0.9 * peak < measured < 1.1 * peak


# --- faults: planted in the process that rehearses ---


def filled_with(plant: Callable[[AniModule], None]) -> None:
    fill = rehearse_module._fill

    def planted(model: torch.nn.Module) -> None:
        fill(model)
        plant(ani_module(model))

    rehearse_module._fill = planted


def left_on_the_cpu() -> None:
    filled_with(lambda module: replace(inner(module), torch.empty(inner(module).weight.shape)))


def of_another_dtype() -> None:
    filled_with(lambda module: replace(inner(module), inner(module).weight.bfloat16()))


def of_another_shape() -> None:
    filled_with(lambda module: replace(inner(module), inner(module).weight[:, 1:]))


def inner(module: AniModule) -> torch.nn.Linear:
    return cast(Gate, module.gate).inner


def replace(module: torch.nn.Module, weight: torch.Tensor) -> None:
    module._parameters["weight"] = torch.nn.Parameter(weight.detach().clone())


def waiting_for(read: Callable[[torch.Tensor], object]) -> None:
    forward = AniModule.forward

    def waiting(module: AniModule, *args: Any) -> Any:
        injection = forward(module, *args)
        read(injection.logits)
        return injection

    AniModule.forward = waiting  # type: ignore[method-assign]


def asking_whether_one_is_open() -> None:
    waiting_for(lambda logits: bool((logits > 0).any()))


def picking_the_open_ones() -> None:
    waiting_for(lambda logits: logits[logits > 0])


def printing_all() -> None:
    waiting_for(lambda logits: logits.tolist())


def keeping_all_logits() -> None:
    rehearse_module.learnt_logits = lambda *_: {}


def copying_logits() -> None:
    original = attach_module.with_auxiliary_loss

    def copying(outputs: Any, *args: Any) -> Any:
        outputs.logits = outputs.logits.float()  # as accelerate's bf16=True does
        return original(outputs, *args)

    attach_module.with_auxiliary_loss = copying


def planted(plant: Callable[[], None], recipe: Recipe) -> Rehearsal:
    plant()
    return rehearse_here(recipe)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (left_on_the_cpu, "forward, ani.gate.inner: addmm multiplies cpu with gpu:0"),
        (of_another_dtype, "forward, ani.gate.inner: addmm multiplies bfloat16 with float32"),
        (of_another_shape, "forward, ani.gate.inner: "),
        (asking_whether_one_is_open, "forward, ani: the host reads a value of the device, and waits for it"),
        (picking_the_open_ones, "forward, ani: the host needs a value of the device, and waits for it"),
        (printing_all, "forward, ani: the host reads a value of the device, and waits for it"),
        (keeping_all_logits, "forward, lm_head: logits of 256 tokens are held, where 128 are learnt from"),
        (copying_logits, "forward, outside the model: the logits are copied a second time"),
    ],
)
def test_a_planted_fault_is_found_and_named(tiny_recipe: Write, plant: Callable[[], None], said: str) -> None:
    recipe = load_recipe(tiny_recipe(), ["dtype=bfloat16"])
    found = in_fresh_process(partial(planted, plant), recipe)
    (fault,) = found.faults
    assert fault.startswith(said)
    assert found.phases[-1].name == "forward"


@pytest.mark.parametrize("method", sorted(name for name, method in METHODS.items() if method.decoding is None))
def test_no_method_has_a_fault(tiny_recipe: Write, method: str) -> None:
    recipe = tiny_recipe(training={"gradient_checkpointing": True, "batch_size": 2})
    changes = ["dtype=bfloat16", "quantization=nf4", "ani.role_weight=0.1"]
    if METHODS[method].settings is None or METHODS[method].settings != {}:
        changes = changes[:2]
    assert rehearsed(recipe, f"method={method}", *changes).faults == []


# --- data and steps ---


@pytest.mark.parametrize(
    ("settings", "steps"),
    [(["training.steps=2"], 2), (["training.epochs=1.5"], 6), (["training.gradient_accumulation=50"], 1)],
)
def test_steps_are_those_of_the_trainer(tiny_recipe: Write, settings: list[str], steps: int) -> None:
    recipe = load_recipe(tiny_recipe(training={"steps": None, "log_every": 1}), settings)
    found = in_fresh_process(partial(planted, leaving_out_the_steps), recipe)
    assert found.steps == steps
    assert found.tokens == steps * 4 * recipe.training.gradient_accumulation * 64
    lines: list[dict[str, Any]] = []
    train(recipe, on_log=lines.append)
    assert lines[-1]["steps"] == steps


def test_what_data_is_needed(tiny_recipe: Write, tmp_path: Path) -> None:
    (tmp_path / "here.jsonl").write_text('{"prompt": "1 + 1 =", "completion": " 2"}\n' * 9)
    data = [
        {"kind": "jsonl", "path": str(tmp_path / "here.jsonl"), "limit": 8},
        {"kind": "jsonl", "path": "gone.jsonl"},
        {"kind": "hub", "name": "someone/maths", "split": "test"},
        {"kind": "gsm8k", "limit": 5},
        {"kind": "gsm8k", "path": "gone.jsonl"},
        {"kind": "diagnostic", "count": 7},
    ]
    recipe = load_recipe(tiny_recipe(data=data, training={"steps": None}))
    record = asdict(in_fresh_process(partial(planted, leaving_out_the_steps), recipe))
    assert record["data"] == [
        f"jsonl limit=8 path={tmp_path / 'here.jsonl'}: 8 examples",
        "jsonl path=gone.jsonl: missing",
        "hub name=someone/maths split=test",
        "gsm8k limit=5",
        "gsm8k path=gone.jsonl: missing",
        "diagnostic count=7: 7 examples",
    ]
    assert (record["steps"], record["tokens"], record["flops"]) == (None, None, None)
    assert json.loads(json.dumps(record)) == record
    assert not (tmp_path / "run").exists()


def test_auto_is_left_to_probing(tiny_recipe: Write) -> None:
    auto = rehearsed(tiny_recipe(), "ani.layer=auto")
    assert (auto.layer, auto.faults) == ("auto", [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model=someone/unknown"], "no model 'someone/unknown'"),
        (["ani.layer=3"], "layer=3 does not exist"),
        (["ani.layer=paper"], "the shape of none of them"),
        (["quantization=nf4", "lora=null"], "through LoRA only"),
        (["lora.target_modules=[nope]"], "lora.target_modules: …nope"),
        (["data.0.digits=[1]", "data.0.count=1000"], "lower count"),
        (["data.0={kind: diagnostic, count: 43559}"], "there are 43558 sentences to train on at most: lower count"),
    ],
)
def test_what_training_would_refuse(tiny_recipe: Write, settings: list[str], message: str) -> None:
    refused(lambda: rehearsed(tiny_recipe(), *settings), message)


def test_a_process_is_not_forked_where_there_is_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork of a process that has imported bitsandbytes, which initializes CUDA, can't use CUDA."""
    parent = cast(Any, eval), cast(Any, "__import__('os').getppid()")
    assert in_fresh_process(*parent) != os.getpid()  # but of the fork server
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert in_fresh_process(*parent) == os.getpid()
