"""The paper's recipes twice: at full size on fake tensors, and in miniature.

    python stress/rehearsal.py [--keep FOLDER]
    python stress/rehearsal.py --full-size

At full size `ani rehearse` carries out a training step and an answer of every recipe: of its last variant, or with
--full-size of every one.

In miniature it is every command of docs/reproduce.md, unchanged but for the size of models and data. The models have
their real names, tokenizers and templates, and as many layers; but they are narrow, and random. The data sets have the
hub's columns, configurations and splits, and a few rows. Both are found as if the hub had been asked. Training takes 2
steps. What only a card can show is listed in docs/reproduce.md.
"""

import os
import tempfile

if __name__ == "__main__":  # and not in processes that it spawns
    os.environ |= {"HF_HOME": tempfile.mkdtemp(prefix="ani-rehearsal-"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # tests serve compiled models
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import argparse
import json
import multiprocessing
import re
import shlex
import shutil
import statistics
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import datasets
import yaml
from datasets import ClassLabel, Dataset
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ani.cli
from ani.data.openmath_magpie import MAGPIE, OPENMATH
from ani.evaluation.benchmarks.data import MATH
from ani.evaluation.tasks import arithmetic
from ani.evaluation.tasks.gate_texts import FINER_FILE, FINER_NAME
from ani.injection.adapter import CONFIG_FILE
from ani.probing.selection import PAPER_LAYERS, PUBLISHED
from ani.results.files import TRAINING_LOG
from ani.sweep import run as sweep
from ani.sweep.plan import variant_recipes
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import load_recipe
from ani.training.rehearse import Rehearsal, rehearse
from tests.json_lines import read_lines
from tests.tiny import tiny
from tests.tokenizers import QWEN3, llama3, mistral, qwen

ROOT, WORK = Path(__file__).resolve().parent.parent, Path(os.environ["HF_HOME"])
RECIPES = ROOT / "recipes" / "paper"
COMPARISONS = [path.stem for path in sorted(RECIPES.glob("*.yaml")) if path.stem != "train"]
OF_8B = ["ablation", "layer-sensitivity", "main-results"]
COMMIT = "0" * 40
FEW = 40
"""Rows of a data set."""
SMALLER = {
    "arithmetic": {"count": 1},
    "arithmetic-chat": {"count": 1},
    "gates": {"limit": 4},
    "gsm8k": {"limit": 2, "max_new_tokens": 2},
    "language": {"count": 4},
    "math": {"limit": 2, "max_new_tokens": 2},
    "mmlu": {"limit": 3},
}
"""Of each task's settings in a comparison."""
TRAINING = ["training.steps=2", "training.log_every=1", "data.0.limit=2"]
SHOWN = os.dup(1)
"""Where progress goes; what the commands say doesn't."""
LAYERS_OF_8B = 32
"""layer-sensitivity.yaml goes up to 30."""


# --- the recipes at full size -----------------------------------------------------------------------------------------


def rehearse_all(every: bool) -> None:
    """Every recipe at full size, on fake tensors, each variant or the last alone: a table, in Markdown. A fault ends
    it."""
    known: dict[str, Future[Rehearsal]] = {}
    print("| recipe | model | variants | seconds each | GiB at most | tokens a pass |")
    print("| --- | --- | --- | --- | --- | --- |")
    with ThreadPoolExecutor(2) as pool:  # each in a process of its own
        for name in ["train", *COMPARISONS]:
            path = RECIPES / f"{name}.yaml"
            variants = {"train": load_recipe(path)} if name == "train" else variant_recipes(path)
            if not every:
                variants = dict([*variants.items()][-1:])
            for recipe in variants.values():
                if (same := recipe.model_dump_json(exclude={"output", "probe"})) not in known:
                    known[same] = pool.submit(rehearse, recipe)
            found = [known[each.model_dump_json(exclude={"output", "probe"})].result() for each in variants.values()]
            for variant, each in zip(variants, found, strict=True):
                if each.faults:
                    raise RuntimeError(f"{name} {variant}: {each.faults[0]}")
            seconds = statistics.mean(sum(phase.seconds for phase in each.phases) for each in found)
            peak = max(phase.peak for each in found for phase in each.phases) / 2**30
            tokens = recipe.training.batch_size * recipe.training.max_length
            row = f"{name} | {recipe.model} | {len(found)} | {seconds:.0f} | {peak:.1f} | {tokens:,}"
            print(f"| {row} |", flush=True)


# --- the hub in small -------------------------------------------------------------------------------------------------


def make_models() -> None:
    """Every model of the paper in the hub's cache, with as many layers as its recipes name."""
    tokenizers = {"qwen3": shortened(qwen(), QWEN3), "llama": shortened(llama3()), "mistral": shortened(mistral())}
    of_paper = {name: shape for name, shape in PUBLISHED.items() if name.split("/")[1] in PAPER_LAYERS}
    for name, shape in of_paper.items():  # in place: `layer: paper` knows a model by its shape
        family, tokenizer = shape["model_type"], tokenizers[shape["model_type"]]
        layers = LAYERS_OF_8B if name == "Qwen/Qwen3-8B" else PAPER_LAYERS[name.split("/")[1]] + 2
        shape |= {"num_hidden_layers": layers, "hidden_size": 64, "intermediate_size": 64, "head_dim": 32}
        shape |= {"vocab_size": len(tokenizer), "num_attention_heads": 2, "num_key_value_heads": 1}
        sizes = {key: value for key, value in shape.items() if key != "model_type"}
        folder = cached("models", name)
        tiny(family, tokenizer=tokenizer, max_position_embeddings=4096, **sizes).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def shortened(tokenizer: PreTrainedTokenizerBase, template: str | None = None) -> PreTrainedTokenizerBase:
    """A family's tokenizer without its rarer words: the whole one takes seconds to load, and is loaded a hundred times.

    It splits texts as before, has all numbers and special tokens, and begins texts with its first token, if it has one.
    Those of base models have neither a template nor padding.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    added, ids = {token["content"] for token in state["added_tokens"]}, state["model"]["vocab"]
    kept = [
        word
        for word in sorted(ids, key=ids.__getitem__)
        if ids[word] < 8000 or len(word) == 1 or word in added or re.fullmatch("[0-9]+", word)
    ]
    vocabulary = {word: number for number, word in enumerate(kept)}
    state["model"] |= {
        "vocab": vocabulary,
        "merges": [pair for pair in state["model"]["merges"] if {*pair, "".join(pair)} <= vocabulary.keys()],
    }
    for token in state["added_tokens"]:
        token["id"] = vocabulary.setdefault(token["content"], len(vocabulary))
    backend = Tokenizer.from_str(json.dumps(state))
    special = dict(cast(Any, tokenizer).special_tokens_map)
    if first := special.get("bos_token"):
        backend.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, vocabulary[first])])
    if template is None:
        del special["pad_token"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **special)


def cached(kind: str, name: str) -> Path:
    """Where huggingface_hub keeps a repository's files."""
    place = WORK / "hub" / f"{kind}--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    (place / "snapshots" / COMMIT).mkdir(parents=True)
    return place / "snapshots" / COMMIT


def make_data() -> None:
    """Every data set of the paper, with the columns that it has on the hub."""
    sums = [(f"Ann has {n} figs and buys 12. How many has she?", f"{n} + 12 = {n + 12}", n + 12) for n in range(FEW)]
    store(OPENMATH, "train", [{"problem": q, "generated_solution": a, "expected_answer": str(n)} for q, a, n in sums])
    turns = [("human", "Which bus goes from gate {} to Rome?"), ("gpt", "Bus 7, please ask Ann in room {} for a seat.")]
    chats = [[{"from": who, "value": text.format(n)} for who, text in turns] for n in range(FEW)]
    store(MAGPIE, "train", [{"uuid": str(n), "conversations": chat} for n, chat in enumerate(chats)])
    solved = [{"question": q, "answer": f"{a.replace('= ', f'= <<{n}>>')}\n#### {n}"} for q, a, n in sums]
    store("openai/gsm8k", "test", solved, "main")
    for name, subject in MATH:
        levels = [{"level": f"Level {n % 5 + 1}", "type": subject.title()} for n in range(FEW)]
        answers = [{"problem": q, "solution": rf"{a}, \boxed{{{n}}}"} for q, a, n in sums]
        store(name, "test", [{**level, **answer} for level, answer in zip(levels, answers, strict=True)], subject)
    asked = [
        {"question": f"What is {n} + 1?", "subject": subject, "choices": [str(n), str(n + 1), "2", "none"], "answer": 1}
        for subject in ("anatomy", "econometrics", "international_law")
        for n in range(5)
    ]
    for split in ("dev", "test"):
        store("cais/mmlu", split, asked, "all", answer=["A", "B", "C", "D"])
    films = [f"{whose} film was the slowest that I had to sit through" for whose in ("His", "Her", "My", "Our")]
    store(
        "stanfordnlp/imdb", "test", [{"text": film, "label": 0} for film in films], "plain_text", label=["neg", "pos"]
    )
    tags = ["O", "B-DebtInstrumentFaceAmount", "O", "B-DebtInstrumentMaturityDate"]
    notes = [{"id": n, "tokens": ["$", f"{n}.5", "due", str(2030 + n)], "ner_tags": tags} for n in range(FEW)]
    with zipfile.ZipFile(cached("datasets", FINER_NAME) / FINER_FILE, "w") as archive:
        archive.writestr("test.jsonl", "".join(json.dumps(record) + "\n" for record in notes))


def store(name: str, split: str, rows: list[dict[str, Any]], part: str = "default", **labels: list[str]) -> None:
    """A split as the hub has it, where `datasets` looks before it asks the hub: a parquet file, and the card that knows
    it; `labels` stand as numbers."""
    folder = Path(name)
    (folder / part).mkdir(parents=True, exist_ok=True)
    made = Dataset.from_list(rows)
    for column, names in labels.items():
        made = made.cast_column(column, ClassLabel(names=names))
    made.to_parquet(folder / part / f"{split}-00000-of-00001.parquet")
    parts: dict[str, list[dict[str, str]]] = {}
    for file in sorted(folder.glob("*/*.parquet")):
        where = {"split": file.name.split("-")[0], "path": f"{file.parent.name}/{file.name}"}
        parts.setdefault(file.parent.name, []).append(where)
    card = {"configs": [{"config_name": known, "data_files": files} for known, files in parts.items()]}
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")


# --- the commands -----------------------------------------------------------------------------------------------------


def smaller(name: str) -> Iterator[str]:
    """What makes a recipe's comparison small."""
    comparison = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    changes = [*comparison.get("overrides", []), *TRAINING]
    if name == "n-digit":
        changes.append("data.1.count=6")
    if comparison.get("probe"):
        changes.append("probe.sentences=120")
    yield f"overrides={json.dumps(changes)}"
    for task in comparison["evaluation"]:
        for key, value in SMALLER[task].items():
            yield f"evaluation.{task}.{key}={value}"


def lines() -> list[list[list[str]]]:
    """The commands of docs/reproduce.md in lines that need nothing of each other, the longest first."""
    train, runs = str(RECIPES / "train.yaml"), "runs/paper/main-results/runs"
    adapter, gates = f"{runs}/ani/seed-0/training/adapter", "runs/paper/gates"
    texts = [word for name in ("gsm8k", "math", "mmlu", "finer") for word in ("--texts", name)]
    of_8b = [
        *(command for name in OF_8B for command in comparison(name)),
        ["diff", f"{runs}/ani/seed-0", f"{runs}/sft/seed-0"],
        ["eval", "--tasks", "gates,routing", *texts, "--chat", "--adapter", adapter, "--limit", "3", "--out", gates],
        ["eval", "--tasks", "routing", "--model", "Qwen/Qwen3-8B", "--limit", "3", "--out", f"{gates}-reference"],
        ["report", gates],
    ]
    # Two tables are served: that is what `backend: auto` does with all where there is a card.
    qwen, mistral = "scalability-qwen3-4b", "scalability-mistral-7b-v0.3"
    diff = ["diff", "runs/paper/served/runs/ani/seed-0", f"runs/paper/{qwen}/runs/ani/seed-0"]
    written = json.dumps({name: SMALLER[name] for name in ("gsm8k", "mmlu")})
    served_qwen = [*comparison(qwen), served(qwen, "served", f"evaluation={written}"), diff]
    served_mistral = [*comparison(mistral), served(mistral, "served-mistral", "variants={ani: []}", "published={}")]
    auto = ["ani.layer=auto", "probe.data=runs/paper-set", "probe.held_out=contrastive", "probe.sentences=120"]
    others = [name for name in COMPARISONS if name not in (*OF_8B, qwen, mistral)]
    probed = ["train", train, "output=runs/paper/auto", *auto, *TRAINING]
    return [of_8b, served_qwen, served_mistral, *map(comparison, others), [probed]]


def comparison(name: str) -> list[list[str]]:
    """What a comparison needs, its tables, and its page again."""
    file = str(RECIPES / f"{name}.yaml")
    return [["compare", file, *smaller(name)], ["report", f"runs/paper/{name}"]]


def served(name: str, folder: str, *changes: str) -> list[str]:
    """A comparison's command again, with its benchmarks answered by vLLM."""
    settings = [f"output=runs/paper/{folder}", "reuse=runs/paper", "backend=vllm", "baseline=null", *changes]
    return [*comparison(name)[0], *settings]


def carry_out(line: list[list[str]]) -> None:
    """Commands one after the other, in this process; what they say goes to a file."""
    said = Path(f"{os.getpid()}.said")
    log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for words in line:
        began, used = time.monotonic(), time.process_time()
        sys.argv = ["ani", *words]
        try:
            ani.cli.main()
        except SystemExit as end:
            if end.code:
                sys.stdout.flush()
                raise RuntimeError(f"ani {shlex.join(words)} failed:\n{said.read_text()[-4000:]}") from end
        sys.stdout.flush()
        took = f"{time.monotonic() - began:5.0f} s ({time.process_time() - used:.0f} of the processor)"
        os.write(SHOWN, f"{took}: ani {shlex.join(words)}\n".encode())


def check() -> None:
    """Every cell was trained as its recipe says, on 4 bits, at the paper's layer, and is in the tables."""
    for name in COMPARISONS:
        folder = Path("runs/paper") / name
        seeds = yaml.safe_load((folder / "comparison.yaml").read_text())["seeds"]
        tables = (folder / "comparison.md").read_text()
        assert "Beside the published values" in (folder / "report.html").read_text(), folder
        for variant, recipe in variant_recipes(RECIPES / f"{name}.yaml").items():
            assert f"| {variant} |" in tables, (name, variant)
            for seed in seeds:
                training = folder / "runs" / variant / f"seed-{seed}" / "training"
                done = yaml.safe_load((training / "recipe.yaml").read_text())
                assert done["quantization"] == "nf4" and done["training"]["gradient_checkpointing"], training
                assert [line["step"] for line in read_lines(training / TRAINING_LOG)] == [1, 2], training
                if recipe.ani is not None and recipe.ani.layer == "paper":
                    layer = json.loads((training / ADAPTER / CONFIG_FILE).read_text())["layer"]
                    assert layer == PAPER_LAYERS[done["model"].split("/")[1]], training


def main() -> None:
    """Rehearse at full size; make the hub, carry out the commands, check what they left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="a folder for all that is made")
    parser.add_argument("--full-size", action="store_true", help="the recipes at full size alone, every variant")
    given, began = parser.parse_args(), time.monotonic()
    try:
        rehearse_all(given.full_size)
        if given.full_size:
            return
        datasets.disable_progress_bars()
        (WORK / "work").mkdir()
        os.chdir(WORK / "work")
        make_models()
        make_data()
        arithmetic.ROOM = 2  # random models would fill it
        sweep.in_own_processes = lambda arguments: sweep.in_this_process  # whose imports would take the longest
        datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0  # for reads that hang; those of files here don't
        # Forked, so that what took long to import and make is there.
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            pool.submit(carry_out, [["diagnostic", "runs/paper-set", "--count", str(FEW // 2)]]).result()
            for _ in pool.map(carry_out, lines()):
                pass
        check()
    finally:
        os.chdir(ROOT)
        if given.keep is not None:
            shutil.copytree(WORK, given.keep, dirs_exist_ok=True)
        shutil.rmtree(WORK)
    print(f"the paper's recipes, in miniature: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
