"""Fuzzer of the scanner, the grammar, the calculator's reader, and the readers of data, recipes, results and adapters.

    python stress/fuzz.py [--count 1000000] [--seed 0] [--only recipe,adapter] [--keep DIR]

Every target changes valid inputs (a value of another type or size, a missing or doubled key, a nesting, a wrong header,
a byte) and reads them. It fails on any exception but `ani.InputError`, on a message that
is no single line, on a case of more than 5 seconds of CPU, and on four gigabytes more of memory. A failing input is
written to a file, and the exit code is 1. The same seed and count give the same inputs.
"""

import argparse
import copy
import json
import math
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch
import transformers
import yaml
from peft import LoraConfig, get_peft_model

import ani
import ani.calculator
from ani import InputError
from ani.calculator.reader.pending import PendingReader
from ani.calculator.rows import RowReader
from ani.compare.plan import Comparison, evaluation_tasks
from ani.data.collator import NumberCollator, tokenize
from ani.data.labelled_sentences import read_labelled
from ani.data.openmath_magpie import _entries
from ani.data.records import read_examples
from ani.encoders import ENCODERS, EncoderSettings
from ani.evaluation.tasks import TASKS
from ani.evaluation.tasks.gates import READERS, Gates
from ani.evaluation.tasks.gsm8k import marked_answer
from ani.evaluation.tasks.math import boxed_answer
from ani.injection import adapter_files as adapters
from ani.injection.adapter import Adapter
from ani.injection.model_parts import number_locator
from ani.numbers import NumberScanner, find_numbers
from ani.numbers.digit_counts import digit_counted_pieces, remove_digit_counts
from ani.numbers.text import plain_text
from ani.report.training import TrainingStep
from ani.results.records import Run, read_object, read_records
from ani.settings import load_settings, save_settings
from ani.training.recipe import Recipe
from tests import tokenizers
from tests.tiny import tiny

SECONDS = 5.0
MEMORY = 4 * 2**30
"""More address space than the process has at the start; what asks for more gets a MemoryError."""
LONGEST_MESSAGE = 2000


class TooSlow(BaseException):
    """Raised in a case that has used up its seconds."""


def _too_slow(*_: object) -> None:
    raise TooSlow(f"more than {SECONDS} s")


# --- inputs ------------------------------------------------------------------------------------------------------

Rng = random.Random


# fmt: off
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, 10**9, 10**30, 10**4000, 0.5, -0.0,
    1e308, 1e-320, math.nan, math.inf, -math.inf, "", " ", "0", "nan", "1e999", "1" * 5000, "x" * 3000, "\0", "\ud800",
    "a\udfff", "\ufeff", "\u2028", "a\nb", "²", "٣", "../../etc/passwd", "/dev/zero", "\\boxed{", "#### 12",
    "The answer is 1e999", "<pad>", "{{ 1/0 }}", "!!python/object:os.system", [], {}, [[]], [None], {"": None},
    {"a": {"b": []}}, json.loads("[" * 20 + "]" * 20), json.loads("[" * 150 + "]" * 150), [1] * 2000,
]
FRAGMENTS = [
    "0", "1", "7", "12", "505", "007", "1,234", "1,234,567", "3.14", ".5", "2.0.1", "1e5", "1E-7", "1e999", "1e9999",
    "1e999999999", "9" * 40, "e", "E", "+", "-", "−", ".", ",", "..", " ", "\t", "\n", "\0", "a", "x -", "COVID-", "$",
    "%", "(", ")", "[", "}", "#### ", "The answer is ", "\\boxed{", "\\boxed {", "{", "}", ":", "2:", "1.2:", "é", "数",
    "🙂", "²", "٣", "\u00a0", "\u2028", "\ufeff", "\ufffd", "▁", "Ġ", "<0x31>", "<eos>", "<|im_end|>", "\U0010ffff",
]
# fmt: on


def text(rng: Rng) -> str:
    """Fragments that numbers are made of, and now and then something very long."""
    parts = rng.choices(FRAGMENTS, k=rng.randrange(1, 24))
    if rng.random() < 0.0005:
        unit = rng.choice([*FRAGMENTS, "1,234", "1.2", "1e1", "9"])
        parts.insert(rng.randrange(len(parts)), unit * (100_000 // len(unit)))
    if rng.random() < 0.05:
        parts.append(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])))
    return "".join(parts)


