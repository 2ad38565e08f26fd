"""Fuzzer of the readers of data, recipes, results and adapters. Grammar, scanner, encoders and the calculator's reader
have tests that draw inputs; `make stress` runs these under Hypothesis's profile `deep`.

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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
import yaml
from peft import LoraConfig, get_peft_model

import ani
from ani.compare.plan import Comparison, evaluation_tasks
from ani.data.collator import NumberCollator, tokenize
from ani.data.labelled_sentences import read_labelled
from ani.data.openmath_magpie import _entries
from ani.data.records import read_examples
from ani.evaluation.tasks import TASKS
from ani.evaluation.tasks.gates import READERS, Gates
from ani.injection import adapter_files as adapters
from ani.injection.adapter import Adapter
from ani.injection.model_parts import number_locator
from ani.report.training import TrainingStep
from ani.results.records import Run, read_object, read_records
from ani.settings import load_settings, save_settings
from ani.training.recipe import Recipe
from tests import tokenizers
from tests.tiny import tiny

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 5.0
MEMORY = 4 * 2**30
"""More address space than the process has at the start; what asks for more gets a MemoryError."""
Rng = random.Random
Draw = Callable[[Rng], tuple[bytes, Callable[[], Any]]]
"""Draws an input: its bytes, to keep, and a function that reads it."""


class TooSlow(BaseException):
    """Raised in a case that has used up its seconds."""


def _too_slow(*_: object) -> None:
    raise TooSlow(f"more than {SECONDS} s")


# fmt: off
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, 10**9, 10**30, 10**4000, 0.5, -0.0,
    1e308, 1e-320, math.nan, math.inf, -math.inf, "", " ", "0", "nan", "1e999", "1" * 5000, "x" * 3000, "\0", "\ud800",
    "a\udfff", "\ufeff", "\u2028", "a\nb", "²", "٣", "../../etc/passwd", "/dev/zero", "\\boxed{", "#### 12",
    "The answer is 1e999", "<pad>", "{{ 1/0 }}", "!!python/object:os.system", [], {}, [[]], [None], {"": None},
    {"a": {"b": []}}, json.loads("[" * 20 + "]" * 20), json.loads("[" * 150 + "]" * 150), [1] * 2000,
]
FRAGMENTS = [
    "0", "12", "505", "1,234", "3.14", "1e5", "1e9999", "9" * 40, "-", "−", ".", ",", " ", "\n", "\0", "a", "$", "%",
    "}", "#### ", "The answer is ", "\\boxed{", "2:", "数", "🙂", "²", "٣", "\u2028", "\ufeff", "<eos>", "\U0010ffff",
]
YAML_PIECES = [
    "&a [1, *a]", "&a x", "*t", "<<: *t", "<<: {steps: 1}", "!!python/object:os.system {}", "!!int x", "!!float []",
    "!!binary é", "!!set {a}", "!!timestamp x", "2024-13-45", "2024-01-01", ".nan", ".inf", "-.inf", "1e400",
    "0x" + "f" * 5000, "9" * 5000, "=", "!", "1:59:59", "? [a]\n: b", "? {a: 1}\n: b", "yes", "~", "!!null x",
    "!!bool x", "!!int ''", "!!omap [a: 1]", "!<x> y", '"\\ud800"', '"\\0"', '"\\U00110000"', "[" * 3000, "{a: " * 500,
    "- " * 300, "%YAML 9.9\n---", "---\na", "...", "\t", "|", ">", "x" * 5000, "\u2028", "\x85", "5", "0.5", "a",
    "[&b [1,1,1,1,1,1,1,1,1], &c [*b,*b,*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c], *d]", "[1, 2]", "1_000", "0o17",
]
OVERRIDES = [
    "training.steps=5", "data.0.count=7", "ani=null", "data.9999999999999999999.x=1", "a.b.c=1", "=1", "x", "data.٣=1",
    "seed=" + "9" * 5000, "model=[", "data.0=1", "training=5", "ani.layer=auto", "seed.x=1", "a." * 3000 + "b=1",
    "model=2024-01-01", "lora.r=.inf", "data." + "9" * 5000 + "=1", "\ud800=1",
]
# fmt: on


def changed(value: Any, rng: Rng) -> Any:
    """A JSON value with one place of it changed."""
    how = rng.randrange(10)
    if value and isinstance(value, dict | list) and rng.random() < 0.9:
        items = dict(value) if isinstance(value, dict) else list(value)
        place = rng.choice([*value] if isinstance(value, dict) else range(len(value)))
        taken = items.pop(place)
        if how == 0:
            return items
        if isinstance(items, list):
            items[place:place] = [copy.copy(taken)] * rng.choice([2, 2, 300]) if how == 1 else [changed(taken, rng)]
        else:
            name = rng.choice([place + "x", "", "\0", "a.b", "format_version"])
            items |= {name: taken} if how == 1 else {place: changed(taken, rng)}
        return items
    if how == 2 and isinstance(value, str):
        return "".join(rng.choices(FRAGMENTS, k=rng.randrange(1, 24)))
    if how == 3 and isinstance(value, int | float) and abs(value) < 2**64:
        return value * rng.choice([-1, 2, 10, 0.5, 10**6, 10**12])
    simple = [1, 2, 5, 0.5, "a", "1 and 2", True, False, None, value]
    return ([value], {"a": value}, str(value))[how] if how < 3 else rng.choice(simple if how > 6 else VALUES)


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
    piece = rng.choice([b"\xff", b"\0", b'"', b"{", b"]" * 300, b"[" * 100_000, b"\\ud800", b"\r", b"9" * 5000])
    other = [
        data[:place],
        data[:place] + bytes([data[place % len(data)] ^ 1 << rng.randrange(8)]) + data[place + 1 :],
        data[:end] + data[place:],
        data[:place] + data[end:],
        rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\n\n", b" "]) + data,
        data.decode(errors="replace").encode(rng.choice(["utf-16", "latin-1", "utf-8"]), "replace"),
        data[:place] + piece + data[place:],
    ]
    return rng.choice(other)


def json_bytes(value: Any, rng: Rng) -> bytes:
    """A JSON value in UTF-8, perhaps with changed bytes."""
    written = json.dumps(value, ensure_ascii=rng.random() < 0.9)
    return bytes_of(written.encode("utf-8", "surrogatepass"), rng)


def lines(record: Any, rng: Rng) -> bytes:
    """A JSON-lines file of one to three records, one of them changed."""
    good = json.dumps(record).encode() + b"\n"
    return good * rng.randrange(2) + json_bytes(several(record, rng), rng) + b"\n" + good * rng.randrange(2)


NUMBER = {"text": "12", "value": "12", "start": 4, "end": 6, "alpha": 1.0, "role": "nominal", "injected": True}
SUM = {"operation": "+", "digits": 2, "prompt": "1 + 2 =", "answer": "3", "output": "3", "prediction": "3"}
RESULTS: dict[str, Any] = {
    "arithmetic": {"run": "ani", "correct": True, "seed": 0, **SUM},
    "gsm8k": {"task": "gsm8k", "id": 0, "correct": True, "prediction": "5", "prompt_hash": "a", "run": "ani"},
    "gates": {"source": "a", "group": None, "text": "Bus 12", "numbers": [NUMBER]},
    "routing": {"query": "q", "call": "called", "exact": True, "numbers": [NUMBER]},
    "language": {"run": "ani", "kind": "plain", "text": "a", "tokens": 3, "loss": 2.5},
}
LOG = {"step": 1, "loss": 0.5, "penalty": 0.1, "embedding_ratio": 0.2}
RUN = {"title": "t", "model": "m", "layer": 3, "settings": {"gsm8k": {"generation": {"n": 1}}}}
USER, ASSISTANT = {"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}
EXAMPLES: list[Any] = [
    {"prompt": "1 + 2 =", "completion": " 3", "roles": ["quantitative", "quantitative"]},
    {"messages": [USER, ASSISTANT], "roles": "nominal"},
    {"prompt": [USER], "completion": [ASSISTANT]},
]
PAIRS = [
    {"problem": "2 + 3?", "generated_solution": "5"},
    {"conversations": [{"from": "human", "value": "Bus 7?"}, {"from": "gpt", "value": "It is late."}]},
    {"text": "Bus 12 is late."},
]
LABELLED = {"text": "Bus 12 has 40 seats", "roles": ["nominal", "quantitative"], "domain": "town", "template": "Bus"}
FINER = {"tokens": ["due", "2027", "at", "5.5"], "ner_tags": ["O", "B-DebtInstrumentMaturityDate", "O", "B-Rate"]}
QUESTIONS: dict[str, Any] = {
    "gsm8k": {"question": "2 + 3?", "answer": "It is 5.\n#### 5"},
    "math": {"problem": "2 + 3?", "solution": "\\boxed{5}", "level": "Level 1", "type": "Algebra"},
    "mmlu": {"question": "2 + 3?", "choices": ["4", "5", "6", "7"], "answer": 1, "subject": "anatomy"},
}


def file_cases(folder: Path) -> Draw:
    """Data and results: examples up to their batch, labelled sentences, texts, benchmarks, records of every task."""
    tokenizer, file = tokenizers.gemma_like(), folder / "data.jsonl"
    model = ani.attach(tiny("gemma", tokenizer=tokenizer), tokenizer, ani.AniConfig(layer=1, gate_hidden_size=4))
    locator = number_locator(model)
    collate, name = NumberCollator(tokenizer, locator), str(file)

    def training() -> None:
        collate([tokenize(example, tokenizer, locator, 64) for example in read_examples(file)[:4]])

    shares = Gates(texts=[name], field=["text", "question"], group="group", limit=3)
    readers: list[tuple[Any, Callable[[], Any]]] = [
        *((example, training) for example in EXAMPLES * 3),
        *((pair, lambda: list(_entries(name, 0))) for pair in PAIRS + EXAMPLES),
        (LABELLED, lambda: read_labelled(file)),
        (FINER, lambda: Gates(texts=[f"finer={file}"], limit=5).questions(seed=0)),
        ({"text": "Bus 12", "question": ["a", "b"], "group": "town"}, lambda: shares.questions(seed=0)),
        *((record, partial(READERS[task].rows, name, "test")) for task, record in QUESTIONS.items()),
        *((record, partial(READERS[task].read, name)) for task, record in QUESTIONS.items()),
        *((record, partial(read_records, file, TASKS[task].record)) for task, record in RESULTS.items()),
        (LOG, partial(read_records, file, TrainingStep)),
        (RUN, partial(read_object, file, Run)),
    ]

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        record, read = rng.choice(readers)
        data = json_bytes(several(record, rng), rng) if record is RUN else lines(record, rng)
        file.write_bytes(data)
        return data, read

    return draw


SOURCES = (Recipe, "demo.yaml"), (Recipe, "paper/train.yaml"), (Comparison, "paper/main-results.yaml")


def recipe_cases(folder: Path) -> Draw:
    """Recipes and comparisons, as YAML and JSON, with overrides."""
    file = folder / "recipe.yaml"
    sources = [(kind, (ROOT / "recipes" / name).read_text()) for kind, name in SOURCES]

    def read(kind: Any, overrides: list[str]) -> None:
        loaded = load_settings(file, kind, overrides)
        if isinstance(loaded, Comparison):
            evaluation_tasks(loaded, str(file))
        save_settings(loaded, folder / "saved.yaml")

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        kind, source = rng.choice(sources)
        rows = source.splitlines()
        for _ in range(rng.choice([1, 1, 2])):
            place, piece = rng.randrange(len(rows)), rng.choice(YAML_PIECES)
            row = rows[place]
            key, colon, value = row.partition(": ")
            other = [f"{key}: {piece}"], [row, piece], [], [row] * 2, [f"{piece}{colon}{value}"], [" " + row]
            rows[place : place + 1] = rng.choice([other[0], *other])
        data = bytes_of("\n".join(rows).encode("utf-8", "surrogatepass"), rng)
        if rng.random() < 0.5:  # YAML reads JSON
            data = json_bytes(several(yaml.safe_load(source), rng), rng)
        file.write_bytes(data)
        overrides = rng.sample(OVERRIDES, rng.choice([0, 0, 0, 1, 2]))
        return data + b"\n# " + repr(overrides)[:9000].encode(), partial(read, kind, overrides)

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
            header[name] |= dict([rng.choice(wrong)])
            header = header if rng.random() < 0.5 else several(header, rng)
    written = json.dumps(header).encode()
    return struct.pack("<Q", len(written)) + written + data


def adapter_cases(folder: Path) -> Draw:
    """Adapters with LoRA, a file or two changed: some only read, some loaded onto a tiny model."""
    tokenizer, path = tokenizers.gemma_like(), folder / "adapter"
    model = tiny("gemma", tokenizer=tokenizer)
    lora = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    trained = get_peft_model(copy.deepcopy(model), lora)
    ani.attach(trained, tokenizer, ani.AniConfig(layer=2, gate_hidden_size=4))
    ani.save_adapter(trained, path)
    names = adapters.CONFIG_FILE, adapters.PEFT_CONFIG_FILE, adapters.WEIGHTS_FILE, adapters.PEFT_WEIGHTS_FILE
    good = {name: (path / name).read_bytes() for name in names}

    def draw(rng: Rng) -> tuple[bytes, Callable[[], Any]]:
        chosen, kept = rng.choice([names[0], *names]), b""
        for name, data in good.items():
            if name in names[:2]:
                value = json.loads(data)
                data = json_bytes(several(value, rng) if name == chosen else value, rng)
            elif name == chosen:
                data = tensors(data, rng)
            (path / name).write_bytes(data)
            kept += f"--- {name}\n".encode() + data + b"\n"
        if rng.random() < 0.2:
            return kept, lambda: ani.load_adapter(copy.deepcopy(model), tokenizer, path)
        return kept, lambda: Adapter.read(path)

    return draw


TARGETS: dict[str, tuple[Callable[[Path], Draw], float]] = {
    "files": (file_cases, 0.8),
    "recipes": (recipe_cases, 0.1),
    "adapters": (adapter_cases, 0.1),
}
"""Makers of the cases, and their share of the count."""


def outcome(read: Callable[[], Any]) -> tuple[bool, BaseException | None]:
    """Whether the input is refused, and the error of its reader, if any."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        read()
    except ani.InputError as error:
        message = str(error)
        shown = message and "\n" not in message and len(message) <= 2000
        return True, None if shown else AssertionError(f"not a message to show: {message[:500]!r}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return False, error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return False, None


def main() -> int:
    """Run the targets; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets, comma-separated, by the beginnings of their names")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for failing inputs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    signal.signal(signal.SIGPROF, _too_slow)
    chosen = {name: spec for name, spec in TARGETS.items() if name.startswith(tuple(options.only.split(",")))}
    whole, left = sum(share for _, share in chosen.values()), 0
    memory = "/dev/shm"  # files in it cost next to nothing
    print(f"{'target':10}{'inputs':>10}{'refused by us':>15}{'failures':>10}{'inputs/s':>10}", flush=True)
    for name, (make, share) in chosen.items():
        with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
            draw = make(Path(folder))
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))
            count, start = max(1, round(options.count * share / whole)), time.perf_counter()
            rng, failed, refused, shown = random.Random(f"{name} {options.seed}"), 0, 0, set()
            for number in range(count):
                data, read = draw(rng)
                ours, wrong = outcome(read)
                refused += ours
                if wrong is None:
                    continue
                failed += 1
                places = [at for at in traceback.extract_tb(wrong.__traceback__) if "ani" in Path(at.filename).parts]
                if (key := (type(wrong), places and places[-1].lineno)) in shown:
                    continue
                shown.add(key)
                options.keep.mkdir(parents=True, exist_ok=True)
                file = options.keep / f"{name}-{options.seed}-{number}"
                file.write_bytes(data)
                print(f"FAILURE of {name}, input {number}, kept in {file}", flush=True)
                print("".join(traceback.format_exception(wrong)[-8:])[-3000:], flush=True)
        left += failed
        speed = count / (time.perf_counter() - start)
        print(f"{name:10}{count:>10,}{refused:>15,}{failed:>10,}{speed:>10,.0f}", flush=True)
    print(f"{left} failures", flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
