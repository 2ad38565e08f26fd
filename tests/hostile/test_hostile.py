"""Files that come from somebody else: a bad one is refused with one sentence, and leaves the model alone."""

import json
import math
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import ani
from ani.data.collator import tokenize
from ani.data.labelled_sentences import read_labelled
from ani.data.records import Example, read_examples
from ani.evaluation.model_spec import ModelSpec
from ani.evaluation.tasks.gates import Gates, GateText
from ani.evaluation.tasks.math import boxed_answer
from ani.injection.adapter_files import CONFIG_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE, WEIGHTS_FILE
from ani.injection.model_parts import is_attached
from ani.models import check_weights, load_config, load_model, load_tokenizer
from ani.numbers import NumberScanner, find_numbers
from ani.numbers.digit_counts import remove_digit_counts
from ani.results.records import Record, read_records
from ani.training.recipe import Recipe, load_recipe
from ani.training.run import train
from tests.refusals import refused
from tests.tiny import tiny
from tests.tokenizers import CHATML, gemma_like

FILES = [CONFIG_FILE, WEIGHTS_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE]
GOOD = "output: x\nani: {layer: 1}\ndata: [{kind: diagnostic, count: 1}]\n"
DIAGNOSTIC = {"kind": "diagnostic", "count": 8}


def finer_sentences(path: Path) -> list[GateText]:
    return Gates(texts=[f"finer={path}"]).questions(seed=0)


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("output: 2024-13-45", "recipe.yaml"),
        ("model: !!python/object/apply:os.system [echo]", "python/object/apply:os.system"),
        ("a: " + "[" * 9_000, "recipe.yaml"),
        (GOOD + "seed: -1", "seed"),
        (GOOD + "seed: 4294967296", "seed"),
        (GOOD + "seed: " + "9" * 5000, "recipe.yaml"),
        (GOOD + "training: {learning_rate: .nan}", "training.learning_rate"),
        (GOOD.replace("layer: 1", "layer: 1, penalty: .inf"), "ani.penalty"),
        (GOOD.replace("layer: 1", "layer: 1, integer_digits: 1000000000"), "ani.integer_digits"),
        (GOOD + "x" * 900 + ": 1", "xxx"),
    ],
)
def test_recipe(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    refused(lambda: load_recipe(path), named)


def test_names_that_are_no_files(tmp_path: Path) -> None:
    for name in (tmp_path, "x" * 5000, "a\0b"):
        refused(lambda name=name: load_recipe(name))
    (tmp_path / "data.jsonl").mkdir()
    refused(lambda: read_examples(tmp_path / "data.jsonl"), "data.jsonl")
    refused(lambda: read_examples("x" * 5000), "xxx")
    for read in (read_examples, read_labelled, lambda path: read_records(path, Record), finer_sentences):
        refused(lambda read=read: read(Path("/dev/zero")))


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt": "\\ud800", "completion": "a"}',
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
        b"\xff\xfe{\0}\0",
        b"\0",
        b"\xef\xbb\xbf",
        b"NaN",
    ],
    ids=range(7),
)
def test_json_lines(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(data)
    refused(lambda: read_examples(path), str(path))


def test_json_lines_that_look_odd_but_are_right(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    pair = {"prompt": "1 + 1 =", "completion": " 2"}
    astral = {
        **pair,
        "prompt": "\U0001f642 " + "[" * 500,
    }  # written as a surrogate pair; brackets in a text nest nothing
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(astral).encode() + b"\r\n\n" + json.dumps(pair).encode())
    assert read_examples(path) == [Example(astral["prompt"], " 2"), Example("1 + 1 =", " 2")]


def test_zip(tmp_path: Path) -> None:
    path = tmp_path / "finer.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a\nb.jsonl", "x" * 20)
    refused(lambda: finer_sentences(path), "test.jsonl")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../test.jsonl", "{}")  # nothing is ever unpacked to disk
    refused(lambda: finer_sentences(path), "line 1", "tokens")
    data = path.read_bytes()
    at = data.rindex(b"PK\x01\x02")
    path.write_bytes(data[: at + 10] + b"\x63\0" + data[at + 12 :])  # a compression that nobody knows
    refused(lambda: finer_sentences(path), str(path))


def test_chat_template_that_refuses() -> None:
    tokenizer = gemma_like().__class__(tokenizer_object=gemma_like().backend_tokenizer)
    tokenizer.chat_template = CHATML + "{{ raise_exception('no such role') }}"
    example = Example([{"role": "x", "content": "1"}], "2")
    refused(lambda: tokenize(example, tokenizer, None, 64), "no such role")


def test_long_texts_are_cheap() -> None:
    digits = "9" * 100_000
    assert remove_digit_counts(f"{digits}:5") == f"{digits}:5"  # int() reads no 4,300 digits
    assert find_numbers(digits)[0].value == 10**100_000 - 1
    assert [number.text for number in find_numbers("1e999999999")] == ["1", "999999999"]
    assert boxed_answer("\\boxed{" * 50_000) is None
    for name in ("fourier", "magnitude", "bits"):
        encoder = ani.encoders.build_encoder(ani.AniConfig(layer=0, encoders=(name,)))
        assert encoder.encode([digits, "1e999999999", "1e-999999999"]).isfinite().all()


