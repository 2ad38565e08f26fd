"""A merged checkpoint contains base model and adapter, loads with transformers, and is never half written."""

import copy
import importlib.util
import itertools
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

import ani
from ani import AniConfig, InputError
from ani.evaluation.model_spec import adapted_model
from ani.injection.methods import METHODS
from ani.injection.model_parts import ani_module, is_attached, last_decision
from ani.models import evaluating, load_model, load_tokenizer
from ani.serving.checkpoint import merged_calibration
from tests import test_cli
from tests.refusals import refused
from tests.tiny import FAMILIES, MIXED_TEXT, attached, pair, randomise, tiny

run = test_cli.run
Run = Callable[..., test_cli.Done]

FAMILY = "gemma"
LORA: dict[str, Any] = {
    "r": 4,
    "target_modules": ["q_proj", "v_proj", "down_proj"],
    "init_lora_weights": False,
    "task_type": "CAUSAL_LM",
}


def train(folder: Path, family: str = FAMILY, method: Any = "ani", lora: Any = LORA, **config: Any) -> PreTrainedModel:
    """Write `folder`/base and `folder`/adapter, random but as if trained; the model that they make together."""
    model, tokenizer = pair(family)
    tokenizer = copy.copy(tokenizer)  # the tests share it
    tokenizer.chat_template = "{{ messages[0].content }}"
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    trained = AutoModelForCausalLM.from_pretrained(folder / "base")
    if lora is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            trained = get_peft_model(trained, LoraConfig(**lora))
    if METHODS[method].settings is not None:
        settings = {"layer": 2, "gate_hidden_size": 8, **METHODS[method].settings, **config}
        ani.attach(trained, tokenizer, AniConfig(**settings))
        randomise(trained, tokenizer)
    ani.save_adapter(trained, folder / "adapter", method=method)
    return trained.eval()


