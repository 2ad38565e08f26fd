"""Files that the fuzzer (stress/fuzz.py) and reading found: each is refused by the sentence that it must give."""

import hashlib
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
from ani.compare.plan import Comparison, evaluation_tasks
from ani.data.collator import tokenize
from ani.data.labelled import read_labelled
from ani.data.sources import Example, read_jsonl
from ani.evaluation.benchmarks.data import math_questions, mmlu_questions
from ani.evaluation.benchmarks.judging import boxed_answer
from ani.evaluation.diff import compare_folders
from ani.evaluation.model_spec import ModelSpec
from ani.evaluation.tasks.gate_texts import GateText
from ani.evaluation.tasks.gates import Gates
from ani.injection.adapter import CONFIG_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE, WEIGHTS_FILE
from ani.injection.attach import is_attached
from ani.models import check_weights, load_config, load_model, load_tokenizer
from ani.numbers import NumberScanner, find_numbers
from ani.numbers.rewritten import remove_digit_counts
from ani.report import build_report
from ani.results.records import Record, read_records
from ani.settings import load_settings
from ani.training.recipe import Recipe, load_recipe
from ani.training.run import train
from ani.untrusted.text import LARGEST_SETTINGS, LONGEST_LINE
from tests.refusals import refused
from tests.tiny import tiny
from tests.tokenizers import CHATML, gemma_like

BOMB = "a0: &n0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &n{i} [{', '.join([f'*n{i - 1}'] * 9)}]\n" for i in range(1, 9)
)
ALIASES = "anchors (&) and aliases (*) are not read; write the value out"
MORE = "config.json asks for more weights than its files hold"
FILE = "model.safetensors"
DIAGNOSTIC = {"kind": "diagnostic", "count": 8}
REGEX = "is no module's name, and regular expressions are not read from a file: list the modules by name"


def finer_sentences(path: Path) -> list[GateText]:
    return Gates(texts=[f"finer={path}"]).questions(seed=0)


# --- recipes ----------------------------------------------------------------------------------------------------------