def test_token_ids_of_any_kind() -> None:
    scanner = NumberScanner(gemma_like())
    one = gemma_like().convert_tokens_to_ids("1")
    ids = [one, -1, one, 10**30, one, -(2**70), *gemma_like().all_special_ids, one]
    assert [number.text for number in scanner.scan(ids)] == ["1"] * 4
    assert [number.text for number in scanner.scan_running(ids)] == ["1"] * 4


# --- adapters ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with LoRA weights for the tiny gemma."""
    model = tiny("gemma", tokenizer=gemma_like())
    lora = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    trained = get_peft_model(model, lora)
    ani.attach(trained, gemma_like(), ani.AniConfig(layer=2, gate_hidden_size=4))
    path = tmp_path_factory.mktemp("saved") / "adapter"
    ani.save_adapter(trained, path)
    return path


@pytest.fixture
def adapter(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "adapter"))


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def edit_module(adapter: Path, **changes: Any) -> None:
    file = adapter / CONFIG_FILE
    edit(file, module={**json.loads(file.read_text())["module"], **changes})


def refusal(adapter: Path, *named: str) -> None:
    """The adapter is refused with a sentence that names these, and the model is left alone."""
    model = tiny("gemma", tokenizer=gemma_like())
    modules = [(name, type(module)) for name, module in model.named_modules()]
    refused(lambda: ani.load_adapter(model, gemma_like(), adapter), *named)
    assert not is_attached(model) and modules == [(name, type(module)) for name, module in model.named_modules()]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"integer_digits": 10**9}, "integer_digits"),
        ({"gate_hidden_size": 10**9}, "gate_hidden_size"),
        ({"gate_hidden_size": 2**16}, WEIGHTS_FILE),
        ({"hidden_size": 2**20}, WEIGHTS_FILE),
        ({"layer": 10**30}, "layer"),
        ({"embedding_scale": math.nan}, "embedding_scale"),
        ({"penalty": math.inf}, "penalty"),
        ({"model_type": "x" * 5000}, "model_type"),
    ],
)
def test_adapter_settings(adapter: Path, changes: dict[str, Any], named: str) -> None:
    edit_module(adapter, **changes)
    refusal(adapter, named)


def with_header(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    change(header)
    written = json.dumps(header).encode()
    return struct.pack("<Q", len(written)) + written + data[8 + size :]


@pytest.mark.parametrize("name", [WEIGHTS_FILE, PEFT_WEIGHTS_FILE])
@pytest.mark.parametrize(
    "lie",
    [
        lambda data: struct.pack("<Q", 2**63) + data[8:],
        lambda data: data[:-4] + struct.pack("<f", math.nan),
        lambda data: with_header(data, lambda header: next(iter(header.values())).update(shape=[2**40])),
        lambda data: with_header(data, lambda header: list(header.values())[-1].update(dtype="I32")),
        lambda data: with_header(data, lambda header: list(header.values())[-1].update(data_offsets=[0, 2**50])),
        lambda data: b"\x80\x04\x95",
        lambda data: data[:-20],
    ],
    ids=range(7),
)
def test_weights_that_lie(adapter: Path, name: str, lie: Callable[[bytes], bytes]) -> None:
    (adapter / name).write_bytes(lie((adapter / name).read_bytes()))
    refusal(adapter, name)


@pytest.mark.parametrize("name", [WEIGHTS_FILE, PEFT_WEIGHTS_FILE])
def test_weights_of_other_names(adapter: Path, name: str) -> None:
    """PEFT would draw what is missing at random."""
    weights = load_file(adapter / name)
    first, *_ = weights
    for others in ({**weights, "x": torch.zeros(2)}, {n: w for n, w in weights.items() if n != first}):
        save_file(others, adapter / name)
        refusal(adapter, name, "x" if "x" in others else first)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"peft_type": "PROMPT_TUNING", "tokenizer_kwargs": {"trust_remote_code": True}}, "peft_type"),
        ({"megatron_config": {"a": 1}, "megatron_core": "os"}, "megatron_config"),
        ({"megatron_core": "antigravity"}, "megatron_core"),
        ({"target_modules": "(q_proj"}, PEFT_CONFIG_FILE),
        ({"target_modules": None}, "target_modules"),
        ({"target_modules": ["q_proj", "k_proj"]}, PEFT_WEIGHTS_FILE),
        ({"target_modules": ["no_such_projection"]}, PEFT_CONFIG_FILE),
        ({"r": "four"}, "r: "),
        ({"r": 3}, PEFT_WEIGHTS_FILE),
        ({"lora_alpha": math.nan}, "lora_alpha"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"layer_replication": [[0, 10**9]]}, "layer_replication"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
    ],
)
def test_settings_of_lora(adapter: Path, changes: dict[str, Any], named: str) -> None:
    edit(adapter / PEFT_CONFIG_FILE, **changes)
    refusal(adapter, named)


