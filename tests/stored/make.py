"""Makes the folders of `tests/stored` anew, with the code of commit 8cac4ba: python tests/stored/make.py WORKDIR.

A tiny random model can't calculate, so its answers are scripted; all else is what the commands do.
"""

# ruff: noqa: E402
import contextlib
import io
import json
import os
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch
import yaml
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

import ani
import ani.cli
from ani import demo
from ani.data.diagnostic import diagnostic_sentences
from ani.data.tool_routing import routing_queries
from ani.evaluation import arithmetic, benchmarks, routing
from ani.injection.adapter import save_adapter
from ani.injection.attach import ani_module, is_attached, last_decision
from ani.training import trainer
from tests.tokenizers import CHATML, gemma_like

STORED = Path(__file__).resolve().parent
WORK = Path(sys.argv[1]).resolve()
CHANCE = random.Random("stored")

# --- data -------------------------------------------------------------------------------------------------------------

THINGS = ["pears", "stamps", "chairs", "shells", "bricks", "cups", "coins", "nails"]
GSM8K = [
    {
        "question": f"A box holds {3 + i} {thing} and {20 * i + 7} more are put in. How many {thing} does it hold now?",
        "answer": f"It holds {3 + i} + {20 * i + 7} = <<{3 + i}+{20 * i + 7}={21 * i + 10}>>{21 * i + 10}.\n"
        f"#### {21 * i + 10}",
    }
    for i, thing in enumerate(THINGS)
]
MATH = [
    {
        "problem": f"What is ${i + 2}^2 - {i}$?",
        "level": f"Level {level}",
        "type": kind,
        "solution": rf"It is $\boxed{{{(i + 2) ** 2 - i}}}$.",
    }
    for i, (level, kind) in enumerate(
        (level, kind) for kind in ("Algebra", "Number Theory") for level in (1, 2, 3, 4, 5, "?")
    )
]
MMLU = {
    split: [
        {
            "question": f"Which number comes {how} {10 * n + 3}?",
            "subject": subject,
            "choices": [str(10 * n + 3 + d) for d in (-1, 1, 2, 5)],
            "answer": right,
        }
        for subject, how, right in (("anatomy", "right before", 0), ("philosophy", "right after", 1))
        for n in numbers
    ]
    for split, numbers in (("dev", range(20, 25)), ("test", range(1, 7)))
}
FINER = [
    ("The {0} % Senior Notes are due in {1} .", "DebtInstrumentInterestRateStatedPercentage", "7.{i}0"),
    ("We recorded a charge of $ {0} million in fiscal {1} .", "AmortizationOfIntangibleAssets", "1,2{i}5"),
    ("Our plan has {0} segments , see Note {1} .", "NumberOfReportableSegments", "{i}"),
]
TEXTS = [
    f"{name} told the {who} of the old hotel that nobody had slept well there"
    for name in ("Ann", "Bob", "Cid", "Eve")
    for who in ("porter", "owner")
]
NOTES = [
    "Room 505 holds 10 people.",
    "Bus 12 left at 8:15 with 40 of 66 seats.",
    "Nothing is counted here.",
    "It cost 3.5",
]
TICKETS = [
    {"title": f"Order {4100 + i}", "body": [f"{i + 2} lamps at ${12 * i + 9}", f"gate {i + 1}"], "kind": kind}
    for i, kind in enumerate(("sale", "sale", "return", "sale", "return"))
]