GOOD = "output: x\nani: {layer: 1}\ndata: [{kind: diagnostic, count: 1}]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, f"line 1: {ALIASES}"),
        (BOMB.replace("[", "{k: ").replace("]", "}"), f"line 1: {ALIASES}"),
        ("a: &a [*a]", f"line 1: {ALIASES}"),
        ("a: 1\nb: &a {c: 1}", f"line 2: {ALIASES}"),
        ("a: 1\n<<: *a", "line 2: "),
        ("a:\n  <<: {b: 1}", "line 2: YAML reads a value as 'merge'; put it in quotes"),
        ("output: x\nseed: 1\nseed: 2", "line 3: the key 'seed' is there twice; remove one"),
        ("output: 2024-01-01", "line 1: YAML reads a value as 'timestamp'; put it in quotes"),
        ("output: 2024-13-45", "line 1: YAML reads a value as 'timestamp'"),
        ("output: =", "YAML reads a value as 'value'"),
        ("seed: !!int x", "a value can't be read"),
        ("seed: !!int ''", "a value can't be read"),
        ("seed: !!bool x", "a value can't be read"),
        ("seed: !!timestamp x", "line 1: YAML reads a value as 'timestamp'"),
        ("model: !!python/object/apply:os.system [echo]", "YAML reads a value as 'python/object/apply:os.system'"),
        ("5: x", "line 1: a key must be a text; put it in quotes"),
        ("yes: x", "a key must be a text"),
        ("? [a]\n: b", "a key must be a text"),
        ("seed: " + "9" * 5000, "line 1: an integer of 5000 characters is too large"),
        ("seed: 0x" + "f" * 5000, "an integer of 5002 characters is too large"),
        ('output: "\\ud800"', "half of a surrogate pair"),
        ('output: "a\\0"', "holds NUL"),
        ('output: "\\U00110000"', "not valid YAML"),
        ("a: " + "[" * 150 + "]" * 150, "more than 100 deep"),
        ("a: " + "[" * 90_000, "not valid YAML"),
        ("# " + "x" * 300_000, "more than 200,000 characters"),
        ("#" * (LARGEST_SETTINGS + 1), "is larger than 1,048,576 bytes"),
        (GOOD + "seed: -1", "seed: Input should be greater than or equal to 0 (got -1)"),
        (GOOD + "seed: 4294967296", "seed is 4294967296, but no integer may be above 4294967295: lower it"),
        (GOOD.replace("count: 1", "count: 1000000000000"), "data.0: count is 1000000000000"),
        (GOOD + "training: {learning_rate: .nan}", "training.learning_rate: Input should be a finite number"),
        (GOOD + "training: {max_gradient_norm: .nan}", "training.max_gradient_norm: Input should be greater than 0"),
        (
            GOOD + "lora: {target_modules: '(([a-z0-9_]+)+[.]?)+!'}",
            "lora.target_modules: '(([a-z0-9_]+)+[.]?)+!' " + REGEX,
        ),
        (GOOD + "lora: {target_modules: ['(a+)+$']}", "lora.target_modules: '(a+)+$' " + REGEX),
        (
            GOOD + "lora: {target_modules: q_proj}",
            "lora.target_modules: it must be all-linear, or a list of modules' names",
        ),
        (GOOD + "training: {learning_rate: .inf}", "training.learning_rate: Input should be a finite number"),
        (GOOD.replace("layer: 1", "layer: 1, penalty: .inf"), "ani.penalty: Input should be a finite number"),
        (GOOD.replace("layer: 1", "layer: 1, gate_hidden_size: 10000000000"), "ani.gate_hidden_size: "),
        (GOOD.replace("layer: 1", "layer: 1, integer_digits: 1000000000"), "ani.integer_digits: "),
        (GOOD.replace("{layer: 1}", "{encoders: 5}") + "method: fone", "'fone' has ani.encoders="),
        ("output: x\nani: {layer: 1}\ndata: [{kind: arithmetic, count: 1, digits: [1000000000]}]", "data.0.digits.0: "),
        (GOOD + "x" * 900 + ": 1", "unknown key 'xxx"),
    ],
)
def test_recipe(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    refused(lambda: load_recipe(path), str(path), words)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.9" + "9" * 5000 + ".count=1", "must be an index from 0 to 0"),
        ("data.٣=1", "must be an index from 0 to 0"),
        ("a." * 3000 + "b=1", "names a key in 3000 sections"),
        ("seed=&a [*a]", ALIASES),
        ("seed=" + "9" * 5000, "too large"),
        ("output=2024-01-01", "put it in quotes"),
        ("\ud800=1", "unknown key"),
    ],
)
def test_override(tmp_path: Path, override: str, words: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD)
    assert words in refused(lambda: load_recipe(path, [override]))


def test_recipe_of_a_strange_name(tmp_path: Path) -> None:
    for name in (tmp_path, "x" * 5000, "a\0b"):
        refused(lambda name=name: load_recipe(name))


def test_comparison_with_many_lengths_is_judged_at_once(tmp_path: Path) -> None:
    path = tmp_path / "comparison.yaml"
    digits = ", ".join(map(str, [*range(1, 30_000), 1]))
    path.write_text(
        f"output: x\nrecipe: r.yaml\nvariants: {{a: []}}\nevaluation: {{arithmetic: {{count: 1, digits: [{digits}]}}}}"
    )
    comparison = load_settings(path, Comparison)
    assert "addition of 1 digits is asked more than once" in refused(lambda: evaluation_tasks(comparison, str(path)))


OTHER = ["{benchmarks: 5}", "{math: 5}", "[]"]


@pytest.mark.parametrize("evaluation", [*OTHER, f"{{{'x' * 900}: {{}}}}"])
def test_evaluation_of_another_kind(tmp_path: Path, evaluation: str) -> None:
    path = tmp_path / "comparison.yaml"
    path.write_text(f"output: x\nrecipe: r.yaml\nvariants: {{a: []}}\nevaluation: {evaluation}")
    where = f"recipe {path}"
    assert refused(lambda: evaluation_tasks(load_settings(path, Comparison), where)).startswith(f"{where}: evaluation")


# --- JSON lines -------------------------------------------------------------------------------------------------------