@pytest.mark.parametrize("name", [WEIGHTS_FILE, PEFT_WEIGHTS_FILE])
def test_pickles_are_never_opened(adapter: Path, name: str) -> None:
    (adapter / name).rename((adapter / name).with_suffix(".bin"))
    refusal(adapter, name, "safetensors only")


@pytest.mark.parametrize("name", FILES)
def test_links_out_of_the_adapter(adapter: Path, tmp_path: Path, name: str) -> None:
    (adapter / name).rename(tmp_path / "secret")
    (adapter / name).symlink_to(tmp_path / "secret")
    refusal(adapter, name, "link")


def test_links_of_the_hub_s_cache(adapter: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "cache" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    adapter.rename(tmp_path / "cache" / "blobs")
    for name in FILES:
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    model = tiny("gemma", tokenizer=gemma_like())
    assert is_attached(ani.load_adapter(model, gemma_like(), snapshot))


# --- models -----------------------------------------------------------------------------------------------------------

LAYER = "model.layers.1."


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def change(model: Path, lacking: str, others: dict[str, torch.Tensor] | None = None) -> None:
    """Remove the weights whose names begin so from the file, and add others."""
    file = model / "model.safetensors"
    weights = {name: each for name, each in load_file(file).items() if not name.startswith(lacking)}
    save_file({**weights, **(others or {})}, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": math.nan}, "hidden_size"),
        ({"transformers_weights": "adapter_model.bin"}, "config.json"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}}, "custom code"),
        ({"num_attention_heads": []}, "no model"),
        ({"model_type": "ani", "ani": {"base_model_type": ["x"]}}, "'ani'"),
        ({"model_type": "ani", "ani": 5}, "'ani'"),
    ],
)
def test_model_config(model: Path, changes: dict[str, Any], named: str) -> None:
    edit(model / "config.json", **changes)
    refused(lambda: load_model(str(model)), named)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, adapter, out: load_model(str(model)),
        lambda model, adapter, out: ani.merge(adapter, out, model=str(model)),
        lambda model, adapter, out: check_weights(str(model)),  # before vLLM loads it
        lambda model, adapter, out: train(
            Recipe(model=str(model), output=str(out), quantization="none", ani={"layer": 1}, data=[DIAGNOSTIC])
        ),
        lambda model, adapter, out: ModelSpec(str(model), None, "transformers", None).load([], out),
    ],
    ids=["load", "merge", "vllm", "train", "eval"],
)
def test_weights_are_complete(model: Path, tiny_adapter: Path, tmp_path: Path, use: Callable[..., object]) -> None:
    change(model, LAYER)
    change(model, "lm_head")
    refused(
        lambda: use(model, tiny_adapter, tmp_path / "out"), str(model), "10 missing", f"{LAYER}mlp.down_proj.weight"
    )
    assert not (tmp_path / "out" / "config.json").exists()


def test_weights_of_other_names_and_shapes(model: Path) -> None:
    change(model, "model.norm", {"model.norm.weight": torch.zeros(3), "ani.projection.weight": torch.zeros(3)})
    refused(lambda: load_model(str(model)), "model.norm.weight [3] instead of [32]", "ani.projection.weight")
    kept_once = {f"{LAYER}self_attn.rotary_emb.inv_freq": torch.zeros(4)}  # by earlier versions of transformers
    change(model, "ani.", {"model.norm.weight": torch.ones(32), **kept_once})
    load_model(str(model))


@pytest.mark.parametrize("lacks", [LAYER, "ani.gate"])
def test_merged_weights_are_complete(tiny_model: Path, tiny_adapter: Path, tmp_path: Path, lacks: str) -> None:
    ani.merge(tiny_adapter, tmp_path / "merged", model=str(tiny_model))
    change(tmp_path / "merged", lacks)
    refused(lambda: AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), lacks)


def test_a_model_with_an_adapter_in_its_folder(model: Path, adapter: Path) -> None:
    """transformers would load that too, with whatever its config asks of PEFT."""
    shutil.copy(adapter / PEFT_CONFIG_FILE, model)
    refused(lambda: load_model(str(model)), PEFT_CONFIG_FILE)


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, "5", "\x00", '{"vocab_size": ' + "9" * 5000 + "}"])
def test_config_that_is_none(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    refused(lambda: load_config(str(model)), "no model")


def test_pickled_model(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    refused(lambda: load_model(str(model)), "safetensors")


def test_shards_out_of_the_folder(model: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": "../other/model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(lambda: load_model(str(model)), "model.safetensors.index.json")


@pytest.mark.parametrize("text", ["", "[]", '{"model": 5}', "[" * 5000])
def test_tokenizer(model: Path, text: str) -> None:
    (model / "tokenizer.json").write_text(text)
    refused(lambda: load_tokenizer(str(model)), "no tokenizer")


def test_names_that_are_no_names() -> None:
    for name in ("x" * 5000, "~nobody-here/x", "a\0b", ""):
        refused(lambda name=name: load_model(name))
        refused(lambda name=name: ani.load_adapter(tiny("gemma", tokenizer=gemma_like()), gemma_like(), name))
