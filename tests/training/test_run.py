from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

import ani
from ani.injection.linear import Linear
from ani.injection.model_parts import ani_module, base_model
from ani.models import load_model, load_tokenizer
from ani.training import run as run_module
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import load_recipe
from ani.training.run import prepare, resume_recipe, train
from tests.json_lines import write_lines
from tests.properties import cover
from tests.refusals import refused
from tests.training.runs import interrupt_at, weights_of

Write = Callable[..., Path]


def test_the_loss_falls_and_the_adapter_loads(tiny_recipe: Write, tmp_path: Path, tiny_model: Path) -> None:
    lines: list[dict[str, Any]] = []
    recipe = load_recipe(tiny_recipe(), ["training.steps=30", "training.gradient_accumulation=1"])
    model = train(recipe, on_log=lines.append)
    assert not model.training
    # Steps 3, 6, …: a checkpoint is logged too.
    assert [line["step"] for line in lines][:4] == [2, 3, 4, 6]
    assert {line["steps"] for line in lines} == {30}
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]
    assert all(p.abs().max() > 0 for name, p in model.named_parameters() if "lora_B" in name)
    original = LlamaForCausalLM.from_pretrained(tiny_model).state_dict()
    found = {name.replace("base_layer.", ""): tensor for name, tensor in base_model(model).state_dict().items()}
    assert all(torch.equal(found[name], tensor) for name, tensor in original.items())

    loaded = load_model(str(tiny_model), dtype="float32")
    tokenizer = load_tokenizer(str(tiny_model))
    ani.load_adapter(loaded, tokenizer, tmp_path / "run" / ADAPTER)
    encoded = tokenizer("Room 505 holds 10 of 1,234 people", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        expected, found = model(input_ids=encoded).logits, loaded(input_ids=encoded).logits
        torch.testing.assert_close(found, expected)
        untrained = LlamaForCausalLM.from_pretrained(tiny_model)(input_ids=encoded).logits
    assert not torch.allclose(found, untrained, atol=1e-2)


@pytest.mark.parametrize("learnt", ["answer", "all"])
def test_the_loss_is_that_of_the_tokens_that_are_learnt(
    learnt: str, tiny_recipe: Write, tmp_path: Path, tiny_model: Path
) -> None:
    data = write_lines(tmp_path / "rows.jsonl", {"prompt": "Room 505 holds", "completion": " 10 people"})
    one = {"steps": 1, "log_every": 1, "batch_size": 1, "gradient_accumulation": 1, "loss_on": learnt}
    lines: list[dict[str, Any]] = []
    recipe = tiny_recipe(data=[{"kind": "jsonl", "path": str(data)}], training=one)
    train(load_recipe(recipe, ["method=sft"]), on_log=lines.append)
    model, tokenizer = load_model(str(tiny_model), dtype="float32"), load_tokenizer(str(tiny_model))
    prompt = tokenizer("Room 505 holds")["input_ids"]
    answer = tokenizer(" 10 people", add_special_tokens=False)["input_ids"]
    ids = torch.tensor([[*prompt, *answer, tokenizer.eos_token_id]])
    with torch.no_grad():
        losses = cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="none")
    expected = losses if learnt == "all" else losses[len(prompt) - 1 :]
    assert lines[0]["loss"] == pytest.approx(float(expected.mean()), rel=1e-3)


def test_a_moved_run_resumes_where_it_lies_now(tiny_recipe: Write, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(tiny_recipe()), on_log=interrupt_at(4))
    moved = tmp_path / "[old] 1e5: #2"  # YAML and Rich would both read something into this name
    (tmp_path / "run").rename(moved)
    train(resume_recipe(moved), resume=True)
    assert (moved / ADAPTER).is_dir()
    assert not (tmp_path / "run").exists()


def test_bad_input_leaves_nothing(tiny_recipe: Write, tmp_path: Path) -> None:
    bad = [["model=no/such-model"], ["ani.layer=3"], ["data=[{kind: jsonl, path: gone.jsonl}]"]]
    for settings in (*bad, ["data.1.count=1000000"], ["quantization=nf4", "lora=null"]):
        refused(lambda settings=settings: train(load_recipe(tiny_recipe(), settings)))
        assert not (tmp_path / "run").exists()
    (tmp_path / "run").touch()
    refused(lambda: train(load_recipe(tiny_recipe())), "is a file")


@cover(dtype=["float32", "bfloat16", "float16"], quantization=["none", "nf4"], checkpointing=["false", "true"])
def test_what_is_computed_in_which_precision(
    tiny_recipe: Write, monkeypatch: pytest.MonkeyPatch, dtype: str, quantization: str, checkpointing: str
) -> None:
    """LoRA in bfloat16 where the base is; norms, module, loss and what is trained in float32 in any case."""
    seen: dict[str, set[torch.dtype]] = {}

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in (torch.ops.aten.rsqrt.default, torch.ops.aten._log_softmax.default):
                seen.setdefault(function._opname, set()).add(args[0].dtype)
            return function(*args, **(kwargs or {}))

    def watched(recipe: Any) -> Any:
        model, tokenizer = prepare(recipe)
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear | Linear) and ("lora_" in name or ".ani." in name):
                kind = "lora" if "lora_" in name else "module"
                module.register_forward_hook(lambda _, __, output, kind=kind: seen[kind].add(output.dtype))
        model.register_forward_hook(lambda _, __, output: seen["loss"].add(output.loss.dtype))
        return model, tokenizer

    seen.update(lora=set(), module=set(), loss=set())
    monkeypatch.setattr(run_module, "prepare", watched)
    settings = [f"dtype={dtype}", f"quantization={quantization}", "training.steps=2"]
    with Operations():
        model = train(load_recipe(tiny_recipe(), [*settings, f"training.gradient_checkpointing={checkpointing}"]))
    assert seen.pop("lora") == {torch.bfloat16 if dtype == "bfloat16" else torch.float32}
    assert seen == {kind: {torch.float32} for kind in ("module", "loss", "rsqrt", "_log_softmax")}
    assert {parameter.dtype for parameter in model.parameters() if parameter.requires_grad} == {torch.float32}
    assert ("Linear4bit" in {type(module).__name__ for module in model.modules()}) == (quantization == "nf4")
    assert ani_module(model).projection.weight.abs().max() > 0


def test_the_same_seed_gives_the_same_adapter(tiny_recipe: Write, tmp_path: Path) -> None:
    adapters = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        recipe = load_recipe(tiny_recipe(output=str(tmp_path / name)), ["training.steps=2", f"seed={seed}"])
        train(recipe)
        adapters.append(weights_of(tmp_path / name / ADAPTER))
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])
    assert not all(torch.equal(adapters[0][name], adapters[2][name]) for name in adapters[0])


def test_a_module_without_lora_is_trained(tiny_recipe: Write, tmp_path: Path) -> None:
    model = train(load_recipe(tiny_recipe(), ["lora=null", "training.steps=2"]))
    files = {path.name for path in (tmp_path / "run" / ADAPTER).iterdir()}
    assert files == {"README.md", "ani_config.json", "ani.safetensors"}
    assert ani_module(model).projection.weight.abs().max() > 0
    refused(lambda: resume_recipe(tmp_path / "run"), "is finished")
    refused(lambda: resume_recipe(tmp_path / "gone"), "recipe.yaml")
