"""Carries out every command of docs/reproduce.md in miniature, with changes that make models and data small.

The models have their real names, tokenizers, templates and numbers of layers; their weights are narrow and random. The
data sets have the hub's columns, configurations and splits, and a few rows. Both are in the hub's cache. Training takes
2 steps.
"""

import copy
import gc
import json
import multiprocessing
import os
import shlex
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

import datasets
import yaml
from datasets import ClassLabel, Dataset
from paper_models import PUBLISHED
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

import ani.cli
from ani.compare import runs
from ani.compare.plan import variant_recipes
from ani.data.openmath_magpie import MAGPIE, OPENMATH
from ani.data.sources import MATH
from ani.evaluation.tasks import arithmetic
from ani.evaluation.tasks.gates import FINER_FILE, FINER_NAME
from ani.injection.adapter_files import CONFIG_FILE
from ani.probing.selection import PAPER_LAYERS, PAPER_SHAPES
from ani.results.records import TRAINING_LOG
from ani.training.checkpoints import ADAPTER
from tests.docs.test_pages import shown_commands
from tests.json_lines import read_lines
from tests.tiny import tiny
from tests.tokenizers import QWEN3, llama3, mistral, qwen, shortened

ROOT, WORK = Path(__file__).resolve().parents[2], Path(os.environ["HF_HOME"])
RECIPES = ROOT / "recipes" / "paper"
PAGE = "docs/reproduce.md"
COMPARISONS = [path.stem for path in sorted(RECIPES.glob("*.yaml")) if path.stem != "train"]
OF_8B = ["ablation", "layer-sensitivity", "main-results"]
COMMIT = "0" * 40
FEW = 40
"""Rows of a data set."""
SMALLER = {"gates": {"limit": 4}, "language": {"count": 4}, "mmlu": {"limit": 3}}
SMALLER |= {task: {"count": 1} for task in ("arithmetic", "arithmetic-chat")}
SMALLER |= {task: {"limit": 2, "max_new_tokens": 2} for task in ("gsm8k", "math")}
"""Settings of each task."""
TRAINING = ["training.steps=2", "training.log_every=1", "data.0.limit=2"]
TRAIN = "recipes/paper/train.yaml"
SHOWN = os.dup(1)
"""Standard output, for progress; the commands' own output goes to a file."""
LAYERS_OF_8B = 32
"""Layers of the small Qwen3-8B; layer-sensitivity.yaml goes up to 30."""


def make_models() -> None:
    """Write every model of the paper to the hub's cache, with as many layers as its recipes need."""
    tokenizers = {"qwen3": of_hub(qwen(), QWEN3), "llama": of_hub(llama3()), "mistral": of_hub(mistral())}
    for name, shape in PUBLISHED.items():
        short, shape = name.split("/")[1], dict(shape)
        family = shape.pop("model_type")
        if short not in PAPER_LAYERS:
            continue
        tokenizer, layers = tokenizers[family], LAYERS_OF_8B if short == "Qwen3-8B" else PAPER_LAYERS[short] + 2
        shape |= {"num_hidden_layers": layers, "hidden_size": 64, "intermediate_size": 64, "head_dim": 32}
        shape |= {"vocab_size": len(tokenizer), "num_attention_heads": 2, "num_key_value_heads": 1}
        PAPER_SHAPES[family, 64, layers, len(tokenizer)] = short  # for `layer: paper`
        for named in (name, f"{name}-Base") if short == "Qwen3-8B" else (name,):
            folder = cached("models", named)
            tiny(family, tokenizer=tokenizer, max_position_embeddings=4096, **shape).save_pretrained(folder)
            tokenizer.save_pretrained(folder)


def of_hub(tokenizer: PreTrainedTokenizerBase, template: str | None = None) -> PreTrainedTokenizerBase:
    """A family's tokenizer as the hub has it, without its rarer words, so that it loads fast. Base models' tokenizers
    have neither a template nor padding, and begin texts with their first token."""
    found = copy.deepcopy(shortened(tokenizer, 8000))
    found.chat_template = template
    if template is None:
        found.pad_token = None
        first = cast(str, found.bos_token)
        pieces = {"single": f"{first} $A", "special_tokens": [(first, found.bos_token_id)]}
        cast(Any, found).backend_tokenizer.post_processor = TemplateProcessing(**pieces)
    return found


def cached(kind: str, name: str) -> Path:
    """Folder where huggingface_hub keeps a repository's files."""
    place = WORK / "hub" / f"{kind}--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    (place / "snapshots" / COMMIT).mkdir(parents=True)
    return place / "snapshots" / COMMIT