PAIR = {"prompt": "1 + 1 =", "completion": " 2"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"prompt": "\\ud800", "completion": "a"}', "line 1: not valid JSON (unexpected end of hex escape"),
        (b'{"prompt": ' + b"[" * 300 + b"]" * 300 + b"}", "line 1: not valid JSON (recursion limit exceeded"),
        (b"[" * 100_000, "line 1: not valid JSON (recursion limit exceeded"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 1: not valid JSON (number out of range"),
        (b"x" * (LONGEST_LINE + 2), "line 1 is longer than 16,777,216 characters; write a record a line"),
        (b"\xff\xfe{\0}\0", "is not UTF-8 text"),
        (b"\0", "line 1: not valid JSON"),
        (b"\xef\xbb\xbf", "holds no examples"),
        (b"NaN", "line 1: expected an object, found float"),
    ],
    ids=range(9),
)
def test_json_lines(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(data)
    assert words in refused(lambda: read_jsonl(path))


def test_what_looks_odd_but_is_right(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    # Written as a surrogate pair; brackets in a text nest nothing.
    astral = {**PAIR, "prompt": "\U0001f642 " + "[" * 500}
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(astral).encode() + b"\r\n\n" + json.dumps(PAIR).encode())
    assert read_jsonl(path) == [Example(astral["prompt"], " 2"), Example("1 + 1 =", " 2")]


def test_directories_and_names_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").mkdir()
    assert "data.jsonl is a directory; name a file in it" in refused(lambda: read_jsonl(tmp_path / "data.jsonl"))
    assert "can't be read: File name too long" in refused(lambda: read_jsonl("x" * 5000))
    for read in (read_jsonl, read_labelled, lambda path: read_records(path, Record), finer_sentences):
        refused(lambda read=read: read(Path("/dev/zero")))


def test_levels_of_math(tmp_path: Path) -> None:
    """`int("²")` fails though `"²".isdigit()` holds; and levels end with 5."""
    row = {"problem": "p", "solution": "\\boxed{1}", "type": "t"}
    (tmp_path / "test.jsonl").write_text(
        "\n".join(json.dumps({**row, "level": f"Level {level}"}) for level in ("²", "?", "5", "6", "9" * 5000))
    )
    assert sorted(map(str, math_questions(str(tmp_path))["test"]["level"])) == ["5", "None", "None", "None", "None"]


def test_a_wrong_value_is_shown_short(tmp_path: Path) -> None:
    row = {"question": "q", "choices": ["a"] * 4, "answer": 0, "subject": "x" * 10_000}
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    assert len(refused(lambda: mmlu_questions(str(tmp_path)))) < 500


def test_zip(tmp_path: Path) -> None:
    path = tmp_path / "finer.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a\nb.jsonl", "x" * 20)
    assert "holds no test.jsonl, only a b.jsonl" in refused(lambda: finer_sentences(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../test.jsonl", "{}")  # nothing is ever unpacked to disk
    assert "line 1: no 'tokens'" in refused(lambda: finer_sentences(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("test.jsonl", "{}")
    data = path.read_bytes()
    at = data.rindex(b"PK\x01\x02")
    path.write_bytes(data[: at + 24] + struct.pack("<I", 2**32 - 2) + data[at + 28 :])  # the size that the header tells
    assert "would unpack to 4,294,967,294 bytes" in refused(lambda: finer_sentences(path))
    path.write_bytes(data[: at + 10] + b"\x63\0" + data[at + 12 :])  # a compression that nobody knows
    assert "can't be read as a zip" in refused(lambda: finer_sentences(path))


def test_chat_template_that_refuses() -> None:
    tokenizer = gemma_like().__class__(tokenizer_object=gemma_like().backend_tokenizer)
    tokenizer.chat_template = CHATML + "{{ raise_exception('no such role') }}"
    example = Example([{"role": "x", "content": "1"}], "2")
    assert "chat template refuses the messages" in refused(lambda: tokenize(example, tokenizer, None, 64))


# --- results ----------------------------------------------------------------------------------------------------------

ANSWER = {"run": "a", "operation": "+", "digits": 2, "prompt": "p", "answer": "3", "prediction": "3", "correct": True}


@pytest.mark.parametrize("data", [b"\xff", b"[1]", b"5", b'{"a": "\\ud800"}'])
def test_records(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "records.jsonl").write_bytes(data)
    assert "records.jsonl" in refused(lambda: read_records(tmp_path / "records.jsonl", Record))


def test_report(tmp_path: Path) -> None:
    loss = {"run": "a", "kind": "plain", "text": "t", "tokens": 10**30, "loss": 1.5}
    (tmp_path / "language.jsonl").write_text(json.dumps(loss))
    assert "language.jsonl, line 1: tokens: " in refused(lambda: build_report(tmp_path))
    (tmp_path / "language.jsonl").unlink()
    (tmp_path / "arithmetic.jsonl").mkdir()
    assert "arithmetic.jsonl can't be read: Is a directory" in refused(lambda: build_report(tmp_path))


def test_diff_of_settings_of_another_kind(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "arithmetic.jsonl").write_text(json.dumps(ANSWER))
        row = {"task": "gsm8k", "id": 0, "correct": True, "prompt_hash": "a"}
        (tmp_path / name / "gsm8k.jsonl").write_text(json.dumps(row))
        (tmp_path / name / "run.json").write_text(json.dumps({"settings": {"gsm8k": 5}}))
    compare_folders(tmp_path / "one", tmp_path / "two")


# --- texts and token ids ----------------------------------------------------------------------------------------------


def test_long_texts_are_cheap() -> None:
    digits = "9" * 100_000
    assert remove_digit_counts(f"{digits}:5") == f"{digits}:5"  # int() reads no 4,300 digits
    assert find_numbers(digits)[0].value == 10**100_000 - 1
    assert [number.text for number in find_numbers("1e999999999")] == ["1", "999999999"]
    assert boxed_answer("\\boxed{" * 50_000) is None
    assert boxed_answer("\\boxed{" * 20_000 + "5" + "}" * 20_000) == "5"
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
    trained = get_peft_model(
        model, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    )
    ani.attach(trained, gemma_like(), ani.AniConfig(layer=2, gate_hidden_size=4))
    path = tmp_path_factory.mktemp("saved") / "adapter"
    ani.save_adapter(trained, path)
    return path


@pytest.fixture
def adapter(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "adapter"))


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def rewrite(adapter: Path, name: str, data: bytes) -> None:
    """Another file of weights, with its own digest: somebody who means harm can write that too."""
    (adapter / name).write_bytes(data)
    key = "weights_sha256" if name == WEIGHTS_FILE else "lora_sha256"
    edit(adapter / CONFIG_FILE, **{key: hashlib.sha256(data).hexdigest()})


def refusal(adapter: Path) -> str:
    """The sentence that an adapter is refused with, which leaves the model alone."""
    model = tiny("gemma", tokenizer=gemma_like())
    message = refused(lambda: ani.load_adapter(model, gemma_like(), adapter))
    assert not is_attached(model)
    return message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": ' * 300 + "1" + "}" * 300, "is damaged: not valid JSON (recursion limit exceeded"),
        ("[" * 100_000, "is damaged: not valid JSON (recursion limit exceeded"),
        ('{"layer": ' + "9" * 5000 + "}", "is damaged: not valid JSON (number out of range"),
        (" " * (LARGEST_SETTINGS + 1), "is larger than 1,048,576 bytes"),
        ('{"lora_sha256": 5, "base": {}}', "must be texts or null"),
        ('{"lora_sha256": null, "base": {"name": null}, "format_version": true}', "has format version True"),
        ('{"lora_sha256": null, "base": {"name": null}, "format_version": -5}', "has format version -5"),
    ],
)
def test_adapter_config(adapter: Path, text: str, words: str) -> None:
    (adapter / CONFIG_FILE).write_text(text)
    message = refusal(adapter)
    assert CONFIG_FILE in message and words in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"integer_digits": 10**9}, "integer_digits: Input should be less than or equal to 400"),
        ({"gate_hidden_size": 10**9}, "gate_hidden_size: Input should be less than or equal to 65536"),
        ({"gate_hidden_size": 2**16}, "doesn't fit its ani_config.json"),
        ({"hidden_size": 2**20}, "doesn't fit its ani_config.json"),
        ({"hidden_size": 10**12}, "hidden_size: Input should be less than or equal to 1048576"),
        ({"layer": 10**30}, "layer: Input should be"),
        ({"embedding_scale": math.nan}, "embedding_scale: Input should be"),
        ({"embedding_scale": math.inf}, "embedding_scale: Input should be a finite number"),
        ({"penalty": math.inf}, "penalty: Input should be a finite number"),
        ({"model_type": "x" * 5000}, "model_type='xxx"),
    ],
)
def test_adapter_settings(adapter: Path, changes: dict[str, Any], words: str) -> None:
    edit(adapter / CONFIG_FILE, **changes)
    assert words in refusal(adapter)


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
        lambda data: struct.pack("<Q", 10) + data[8:],
        lambda data: data[:-4] + struct.pack("<f", math.nan),
        lambda data: with_header(data, lambda header: next(iter(header.values())).update(shape=[2**40])),
        lambda data: with_header(data, lambda header: list(header.values())[-1].update(shape=[2**63, 2**63])),
        lambda data: with_header(data, lambda header: list(header.values())[-1].update(dtype="I32")),
        lambda data: with_header(data, lambda header: list(header.values())[-1].update(dtype="F4")),
        lambda data: with_header(data, lambda header: list(header.values())[-1].update(data_offsets=[0, 2**50])),
        lambda data: b"",
        lambda data: b"\x80\x04\x95",
    ],
    ids=range(10),
)
def test_weights_that_lie(adapter: Path, name: str, lie: Callable[[bytes], bytes]) -> None:
    rewrite(adapter, name, lie((adapter / name).read_bytes()))
    assert name in refusal(adapter)


