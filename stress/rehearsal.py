"""The paper's recipes in miniature: every command of docs/reproduce.md, unchanged but for the size of models and data.

    python stress/rehearsal.py [--keep FOLDER]

The models have their real names, tokenizers and templates, and as many layers; but they are narrow, and random. The
data sets have the hub's columns, configurations and splits, and a few rows. Both are found as if the hub had been
asked. Training takes 2 steps. What only a card can show is listed in docs/reproduce.md.
"""

import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = Path(tempfile.mkdtemp(prefix="ani-rehearsal-"))
# Before the first import of huggingface_hub, torch and vLLM.
os.environ |= {"HF_HOME": str(WORK / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}

import argparse
import copy
import json
import shlex
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import yaml
from datasets import ClassLabel, Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

sys.path.insert(0, str(ROOT))

import ani.cli
from ani.data.openmath_magpie import MAGPIE, OPENMATH
from ani.probing.selection import PAPER_LAYERS, PUBLISHED
from ani.results.files import TRAINING_LOG
from ani.tasks.finer import HUB_FILE, HUB_NAME
from tests.json_lines import read_lines
from tests.tiny import tiny
from tests.tokenizers import QWEN3, llama3, mistral, qwen

RECIPES = ROOT / "recipes" / "paper"
COMPARISONS = [path.stem for path in sorted(RECIPES.glob("*.yaml")) if path.stem != "train"]
COMMIT = "0" * 40
FEW = 40
"""Rows of a data set."""
SMALLER = {
    "arithmetic": {"count": 1},
    "gating": {"count": 4},
    "gsm8k": {"limit": 2, "max_new_tokens": 4},
    "language": {"count": 4},
    "math": {"limit": 2, "max_new_tokens": 4},
    "mmlu": {"limit": 3},
}
"""Of each task's settings in a comparison."""
TRAINING = ["training.steps=2", "training.log_every=1", "data.0.limit=8"]


# --- the hub in small -------------------------------------------------------------------------------------------------


def qwen3() -> PreTrainedTokenizerBase:
    tokenizer = copy.deepcopy(qwen())
    tokenizer.chat_template = QWEN3
    return tokenizer


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {"qwen3": qwen3, "llama": llama3, "mistral": mistral}


def make_models() -> None:
    """Every model of the paper in the hub's cache: 64 wide; all that `layer: paper` knows it by follows."""
    for name, shape in PUBLISHED.items():
        tokenizer = TOKENIZERS[shape["model_type"]]()
        shape |= {"hidden_size": 64, "vocab_size": len(tokenizer), "intermediate_size": 64, "head_dim": 32}
        shape |= {"num_attention_heads": 2, "num_key_value_heads": 1}
        sizes = {key: value for key, value in shape.items() if key != "model_type"}
        folder = cached("models", name)
        tiny(shape["model_type"], tokenizer=tokenizer, max_position_embeddings=4096, **sizes).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def cached(kind: str, name: str) -> Path:
    """Where huggingface_hub keeps a repository's files."""
    place = WORK / "hub" / "hub" / f"{kind}--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    (place / "snapshots" / COMMIT).mkdir(parents=True)
    return place / "snapshots" / COMMIT


def make_data() -> None:
    """Every data set of the paper, with the columns that it has on the hub."""
    text = Value("string")
    solved = [
        (f"Ann has {n} figs and buys {n + 2}. How many has she?", f"She has {n} + {n + 2} = {2 * n + 2}.", 2 * n + 2)
        for n in range(10, 10 + FEW)
    ]
    chats = [
        [
            {"from": "human", "value": f"Which bus goes from gate {n} to the harbour?"},
            {"from": "gpt", "value": f"Take bus {n + 3} and ask for Ann in room {n + 500}, please."},
        ]
        for n in range(10, 10 + FEW)
    ]
    turn = {"from": text, "value": text}
    store(OPENMATH, "train", {"problem": text, "generated_solution": text, "expected_answer": text},
          [{"problem": q, "generated_solution": a, "expected_answer": str(n)} for q, a, n in solved])  # fmt: skip
    store(MAGPIE, "train", {"uuid": text, "conversations": List(turn)},
          [{"uuid": str(n), "conversations": chat} for n, chat in enumerate(chats)])  # fmt: skip
    store("openai/gsm8k", "test", {"question": text, "answer": text},
          [{"question": q, "answer": f"{a.replace(f'{n}.', f'<<{n}>>{n}.')}\n#### {n}"} for q, a, n in solved],
          "main")  # fmt: skip
    for subject in ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
                    "prealgebra", "precalculus"):  # fmt: skip
        kind = subject.replace("_", " ").title()
        rows = [{"problem": q, "level": f"Level {n % 5 + 1}", "type": kind, "solution": rf"{a} \boxed{{{n}}}"}
                for q, a, n in solved[:5]]  # fmt: skip
        store("EleutherAI/hendrycks_math", "test", dict.fromkeys(("problem", "level", "type", "solution"), text), rows,
              subject)  # fmt: skip
    asked = [
        {"question": f"What is {n} + 1?", "subject": subject, "choices": [str(n), str(n + 1), "2", "none"], "answer": 1}
        for subject in ("anatomy", "econometrics", "international_law")
        for n in range(5)
    ]
    letters = ClassLabel(names=["A", "B", "C", "D"])
    for split in ("dev", "test"):
        store("cais/mmlu", split, {"question": text, "subject": text, "choices": List(text), "answer": letters}, asked,
              "all")  # fmt: skip
    store("stanfordnlp/imdb", "test", {"text": text, "label": ClassLabel(names=["neg", "pos"])},
          [{"text": f"{word} was the slowest film that anybody here had to sit through", "label": 0}
           for word in ("This", "That", "It", "Hers", "His", "Ours")], "plain_text")  # fmt: skip
    tagged = [
        {"id": n, "tokens": ["Notes", "of", "$", f"{n}.5", "million", "are", "due", str(2030 + n)],
         "ner_tags": ["O", "O", "O", "B-DebtInstrumentFaceAmount", "O", "O", "O", "B-DebtInstrumentMaturityDate"]}
        for n in range(4)
    ]  # fmt: skip
    with zipfile.ZipFile(cached("datasets", HUB_NAME) / HUB_FILE, "w") as archive:
        archive.writestr("test.jsonl", "".join(json.dumps(record) + "\n" for record in tagged))


