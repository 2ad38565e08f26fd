import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ani import InputError
from ani.tasks.answering import Answerer
from ani.tasks.gate_shares import GateShares, GateText
from tests.tiny import MIXED_TEXT, attached, pair

DATA = Path(__file__).parents[3] / "shared" / "data"
TASK = GateShares(texts=["gsm8k"])


def read(source: object, field: Sequence[str] = ("text",), seed: int = 0, **settings: Any) -> list[GateText]:
    return GateShares(texts=[str(source)], field=list(field), **settings).questions(seed)


@pytest.mark.parametrize("policy", ["terminal", "after"])
def test_a_record_for_every_text(policy: str) -> None:
    answerer = Answerer(*attached("qwen3", policy=policy))
    texts = [GateText(MIXED_TEXT, "notes", "a"), GateText("No number", "notes")]
    counted: list[int] = []
    records = list(TASK.answer(answerer, texts, counted.append))
    assert counted == [1, 1]
    assert [record.group for record in records] == ["a", None]
    assert {record.source for record in records} == {"notes"}
    assert records[0].numbers == answerer.decisions(MIXED_TEXT) != ()
    assert records[1].numbers == ()


def test_texts_that_do_not_fit_and_models_without_ani() -> None:
    model, tokenizer = attached("qwen3")  # reads 512 tokens
    with pytest.raises(InputError, match=r"the text 'word word .* of a has [\d,]+ tokens, but the model reads 512"):
        TASK.check([GateText("12", "b"), GateText("word " * 600, "a")], tokenizer, model.config)
    with pytest.raises(InputError, match="no ANI module"):
        list(TASK.answer(Answerer(*pair("qwen3")), [GateText("12", "a")], print))


# --- the texts ---


def test_records_with_fields_and_groups(tmp_path: Path) -> None:
    path = tmp_path / "mmlu.jsonl"
    records = [{"question": f"Q{i}?", "choices": ["x", str(i)], "subject": f"s{i % 2}"} for i in range(20)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    fields, group = ("question", "choices"), "subject"
    texts = read(path, fields, group=group)
    assert texts[:2] == [GateText("Q0?\nx\n0", "mmlu", "s0"), GateText("Q1?\nx\n1", "mmlu", "s1")] and len(texts) == 20
    assert read(path, ["question"])[3] == GateText("Q3?", "mmlu")
    few = read(path, fields, group=group, limit=5)
    assert set(few) < set(texts) and few != texts[:5]
    assert read(path, fields, group=group, limit=9)[:5] == few != read(path, fields, group=group, limit=5, seed=1)
    with pytest.raises(InputError, match=r"line 1: no text under 'text'; it has 'question', 'choices', 'subject'"):
        read(path)


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("\ufeffRoom 505\n\n  It holds 10\u2028people. \nEnd", encoding="utf-8")
    assert [text.text for text in read(path)] == ["Room 505", "  It holds 10\u2028people. ", "End"]
    assert {(text.source, text.group) for text in read(path)} == {("notes", None)}


def test_bad_files(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 12")
    for name, message in [("empty.txt", "holds no text"), ("latin.txt", "UTF-8"), ("none.txt", "can't be read")]:
        with pytest.raises(InputError, match=message):
            read(tmp_path / name)


@pytest.mark.parametrize(("task", "groups"), [("gsm8k", 1), ("math", 7), ("mmlu", 57)], ids=["gsm8k", "math", "mmlu"])
def test_the_benchmarks(task: str, groups: int) -> None:
    path = DATA / task / "test.jsonl"
    if not path.is_file():
        pytest.skip("the shared data sets are not there")
    texts = read(f"{task}={path}")
    assert {text.source for text in texts} == {task}
    assert len({text.group for text in texts}) == groups
    assert len(texts) > 1000
    assert read(f"{task}={path}", limit=7) == texts[:7]
