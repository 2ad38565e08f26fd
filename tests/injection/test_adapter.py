"""Adapter directories: every bad one is refused in one sentence and leaves the model alone; none is half-written."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani import AniConfig, InputError, attach, load_adapter, save_adapter
from ani.injection import adapter as adapter_module
from ani.injection.adapter import CONFIG_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE, WEIGHTS_FILE
from ani.injection.attach import ani_module, base_model, is_attached
from tests.tiny import MIXED_TEXT, attached, pair, randomise, tiny

FAMILY = "gemma"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with LoRA weights; copied before it is damaged."""
    path = tmp_path_factory.mktemp("saved") / "adapter"
    model, tokenizer = pair(FAMILY)
    lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    trained = get_peft_model(model, lora)
    attach(trained, tokenizer, AniConfig(layer=2, gate_hidden_size=8))
    randomise(trained, tokenizer)
    save_adapter(trained, path)
    return path


@pytest.fixture
def damaged(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "damaged"))


def edit_config(file: Path, **changes: Any) -> None:
    config = json.loads(file.read_text())
    for key, value in changes.items():
        if value is KeyError:
            del config[key]
        else:
            config[key] = value
    file.write_text(json.dumps(config))


def flip_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@torch.no_grad()
def logits_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    return torch.as_tensor(model(input_ids=tokenizer(MIXED_TEXT, return_tensors="pt")["input_ids"]).logits)


def assert_refused(path: Path, *words: str, model: PreTrainedModel | None = None) -> None:
    """`load_adapter` raises one sentence that holds the words, and the model is as it was."""
    tokenizer = pair(FAMILY)[1]
    model = pair(FAMILY)[0] if model is None else model
    before = logits_of(model, tokenizer)
    modules = [(name, type(module)) for name, module in model.named_modules()]
    attributes = set(vars(model))
    with pytest.raises(InputError) as error:
        load_adapter(model, tokenizer, path)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    assert not is_attached(model)
    assert [(name, type(module)) for name, module in model.named_modules()] == modules
    assert set(vars(model)) == attributes
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(logits_of(model, tokenizer), before)


def test_the_undamaged_one_loads(saved: Path) -> None:
    model, tokenizer = pair(FAMILY)
    before = logits_of(model, tokenizer)
    loaded = load_adapter(model, tokenizer, str(saved))
    assert loaded is model and not loaded.training
    assert not torch.equal(logits_of(model, tokenizer), before)
    assert set(contents(saved)) == {CONFIG_FILE, WEIGHTS_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE, "README.md"}


# --- bad adapters -----------------------------------------------------------------------------------------------------


def test_missing(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nothing here", "nothing here")


def test_file_instead_of_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert_refused(tmp_path / "file", "is a file", "directory")


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE, PEFT_WEIGHTS_FILE])
def test_missing_file(damaged: Path, name: str) -> None:
    (damaged / name).unlink()
    assert_refused(damaged, str(damaged), name)


@pytest.mark.parametrize("damage", [flip_byte, truncate])
def test_damaged_weights(damaged: Path, damage: Callable[[Path], None]) -> None:
    damage(damaged / WEIGHTS_FILE)
    assert_refused(damaged, WEIGHTS_FILE)


@pytest.mark.parametrize("name", [PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE])
def test_damaged_lora(damaged: Path, name: str) -> None:
    truncate(damaged / name)
    assert_refused(damaged, str(damaged))


def test_lora_for_other_modules(damaged: Path) -> None:
    edit_config(damaged / PEFT_CONFIG_FILE, target_modules=["no_such_projection"])
    assert_refused(damaged, str(damaged))


def test_lora_of_another_rank(damaged: Path) -> None:
    edit_config(damaged / PEFT_CONFIG_FILE, r=3)
    assert_refused(damaged, str(damaged))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', "{}", '{"format_version": 1}'])
def test_damaged_config(damaged: Path, text: str) -> None:
    (damaged / CONFIG_FILE).write_text(text)
    assert_refused(damaged, CONFIG_FILE, "damaged")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format_version": 99}, ["99", "newer ani"]),
        ({"format_version": "new"}, ["'new'"]),
        ({"from_the_future": 1}, ["from_the_future"]),
        ({"layer": -1}, ["layer"]),
        ({"policy": "sometimes"}, ["policy"]),
        ({"layer": KeyError}, ["layer"]),
        ({"embedding_scale": None}, ["embedding_scale"]),
        ({"hidden_size": None}, ["hidden_size"]),
        ({"model_type": None}, ["model_type"]),
        ({"num_hidden_layers": None}, ["num_hidden_layers"]),
        ({"layer": 4}, ["layer=4"]),
        ({"gate_hidden_size": 9}, [WEIGHTS_FILE, CONFIG_FILE]),
        ({"integer_digits": 12}, [WEIGHTS_FILE, CONFIG_FILE]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_config(damaged: Path, changes: dict[str, Any], words: list[str]) -> None:
    edit_config(damaged / CONFIG_FILE, **changes)
    assert_refused(damaged, *words)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"hidden_size": 64}, ["hidden_size", "32", "64"]),
        ({"num_hidden_layers": 2}, ["num_hidden_layers", "4", "2"]),
    ],
)
def test_model_of_another_shape(saved: Path, overrides: dict[str, Any], words: list[str]) -> None:
    assert_refused(saved, *words, model=tiny(FAMILY, **overrides))