def make_data() -> None:
    """Write every data set of the paper, with the hub's columns."""
    keys = ("problem", "generated_solution", "expected_answer", "problem_source")
    solutions = []
    sums = [
        (f"Ann has {n} figs and buys 12. How many has she?", f"{'Figs are sweet. ' * (n % 4)}{n} + 12 = {n + 12}")
        for n in range(FEW)
    ]
    for n, (q, a) in enumerate(sums):
        row = (q, rf"{a}. She has $\boxed{{{n + 12}}}$ figs.", str(n + 12), "augmented_gsm8k")
        if n % 2:
            value = 2 - n * (n + 3)
            worked = rf"We have \[f(-{n + 3}) = {n} \cdot (-{n + 3}) + 2 = \boxed{{{value}}}.\]"
            row = (rf"If $f(x) = {n}x + 2$, what is $f(-{n + 3})$?", worked, str(value), "math")
        solutions.append(dict(zip(keys, row, strict=True)))
    store(OPENMATH, "train", solutions)
    store(MAGPIE, "train", [{"uuid": str(n), "conversations": chat(n)} for n in range(FEW)])
    solved = [{"question": q, "answer": f"{a.replace('= ', f'= <<{n}>>')}\n#### {n}"} for n, (q, a) in enumerate(sums)]
    store("openai/gsm8k", "test", solved, "main")
    for name, subject in MATH:
        levels = [{"level": f"Level {n % 5 + 1}", "type": subject.title()} for n in range(FEW)]
        answers = [{"problem": q, "solution": rf"{a}, \boxed{{{n + 12}}}"} for n, (q, a) in enumerate(sums)]
        store(name, "test", [{**level, **answer} for level, answer in zip(levels, answers, strict=True)], subject)
    asked = [
        {"question": f"What is {n} + 1?", "subject": subject, "choices": [str(n), str(n + 1), "2", "none"], "answer": 1}
        for subject in ("anatomy", "econometrics", "international_law")
        for n in range(5)
    ]
    for split in ("dev", "test"):
        store("cais/mmlu", split, asked, "all", answer=["A", "B", "C", "D"])
    films = [{"text": f"{whose} film was the slowest that I saw", "label": 0} for whose in ("His", "Her", "My", "Our")]
    store("stanfordnlp/imdb", "test", films, "plain_text", label=["neg", "pos"])
    tags = ["O", "B-DebtInstrumentFaceAmount", "O", "B-DebtInstrumentMaturityDate"]
    notes = [{"id": n, "tokens": ["$", f"{n}.5", "due", str(2030 + n)], "ner_tags": tags} for n in range(FEW)]
    with zipfile.ZipFile(cached("datasets", FINER_NAME) / FINER_FILE, "w") as archive:
        archive.writestr("test.jsonl", "".join(json.dumps(record) + "\n" for record in notes))


def chat(n: int) -> list[dict[str, str]]:
    """A chat of two turns as Magpie's are: most numbers are in the answers, one question in four has some, a tenth of
    the chats is about programs, and another tenth has no number."""
    question = f"Who was Queen {chr(65 + n % 26)} of town {'x' * (n + 1)}?"
    question = f"What happened in Paris in {1700 + n}?" if n % 4 == 1 else question
    answer = f"**A short list:**\n\n1. She was born in {1500 + n}, in house {n}.\n2. See page {n + 7}."
    answer = "Nobody knows." if n % 10 == 3 else answer
    later = "Write that as a Python script" if n % 10 == 7 else "And who came after her?"
    turns = [("human", question), ("gpt", answer), ("human", later), ("gpt", f"Her sister, in {1530 + n}.")]
    return [{"from": who, "value": text} for who, text in turns]


def store(name: str, split: str, rows: list[dict[str, Any]], part: str = "default", **labels: list[str]) -> None:
    """Write a split where `datasets` looks before it asks the hub: a parquet file, and the card that names it. `labels`
    are stored as numbers."""
    folder = Path(name)
    (folder / part).mkdir(parents=True, exist_ok=True)
    made = Dataset.from_list(rows)
    for column, names in labels.items():
        made = made.cast_column(column, ClassLabel(names=names))
    made.to_parquet(folder / part / f"{split}-00000-of-00001.parquet")
    files = [(file.parent.name, file.name) for file in sorted(folder.glob("*/*.parquet"))]
    splits = {
        part: [{"split": n.split("-")[0], "path": f"{p}/{n}"} for p, n in files if p == part] for part, _ in files
    }
    card = {"configs": [{"config_name": part, "data_files": found} for part, found in splits.items()]}
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")


def smaller(name: str) -> Iterator[str]:
    """Overrides that make a comparison small."""
    comparison = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    changes = [*comparison.get("overrides", []), *TRAINING]
    if name == "n-digit":
        changes.append("data.1.count=6")
    if comparison.get("probe"):
        changes.append("probe.sentences=200")
    yield f"overrides={json.dumps(changes)}"
    for task in comparison["evaluation"]:
        for key, value in SMALLER[task].items():
            yield f"evaluation.{task}.{key}={value}"