def changed(value: Any, rng: Rng) -> Any:
    """A JSON value with one place of it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        match rng.randrange(10):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, rng.choice([key + "x", "", "\0", "a.b", "format_version"]): value[key]}
            case _:
                return {**value, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return value + [copy.copy(value[place])] * rng.choice([1, 1, 1, 300])
            case _:
                return [*value[:place], changed(value[place], rng), *value[place + 1 :]]
    match rng.randrange(11):
        case 0:
            return [value]
        case 1:
            return {"a": value}
        case 8 | 9 | 10:
            return rng.choice([1, 2, 5, 0.5, "a", "1 and 2", True, False, None, value])
        case 2 if isinstance(value, str):
            return text(rng)
        case 3 if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64):
            return value * rng.choice([-1, 2, 10, 0.5, 10**6, 10**12])
        case 4:
            return str(value)
        case _:
            return rng.choice(VALUES)


def several(value: Any, rng: Rng) -> Any:
    """A JSON value with some places of it changed."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        value = changed(value, rng)
    return value


def bytes_of(data: bytes, rng: Rng) -> bytes:
    """The same bytes three times of four; else cut, flipped, doubled, or with something put in."""
    if rng.random() < 0.75 or not data:
        return data
    place, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    match rng.randrange(7):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + bytes([data[place % len(data)] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        case 2:
            return data[:end] + data[place:]
        case 3:
            return data[:place] + data[end:]
        case 4:
            return rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\n\n", b" "]) + data
        case 5:
            return data.decode(errors="replace").encode(rng.choice(["utf-16", "latin-1", "utf-8"]), "replace")
        case _:
            piece = rng.choice([b"\xff", b"\0", b'"', b"{", b"]" * 300, b"[" * 100_000, b"\\ud800", b"\r", b"9" * 5000])
            return data[:place] + piece + data[place:]


def json_bytes(value: Any, rng: Rng) -> bytes:
    """A JSON value in UTF-8, perhaps with changed bytes."""
    written = json.dumps(value, ensure_ascii=rng.random() < 0.9)
    return bytes_of(written.encode("utf-8", "surrogatepass"), rng)


def lines(record: Any, rng: Rng) -> bytes:
    """A JSON-lines file of one to three records, one of them changed."""
    good = json.dumps(record).encode() + b"\n"
    return good * rng.randrange(2) + json_bytes(several(record, rng), rng) + b"\n" + good * rng.randrange(2)


# --- the targets ------------------------------------------------------------------------------------------------------

Case = Callable[[Rng], tuple[bytes, Callable[[], Any]]]
"""Draws an input: its bytes, to keep, and a function that reads it."""


def scanner_cases(folder: Path) -> Case:
    """Token ids of any kind, and texts, through the scanner of three tokenizers."""
    made = []
    for make in (tokenizers.gemma_like, tokenizers.llama3, tokenizers.mistral):
        try:
            made.append(make())
        except BaseException as error:  # pytest's, of a package that isn't there
            print(f"without {make.__name__}: {error}")
    found = []
    for tokenizer in made:
        vocabulary = tokenizer.get_vocab()
        digits = [i for token, i in vocabulary.items() if any("0" <= c <= "9" for c in token)]
        joints = [i for token, i in vocabulary.items() if token in {".", ",", "-", "+", "e", "E", "▁", "Ġ", "1", "▁-"}]
        odd = [*tokenizer.all_special_ids, -1, -100, len(vocabulary), 2**31, 2**63, -(2**70), 2**70]
        found.append((tokenizer, NumberScanner(tokenizer), list(vocabulary.values()), digits, joints, odd))

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        tokenizer, scanner, every, digits, joints, odd = rng.choice(found)
        if rng.random() < 0.1:
            written = text(rng)
            ids = tokenizer(written[:2000])["input_ids"]
        else:
            pools = rng.choices([every, digits, joints, odd], [3, 6, 4, 1], k=rng.randrange(1, 28))
            ids = [rng.choice(pool) for pool in pools]
            if rng.random() < 0.0005:
                ids *= 100_000 // len(ids)
        start = rng.randrange(len(ids) + 1)
        form = rng.randrange(12)

        def read() -> None:
            given: Any = ids
            if form < 3 and all(-(2**63) <= i < 2**63 for i in ids):
                given = (tuple(ids), np.array(ids), torch.tensor(ids))[form]
            numbers = scanner.scan(given)
            whole = scanner.text(given)
            for number in numbers[:50]:
                assert whole[number.start : number.end] == number.text, number
                assert 0 <= number.first_token <= number.last_token < len(ids), number
                assert number.value.is_finite()
            for number in scanner.scan_running(given, start)[:50]:
                assert start <= number.last_token < len(ids), number
                assert number.value.is_finite()
            ended = scanner.scan_ended(given)
            assert scanner.scan_ended(given, start) == {t: n for t, n in ended.items() if t >= start}
            assert scanner.scan_ended(given[:start]) == {t: n for t, n in ended.items() if t < start}
            written_out = [number.text for number in numbers]
            for token, number in [*ended.items()][:50]:
                assert number.last_token <= token < len(ids) and number.text in written_out, number

        return json.dumps({"tokenizer": type(tokenizer).__name__, "ids": ids, "start": start}).encode(), read

    return draw


def grammar_cases(folder: Path) -> Case:
    """Texts through the grammar, the encoders, NumeroLogic's counts and the readers of answers."""
    encoders = [
        build(EncoderSettings(fraction_digits=fraction, integer_digits=whole))
        for build in ENCODERS.values()
        for whole, fraction in ((10, 6), (300, 0))
    ]
    odd = [Decimal("NaN"), Decimal("Infinity"), Decimal("-0"), Decimal("1e999999"), Decimal("1e-999999"), 10**5000, -7]
    odd += ["", "-", "1e", "1e99999999999999999999", "1e-99999999999999999999", ".", "0" * 9000, "1_000", "0x1", "٣"]

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        written = text(rng)
        encoder = rng.choice(encoders)
        value: Any = rng.choice(odd) if rng.random() < 0.1 else None

        def read() -> None:
            numbers = find_numbers(written)
            texts = [plain_text(number.text) for number in numbers[:20]]
            features = encoder.encode(texts)
            assert features.isfinite().all() and features.shape == (len(texts), encoder.width)
            for number in numbers[:3]:
                encoder.in_range(number.value)
            remove_digit_counts(written)
            remove_digit_counts("".join(piece for piece, _ in digit_counted_pieces(written)))
            marked_answer(written)
            boxed_answer(written)
            if value is not None:
                encoder.in_range(value)
                encoder.encode([value])

        return written.encode("utf-8", "surrogatepass"), read

    return draw


def calculation_cases(folder: Path) -> Case:
    """Calculations in symbols, TeX and words, well written and not: read whole, in pieces, and token by token."""
    tokenizer = tokenizers.gemma_like()
    # fmt: off
    literals = [
        "1", "7", "12", "0", "1,234", ".5", "2.5", "1e3", "9" * 40, "1.2.3", "$4", "€2.5", "٣", "x", "(", "10²", "5!",
        "\\frac{1}{3}", "\\sqrt{2}", "√2", "half of 6", "the sum of 2 and 3", "20%", "3 hours", "ln 2", "two",
    ]
    joints = [
        "+", "-", "−", "*", "×", "·", "/", "÷", "^", "x", " + ", " - ", " x ", " * ", ") ", ")", "(", "^", "\n", "\t",
        " plus ", " times ", " divided by ", " mod ", "\\times ", "\\cdot", " of ", " and ", "**", "//",
    ]
    before = [
        "", "", "", "It is ", "f", "a ", "half of ", "Step 1: ", "1,", "10:", "\n", "12 +\n", "sin ", "\\times ", "(((",
        "What is ", "Calculate ", "Please find ", "$", "\\(", "\0user\n", "How many letters are in ", "Q: What is ",
    ]
    after = [
        "", " ", "=", ">", " = ", "-", "$", "1", " 1,", "1+1=", "7", "0.", ".", "\0", " " * 9, "?", "? A:", "\n", "\\)",
        "0.333", " to two decimals?", "\\boxed{", " 3,036,105,200", "\0\0assistant\n",
    ]
    # fmt: on

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        parts = [rng.choice(before)]
        for _ in range(rng.choice([1, 2, 2, 3, 5, 9])):
            parts += [rng.choice(literals), rng.choice(joints)]
            if rng.random() < 0.1:
                parts.append(rng.choice(["(", "-(", "-", " ", "$", "%", *FRAGMENTS]))
        parts[-1] = rng.choice(["=", " =", " =", " = ", ") =", "?", "\n", *joints])
        written = "".join(parts) + "".join(rng.choices(after, k=rng.choice([1, 1, 2, 4])))
        if rng.random() < 0.0005:
            written *= 20_000 // len(written)
        cuts = sorted(rng.sample(range(len(written)), min(len(written), rng.randrange(9))))
        pieces = [written[i:j] for i, j in zip([0, *cuts], [*cuts, len(written)], strict=True)]

        def read() -> None:
            reader = PendingReader()
            found = [state for part in pieces for state in reader.feed([part])]
            assert found == PendingReader().feed(pieces)
            ani.calculator.asked(written)
            ids = tokenizer(written[:2000], add_special_tokens=False)["input_ids"]
            assert len(RowReader(tokenizer).every(ids)) == len(ids)

        return written.encode("utf-8", "surrogatepass"), read

    return draw


EXAMPLES: list[Any] = [
    {"prompt": "Room 505 holds", "completion": " 10 people", "roles": "nominal"},
    {"prompt": "1 + 2 =", "completion": " 3", "roles": ["quantitative", "quantitative"]},
    {"messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}], "roles": "nominal"},
    {"prompt": [{"role": "user", "content": "2 + 3?"}], "completion": [{"role": "assistant", "content": "5"}]},
]
LABELLED = {"text": "Bus 12 has 40 seats", "roles": ["nominal", "quantitative"], "domain": "town", "template": "Bus"}
FINER = {
    "tokens": ["due", "2027", "at", "5.5", "%"],
    "ner_tags": ["O", "B-DebtInstrumentMaturityDate", "O", "B-Rate", "O"],
}
QUESTIONS: dict[str, Any] = {
    "gsm8k": {"question": "2 + 3?", "answer": "It is 5.\n#### 5"},
    "math": {"problem": "2 + 3?", "solution": "\\boxed{5}", "level": "Level 1", "type": "Algebra"},
    "mmlu": {"question": "2 + 3?", "choices": ["4", "5", "6", "7"], "answer": 1, "subject": "anatomy"},
}
PAIRS = [
    {"problem": "2 + 3?", "generated_solution": "5"},
    {"conversations": [{"from": "human", "value": "Bus 7?"}, {"from": "gpt", "value": "It is late."}]},
    {"text": "Bus 12 is late."},
]


def jsonl_cases(folder: Path) -> Case:
    """Training examples up to their batch, labelled sentences, FiNER, texts for gate shares, diagnostic sources."""
    tokenizer = tokenizers.gemma_like()
    model = ani.attach(tiny("gemma", tokenizer=tokenizer), tokenizer, ani.AniConfig(layer=1, gate_hidden_size=4))
    locator = number_locator(model)
    collate = NumberCollator(tokenizer, locator)
    file = folder / "data.jsonl"

    def training() -> None:
        examples = read_examples(file)[:4]
        collate([tokenize(example, tokenizer, locator, 64) for example in examples])

    def labelled() -> None:
        read_labelled(file)

    def finer() -> None:
        Gates(texts=[f"finer={file}"], limit=5).questions(seed=0)

    def shares() -> None:
        Gates(texts=[str(file)], field=["text", "question"], group="group", limit=3).questions(seed=0)

    def entries() -> None:
        list(_entries(str(file), 0))

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        record, read = rng.choice(
            [
                (rng.choice(EXAMPLES), training),
                (rng.choice(EXAMPLES), training),
                (LABELLED, labelled),
                (FINER, finer),
                ({"text": "Bus 12", "question": ["a", "b"], "group": "town"}, shares),
                (rng.choice(PAIRS + EXAMPLES), entries),
            ]
        )
        data = lines(record, rng)
        file.write_bytes(data)
        return data, read

    return draw


def benchmark_cases(folder: Path) -> Case:
    """Questions of the three benchmarks."""
    file = folder / "test.jsonl"

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        name = rng.choice(list(QUESTIONS))
        data = lines(QUESTIONS[name], rng)
        file.write_bytes(data)
        if rng.random() < 0.02:
            return data, lambda: READERS[name].read(str(rng.choice([file, folder])))
        return data, lambda: READERS[name].rows(str(file), "test")

    return draw


YAML = """\
model: smollm2  # of the package
output: runs/x
seed: 0
dtype: auto
quantization: none
method: ani
ani: {layer: 14, encoders: [fourier], integer_digits: 10, penalty: 0.1}
lora:
  r: 16
  target_modules: all-linear
data:
  - kind: arithmetic
    count: 100
    digits: [2, 4]
    operations: [addition]
  - {kind: jsonl, path: data.jsonl, limit: 5}
  - {kind: hub, name: a/b, split: train}
probe:
  data: diagnostic
training:
  learning_rate: 1e-4
  steps: 10
"""
COMPARISON = """\
output: runs/x
recipe: train.yaml
seeds: [0, 1]
reference: true
variants:
  ani: []
  sft: [method=sft]
evaluation:
  arithmetic: {count: 5, digits: [2, 4]}
  gates: {limit: 5}
  mmlu: {limit: 3}
  gsm8k: {limit: 3}
"""
# fmt: off
YAML_PIECES = [
    "&a [1, *a]", "&a x", "*t", "<<: *t", "<<: {steps: 1}", "!!python/object:os.system {}", "!!int x", "!!float []",
    "!!binary é",
    "!!set {a}", "!!timestamp x", "2024-13-45", "2024-01-01", ".nan", ".inf", "-.inf", "1e400", "0x" + "f" * 5000,
    "9" * 5000, "=", "!", "1:59:59", "? [a]\n: b", "? {a: 1}\n: b", "yes", "~", "!!null x", "!!bool x", "!!int ''",
    "!!omap [a: 1]", "!<x> y", '"\\ud800"', '"\\0"', '"\\U00110000"', "[" * 3000, "{a: " * 500, "- " * 300,
    "%YAML 9.9\n---", "---\na", "...", "\t", "|", ">", "x" * 5000, "\u2028", "\x85",
    "[&b [1,1,1,1,1,1,1,1,1], &c [*b,*b,*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c], *d]", "5", "0.5", "a", "null",
    "[1, 2]", "1_000", "0o17", "true",
]
# fmt: on
def recipe_cases(folder: Path) -> Case:
    """Recipes and comparisons, as YAML and JSON, with overrides."""
    file = folder / "recipe.yaml"
    parsed = {Recipe: yaml.safe_load(YAML), Comparison: yaml.safe_load(COMPARISON)}
    overrides = ["training.steps=5", "data.0.count=7", "ani=null", "data.9999999999999999999.x=1", "a.b.c=1", "=1", "x"]
    overrides += ["data.٣=1", "seed=" + "9" * 5000, "model=[", "data.0=1", "training=5", "ani.layer=auto", "seed.x=1"]
    overrides += ["a." * 3000 + "b=1", "model=2024-01-01", "lora.r=.inf", "data." + "9" * 5000 + "=1", "\ud800=1"]

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        kind, source = rng.choice([(Recipe, YAML), (Recipe, YAML), (Comparison, COMPARISON)])
        if rng.random() < 0.5:  # YAML reads JSON
            data = json_bytes(several(parsed[kind], rng), rng)
        else:
            rows = source.splitlines()
            for _ in range(rng.choice([1, 1, 2])):
                place = rng.randrange(len(rows))
                key, colon, value = rows[place].partition(": ")
                piece = rng.choice(YAML_PIECES)
                rows[place : place + 1] = rng.choice(
                    [
                        [f"{key}: {piece}"],
                        [f"{key}: {piece}"],
                        [rows[place], piece],
                        [],
                        [rows[place]] * 2,
                        [f"{piece}{colon}{value}"],
                        [" " + rows[place]],
                    ]
                )
            data = "\n".join(rows).encode("utf-8", "surrogatepass")
            data = bytes_of(data, rng)
        file.write_bytes(data)
        extra = rng.sample(overrides, rng.choice([0, 0, 0, 1, 2]))

        def read() -> None:
            loaded = load_settings(file, kind, extra)
            if isinstance(loaded, Comparison):
                evaluation_tasks(loaded, str(file))
            save_settings(loaded, folder / "saved.yaml")

        return data + b"\n# " + "\n# ".join(extra).encode("utf-8", "backslashreplace")[:9000], read

    return draw


def tensors(raw: bytes, rng: Rng) -> bytes:
    """A safetensors file with a wrong header, length or number."""
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    match rng.randrange(4):
        case 0:
            return bytes_of(raw, rng)
        case 1:
            place = rng.randrange(len(data) // 4) * 4
            data = data[:place] + struct.pack("<f", rng.choice([math.nan, math.inf, 1e38])) + data[place + 4 :]
        case 2:
            return struct.pack("<Q", rng.choice([0, 1, size + 1, 2**31, 2**64 - 1, rng.randrange(size)])) + raw[8:]
        case 3:
            name = rng.choice([name for name in header if name != "__metadata__"])
            wrong = [("shape", [10**12]), ("shape", [-1]), ("dtype", "X"), ("dtype", "F16"), ("data_offsets", [8, 4])]
            header[name] = {**header[name], **dict([rng.choice(wrong)])}
            header = header if rng.random() < 0.5 else several(header, rng)
    written = json.dumps(header, allow_nan=True).encode()
    return struct.pack("<Q", len(written)) + written + data


class _Adapters:
    """An adapter with LoRA for a tiny model, and changed copies of it."""

    FILES = (adapters.CONFIG_FILE, adapters.WEIGHTS_FILE, adapters.PEFT_CONFIG_FILE, adapters.PEFT_WEIGHTS_FILE)

    def __init__(self, folder: Path) -> None:
        self.tokenizer = tokenizers.gemma_like()
        model = tiny("gemma", tokenizer=self.tokenizer)
        self.model = copy.deepcopy(model)
        lora = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        trained = get_peft_model(model, lora)
        ani.attach(trained, self.tokenizer, ani.AniConfig(layer=2, gate_hidden_size=4))
        ani.save_adapter(trained, folder / "good")
        self.files = {name: (folder / "good" / name).read_bytes() for name in self.FILES}
        self.config, self.peft = (json.loads(self.files[name]) for name in (self.FILES[0], self.FILES[2]))
        self.path = folder / "adapter"
        self.path.mkdir()

    def write(self, rng: Rng) -> bytes:
        """Write a changed copy; returns its files' bytes."""
        config, peft, files = self.config, self.peft, dict(self.files)
        match rng.randrange(5):
            case 0 | 1:
                config = several(config, rng)
            case 2:
                files[self.FILES[1]] = tensors(self.files[self.FILES[1]], rng)
            case 3:
                peft = several(peft, rng)
            case 4:
                files[self.FILES[3]] = tensors(self.files[self.FILES[3]], rng)
        files[self.FILES[0]], files[self.FILES[2]] = json_bytes(config, rng), json_bytes(peft, rng)
        for name, data in files.items():
            (self.path / name).write_bytes(data)
        return b"".join(f"--- {name}\n".encode() + data + b"\n" for name, data in files.items())


def adapter_cases(folder: Path) -> Case:
    """Adapters: some only read, some loaded onto a tiny model."""
    made = _Adapters(folder)

    def load() -> None:
        ani.load_adapter(copy.deepcopy(made.model), made.tokenizer, made.path)

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        return made.write(rng), load if rng.random() < 0.2 else lambda: Adapter.read(made.path)

    return draw


ANSWER = {"run": "ani", "operation": "+", "digits": 2, "prompt": "1 + 2 =", "answer": "3", "output": "3"}
ANSWER |= {"prediction": "3", "correct": True}
BENCHMARK = {"task": "gsm8k", "id": 0, "correct": True, "prediction": "5", "prompt_hash": "a", "run": "ani"}
BUS = {
    "text": "Bus 12",
    "numbers": [{"text": "12", "value": "12", "start": 4, "end": 6, "alpha": 1.0, "role": "nominal", "injected": True}],
}
RESULTS: dict[str, Any] = {
    "arithmetic.jsonl": {**ANSWER, "seed": 0},
    "gsm8k.jsonl": BENCHMARK,
    "gates.jsonl": {"source": "a", "group": None, **BUS},
    "training_log.jsonl": {"step": 1, "loss": 0.5, "penalty": 0.1, "embedding_ratio": 0.2},
    "routing.jsonl": {"query": "q", "call": "called", "exact": True, "numbers": BUS["numbers"]},
    "language.jsonl": {"run": "ani", "kind": "plain", "text": "a", "tokens": 3, "loss": 2.5},
}
KINDS: dict[str, Any] = {f"{name}.jsonl": task.record for name, task in TASKS.items()}
KINDS["training_log.jsonl"] = TrainingStep
RUN = {"title": "t", "model": "m", "layer": 3, "settings": {"gsm8k": {"generation": {"n": 1}}}}


def result_cases(folder: Path) -> Case:
    """Single result files."""
    file = folder / "records.jsonl"

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        name = rng.choice(list(RESULTS))
        data, kind = lines(RESULTS[name], rng), KINDS[name]
        if rng.random() < 0.2:
            data, kind = json_bytes(several(RUN, rng), rng), Run
        file.write_bytes(data)
        if kind is Run and rng.random() < 0.5:
            return data, lambda: read_object(file, Run)
        return data, lambda: read_records(file, kind)

    return draw


TARGETS: dict[str, tuple[Callable[[Path], Case], float]] = {
    "scanner": (scanner_cases, 0.48),
    "grammar and encoders": (grammar_cases, 0.335),
    "calculations": (calculation_cases, 0.2),
    "JSONL data": (jsonl_cases, 0.08),
    "benchmark data": (benchmark_cases, 0.03),
    "result files": (result_cases, 0.03),
    "recipes": (recipe_cases, 0.02),
    "adapters": (adapter_cases, 0.015),
}
"""Makers of the cases, and their share of the count."""


def outcomes(case: Case, rng: Rng) -> Iterator[tuple[bytes, bool, BaseException | None]]:
    """Endless cases: the input, whether it was refused, and the error of its reader, if any."""
    while True:
        data, read = case(rng)
        refused, wrong = False, None
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            read()
        except InputError as error:
            refused, message = True, str(error)
            if not message or "\n" in message or len(message) > LONGEST_MESSAGE:
                wrong = AssertionError(f"not a message to show: {message[:500]!r}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            wrong = error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        yield data, refused, wrong


def main() -> int:
    """Run the targets; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="targets, comma-separated, by the beginnings of their names")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for failing inputs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    signal.signal(signal.SIGPROF, _too_slow)
    wanted = options.only.split(",") if options.only else [""]
    chosen = {name: spec for name, spec in TARGETS.items() if any(name.startswith(start) for start in wanted)}
    whole = sum(share for _, share in chosen.values())
    left, total, begin = 0, 0, time.perf_counter()
    shown = set()
    memory = "/dev/shm"  # files in it cost next to nothing
    print(f"{'target':24}{'inputs':>10}{'refused by us':>15}{'failures':>10}{'inputs/s':>10}", flush=True)
    for name, (make, share) in chosen.items():
        with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
            case = make(Path(folder))
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))
            count = max(1, round(options.count * share / whole))
            start, failed, refused = time.perf_counter(), 0, 0
            rng = random.Random(f"{name} {options.seed}")
            for number, (data, ours, wrong) in zip(range(count), outcomes(case, rng), strict=False):
                refused += ours
                if wrong is None:
                    continue
                failed += 1
                frames = traceback.extract_tb(wrong.__traceback__)
                lines_of_ours = [frame.lineno for frame in frames if f"{os.sep}ani{os.sep}" in frame.filename]
                key = (name, type(wrong).__name__, *lines_of_ours[-1:])
                if key in shown:
                    continue
                shown.add(key)
                options.keep.mkdir(parents=True, exist_ok=True)
                file = options.keep / f"{name.replace(' ', '-')}-{options.seed}-{number}"
                file.write_bytes(data)
                print(f"FAILURE of {name}, input {number}, kept in {file}", flush=True)
                print("".join(traceback.format_exception(wrong)[-8:])[-3000:], flush=True)
            seconds = time.perf_counter() - start
        left += failed
        total += count
        print(f"{name:24}{count:>10,}{refused:>15,}{failed:>10,}{count / seconds:>10,.0f}", flush=True)
    seconds = time.perf_counter() - begin
    print(f"{total:,} inputs in {seconds:,.0f} s, {left} failures", flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
