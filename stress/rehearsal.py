"""The paper's recipes twice: at full size on fake tensors, and in miniature.

    python stress/rehearsal.py [--keep FOLDER]
    python stress/rehearsal.py --full-size

At full size `ani rehearse` carries out a training step and an answer of a recipe of each model, with --full-size of
every variant of every recipe; and of the calculators for Qwen3.

In miniature it is every command of docs/reproduce.md, read from the page, with changes that make models and data
small. The models have their real names, tokenizers and templates, and as many layers; but they are narrow, and random.
The data sets have the hub's columns, configurations and splits, and a few rows. Both are found as if the hub had been
asked. Training takes 2 steps. Beside them one training crosses the ends of epochs in steps of 32 rows, is killed and
resumed, and a model whose answers are planted is judged on every benchmark. What only a card can show is listed in
docs/reproduce.md.
"""

import os
import tempfile

if __name__ == "__main__":  # and not in processes that it spawns
    os.environ |= {"HF_HOME": tempfile.mkdtemp(prefix="ani-rehearsal-"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # tests serve compiled models
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import argparse
import copy
import gc
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
from unittest.mock import patch

import datasets
import torch
import yaml
from datasets import ClassLabel, Dataset
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from transformers import LogitsProcessor, PreTrainedTokenizerBase

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ani.cli
from ani.compare import runs
from ani.compare.plan import variant_recipes
from ani.data.openmath_magpie import MAGPIE, OPENMATH
from ani.evaluation.benchmarks.data import MATH
from ani.evaluation.engines import Engine
from ani.evaluation.model_spec import ModelSpec
from ani.evaluation.tasks import arithmetic
from ani.evaluation.tasks.gate_texts import FINER_FILE, FINER_NAME
from ani.injection.adapter_files import CONFIG_FILE
from ani.probing.selection import PAPER_LAYERS, PUBLISHED
from ani.results.records import TRAINING_LOG
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import Recipe, load_recipe
from ani.training.rehearse import Rehearsal, rehearse
from tests.docs.test_pages import shown_commands
from tests.json_lines import read_lines
from tests.tiny import tiny
from tests.tokenizers import QWEN3, llama3, mistral, qwen, shortened

ROOT, WORK = Path(__file__).resolve().parent.parent, Path(os.environ["HF_HOME"])
RECIPES = ROOT / "recipes" / "paper"
PAGE = "docs/reproduce.md"
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
TRAIN = "recipes/paper/train.yaml"
SHOWN = os.dup(1)
"""Where progress goes; what the commands say doesn't."""
LAYERS_OF_8B = 32
"""layer-sensitivity.yaml goes up to 30."""
PEAKS = {"train": 15.6}
"""GiB that the documentation names."""
ROOM = 48
"""Tokens of planted answers."""
SMALL = "rehearsal/small"
"""A model of few layers, where they don't matter."""


# --- the recipes at full size -----------------------------------------------------------------------------------------


def rehearse_all(every: bool) -> None:
    """Every variant of every recipe at full size, or one of each model, on fake tensors: a table in Markdown; and those
    of docs/reproduce.md's own rehearsals. A fault ends it."""
    known: dict[str, Future[Rehearsal]] = {}

    def started(recipe: Recipe) -> Future[Rehearsal]:
        same = recipe.model_copy(update={"training": recipe.training.model_copy(update={"steps": None})})
        name = same.model_dump_json(exclude={"output", "probe"})
        if name not in known:
            known[name] = pool.submit(rehearse, recipe)
        return known[name]

    print("| recipe | model | variants | seconds each | GiB at most | tokens a pass |")
    print("| --- | --- | --- | --- | --- | --- |")
    with ThreadPoolExecutor(2) as pool:  # each in a process of its own
        of_page = [words[1:] for words in page_commands() if words[0] == "rehearse"]
        recipes = {"train": {"": load_recipe(RECIPES / "train.yaml")}}
        recipes |= {name: variant_recipes(RECIPES / f"{name}.yaml") for name in COMPARISONS}
        if not every:  # the last variant of one recipe of each model
            lasts = {name: [*variants.items()][-1] for name, variants in recipes.items()}
            of_model = {recipe.model: name for name, (_, recipe) in reversed(lasts.items())}
            recipes = {name: dict([lasts[name]]) for name in reversed(of_model.values())}
        recipes |= {path.stem: {"": load_recipe(path)} for path in sorted((ROOT / "recipes").glob("calculator-*.yaml"))}
        recipes[PAGE] = {shlex.join(words): load_recipe(ROOT / words[0], words[1:]) for words in of_page}
        pending = {name: [*map(started, variants.values())] for name, variants in recipes.items()}
        for name, variants in recipes.items():
            found = [each.result() for each in pending[name]]
            for variant, each in zip(variants, found, strict=True):
                if each.faults:
                    raise RuntimeError(f"{name} {variant}: {each.faults[0]}")
            if name == PAGE:
                continue
            seconds = statistics.mean(sum(phase.seconds for phase in each.phases) for each in found)
            peak = max(phase.peak for each in found for phase in each.phases) / 2**30
            if name in PEAKS and abs(peak - PEAKS[name]) > 0.1:
                raise RuntimeError(f"{name}: {peak:.2f} GiB at most, where the documentation says {PEAKS[name]}")
            recipe = next(iter(variants.values()))
            tokens = recipe.training.batch_size * recipe.training.max_length
            row = f"{name} | {recipe.model} | {len(found)} | {seconds:.0f} | {peak:.1f} | {tokens:,}"
            print(f"| {row} |", flush=True)


# --- the hub in small -------------------------------------------------------------------------------------------------


def make_models() -> None:
    """Every model of the paper in the hub's cache, with as many layers as its recipes name."""
    tokenizers = {"qwen3": of_hub(qwen(), QWEN3), "llama": of_hub(llama3()), "mistral": of_hub(mistral())}
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
    qwen3 = tokenizers["qwen3"]
    tiny("qwen3", tokenizer=qwen3, max_position_embeddings=4096).save_pretrained(folder := cached("models", SMALL))
    qwen3.save_pretrained(folder)


def of_hub(tokenizer: PreTrainedTokenizerBase, template: str | None = None) -> PreTrainedTokenizerBase:
    """A family's tokenizer as the hub has it, but for its rarer words: the whole one takes seconds to load, a hundred
    times. Those of base models have neither a template nor padding, and begin texts with their first token."""
    found = copy.deepcopy(shortened(tokenizer, 8000))
    found.chat_template = template
    if template is None:
        found.pad_token = None
        first = cast(str, found.bos_token)
        pieces = {"single": f"{first} $A", "special_tokens": [(first, found.bos_token_id)]}
        cast(Any, found).backend_tokenizer.post_processor = TemplateProcessing(**pieces)
    return found


def cached(kind: str, name: str) -> Path:
    """Where huggingface_hub keeps a repository's files."""
    place = WORK / "hub" / f"{kind}--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    (place / "snapshots" / COMMIT).mkdir(parents=True)
    return place / "snapshots" / COMMIT


def make_data() -> None:
    """Every data set of the paper, with the columns that it has on the hub."""
    sums = [
        (
            f"Ann has {n} figs and buys 12. How many has she?",
            f"{'Figs are sweet. ' * (n % 4)}{n} + 12 = {n + 12}",
            n + 12,
        )
        for n in range(FEW)
    ]
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


def page_commands() -> list[list[str]]:
    """Those of `ani` on docs/reproduce.md, in its order."""
    commands = (words for words, _ in shown_commands(ROOT / PAGE))
    return [words for program, *words in commands if program == "ani"]


def on_page() -> list[list[str]]:
    """The same, made small; but rehearsals, which are at full size."""
    found = []
    for words in page_commands():
        match words:
            case ["compare", recipe]:
                found.append([*words, *smaller(Path(recipe).stem)])
            case ["diagnostic", *_]:
                found.append([*words, "--count", str(FEW // 2)])
            case ["eval", *_]:
                found.append([*words, "--limit", "3"])
            case ["diff" | "report", *_]:
                found.append(words)
            case [command, *_] if command != "rehearse":
                raise RuntimeError(f"{PAGE}: nothing makes ani {command} small")
    return found


def lines() -> list[list[list[str]]]:
    """The commands of docs/reproduce.md but the first, in lines that need nothing of each other, the longest first; and
    what they leave out."""
    diagnostic, *commands = on_page()
    assert diagnostic[0] == "diagnostic"
    compared = {Path(words[1]).stem: words for words in commands if words[0] == "compare"}
    assert sorted(compared) == COMPARISONS

    def comparison(name: str) -> list[list[str]]:
        """Its tables, and its page again."""
        return [compared[name], ["report", f"runs/paper/{name}"]]

    def served(name: str, folder: str, *changes: str) -> list[str]:
        """A comparison's command again, with its benchmarks answered by vLLM."""
        settings = [f"output=runs/paper/{folder}", "reuse=runs/paper", "backend=vllm", "baseline=null", *changes]
        return [*compared[name], *settings]

    of_8b = [command for name in OF_8B for command in comparison(name)]
    of_8b += [words for words in commands if words[0] != "compare"]
    # Two tables are served: that is what `backend: auto` does with all where there is a card.
    qwen, mistral = "scalability-qwen3-4b", "scalability-mistral-7b-v0.3"
    diff = ["diff", "runs/paper/served/runs/ani/seed-0", f"runs/paper/{qwen}/runs/ani/seed-0"]
    written = json.dumps({name: SMALLER[name] for name in ("gsm8k", "mmlu")})
    served_qwen = [*comparison(qwen), served(qwen, "served", f"evaluation={written}"), diff]
    served_mistral = [*comparison(mistral), served(mistral, "served-mistral", "variants={ani: []}", "published={}")]
    auto = ["ani.layer=auto", "probe.data=runs/paper-set", "probe.held_out=contrastive", "probe.sentences=120"]
    others = [name for name in COMPARISONS if name not in (*OF_8B, qwen, mistral)]
    probed = ["train", TRAIN, "output=runs/paper/auto", *auto, *TRAINING]
    return [of_8b, served_qwen, served_mistral, *map(comparison, others), [probed]]


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


# --- what two steps and random answers don't show ---------------------------------------------------------------------


def accumulate() -> None:
    """A training of 32 rows a step: killed behind a checkpoint, and behind an epoch's end, it resumes to the same
    weights."""

    def train(output: str) -> list[str]:
        steps = ["training.steps=5", "training.log_every=1", "training.save_every=3"]
        return ["train", TRAIN, f"model={SMALL}", "ani.layer=2", f"output={output}", *steps]

    def dying(console: Any) -> Any:
        def show(line: dict[str, Any]) -> None:
            if line["step"] == 4:
                raise MemoryError("killed")

        return show

    carry_out([train("runs/whole")])
    with patch("ani.terminal.training_lines", dying):
        try:
            carry_out([train("runs/killed")])
        except RuntimeError as error:
            assert "MemoryError: killed" in str(error)
    assert [path.name for path in Path("runs/killed").glob("checkpoint-*")] == ["checkpoint-3"]
    carry_out([["train", "--resume", "runs/killed"]])
    logs = [read_lines(Path("runs") / name / TRAINING_LOG) for name in ("whole", "killed")]
    assert [[line["step"] for line in log] for log in logs] == [[1, 2, 3, 4, 5]] * 2
    assert logs[0][-1]["epoch"] > 1, logs[0][-1]
    for file in ("ani.safetensors", "adapter_model.safetensors"):
        whole, killed = (load_file(Path("runs") / name / ADAPTER / file) for name in ("whole", "killed"))
        for name, weight in whole.items():
            torch.testing.assert_close(killed[name], weight, rtol=0, atol=1e-6)


def planted(task: str, number: int) -> list[tuple[str, bool]]:
    """Answers to the question about so many figs, or the letters of the one about so many and 1, and whether they are
    right; a model is made to give the one whose place is the number, from the first one on again."""
    right, wrong = number + 12, number + 13
    if task == "mmlu":
        texts = {"B": True, "C": False}
    elif task == "math":
        right, wrong = (rf"\boxed{{{value}}}" for value in (right, wrong))
        texts = {
            f"So {right}.": True,
            rf"\boxed{{\frac{{{2 * (number + 12)}}}{{2}}}}": True,
            f"{wrong}, or rather {right}": True,
            f"{right}\nQuestion: and then?\n{wrong}": True,
            f"{right}\n\nUser: and then?\n{wrong}": True,
            f"{right}, or rather {wrong}": False,
            f"#### {number + 12}": False,
            f"{'Well. ' * ROOM}{right}": False,
            rf"{'x' * 8}\boxed{{{number + 12}": False,
        }
    else:
        texts = {
            f"So #### {right}": True,
            f"The answer is {right}.": True,
            f"The answer is {wrong}.\n#### {right}": True,
            f"#### {right}\nQ: and then?\n#### {wrong}": True,
            f"#### {right}\n\nUser: and then?\n#### {wrong}": True,
            f"The answer is {right}.\n#### {wrong}": False,
            f"So {right}": False,
            f"{'Well. ' * ROOM}#### {right}": False,
        }
    return [*texts.items()]


class Planted(LogitsProcessor):
    """Makes a model write the planted answer, whatever it would say, and then end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer, self.length, self.answers = tokenizer, 0, []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] != self.length + 1:  # another batch, whose prompts are no longer than the last one's
            self.start, self.answers = input_ids.shape[1], [*map(self.answer, input_ids)]
        self.length = input_ids.shape[1]
        forced = torch.full_like(scores, -torch.inf)
        for row, answer in zip(forced, self.answers, strict=True):
            row[answer[min(self.length - self.start, len(answer) - 1)]] = 0
        return forced

    def answer(self, row: Any) -> list[int]:
        prompt = self.tokenizer.decode(row)
        task = "math" if "math reasoning assistant" in prompt else "gsm8k"
        number = int(re.findall(r"Ann has (\d+) figs", prompt)[-1])
        texts = planted(task, number)
        text, _ = texts[number % len(texts)]
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]


def loaded(load: Any) -> Any:
    """`ModelSpec.load`, of a model that is made to prefer letters: to even questions B, which is right, to odd ones C;
    behind other tokens than a row's last one, where padding may stand, it is the reverse."""

    def prefer(model: Any, args: Any, given: Any, output: Any) -> None:
        columns, tokenizer = given.get("logits_to_keep"), backend.tokenizer
        if not isinstance(columns, torch.Tensor):
            return
        letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "BC"]
        for ids, mask, logits in zip(given["input_ids"], given["attention_mask"], output.logits, strict=True):
            number = int(re.findall(r"What is (\d+) \+ 1", tokenizer.decode(ids))[-1])
            for place, column in enumerate(columns.tolist()):
                logits[place, letters[(number + (column != mask.sum() - 1)) % 2]] += 1e4

    def load_planted(*args: Any) -> Engine:
        nonlocal backend
        backend = load(*args)
        backend.method = backend.method._replace(decoding=lambda tokenizer, model: Planted(tokenizer))
        backend.model.register_forward_hook(prefer, with_kwargs=True)
        return backend

    backend: Any = None
    return load_planted


def judge() -> None:
    """Right and wrong answers are planted in a model, and are judged as such by each benchmark's protocol."""
    with patch.object(ModelSpec, "load", loaded(ModelSpec.load)):
        tasks = ["--tasks", "gsm8k,math,mmlu", "--limit", str(FEW), "--max-new-tokens", str(ROOM)]
        carry_out([["eval", "--model", SMALL, *tasks, "--backend", "transformers", "--out", "runs/planted"]])
    for task in ("gsm8k", "math", "mmlu"):
        asked = set()
        for answer in read_lines(Path("runs/planted") / f"{task}.jsonl"):
            number = int(re.findall(r"\d+", answer["question"])[0])
            texts = planted(task, number)
            text, right = texts[place := number % len(texts)]
            assert answer["correct"] == right, (task, text, answer)
            assert not re.search(r"\n(Q|Question|\nUser):", str(answer["output"])), answer
            asked.add(place)
        assert len(asked) == len(texts), (task, asked)


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
        Path("recipes").symlink_to(ROOT / "recipes")
        make_models()
        make_data()
        arithmetic.ROOM = 2  # random models would fill it
        runs.in_own_processes = lambda arguments: runs.in_this_process  # whose imports would take the longest
        datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0  # for reads that hang; those of files here don't
        # Forked, so that what took long to import and make is there; frozen, as every training looks for garbage.
        gc.collect()
        gc.freeze()
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            pool.submit(carry_out, on_page()[:1]).result()
            jobs = [pool.submit(carry_out, line) for line in lines()]
            for job in [*jobs, pool.submit(accumulate), pool.submit(judge)]:
                job.result()
        check()
    finally:
        os.chdir(ROOT)
        if given.keep is not None:
            shutil.copytree(WORK, given.keep, dirs_exist_ok=True)
        shutil.rmtree(WORK)
    print(f"the paper's recipes, in miniature: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
