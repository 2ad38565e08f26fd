from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import ani
from ani.injection.attach import ani_module, base_model
from ani.models import load_model, load_tokenizer
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import load_recipe
from ani.training.run import prepare, resume_recipe, train
from tests.refusals import refused
from tests.training.runs import interrupt_at, weights_of

Write = Callable[..., Path]
needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


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


def test_finished_or_foreign_directories_are_refused(tiny_recipe: Write, tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = load_recipe(tiny_recipe(), ["training.steps=1"])
    train(recipe)
    before = sorted(path for path in run.rglob("*"))
    refused(lambda: resume_recipe(run), "is finished")
    refused(lambda: train(recipe), "is not empty")
    refused(lambda: resume_recipe(run / ADAPTER), "holds no recipe")
    refused(lambda: resume_recipe(tmp_path / "gone"), "holds no recipe")
    (tmp_path / "file").touch()
    refused(lambda: train(recipe.model_copy(update={"output": str(tmp_path / "file")})), "is a file")
    assert sorted(path for path in run.rglob("*")) == before


def test_a_moved_run_resumes_where_it_lies_now(tiny_recipe: Write, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(tiny_recipe()), on_log=interrupt_at(4))
    moved = tmp_path / "[old] 1e5: #2"  # YAML and Rich would both read something into this name
    (tmp_path / "run").rename(moved)
    train(resume_recipe(moved), resume=True)
    assert (moved / ADAPTER).is_dir()
    assert not (tmp_path / "run").exists()


def test_nothing_is_left_behind_by_bad_input(tiny_recipe: Write, tmp_path: Path) -> None:
    bad = [["model=no/such-model"], ["ani.layer=3"], ["data=[{kind: jsonl, path: gone.jsonl}]"]]
    for settings in (*bad, ["data.1.count=1000000"], ["quantization=nf4", "lora=null"]):
        refused(lambda settings=settings: train(load_recipe(tiny_recipe(), settings)))
        assert not (tmp_path / "run").exists()


def test_the_module_alone(tiny_recipe: Write, tmp_path: Path, tiny_model: Path) -> None:
    model = train(load_recipe(tiny_recipe(), ["lora=null"]))
    files = {path.name for path in (tmp_path / "run" / ADAPTER).iterdir()}
    assert files == {"README.md", "ani_config.json", "ani.safetensors"}
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


@needs_bitsandbytes
@pytest.mark.parametrize("checkpointing", ["false", "true"])
def test_four_bit_weights(tiny_recipe: Write, tmp_path: Path, checkpointing: str) -> None:
    settings = ["quantization=nf4", "training.steps=2", f"training.gradient_checkpointing={checkpointing}"]
    model = train(load_recipe(tiny_recipe(), settings))
    assert "Linear4bit" in {type(module).__name__ for module in model.modules()}
    assert ani_module(model).projection.weight.dtype == torch.float32
    assert ani_module(model).projection.weight.abs().max() > 0
    assert (tmp_path / "run" / ADAPTER / "adapter_model.safetensors").is_file()


@needs_bitsandbytes
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


def test_the_same_seed_gives_the_same_adapter(tiny_recipe: Write, tmp_path: Path) -> None:
    adapters = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        recipe = load_recipe(tiny_recipe(output=str(tmp_path / name)), ["training.steps=2", f"seed={seed}"])
        train(recipe)
        adapters.append(weights_of(tmp_path / name / ADAPTER))
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])
    assert not all(torch.equal(adapters[0][name], adapters[2][name]) for name in adapters[0])
