"""What a refactoring must not change: drawn data, and what the shipped adapter decides and answers.

Data is compared by a hash of its texts in order; numbers of a model only roughly, as processors round differently."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ani
from ani.data.arithmetic import arithmetic_problems
from ani.data.diagnostic import diagnostic_sentences
from tests.paper import project
from tests.tiny import encode, pair

FOUR = ["addition", "subtraction", "multiplication", "division"]


@pytest.mark.parametrize(
    ("source", "hashes"),
    [
        ({"kind": "arithmetic", "count": 300}, ["50c6933c012b", "b2aec0b1b333"]),
        (
            {"kind": "arithmetic", "count": 300, "digits": [1, 3, 7], "operations": FOUR},
            ["56c104f06d08", "3c7c211edb35"],
        ),
        ({"kind": "diagnostic", "count": 500}, ["585dbe10a697", "c79c4449ebf1"]),
        ({"kind": "labelled"}, ["9b4736523e37", "9b4736523e37"]),
    ],
)
def test_generated_examples_stay_the_same(source: dict[str, Any], hashes: list[str]) -> None:
    assert [project.drawn(source, seed) for seed in (0, 1)] == hashes


@pytest.mark.parametrize(
    ("kind", "keys", "hashes"),
    [
        ("gsm8k", ("question", "answer"), ["085c8ac08923", "d3caf5d39392"]),
        ("math", ("problem", "solution"), ["ae5c33b4114a", "4230cd03b58a"]),
    ],
)
def test_published_examples_are_drawn_in_the_same_order(
    kind: str, keys: tuple[str, str], hashes: list[str], tmp_path: Path
) -> None:
    rows = [[f"What is {n} + 1?", f"It is {n} + 1 = <<{n}+1={n + 1}>>{n + 1}."] for n in range(50)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    assert [project.drawn({"kind": kind, "path": str(data), "limit": 20}, seed) for seed in (0, 1)] == hashes


def test_questions_stay_the_same() -> None:
    operations: Any = FOUR
    sums = arithmetic_problems(300, digits=[2, 5, 9], operations=operations, split="test")
    splits: Any = ("train", "test")
    found = {
        "test sums": project.digest([problem.prompt for problem in sums]),
        "task arithmetic": project.digest([problem.prompt for problem in project.additions()]),
        "routing": project.digest(project.routing()),
        **{
            f"diagnostic, {split}": project.digest(
                [[each.text, [*map(project.role_name, each.roles)]] for each in diagnostic_sentences(500, split=split)]
            )
            for split in splits
        },
    }
    assert found == {
        "test sums": "5a64d81dcbee",
        "task arithmetic": "17588cca16d4",
        "routing": "bdcfd47ae840",
        "diagnostic, train": "c1a025d602c5",
        "diagnostic, test": "5630834b3a25",
    }


LAST = {
    # Likeliest next tokens with their logits; each number with whether it is injected.
    "Room 505 has a capacity of 10 people.": ({2: 19.24, 198: 15.63, 378: 15.38}, {"505": False, "10": True}),
    "Flight 714 was delayed by 45 minutes in 1998.": (
        {2: 20.11, 378: 17.47, 198: 17.34},
        {"714": False, "45": True, "1998": False},
    ),
    "She paid $7.50 for 3 books on page 12 and": (
        {260: 19.10, 216: 18.32, 253: 18.01},
        {"7.50": True, "3": True, "12": True},
    ),
    "Calculate 3071 + 455 =": ({216: 23.66, 253: 21.04, 260: 20.87}, {"3071": True, "455": True}),
}
SENTENCES = {
    "Exactly 108 grams of salt were added to the mixture.": {"108": ("quantitative", True)},
    "After 5 seasons the series had made its author rich.": {"5": ("quantitative", True)},
    "World 53 begins with a jump over a river of lava.": {"53": ("nominal", False)},
    "Reviewers gave the 849 headset 50 points out of a hundred.": {
        "849": ("nominal", True),
        "50": ("quantitative", True),
    },
}


def test_the_shipped_adapter_computes_and_decides_the_same() -> None:
    model, tokenizer = pair("smollm2")
    ani.load_adapter(model, tokenizer, "smollm2-adapter")
    for text, (likeliest, decisions) in LAST.items():
        with torch.no_grad():
            logits = model(input_ids=encode(tokenizer, text)).logits[0, -1]
        assert {token: float(logits[token]) for token in logits.topk(3).indices.tolist()} == pytest.approx(
            likeliest, abs=0.05
        )
        assert {each.text: each.injected for each in ani.inspect(model, tokenizer, text)} == decisions

    gates = project.records("gates", {"limit": len(SENTENCES)}, model, tokenizer)
    assert {
        record.text: {n.text: (project.role_name(n.role), n.injected) for n in record.numbers} for record in gates
    } == SENTENCES
    sums = project.records("arithmetic", {"count": 1, "digits": [2, 3]}, model, tokenizer)
    assert [(each.prompt, each.answer, each.prediction, each.correct) for each in sums] == [
        ("Calculate 55 + 20 =", "75", "75", True),
        ("Calculate 949 + 410 =", "1359", "1011", False),
    ]