def test_weights_beside_the_module_s(adapter: Path, saved: Path, tmp_path: Path) -> None:
    large = {"x": torch.zeros(2**20)}
    for weights, words in (
        ({"../../x": torch.zeros(1)}, "has the shape nothing, not [32"),
        (large, "doesn't fit its ani_config.json"),
        ({**load_file(saved / WEIGHTS_FILE), **large}, "x has the shape [1048576], not nothing"),
    ):
        save_file(weights, tmp_path / "one")
        rewrite(adapter, WEIGHTS_FILE, (tmp_path / "one").read_bytes())
        assert words in refusal(adapter)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "PROMPT_TUNING", "tokenizer_kwargs": {"trust_remote_code": True}}, "peft_type: "),
        ({"megatron_config": {"a": 1}, "megatron_core": "os"}, "megatron_config is {'a': 1}; ANI loads plain LoRA"),
        ({"megatron_core": "antigravity"}, "megatron_core is 'antigravity'"),
        ({"auto_mapping": {"parent_library": "antigravity"}, "r": "4"}, "r: Input should be a valid integer"),
        ({"target_modules": "(.*)*x"}, "target_modules: '(.*)*x' is no module's name, and regular expressions are not"),
        ({"target_modules": "(.|.)" * 20 + "x"}, REGEX),
        ({"target_modules": "(q_proj"}, REGEX),
        ({"target_modules": "q_proj"}, "target_modules"),  # PEFT takes a text as a regular expression
        ({"target_modules": ["q_proj", ".*"]}, REGEX),
        ({"target_modules": [""]}, REGEX),
        ({"target_modules": ["x" * 1001]}, REGEX),
        ({"target_modules": None}, "target_modules"),
        ({"exclude_modules": "(.*)*x"}, REGEX),
        ({"exclude_modules": "k_proj"}, "exclude_modules"),
        ({"exclude_modules": ["(.*)*x"]}, REGEX),
        ({"rank_pattern": {"(a+)+$": 4}}, REGEX),
        ({"alpha_pattern": {"(a+)+$": 4.0}}, REGEX),
        ({"layers_pattern": "(a+)+$", "layers_to_transform": 1}, REGEX),
        ({"layers_pattern": ["(a+)+$"], "layers_to_transform": 1}, REGEX),
        ({"modules_to_save": ["(a+)+$"]}, REGEX),
        ({"rank_pattern": {f"a{i}": 4 for i in range(9000)}}, "rank_pattern has 9,000 entries, and the model "),
        ({"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"]}, "has the shape nothing, not [4, 32]"),
        ({"target_modules": "all-linear"}, "has the shape nothing, not [4, 32]"),
        ({"target_modules": ["embed_tokens"]}, "has the shape nothing, not [4, "),
        ({"rank_pattern": {"q_proj": 2**16}}, "has the shape [4, 32], not [65536, 32]"),
        ({"r": 10**9}, "r: Input should be less than or equal to 65536"),
        ({"r": 2**16}, "has the shape [4, 32], not [65536, 32]"),
        ({"lora_alpha": math.nan}, "lora_alpha: Input should be a finite number"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"base_model_name_or_path": ["/etc"]}, "base_model_name_or_path"),
        ({"layer_replication": [[0, 10**9]]}, "layer_replication"),
        ({"use_dora": True}, "use_dora is True; ANI loads plain LoRA"),  # transformers draws its magnitudes anew
        ({"bias": "all"}, "bias is 'all'; ANI loads plain LoRA"),  # they are the base model's own
    ],
)
def test_what_peft_may_be_told(adapter: Path, changes: dict[str, Any], words: str) -> None:
    edit(adapter / PEFT_CONFIG_FILE, **changes)
    message = refusal(adapter)
    assert PEFT_CONFIG_FILE in message and words in message