def on_page() -> list[list[str]]:
    """The commands of the page, made small; it only checks recipes by `ani train --dry-run`."""
    commands = [words for (program, *words), _ in shown_commands(ROOT / PAGE) if program == "ani"]
    few = {"paper-set": ["--count", str(FEW // 2), "--numbers", str(FEW // 5)], "eval": ["--limit", "3"]}
    few |= {"diff": [], "report": []}
    return [
        [*words, *(smaller(Path(words[1]).stem) if words[0] == "compare" else few[words[0]])]
        for words in commands
        if words[0] != "train"
    ]


def lines() -> list[list[list[str]]]:
    """Commands of the page but `paper-set`, in independent lines, the longest first; and some that the page lacks."""
    commands = [words for words in on_page() if words[0] != "paper-set"]
    compared = {Path(words[1]).stem: words for words in commands if words[0] == "compare"}
    assert sorted(compared) == COMPARISONS

    def comparison(name: str) -> list[list[str]]:
        """Commands that write its tables and its page."""
        return [compared[name], ["report", f"runs/paper/{name}"]]

    of_8b = [command for name in OF_8B for command in comparison(name)]
    of_8b += [words for words in commands if words[0] != "compare"]
    qwen = "scalability-qwen3-4b"  # vLLM answers this one; where there is a card, `backend: auto` serves all
    diff = ["diff", "runs/paper/served/runs/ani/seed-0", f"runs/paper/{qwen}/runs/ani/seed-0"]
    written = json.dumps({name: SMALLER[name] for name in ("gsm8k", "mmlu")})
    served = [*compared[qwen], "output=runs/paper/served", "backend=vllm", "baseline=null", f"evaluation={written}"]
    auto = ["ani.layer=auto", "probe.data=runs/paper-set", "probe.held_out=diagnostic", "probe.sentences=200"]
    others = [name for name in COMPARISONS if name not in (*OF_8B, qwen)]
    probed = ["train", TRAIN, "output=runs/paper/auto", *auto, *TRAINING]
    return [of_8b, [*comparison(qwen), served, diff], *map(comparison, others), [probed]]


def carry_out(line: list[list[str]]) -> None:
    """Carry out commands one after the other in this process; their output goes to a file."""
    said = Path(f"{os.getpid()}.said")
    log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for words in line:
        began = time.monotonic()
        sys.argv = ["ani", *words]
        try:
            ani.cli.main()
        except SystemExit as end:
            if end.code:
                sys.stdout.flush()
                raise RuntimeError(f"ani {shlex.join(words)} failed:\n{said.read_text()[-4000:]}") from end
        sys.stdout.flush()
        os.write(SHOWN, f"{time.monotonic() - began:5.0f} s: ani {shlex.join(words)}\n".encode())


def check() -> None:
    """Check that every run was trained by its recipe, on 4 bits, at the paper's layer, and is in the tables."""
    for name in COMPARISONS:
        folder = Path("runs/paper") / name
        seeds = yaml.safe_load((folder / "comparison.yaml").read_text())["seeds"]
        tables = (folder / "comparison.md").read_text()
        for variant, recipe in variant_recipes(RECIPES / f"{name}.yaml").items():
            assert f"| {variant} |" in tables, (name, variant)
            for seed in seeds:
                training = folder / "runs" / variant / f"seed-{seed}" / "training"
                done = yaml.safe_load((training / "recipe.yaml").read_text())
                assert done["quantization"] == "nf4" and done["training"]["gradient_checkpointing"], training
                assert [line["step"] for line in read_lines(training / TRAINING_LOG)] == [1, 2], training
                if recipe.ani is not None and recipe.ani.layer == "paper":
                    layer = json.loads((training / ADAPTER / CONFIG_FILE).read_text())["module"]["layer"]
                    assert layer == PAPER_LAYERS[recipe.model.split("/")[1]], training
                assert done["model"] == f"{recipe.model}@{COMMIT}", training


def main() -> None:
    """Make the hub, carry out the commands, and check the results."""
    datasets.disable_progress_bars()
    (WORK / "work").mkdir()
    os.chdir(WORK / "work")
    Path("recipes").symlink_to(ROOT / "recipes")
    make_models()
    make_data()
    arithmetic.ROOM = 2  # random models would fill it
    runs.in_own_processes = lambda arguments: runs.in_this_process  # whose imports would take the longest
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0  # no reader of local files hangs
    # Forked, so that imports are done; frozen, because every training looks for garbage.
    gc.collect()
    gc.freeze()
    try:
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            pool.submit(carry_out, [words for words in on_page() if words[0] == "paper-set"]).result()
            for job in [pool.submit(carry_out, line) for line in lines()]:
                job.result()
        check()
    finally:
        os.chdir(ROOT)