def ids(tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    return torch.as_tensor(tokenizer(MIXED_TEXT, return_tensors="pt")["input_ids"])


@torch.no_grad()
def assert_same(model: Any, expected: Any, tokenizer: PreTrainedTokenizerBase, tolerance: float = 1e-4) -> None:
    found, wanted = (m(input_ids=ids(tokenizer), output_hidden_states=True) for m in (model, expected))
    torch.testing.assert_close(found.logits, wanted.logits, rtol=0, atol=tolerance, equal_nan=True)
    for layer, of_expected in zip(found.hidden_states, wanted.hidden_states, strict=True):
        torch.testing.assert_close(layer, of_expected, rtol=0, atol=tolerance)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def config_of(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "config.json").read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base, adapter, and out: the two merged."""
    path = tmp_path_factory.mktemp("merge")
    train(path)
    ani.merge(path / "adapter", path / "out")
    return path


@pytest.fixture
def out(folder: Path, tmp_path: Path) -> Path:
    """A copy of `folder`/out, to be changed."""
    return Path(shutil.copytree(folder / "out", tmp_path / "out"))


@pytest.fixture
def merged(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder / "out")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(folder / "out"))


# --- the same model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_equals_base_and_adapter(family: str, tmp_path: Path) -> None:
    expected = train(tmp_path, family)
    ani.merge(tmp_path / "adapter", tmp_path / "out", max_shard_size="20KB")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = load_tokenizer(str(tmp_path / "out"))
    assert tokenizer.chat_template == "{{ messages[0].content }}"
    assert not any("lora" in name for name, _ in model.named_parameters())
    assert_same(model, expected, tokenizer)
    decision = last_decision(model)
    assert decision is not None and 0 < decision.injection.alpha.sum() < len(decision.numbers)
    prompts = tokenizer(["Room 505 holds 10", MIXED_TEXT], return_tensors="pt", padding=True, padding_side="left")
    of_both = [each.generate(**prompts, max_new_tokens=8, do_sample=False) for each in (model, expected)]
    assert torch.equal(*of_both)
    # Neither LoRA nor the module could have been left out.
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    logits = [each(input_ids=ids(tokenizer)).logits for each in (expected, ani.detach(model), base)]
    assert all((one - other).abs().max() > 0.1 for one, other in itertools.pairwise(logits))


@pytest.mark.parametrize("method", ["sft", "numerologic"])
def test_without_a_module_it_is_an_ordinary_checkpoint(method: str, tmp_path: Path) -> None:
    expected = train(tmp_path, method=method)
    for _ in range(2):  # the second time it replaces the first
        ani.merge(tmp_path / "adapter", tmp_path / "out")
    config = config_of(tmp_path / "out")
    assert (config["model_type"], config["architectures"]) == ("gemma3_text", ["Gemma3ForCausalLM"])
    assert config["ani"] == {"format_version": 2, "method": method, "module": None}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not is_attached(model)
    assert_same(model, expected, load_tokenizer(str(tmp_path / "out")))


@pytest.mark.parametrize("stored", ["base", "asked"])
def test_dtype(stored: str, tmp_path: Path) -> None:
    train(tmp_path)
    if stored == "base":
        tiny(FAMILY, tokenizer=load_tokenizer(str(tmp_path / "base"))).bfloat16().save_pretrained(tmp_path / "base")
    ani.merge(tmp_path / "adapter", tmp_path / "out", dtype="bfloat16" if stored == "asked" else None)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert config_of(tmp_path / "out")["dtype"] == "bfloat16"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for state in (weights, loaded.state_dict()):
        for name, tensor in state.items():
            assert tensor.dtype == (torch.float32 if name.startswith("ani.") else torch.bfloat16), name


# --- what transformers does with it -----------------------------------------------------------------------------------


def test_config(folder: Path, merged: PreTrainedModel) -> None:
    config = config_of(folder / "out")
    assert (config["model_type"], config["architectures"]) == ("ani", ["AniGemma3ForCausalLM"])
    settings = ani_module(merged).config.model_dump(mode="json")
    section = {"format_version": 2, "method": "ani", "module": settings, "base_model_type": "gemma3_text"}
    assert config["ani"] == {**section, "calibration": merged_calibration(merged.config).model_dump(mode="json")}
    assert str(folder) not in "".join(map(str, contents(folder / "out").values()))  # no paths of this machine
    assert merged.config.model_type == "gemma3_text"
    for copied in (copy.deepcopy(merged.config), pickle.loads(pickle.dumps(merged.config))):
        assert type(copied) is type(merged.config)
        assert copied.to_dict() == merged.config.to_dict()


def test_transformers_alone_refuses_it(folder: Path) -> None:
    code = (
        f"from transformers import AutoModelForCausalLM; AutoModelForCausalLM.from_pretrained({str(folder / 'out')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "model type `ani`" in done.stderr


def test_saved_again(folder: Path, merged: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    merged.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=tmp_path.name):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / "out" / name).read_bytes()
    again, info = type(merged).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert_same(again, merged, tokenizer, tolerance=0)


def test_detached_it_is_one_of_its_family(
    merged: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    module = ani_module(merged)
    before = merged(input_ids=ids(tokenizer)).logits
    ani.detach(merged)
    merged.save_pretrained(tmp_path)
    assert config_of(tmp_path)["model_type"] == "gemma3_text"
    assert "ani" not in config_of(tmp_path)
    plain, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    ani.attach(plain, tokenizer, module.config)
    ani_module(plain).load_state_dict(module.state_dict())
    assert torch.equal(plain(input_ids=ids(tokenizer)).logits, before)


def test_an_adapter_trained_on_a_merged_checkpoint(folder: Path, tmp_path: Path) -> None:
    out = str(folder / "out")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        trained = get_peft_model(load_model(out, dtype="float32"), LoraConfig(**LORA, modules_to_save=["ani"])).eval()
    with torch.no_grad():
        ani_module(trained).projection.weight.mul_(2)
    ani.save_adapter(trained, tmp_path / "adapter")
    model, tokenizer = adapted_model(out, str(tmp_path / "adapter"), "float32")
    assert_same(model, trained, tokenizer, tolerance=0)
    ani.merge(tmp_path / "adapter", tmp_path / "again", model=out)
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path / "again"), trained, tokenizer)


def test_damaged_config(out: Path) -> None:
    whole = config_of(out)
    for changes, words in (
        ({"format_version": 99}, "99"),
        ({"base_model_type": "no-such-family"}, "base_model_type"),
        ({"module": {**whole["ani"]["module"], "layer": 4}}, "layer=4"),
        ({"module": {**whole["ani"]["module"], "policy": "sometimes"}}, "policy"),
        ({"method": "sft"}, "sft"),
    ):
        (out / "config.json").write_text(json.dumps({**whole, "ani": {**whole["ani"], **changes}}))
        refused(lambda: AutoModelForCausalLM.from_pretrained(out), words)
        refused(lambda: load_model(str(out), device="cpu"), words)


# --- what is refused, and what fails ----------------------------------------------------------------------------------


def test_foreign_directories(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "thesis", tmp_path / "file", folder / "base", folder / "adapter"):
        before = contents(path.parent)
        with pytest.raises(InputError, match=path.name):
            ani.merge(folder / "adapter", path)
        assert contents(path.parent) == before
    (tmp_path / "empty").mkdir()
    ani.merge(folder / "adapter", tmp_path / "empty")
    assert contents(tmp_path / "empty") == contents(folder / "out")


def test_refused(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(folder / "base"))
    for name, other in (("wider", tiny(FAMILY, hidden_size=64)), ("llama", tiny("llama", tokenizer=tokenizer))):
        other.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    shutil.copytree(folder / "base", tmp_path / "quantized")
    config = {
        **config_of(folder / "base"),
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    }
    (tmp_path / "quantized" / "config.json").write_text(json.dumps(config))
    ani.save_adapter(attached(FAMILY)[0], tmp_path / "gate-only")
    adapter, before = folder / "adapter", contents(tmp_path)
    for path, options, words in (
        (tmp_path / "nothing", {}, "nothing"),
        (tmp_path / "gate-only", {}, "gate-only…--model"),
        (adapter, {"model": str(tmp_path / "gone")}, "gone"),
        (adapter, {"model": str(tmp_path / "wider")}, "hidden_size=32…64"),
        (adapter, {"model": str(tmp_path / "llama")}, "gemma3_text…llama"),
        (adapter, {"model": str(folder / "out")}, ""),
        (adapter, {"model": str(tmp_path / "quantized")}, "quantized"),
        (adapter, {"dtype": "int8"}, "int8…bfloat16"),
        (adapter, {"max_shard_size": "large"}, "max_shard_size…large"),
    ):
        given: Any = options
        refused(lambda path=path, given=given: ani.merge(path, tmp_path / "out", **given), words)
        assert contents(tmp_path) == before


@pytest.mark.parametrize("value", [torch.nan, 1e30])  # whose product is infinite
def test_lora_that_is_no_number(tmp_path: Path, value: float) -> None:
    trained = train(tmp_path, method="sft")
    for name, parameter in trained.named_parameters():
        if "layers.1" in name and "lora_" in name:
            parameter.data.fill_(value)
    ani.save_adapter(trained, tmp_path / "adapter", method="sft")
    with pytest.raises(InputError, match="adapter"):
        ani.merge(tmp_path / "adapter", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"base", "adapter"}


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")  # PEFT only warns
def test_lora_on_tied_embeddings(tmp_path: Path) -> None:
    train(tmp_path, method="sft", lora={**LORA, "target_modules": ["lm_head"]})
    with pytest.raises(InputError, match="shares"):
        ani.merge(tmp_path / "adapter", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"base", "adapter"}


def test_an_interrupted_merge_leaves_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder / "out", tmp_path / "out")
    before = contents(tmp_path)

    def fail(*args: Any, **kwargs: Any) -> Any:
        assert len(contents(tmp_path)) > len(before)  # the weights are there already
        raise KeyboardInterrupt

    monkeypatch.setattr(PreTrainedTokenizerBase, "save_pretrained", fail)
    with pytest.raises(KeyboardInterrupt):
        ani.merge(folder / "adapter", tmp_path / "out", dtype="bfloat16")
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- the command line -------------------------------------------------------------------------------------------------


def test_merge_inspect_evaluate(run: Run, folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "[a] merged"
    done = run("merge", folder / "adapter", place, "--model", folder / "base", "--dtype", "float32")
    assert done.code == 0, done
    assert str(place) in done.out
    with_adapter = run("inspect", MIXED_TEXT, "--model", folder / "base", "--adapter", folder / "adapter", "--json")
    done = run("inspect", MIXED_TEXT, "--model", place, "--json")
    assert done.code == 0, done
    decisions, expected = (
        [(n["text"], n["injected"]) for n in json.loads(each.out)["numbers"]] for each in (done, with_adapter)
    )
    assert decisions == expected and {injected for _, injected in decisions} == {True, False}
    done = run("eval", "--model", place, "--tasks", "gates,arithmetic", "--limit", "2", "--out", "results")
    assert done.code == 0, done


def test_a_merged_checkpoint_knows_its_method(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, method="numerologic")
    assert run("merge", tmp_path / "adapter", tmp_path / "out").code == 0
    methods = []
    monkeypatch.setattr(
        "ani.evaluation.evaluate.evaluate", lambda tasks, backend, *_, **options: methods.append(backend.method)
    )
    done = run("eval", "--model", tmp_path / "out", "--out", "results")
    assert done.code == 0, done
    assert methods == [METHODS["numerologic"]]
    done = run("eval", "--tasks", "gates", "--model", tmp_path / "out", "--out", "results")
    test_cli.assert_refused(done, str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("method", "config"), [("ani", {"policy": "running", "encoders": ["fourier", "magnitude"]}), ("fone", {})]
)
def test_every_setting_is_kept(method: str, config: dict[str, Any], tmp_path: Path) -> None:
    expected = train(tmp_path, method=method, lora=None, **config)
    ani.merge(tmp_path / "adapter", tmp_path / "out", model=str(tmp_path / "base"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert ani_module(model).config == ani_module(expected).config
    assert_same(model, expected, load_tokenizer(str(tmp_path / "out")), tolerance=0)


@torch.no_grad()
def test_stored_states_are_those_of_layer_l_alone(merged: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    stored = merged_calibration(merged.config)
    given = tokenizer(stored.text, return_tensors="pt")["input_ids"]
    with ani.forced_gates(merged, False):
        hidden = merged(input_ids=given, output_hidden_states=True).hidden_states
    decision = last_decision(merged)
    assert decision is not None and len(stored.states) > 5
    positions = decision.numbers.positions[: len(stored.states)]
    differences = [stored.difference(states[0, positions]) for states in hidden]
    assert differences[2] < 1e-3 and stored.difference(hidden[2][0, positions[:3]]) < 1e-3
    assert all(each > stored.tolerance for layer, each in enumerate(differences) if layer != 2)


def test_offloaded(folder: Path, merged: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    places: dict[str, Any] = {name: "cpu" for name, _ in merged.named_modules() if name.count(".") in (0, 1) and name}
    del places["model"], places["model.layers"]
    places = {name: place for name, place in places.items() if not name.startswith("ani.")}
    places |= {f"model.layers.{i}": "disk" if i == 2 else "cpu" for i in range(4)} | {"ani": "disk"}
    model = AutoModelForCausalLM.from_pretrained(folder / "out", device_map=places, offload_folder=tmp_path / "disk")
    assert {parameter.device.type for parameter in ani_module(model).parameters()} == {"meta"}
    assert_same(model, merged, tokenizer, tolerance=0)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_four_bits(folder: Path, merged: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    module = ani_module(merged)
    ani.detach(merged).save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    model, expected = (
        load_model(str(path), dtype="float32", quantization="nf4", device="cpu")
        for path in (folder / "out", tmp_path / "plain")
    )
    ani.attach(expected, tokenizer, module.config)
    ani_module(expected).load_state_dict(module.state_dict())
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", device_map="cpu")
    for each in (expected, model, again):
        with evaluating(each):  # as it is while training, so that the tiny weights needn't fit a kernel's blocks
            logits = each(input_ids=ids(tokenizer)).logits
        if each is expected:
            wanted = logits
        assert torch.equal(logits, wanted)
