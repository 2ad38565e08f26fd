"""Files that come from somebody else: a bad one is refused with one sentence, and leaves the model alone."""

import json
import math
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import ani
from ani.data.collator import tokenize
from ani.data.labelled_sentences import read_labelled
from ani.data.records import Example, read_examples
from ani.evaluation.model_spec import ModelSpec
from ani.evaluation.tasks.benchmarks import boxed_answer
from ani.evaluation.tasks.gates import Gates, GateText
from ani.injection.adapter_files import PEFT_CONFIG_FILE
from ani.models import check_weights, load_config, load_model, load_tokenizer
from ani.numbers import find_numbers
from ani.numbers.digit_counts import remove_digit_counts
from ani.results.records import Record, read_records
from ani.training.recipe import Recipe, load_recipe
from ani.training.run import train
from tests.refusals import refused
from tests.tokenizers import CHATML, gemma_like

GOOD = "output: x\nani: {layer: 1}\ndata: [{kind: diagnostic, count: 1}]\n"
DIAGNOSTIC = {"kind": "diagnostic", "count": 8}


def finer_sentences(path: Path) -> list[GateText]:
    return Gates(texts=[f"finer={path}"]).questions(seed=0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model: !!python/object/apply:os.system [echo]", "python/object/apply:os.system"),
        ("a: " + "[" * 9_000, "recipe.yaml"),
        (GOOD + "seed: -1", "seed"),
        (GOOD + "seed: " + "9" * 5000, "recipe.yaml"),
        (GOOD + "dtype: 0x" + "f" * 5000, "dtype"),
        (GOOD + "seed: !!bool x", "recipe.yaml"),
        (GOOD + "seed: !!int _", "recipe.yaml"),
        (GOOD + "seed: !!timestamp x", "recipe.yaml"),
        (GOOD.replace("kind: diagnostic", "kind: {a: b}"), "kind must be one of"),
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
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe\x00")
    refused(lambda: load_recipe(tmp_path / "latin.yaml"), "latin.yaml")
    for name in (tmp_path, "x" * 5000, "a\0b"):
        refused(lambda name=name: load_recipe(name))
    (tmp_path / "data.jsonl").mkdir()
    refused(lambda: read_examples(tmp_path / "data.jsonl"), "data.jsonl")
    refused(lambda: read_examples("x" * 5000), "xxx")
    for read in (read_examples, read_labelled, lambda path: read_records(path, Record), finer_sentences):
        refused(lambda read=read: read(Path("/dev/zero")))


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    surrogate, digits = b'{"prompt": "\\ud800", "completion": "a"}', b'{"a": ' + b"9" * 5000 + b"}"
    for data in (surrogate, b"[" * 100_000, digits, b"\xff\xfe{\0}\0", b"\0", b"\xef\xbb\xbf", b"NaN"):
        path.write_bytes(data)
        refused(lambda: read_examples(path), str(path))


def test_json_lines_that_look_odd_but_are_right(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    pair = {"prompt": "1 + 1 =", "completion": " 2"}
    astral = {**pair, "prompt": "\U0001f642 " + "[" * 500}  # a surrogate pair; brackets in a text nest nothing
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


LAYER = "model.layers.1."
OUTSIDE = json.dumps({"metadata": {}, "weight_map": {"a": "../other/model.safetensors"}})


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def change(model: Path, lacking: str, others: dict[str, torch.Tensor] | None = None) -> None:
    """Remove the weights whose names begin so from the file, and add others."""
    file = model / "model.safetensors"
    weights = {name: each for name, each in load_file(file).items() if not name.startswith(lacking)}
    save_file({**weights, **(others or {})}, file, metadata={"format": "pt"})


def test_model_config(model: Path) -> None:
    config = (model / "config.json").read_text()
    for changes, named in (
        ({"hidden_size": math.nan}, "hidden_size"),
        ({"transformers_weights": "adapter_model.bin"}, "config.json"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}}, "custom code"),
        ({"num_attention_heads": []}, "no model"),
        ({"model_type": "ani", "ani": 5}, "'ani'"),
    ):
        (model / "config.json").write_text(json.dumps({**json.loads(config), **changes}))
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


@pytest.mark.parametrize("lacks", [LAYER, "ani.gate"])
def test_merged_weights_are_complete(tiny_model: Path, tiny_adapter: Path, tmp_path: Path, lacks: str) -> None:
    ani.merge(tiny_adapter, tmp_path / "merged", model=str(tiny_model))
    change(tmp_path / "merged", lacks)
    refused(lambda: AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), lacks)


@pytest.mark.parametrize(
    ("file", "text", "load", "named"),
    [
        (PEFT_CONFIG_FILE, "{}", load_model, PEFT_CONFIG_FILE),  # transformers would load that too
        *(("config.json", text, load_config, "no model") for text in ("[]", "[" * 100_000, "\x00")),
        *(("tokenizer.json", text, load_tokenizer, "no tokenizer") for text in ("", '{"model": 5}', "[" * 5000)),
        ("model.safetensors", None, load_model, "safetensors"),  # pickled
        ("model.safetensors.index.json", OUTSIDE, load_model, "model.safetensors.index.json"),
    ],
    ids=range(9),
)
def test_other_files_of_a_model(model: Path, file: str, text: str | None, load: Any, named: str) -> None:
    if text is None:
        (model / file).rename(model / "pytorch_model.bin")
    else:
        (model / file).write_text(text)
    refused(lambda: load(str(model)), named)


def test_weights_of_other_names_and_shapes(model: Path) -> None:
    change(model, "model.norm", {"model.norm.weight": torch.zeros(3), "ani.projection.weight": torch.zeros(3)})
    refused(lambda: load_model(str(model)), "model.norm.weight [3] instead of [32]", "ani.projection.weight")
    kept_once = {f"{LAYER}self_attn.rotary_emb.inv_freq": torch.zeros(4)}  # by earlier versions of transformers
    change(model, "ani.", {"model.norm.weight": torch.ones(32), **kept_once})
    load_model(str(model))