def lines(path: str, records: list[Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8"
    )


def finer_records() -> list[dict[str, Any]]:
    records = []
    for i in range(2, 6):
        for text, tag, amount in FINER:
            tokens = text.format(amount.format(i=i), 2020 + i).split()
            tags = ["O"] * len(tokens)
            tags[next(place for place, token in enumerate(tokens) if token == amount.format(i=i))] = f"B-{tag}"
            if "due in" in text:
                tags[-2] = "B-DebtInstrumentMaturityDate"
            records.append({"id": len(records), "tokens": tokens, "ner_tags": tags})
    return records


def write_data() -> None:
    lines("data/gsm8k.jsonl", GSM8K)
    lines("data/math.jsonl", MATH)
    for split, rows in MMLU.items():
        lines(f"data/mmlu/{split}.jsonl", rows)
    lines("data/finer.jsonl", finer_records())
    lines("data/texts.jsonl", [{"body": text} for text in TEXTS])
    lines("data/tickets.jsonl", TICKETS)
    Path("data/notes.txt").write_text("\n".join(NOTES) + "\n")


def write_model() -> None:
    tokenizer = gemma_like()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=8,
                intermediate_size=16,
                num_hidden_layers=3,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=2048,  # so that some prompts are cut off
                tie_word_embeddings=True,
                initializer_range=0.3,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")
    file = Path("model/tokenizer.json")
    file.write_text(json.dumps(json.loads(file.read_text()), ensure_ascii=False, separators=(",", ":")))
    Path("model/chat_template.jinja").write_text(CHATML)


# --- scripted answers -------------------------------------------------------------------------------------------------


def skill(model: Any) -> float:
    """How often a model is right: more with a module than with LoRA alone, and least as it was."""
    inner = getattr(model, "base_model", model)
    return 0.75 if is_attached(model) else 0.5 if hasattr(model, "peft_config") or inner is not model.model else 0.3


def slipped(answer: int) -> str:
    """A wrong answer of each kind: a lost carry, another digit, another length, none."""
    digits = str(abs(answer))
    match CHANCE.choice(("carry", "digit", "length", "none")):
        case "carry":
            return digits[:-1] + str((int(digits[-1]) + 1) % 10)
        case "digit":
            return digits[:-1] + str((int(digits[-1]) + 5) % 10)
        case "length":
            return digits + "0"
    return "no idea"


def calculated(model: Any, tokenizer: Any, prompts: list[str], *_: Any, **__: Any) -> list[str]:
    found = []
    for prompt in prompts:
        left, sign, right = re.fullmatch(r"Calculate (\d+) (.) (\d+) =", prompt).groups()
        exact = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
        found.append(f" {exact}" if CHANCE.random() < skill(model) else f" {slipped(exact)}")
    return found


def called(model: Any, tokenizer: Any, prompts: list[str], *_: Any, **__: Any) -> list[str]:
    found = []
    for prompt in prompts:
        query = next(
            query for query in routing_queries() if f"{query.text}<|im_end|>" in prompt[-len(query.text) - 60 :]
        )
        operands = [number.text for number in query.numbers if number.role == "quantitative"]
        traps = [number.text for number in query.numbers if number.role == "nominal"]
        kind = "exact" if CHANCE.random() < skill(model) else CHANCE.choice(("trap", "malformed", "prose"))
        found.append(
            {
                "exact": f"calculator({json.dumps(operands)})",
                "trap": f"calculator({json.dumps([traps[0], *operands])})",
                "malformed": f"calculator({operands[0]} by {operands[1]}",
                "prose": "I would use the calculator (a tool) for that.",
            }[kind]
        )
    return found


def written(self: Any, requests: list[Any], disable_tqdm: bool = True) -> None:
    for request in self.ani_kept.missing(requests):
        prompt = request.args[0]
        right = CHANCE.random() < skill(self.model)
        row = max((row for row in [*GSM8K, *MATH]), key=lambda row: prompt.rfind(row.get("question") or row["problem"]))
        if "question" in row:
            number = int(row["answer"].split("#### ")[1]) + (not right)
            text = CHANCE.choice((f"Added up: {number}\n#### {number}", f"The answer is {number}.", "I can't say."))
        else:
            exact = int(re.search(r"boxed{(-?\d+)}", row["solution"])[1]) + (not right)
            text = CHANCE.choice(
                (rf"So it is $\boxed{{{exact}}}$.", rf"It is $\boxed{{\frac{{{2 * exact}}}{{2}}}}$", "Hm.")
            )
        self.ani_kept.add_partial("generate_until", request.args, text)


def scored(self: Any, requests: list[Any], disable_tqdm: bool = True) -> None:
    likely: dict[str, str] = {}
    for request in self.ani_kept.missing(requests):
        prompt, letter = request.args
        row = max(MMLU["test"], key=lambda row: prompt.rfind(row["question"]))
        right = "ABCD"[row["answer"]]
        best = likely.setdefault(prompt, right if CHANCE.random() < skill(self.model) else CHANCE.choice("ABCD"))
        score = -round(CHANCE.uniform(0.1, 1) if letter.strip() == best else CHANCE.uniform(2, 5), 4)
        self.ani_kept.add_partial("loglikelihood", request.args, (score, False))


def save_undecided(model: Any, path: Any, **more: Any) -> None:
    """Shift the gate before it is saved, so that it decides both ways: so few steps leave it open everywhere."""
    if is_attached(model):
        module, training = ani_module(model), model.training
        model.eval()
        logits = []
        for sentence in diagnostic_sentences(40, split="train", seed=0):
            ani.inspect(model, gemma_like(), sentence.text)
            logits.append(last_decision(model).injection.logits)
        model.train(training)
        with torch.no_grad():
            module.gate.outer.bias -= torch.cat(logits).median()
    save_adapter(model, path, **more)


arithmetic.greedy_texts = calculated
routing.greedy_texts = called
trainer.save_adapter = save_undecided
benchmarks._ChatModel.generate_until = written
benchmarks._ChatModel.loglikelihood = scored

# --- commands ---------------------------------------------------------------------------------------------------------


def command(*words: str) -> str:
    """`ani …`; what it prints on standard output."""
    sys.argv = ["ani", *words]
    out = io.StringIO()
    ani.cli.console = Console(width=120, file=out)
    with contextlib.redirect_stdout(out):
        try:
            ani.cli.main()
        except SystemExit as end:
            if end.code:
                print(out.getvalue(), file=sys.stderr)
                raise
    return out.getvalue()


LORA = {"r": 2, "alpha": 4, "dropout": 0.0, "target_modules": ["q_proj"]}


def recipe(**changes: Any) -> dict[str, Any]:
    return {
        "model": "model",
        "output": "training",
        "dtype": "float32",
        "quantization": "none",
        "ani": {"layer": 1, "gate_hidden_size": 8, "role_weight": 1.0, "encoders": ["fourier"]},
        "lora": LORA,
        "data": [{"kind": "arithmetic", "count": 48, "digits": [2, 3]}, {"kind": "diagnostic", "count": 96}],
        "training": {
            "learning_rate": 0.01,
            "module_learning_rate": 0.03,
            "batch_size": 8,
            "gradient_accumulation": 1,
            "max_length": 64,
            "steps": 40,
            "log_every": 4,
            "save_every": 20,
            "gradient_checkpointing": False,
        },
        **changes,
    }


COMPARISON = {
    "output": "comparison",
    "recipe": "recipe.yaml",
    "variants": {
        "sft": ["method=sft"],
        "ani": [],
        "first-layer": ["ani.layer=0"],
        "last-layer": ["ani.layer=2", "training.steps=16"],
    },
    "seeds": [0, 1],
    "more_seeds": {"ani": [2]},
    "baseline": "sft",
    "probe": True,
    "overrides": ["probe.sentences=240"],
    "evaluation": {
        "arithmetic": [
            {"count": 3, "digits": [1, 3], "operations": ["addition"]},
            {"count": 3, "digits": [2], "operations": ["multiplication"]},
        ],
        "benchmarks": [
            {"name": "gsm8k", "data": "data/gsm8k.jsonl", "limit": 2, "max_new_tokens": 64},
            {"name": "math", "data": "data/math.jsonl", "limit": 3, "max_new_tokens": 64},
            {"name": "mmlu", "data": "data/mmlu", "limit": 3},
        ],
        "gating": {"count": 4},
        "language": {"texts": "data/texts.jsonl", "field": "body", "count": 2},
    },
}
EVALUATED = (
    ("arithmetic", "2", "--operations", "addition,subtraction,multiplication"),
    ("gating", "12"),
    ("gsm8k", "6", "--data", "gsm8k=data/gsm8k.jsonl", "--max-new-tokens", "64"),
    ("math", "9", "--data", "math=data/math.jsonl", "--max-new-tokens", "64"),
    ("mmlu", "8", "--data", "mmlu=data/mmlu"),
    ("routing", "12"),
    ("finer", "4", "--data", "finer=data/finer.jsonl"),
)


EVAL_JSON: dict[str, dict[str, Any]] = {}


def evaluated(out: str, *model: str) -> None:
    for task, limit, *more in EVALUATED:
        if "--adapter" in model or task not in ("gating", "routing", "finer"):
            printed = command("eval", *model, "--tasks", task, "--limit", limit, *more, "--out", out, "--json")
            EVAL_JSON.setdefault(out, {}).update(json.loads(printed))


def keep(name: str, *leave: str) -> None:
    """Copy a folder of results, without the files that are large or hold no result."""
    target = STORED / name
    shutil.rmtree(target, ignore_errors=True)
    leave = (*leave, ".lock", "report.html", "cells", "arithmetic-*", *(["checkpoint-*"] if name == "training" else []))
    shutil.copytree(WORK / name, target, ignore=shutil.ignore_patterns(*leave))


def main() -> None:
    WORK.mkdir(parents=True)
    os.chdir(WORK)
    write_data()
    write_model()
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe(), sort_keys=False))
    Path("comparison-of.yaml").write_text(yaml.safe_dump(COMPARISON, sort_keys=False))
    command("train", "recipe.yaml")
    # As if it had been killed after the log line of step 24.
    for name in ("recipe.yaml", "checkpoint-20"):
        copy = shutil.copytree if Path("training", name).is_dir() else shutil.copy
        Path("stopped").mkdir(exist_ok=True)
        copy(Path("training", name), Path("stopped", name))
    log = Path("training/training_log.jsonl").read_text().splitlines(keepends=True)
    Path("stopped/training_log.jsonl").write_text("".join(log[:6]))
    command("merge", "training/adapter", "merged")
    with_adapter = ("--model", "model", "--adapter", "training/adapter")
    evaluated("eval", *with_adapter)
    evaluated("eval-other", "--model", "model")
    shares = (
        *("gate-shares", "gsm8k=data/gsm8k.jsonl", "mmlu=data/mmlu", "data/notes.txt", "data/tickets.jsonl"),
        *(
            "--field",
            "title",
            "--field",
            "body",
            "--group",
            "kind",
            "--limit",
            "4",
            *with_adapter,
            "--out",
            "gate-shares",
        ),
    )
    shares_json, shares_printed = command(*shares, "--json"), command(*shares)
    # A random model's states tell no roles.
    probed = command("probe", "--sentences", "240", "--layers", "0,5,10,15,20", "--out", "probe")
    compared = command("compare", "comparison-of.yaml")
    demo.PROBLEMS_A_LENGTH, demo.SENTENCES = 2, 9
    settings = {"model": "model", "probe.sentences": 240, "ani.gate_hidden_size": 8, "dtype": "float32"}
    settings |= {"lora.r": 2, "lora.alpha": 4, "data.0.count": 48, "data.1.count": 48}
    settings |= {"training.batch_size": 8, "training.steps": 12, "training.log_every": 2, "training.save_every": 6}
    shown = command("demo", *(f"{key}={value}" for key, value in settings.items()), "--out", "demo")

    for name in ("data", "model", "eval", "eval-other", "gate-shares", "probe"):
        keep(name)
    for name in ("recipe.yaml", "comparison-of.yaml"):
        shutil.copy(name, STORED)
    keep("merged", "tokenizer*", "chat_template.jinja")
    keep("training")
    keep("stopped")
    keep("comparison", "probe")
    keep("demo", "training")
    for file in (STORED / "probe").glob("probe_*.jsonl"):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:4]))

    # Printed by the very functions that the test calls; and what the commands printed says the same.
    from tests import test_stored as test

    os.chdir(STORED)
    (STORED / "printed").mkdir(exist_ok=True)
    for name, make in {**test.PRINTED, **test.JSON, **test.PAGES}.items():
        (STORED / "printed" / name).write_text(make(), encoding="utf-8")
    read = {file.name: file.read_text(encoding="utf-8") for file in (STORED / "printed").iterdir()}
    assert read["compare.txt"] in compared
    assert all(test.shown(table) in shown for table in test.demo_tables())
    assert read["probe.txt"] in probed
    assert read["gate-shares.txt"] in shares_printed
    assert read["diff.txt"] == command("diff", "eval", "eval-other")
    assert json.loads(read["diff.json"]) == json.loads(command("diff", "eval", "eval-other", "--json"))
    assert json.loads(read["gate-shares.json"]) == json.loads(shares_json)
    assert json.loads(read["eval.json"]) == EVAL_JSON["eval"]
    (STORED / "adapter.json").write_text(test.as_json(test.adapter_facts()))


main()