def test_lora_of_other_names(adapter: Path, tmp_path: Path) -> None:
    """PEFT would draw what is missing at random."""
    weights = load_file(adapter / PEFT_WEIGHTS_FILE)
    for others, words in (
        ({name.replace(".layers.", ".blocks."): tensor for name, tensor in weights.items()}, "nothing, not [4, 32]"),
        ({**weights, "base_model.model.lm_head.weight": torch.zeros(2, 2)}, "[2, 2], not nothing"),
    ):
        save_file(others, tmp_path / "other")
        rewrite(adapter, PEFT_WEIGHTS_FILE, (tmp_path / "other").read_bytes())
        assert f"has the shape {words}" in refusal(adapter)


@pytest.mark.parametrize("name", [WEIGHTS_FILE, PEFT_WEIGHTS_FILE])
def test_pickles_are_never_opened(adapter: Path, name: str) -> None:
    (adapter / name).rename((adapter / name).with_suffix(".bin"))
    message = refusal(adapter)
    assert ".bin, a pickle, which can run any code when it is opened" in message and "safetensors only" in message


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE])
def test_links_out_of_the_adapter(adapter: Path, tmp_path: Path, name: str) -> None:
    (adapter / name).rename(tmp_path / "secret")
    (adapter / name).symlink_to(tmp_path / "secret")
    assert f"{name} is a link to a file outside of its folder" in refusal(adapter)


