"""Reads from the code, for each deviation that docs/paper.md names, the value that the code uses."""

import copy
import json
import re
import tomllib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

import ani
from ani.chat import _ANSWER_AT_ONCE, rendered
from ani.compare.plan import Comparison
from ani.data import openmath_magpie
from ani.data.collator import IGNORED, NumberCollator, tokenize
from ani.data.openmath_magpie import build_openmath_magpie
from ani.data.records import Example
from ani.encoders import build_encoder
from ani.encoders.magnitude import MagnitudeNumberEncoder
from ani.evaluation.tasks.arithmetic import Problems
from ani.evaluation.tasks.benchmarks import equivalent
from ani.evaluation.tasks.gates import read_texts
from ani.evaluation.tasks.gsm8k import SAYS, Gsm8k
from ani.injection.methods import METHODS
from ani.injection.module import AniModule
from ani.probing.curve import ProbedNumber
from ani.probing.probes import ProbeResults
from ani.probing.selection import choose_layer
from ani.training.recipe import Recipe
from tests.paper import project
from tests.tiny import attached, encode, pair

ROOT = Path(__file__).parents[2]


def defaults() -> Recipe:
    return Recipe(output="x", ani={"layer": 24}, data=[{"kind": "diagnostic", "count": 1}])


def setting(name: str) -> Any:
    """A default, by section and key."""
    section, key = name.split(".")
    return getattr(getattr(defaults(), section), key)


def named(rule: str, applies: object) -> str:
    """The rule's name if it applies."""
    return rule if applies else f"not {rule}"


def chat(*turns: str) -> dict[str, Any]:
    return {"conversations": [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(turns)]}


def nominal_texts(*records: Any, count: int = 1, **options: int) -> tuple[list[str], list[str]]:
    """Labelled texts of chats, and the questions of their training examples."""
    with TemporaryDirectory() as folder:
        maths, chats, out = (Path(folder) / name for name in ("maths.jsonl", "chats.jsonl", "set"))
        shot = {"problem": "There are 15 trees in the grove.", "generated_solution": "21 - 15 = 6"}
        maths.write_text(
            "".join(json.dumps({**shot, "problem": shot["problem"] + "!" * n}) + "\n" for n in range(count))
        )
        chats.write_text("".join(json.dumps(record) + "\n" for record in records))
        build_openmath_magpie(out, quantitative=str(maths), nominal=str(chats), count=count, **options)
        files = [(out / name).read_text() for name in ("labelled.jsonl", "train.jsonl")]
    labelled, training = ([json.loads(line) for line in file.splitlines()] for file in files)
    of_maths = [line["text"] for line in labelled if line["roles"] == "quantitative"]
    assert all("15 trees" in text for text in of_maths)  # GSM8K's first shot, which nothing filters
    texts = [line["text"] for line in labelled if line["roles"] == "nominal"]
    return texts, [line["messages"][0]["content"] for line in training if line["roles"] == "nominal"]


def module(**settings: Any) -> Any:
    """An untrained module."""
    config = ani.AniConfig(**{"layer": 2, "hidden_size": 8, "embedding_scale": 1.0, **settings})
    return AniModule(config, build_encoder(config).width)


def enough() -> str:
    blind, seeing = chat("Who is in?", "Ann, in 5."), chat("Is 7 a bus?", "Yes.")
    _, questions = nominal_texts(blind, seeing)
    return named("numbers", questions == ["Is 7 a bus?"])


def layer_rule() -> str:
    """Probes of 4 layers; the third is best held out, the last on a random split."""
    of = [
        ProbedNumber(sentence=n, position=0, value=Decimal(n), role="nominal", domain="d", template=str(n))
        for n in range(60)
    ]
    best_at = {
        place: np.array([[n < (60 if layer == place else 30) for layer in range(4)] for n in range(60)])
        for place in (2, 3)
    }
    chance = np.zeros((60, 4), bool)
    results = ProbeResults((0, 10, 20, 30), of, best_at[3], np.ones(60, bool), chance, of, best_at[2], (1.0,) * 4)
    return named("held-out", choose_layer(results, range(40)).layer == 20)


def learnt_tokens() -> str:
    tokenizer = pair("qwen3")[1]
    example = tokenize(Example("Room 5 is", " up"), tokenizer, None, 64)
    labels = NumberCollator(tokenizer, None)([example])["labels"][0]
    return named("answer", (labels == IGNORED).sum() == example.prompt_length)


def scale_of_magnitudes() -> str:
    first, second, third = MagnitudeNumberEncoder(10).encode([99, 9_999, 999_999]).flatten().tolist()
    return named("logarithmic", abs((third - second) - (second - first)) < 1e-4)


def writes_numbers() -> str:
    whole = {name for kind in ("fone", "xval") for name, _ in module(**METHODS[kind].settings).named_parameters()}
    return named("digits", whole == {"projection.weight"})


