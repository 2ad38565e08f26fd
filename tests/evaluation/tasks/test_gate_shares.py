import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ani.evaluation.backend import TransformersBackend
from ani.evaluation.tasks.gate_shares import GateShares, GateText
from tests.answers import answers_of
from tests.json_lines import write_lines
from tests.refusals import refused
from tests.tiny import MIXED_TEXT, attached, pair

ROWS = Path(__file__).parents[2] / "rows"
"""Rows of our own in the form of the data sets."""
TASK = GateShares(texts=["gsm8k"])


def read(source: object, field: Sequence[str] = ("text",), seed: int = 0, **settings: Any) -> list[GateText]:
    return GateShares(texts=[str(source)], field=list(field), **settings).questions(seed)


@pytest.mark.parametrize("policy", ["terminal", "after"])
def test_a_record_for_every_text(policy: str) -> None:
    answerer = TransformersBackend(*attached("qwen3", policy=policy))
    texts = [GateText(MIXED_TEXT, "notes", "a"), GateText("No number", "notes")]
    records = answers_of(TASK, answerer, texts)
    assert [record.group for record in records] == ["a", None]
    assert {record.source for record in records} == {"notes"}
    assert records[0].numbers == answerer.decide(MIXED_TEXT) != ()
    assert records[1].numbers == ()


def test_texts_that_do_not_fit_and_models_without_ani() -> None:
    model, tokenizer = attached("qwen3")  # reads 512 tokens
    texts = [GateText("12", "b"), GateText("word " * 600, "a")]
    told = refused(lambda: TASK.check(texts, tokenizer, model.config), "the text 'word word … of a has ")
    assert re.search(r" of a has [\d,]+ tokens, but the model reads 512", told)
    refused(lambda: answers_of(TASK, TransformersBackend(*pair("qwen3")), [GateText("12", "a")]), "no ANI module")


# --- the texts ---


def test_records_with_fields_and_groups(tmp_path: Path) -> None:
    records = [{"question": f"Q{i}?", "choices": ["x", str(i)], "subject": f"s{i % 2}"} for i in range(20)]
    path = write_lines(tmp_path / "mmlu.jsonl", *records)
    fields, group = ("question", "choices"), "subject"
    texts = read(path, fields, group=group)
    assert texts[:2] == [GateText("Q0?\nx\n0", "mmlu", "s0"), GateText("Q1?\nx\n1", "mmlu", "s1")] and len(texts) == 20
    assert read(path, ["question"])[3] == GateText("Q3?", "mmlu")
    few = read(path, fields, group=group, limit=5)
    assert set(few) < set(texts) and few != texts[:5]
    assert read(path, fields, group=group, limit=9)[:5] == few != read(path, fields, group=group, limit=5, seed=1)
    refused(lambda: read(path), "line 1: no text under 'text'; it has 'question', 'choices', 'subject'")


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("\ufeffRoom 505\n\n  It holds 10\u2028people. \nEnd", encoding="utf-8")
    assert [text.text for text in read(path)] == ["Room 505", "  It holds 10\u2028people. ", "End"]
    assert {(text.source, text.group) for text in read(path)} == {("notes", None)}


def test_bad_files(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 12")
    refused(lambda: read(tmp_path / "empty.txt"), "holds no text")
    refused(lambda: read(tmp_path / "latin.txt"), "UTF-8")
    refused(lambda: read(tmp_path / "none.txt"), "can't be read")


@pytest.mark.parametrize(("task", "groups", "count"), [("gsm8k", 1, 10), ("math", 7, 15), ("mmlu", 2, 3)])
def test_the_benchmarks(task: str, groups: int, count: int) -> None:
    """Five rows of each subject of MMLU are examples."""
    path = ROWS / f"{task}.jsonl"
    texts = read(f"{task}={path}")
    assert {text.source for text in texts} == {task}
    assert len({text.group for text in texts}) == groups
    assert len(texts) == count
    assert read(f"{task}={path}", limit=3) == texts[:3]