def test_links_of_the_hub_s_cache(adapter: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "cache" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    adapter.rename(tmp_path / "cache" / "blobs")
    for name in (CONFIG_FILE, WEIGHTS_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    model = tiny("gemma", tokenizer=gemma_like())
    assert is_attached(ani.load_adapter(model, gemma_like(), snapshot))


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10**9}, "has num_hidden_layers=1000000000, no model's"),
        ({"model_type": "qwen3", "num_hidden_layers": 10**5}, "has num_hidden_layers=100000, no model's"),
        ({"num_hidden_layers": 10**400}, "has num_hidden_layers=1" + 38 * "0" + "…, no model's"),
        ({"num_hidden_layers": 2000}, MORE),
        ({"vocab_size": 10**7}, MORE),
        ({"rope_theta": 10**9, "vocab_size": 10**7}, MORE),  # a large number that is no size
        ({"text_config": {"vocab_size": 2**62}}, "no model's"),
        ({"hidden_size": math.nan}, "hidden_size"),
        ({"transformers_weights": "adapter_model.bin"}, "config.json names a file of weights"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}}, "code of its own, which ANI never runs"),
        ({"num_attention_heads": []}, "no model"),
        ({"model_type": "ani", "ani": {"base_model_type": ["x"]}}, "damaged"),
        ({"model_type": "ani", "ani": 5}, "damaged"),
    ],
)
def test_model_config(model: Path, changes: dict[str, Any], words: str) -> None:
    edit(model / "config.json", **changes)
    assert words in refused(lambda: load_config(str(model)))
    assert words in refused(lambda: load_model(str(model)))


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "n_layer": 10**9},
        {"model_type": "gpt2", "n_layer": 2000, "n_embd": 8, "n_head": 2},
        {"model_type": "gpt2", "n_embd": 10**9},
        {"model_type": "gpt2", "n_embd": 2**20},
        {"model_type": "deepseek_v3", "n_routed_experts": 10**9},
        {"model_type": "deepseek_v3", "n_routed_experts": 2**16},
        {"model_type": "gpt_neo", "max_position_embeddings": 10**6, "hidden_size": 2, "num_heads": 1},  # its masks
    ],
    ids=lambda config: "-".join(map(str, config.values())),
)
def test_sizes_of_any_family(model: Path, config: dict[str, Any]) -> None:
    (model / "config.json").write_text(json.dumps(config))
    message = refused(lambda: load_config(str(model)))
    assert MORE in message or "no model's" in message