def test_model_of_another_type(saved: Path) -> None:
    other = tiny("llama", tokenizer=pair(FAMILY)[1])
    assert_refused(saved, "model_type", "gemma3_text", "llama", model=other)


def test_attached_already(saved: Path) -> None:
    model, tokenizer = attached(FAMILY)
    before = logits_of(model, tokenizer)
    with pytest.raises(InputError, match="attached"):
        load_adapter(model, tokenizer, saved)
    assert is_attached(model)
    assert torch.equal(logits_of(model, tokenizer), before)


# --- saving -----------------------------------------------------------------------------------------------------------


def test_nothing_attached(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ani\.attach"):
        save_adapter(pair(FAMILY)[0], tmp_path / "adapter")
    assert not any(tmp_path.iterdir())


def test_saving_over_something_else(tmp_path: Path) -> None:
    model, _ = attached(FAMILY)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")
    before = contents(tmp_path)
    for name in ("thesis", "file"):
        with pytest.raises(InputError, match=name):
            save_adapter(model, tmp_path / name)
    assert contents(tmp_path) == before
    (tmp_path / "empty").mkdir()
    save_adapter(model, tmp_path / "empty", card="our card")
    assert (tmp_path / "empty" / "README.md").read_text() == "our card"


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": r".*\.[13]\.self_attn\.[qv]_proj"},
        {
            "target_modules": ["q_proj", "down_proj"],
            "exclude_modules": r".*\.0\..*",
            "rank_pattern": {r"1\..*_proj": 2},
            "alpha_pattern": {r"q_.*": 3},
        },
        {"target_modules": ["q_proj"], "layers_to_transform": [1, 2], "layers_pattern": "layers"},
    ],
    ids=["targets", "ranks", "layers"],
)
def test_patterns_are_saved_as_names(tmp_path: Path, settings: dict[str, Any], wrapped: bool) -> None:
    """Regular expressions are the user's own, but no file may bring one: what they stood for loads again, as it was."""
    model, tokenizer = pair(FAMILY)
    lora = LoraConfig(**settings, r=4, init_lora_weights=False, task_type="CAUSAL_LM")
    trained = get_peft_model(model, lora) if wrapped else model
    if not wrapped:
        model.add_adapter(lora)
    attach(trained, tokenizer, AniConfig(layer=2, gate_hidden_size=8))
    save_adapter(trained, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / PEFT_CONFIG_FILE).read_text())
    lora_layers = {name for name, module in base_model(trained).named_modules() if isinstance(module, LoraLayer)}
    assert set(config["target_modules"]) == lora_layers
    assert all(name in lora_layers for key in ("rank_pattern", "alpha_pattern") for name in config[key])
    assert config["exclude_modules"] is config["layers_pattern"] is config["layers_to_transform"] is None
    loaded = load_adapter(pair(FAMILY)[0], tokenizer, tmp_path / "adapter")
    torch.testing.assert_close(logits_of(loaded, tokenizer), logits_of(trained.eval(), tokenizer), rtol=0, atol=0)


def test_saving_replaces_the_whole_directory(saved: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(saved, tmp_path / "adapter"))
    model, tokenizer = attached(FAMILY)
    save_adapter(model, path)
    assert set(contents(path)) == {CONFIG_FILE, WEIGHTS_FILE, "README.md"}  # the old LoRA weights are gone
    loaded = load_adapter(pair(FAMILY)[0], tokenizer, path)
    assert ani_module(loaded).config == ani_module(model).config
    assert [entry.name for entry in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("where", ["weights", "card", "move"])
def test_saving_that_fails_changes_nothing(
    where: str, existing: bool, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "adapter"
    if existing:
        shutil.copytree(saved, path)
    before = contents(tmp_path)
    model, _ = attached(FAMILY)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no space left on device")

    def fail_to_move_into_place(source: Path, target: Path) -> None:
        if Path(target) == path and (Path(source) / "README.md").read_text() == "new":
            fail()
        os.rename(source, target)

    if where == "weights":
        monkeypatch.setattr(Path, "write_bytes", fail)
    elif where == "card":
        monkeypatch.setattr(adapter_module, "_card", fail)
    else:
        monkeypatch.setattr(os, "replace", fail_to_move_into_place)
    with pytest.raises(OSError, match="no space"):
        save_adapter(model, path, card="new" if where == "move" else None)
    monkeypatch.undo()
    assert contents(tmp_path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == (["adapter"] if existing else [])