def edited_state() -> str:
    model, tokenizer = attached("qwen3", layer=2)
    ids = encode(tokenizer, "The 12 men and 345")
    project.module_of(model).gate = None
    with torch.no_grad():
        project.module_of(model).projection.weight.normal_()
        states = model(ids, output_hidden_states=True).hidden_states
        ani.detach(model)
        before = model(ids, output_hidden_states=True).hidden_states
    changed = [place for place in range(3) if not torch.equal(states[place], before[place])]
    return named("after l blocks", changed == [2])


def same_again() -> str:
    texts, _ = nominal_texts(chat("Room 5?", "Up."), chat(" room  5?", "No, 6."), chat("Room 7?", "Up."), count=2)
    return named("dropped", sum("7" in text for text in texts) == 1)


def optimizer_groups() -> list[dict[str, Any]]:
    return project.optimizer(defaults(), attached("qwen3")[0]).param_groups


def searched() -> str:
    late = chat("Room 5?", "Up.", "And?", "Algebra.")
    return named("every turn", nominal_texts(late, chat("Room 7?", "Up."))[1] == ["Room 7?"])


def seeds() -> int:
    return len(Comparison.model_fields["seeds"].default)


def sums() -> Any:
    return project.rows("n-digit")["ani"].data[1].model_dump()


def base_chat() -> str:
    tokenizer = copy.deepcopy(pair("llama")[1])
    tokenizer.chat_template = None
    return named("plain", "User:\nHi" in rendered(tokenizer, [{"role": "user", "content": "Hi"}]))


def answer_tokens(task: str) -> int:
    return int(project.question(task, ROOT / "tests" / "rows" / f"{task}.jsonl").generation["max_gen_toks"])


def python() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])


def gigabytes() -> int:
    found = re.search(r"card of (\d+) GB", (ROOT / "docs" / "reproduce.md").read_text())
    assert found is not None
    return int(found[1])


def bare_question() -> str:
    (first, *_) = read_texts(f"math={ROOT / 'tests' / 'rows' / 'math.jsonl'}", [], None, 1, 0)
    problems = [
        json.loads(line)["problem"] for line in (ROOT / "tests" / "rows" / "math.jsonl").read_text().splitlines()
    ]
    return named("question", first.text in problems)


CODE: dict[str, Callable[[], Any]] = {
    "ani.gate_norm": lambda: isinstance(module().gate.norm, nn.RMSNorm),
    "the layer": layer_rule,
    "training.loss_on": learnt_tokens,
    "enough data": enough,
    "numbers that FoNE and xVal write": writes_numbers,
    "xVal's value": scale_of_magnitudes,
    "Table 2's integer digits": lambda: project.rows("n-digit")["ani"].ani.integer_digits,  # type: ignore[union-attr]
    "GSM8K's answer": lambda: SAYS if Gsm8k.judge("5", "The answer is 5.")["correct"] else "####",
    "tool routing": lambda: len(project.routing()),
    "Python": python,
    "GB of the GPU": gigabytes,
    "weight decay": lambda: max(group["weight_decay"] for group in optimizer_groups()),
    "precision": lambda: defaults().dtype,
    "seeds": seeds,
    "training.random_start": lambda: bool(module().projection.weight.any()),
    "α at the start": lambda: float(nn.functional.sigmoid(module().gate.outer.bias.detach())),
    "W_P of static, xval and fone at the start": lambda: named(
        "random", module(combine="replace").projection.weight.all()
    ),
    "the state of layer l": edited_state,
    "terms that exclude a chat": lambda: len({*", ".join(openmath_magpie.TERMS.values()).split(", ")}),
    "where they are searched": searched,
    "turns of a chat": lambda: named("first", nominal_texts(chat("A 1?", "B.", "C", "D"))[0] == ["A 1?\n\nB."]),
    "the same question again": same_again,
    "order of a source": lambda: openmath_magpie.SHUFFLE_BUFFER,
    "numbers of list items": lambda: named("removed", nominal_texts(chat("Bus 1?", "1. Up."))[0] == ["Bus 1?\n\nUp."]),
    "a long labelled text": lambda: openmath_magpie.MOST_CHARACTERS,
    "overlap with the tests": lambda: named("kept", nominal_texts(chat("Bus 1?", "Up."))),
    "Table 2's problems": lambda: ", ".join(Problems().operations),
    "sums that Table 2 learns from": lambda: sums()["count"],
    "tokens of GSM8K's answers": lambda: answer_tokens("gsm8k"),
    "tokens of MATH's answers": lambda: answer_tokens("math"),
    "MATH's verdict": lambda: named("math-verify", equivalent(r"\frac{1}{2}", "0.5")),
    "chats of models without a template": base_chat,
    "thinking of chat templates": lambda: _ANSWER_AT_ONCE["enable_thinking"],
    "Figure 6's texts": bare_question,
    "who answers": lambda: Comparison.model_fields["backend"].default,
}  # fmt: skip


def ours(name: str) -> Any:
    """The value that the code uses for a deviation of this name."""
    return CODE[name]() if name in CODE else setting(name)