def test_sizes_without_files(model: Path) -> None:
    (model / "model.safetensors").unlink()
    for config in ({"n_layer": 2**20}, {"n_embd": 12 * 2**18}):
        (model / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}))
        message = refused(lambda: load_config(str(model)))
        assert "no model's" in message or "more weights than any model has" in message
    refused(lambda: load_model(str(model)), "has no weights in safetensors files")


LAYER = "model.layers.1."


def change(model: Path, lacking: str, others: dict[str, torch.Tensor] | None = None) -> None:
    """Take the weights whose names begin so out of the file, and put others in."""
    weights = {name: each for name, each in load_file(model / FILE).items() if not name.startswith(lacking)}
    save_file({**weights, **(others or {})}, model / FILE, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "use",
    [
        lambda model, adapter, out: load_model(str(model)),
        lambda model, adapter, out: ani.merge(adapter, out, model=str(model)),
        lambda model, adapter, out: check_weights(str(model)),  # what vLLM is to load
        lambda model, adapter, out: train(
            Recipe(model=str(model), output=str(out), quantization="none", ani={"layer": 1}, data=[DIAGNOSTIC])
        ),
        lambda model, adapter, out: ModelSpec(str(model), None, "transformers", None).load([], out),
    ],
    ids=["load", "merge", "vllm", "train", "eval"],
)
def test_weights_are_whole(model: Path, tiny_adapter: Path, tmp_path: Path, use: Callable[..., object]) -> None:
    change(model, LAYER)
    change(model, "lm_head")
    message = refused(lambda: use(model, tiny_adapter, tmp_path / "out"), f"{model}: ", "10 missing (lm_head.weight, ")
    assert f"{LAYER}mlp.down_proj.weight" in message
    assert not (tmp_path / "out" / "config.json").exists()


def test_weights_of_other_names_and_shapes(model: Path) -> None:
    change(model, "model.norm", {"model.norm.weight": torch.zeros(3), "ani.projection.weight": torch.zeros(3)})
    shapes = "1 of another shape (model.norm.weight [3] instead of [32])"
    refused(lambda: load_model(str(model)), shapes, "1 unexpected (ani.projection.weight)")
    kept_once = {f"{LAYER}self_attn.rotary_emb.inv_freq": torch.zeros(4)}  # by earlier versions of transformers
    change(model, "ani.", {"model.norm.weight": torch.ones(32), **kept_once})
    load_model(str(model))


@pytest.mark.parametrize("lacks", [LAYER, "ani.gate"])
def test_merged_weights_are_whole(tiny_model: Path, tiny_adapter: Path, tmp_path: Path, lacks: str) -> None:
    ani.merge(tiny_adapter, tmp_path / "merged", model=str(tiny_model))
    change(tmp_path / "merged", lacks)
    refused(lambda: AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), f" missing ({lacks}")


def test_a_model_with_an_adapter_in_its_folder(model: Path, adapter: Path) -> None:
    """transformers would load that too, with whatever its config tells PEFT."""
    shutil.copy(adapter / PEFT_CONFIG_FILE, model)
    refused(lambda: load_model(str(model)), "has an adapter among its files (adapter_config.json)")


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, "5", "\x00", '{"vocab_size": ' + "9" * 5000 + "}"])
def test_config_that_is_none(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    assert "no model" in refused(lambda: load_config(str(model)))


def test_pickled_model(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    message = refused(lambda: load_model(str(model)))
    assert "pytorch_model.bin, a pickle, which can run any code when it is opened; convert it to safetensors" in message


def test_shards_out_of_the_folder(model: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": "../other/model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "must name files of its own folder" in refused(lambda: load_model(str(model)))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"model": 5}', "[" * 5000])
def test_tokenizer(model: Path, text: str) -> None:
    (model / "tokenizer.json").write_text(text)
    assert "no tokenizer" in refused(lambda: load_tokenizer(str(model)))


def test_names_that_are_no_names() -> None:
    for name in ("x" * 5000, "~nobody-here/x", "a\0b", ""):
        refused(lambda name=name: load_model(name))
        refused(lambda name=name: ani.load_adapter(tiny("gemma", tokenizer=gemma_like()), gemma_like(), name))


def test_the_good_ones_load(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(GOOD + "training: {steps: 5}\n")
    assert isinstance(load_recipe(tmp_path / "recipe.yaml"), Recipe)
    assert is_attached(ani.load_adapter(tiny("gemma", tokenizer=gemma_like()), gemma_like(), saved))