def store(name: str, split: str, columns: dict[str, Any], rows: list[dict[str, Any]], part: str = "default") -> None:
    """A split as the hub has it: a parquet file, and the card that tells where it lies."""
    folder = WORK / "data" / name
    (folder / part).mkdir(parents=True, exist_ok=True)
    Dataset.from_list(rows, features=Features(columns)).to_parquet(folder / part / f"{split}-00000-of-00001.parquet")
    parts = sorted(path.name for path in folder.iterdir() if path.is_dir())
    configs = [
        {
            "config_name": known,
            "data_files": [
                {"split": path.name.split("-")[0], "path": f"{known}/{path.name}"}
                for path in sorted((folder / known).iterdir())
            ],
        }
        for known in parts
    ]
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")


def from_data(load: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Any:
    """`load_dataset`, for which the hub has what `make_data` made."""
    place = WORK / "data" / name
    return load(str(place) if place.is_dir() else name, *arguments, **options)


# --- the commands -----------------------------------------------------------------------------------------------------


def smaller(name: str) -> Iterator[str]:
    """What makes a recipe's comparison small."""
    comparison = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    changes = [*comparison.get("overrides", []), *TRAINING]
    if name == "n-digit":
        changes.append("data.1.count=12")
    if comparison.get("probe"):
        changes.append("probe.sentences=120")
    yield f"overrides={json.dumps(changes)}"
    for task in comparison["evaluation"]:
        for key, value in SMALLER[task].items():
            yield f"evaluation.{task}.{key}={value}"


def commands() -> Iterator[list[str]]:
    """Those of docs/reproduce.md."""
    yield ["diagnostic", "runs/paper-set", "--count", str(FEW // 2)]
    auto = ["ani.layer=auto", "probe.data=runs/paper-set", "probe.held_out=contrastive", "probe.sentences=120"]
    yield ["train", "--dry-run", str(RECIPES / "train.yaml")]
    yield ["train", str(RECIPES / "train.yaml"), "output=runs/paper/auto", *auto, *TRAINING]
    for name in COMPARISONS:
        yield ["compare", "--dry-run", str(RECIPES / f"{name}.yaml")]
        yield ["compare", str(RECIPES / f"{name}.yaml"), *smaller(name)]
        yield ["report", f"runs/paper/{name}"]
    cells = "runs/paper/main-results/cells"
    adapter = f"{cells}/ani/seed-0/training/adapter"
    yield ["diff", f"{cells}/ani/seed-0", f"{cells}/sft/seed-0"]
    shares = "gate-shares gsm8k math mmlu --out runs/paper/gate-shares --limit 3 --adapter"
    yield [*shares.split(), adapter]
    yield ["report", "runs/paper/gate-shares"]
    yield ["eval", "--tasks", "finer,routing", "--adapter", adapter, "--limit", "3", "--out", "runs/paper/roles"]
    yield ["eval", "--tasks", "routing", "--model", "Qwen/Qwen3-8B", "--limit", "3", "--out", "runs/paper/roles-base"]
    yield ["merge", adapter, "runs/paper/merged"]
    few = ["--limit", "3", "--max-new-tokens", "4"]
    vllm = "eval --backend vllm --model runs/paper/merged --tasks gsm8k,math,mmlu,arithmetic,routing --out"
    yield [*vllm.split(), "runs/paper/vllm", *few]
    same = "eval --tasks gsm8k,math,mmlu,arithmetic,routing --out runs/paper/transformers --model runs/paper/merged"
    yield [*same.split(), *few]
    yield ["diff", "runs/paper/vllm", "runs/paper/transformers"]


def check() -> None:
    """Every cell was trained as its recipe says, on 4 bits, at the paper's layer, and every variant is in the tables."""
    for name in COMPARISONS:
        folder = Path("runs/paper") / name
        plan = yaml.safe_load((folder / "comparison.yaml").read_text())
        tables = (folder / "comparison.md").read_text()
        assert (folder / "report.html").is_file()
        for variant, recipe in plan["variants"].items():
            assert f"| {variant} |" in tables, (name, variant)
            for seed in plan["seeds"]:
                training = folder / "cells" / variant / f"seed-{seed}" / "training"
                done = yaml.safe_load((training / "recipe.yaml").read_text())
                assert done["quantization"] == "nf4" and done["training"]["gradient_checkpointing"]
                assert [line["step"] for line in read_lines(training / TRAINING_LOG)] == [1, 2], training
                if (recipe["ani"] or {}).get("layer") == "paper":
                    assert done["ani"]["layer"] == PAPER_LAYERS[done["model"].split("/")[1]], training


def main() -> None:
    """Make the hub, carry out the commands, check what they left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="a folder for all that is made")
    keep = parser.parse_args().keep
    began = time.monotonic()
    try:
        make_models()
        make_data()
        datasets.load_dataset = __import__("functools").partial(from_data, datasets.load_dataset)
        (WORK / "work").mkdir()
        os.chdir(WORK / "work")
        for words in commands():
            print(f"== {time.monotonic() - began:.0f} s: ani {shlex.join(words)}", flush=True)
            sys.argv = ["ani", *words]
            try:
                ani.cli.main()
            except SystemExit as end:
                if end.code:
                    raise
        check()
    finally:
        os.chdir(ROOT)
        if keep is not None:
            shutil.copytree(WORK, keep, dirs_exist_ok=True)
        shutil.rmtree(WORK)
    print(f"the paper's recipes, in miniature: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
