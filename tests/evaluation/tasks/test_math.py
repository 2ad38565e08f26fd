from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks.hendrycks_math.utils import last_boxed_only_string, remove_boxed

from ani.evaluation.tasks.math import Math, boxed_answer
from ani.text_files import json_lines
from tests.evaluation.tasks.test_gsm8k import ROWS
from tests.json_lines import write_lines
from tests.refusals import refused

ROW = {"problem": "What is x?", "level": "Level 3", "type": "Algebra", "solution": r"It is $\boxed{\frac12}$."}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} or rather $\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"\boxed{ \{1, 2\} }", r"\{1, 2\}"),
        (r"\boxed {x^{2}} and \boxed{cut sho", "x^{2}"),
        (r"\boxed{}", ""),
        ("8", None),
        (r"\boxed{\frac{1}", None),
    ],
)
def test_boxes(text: str, answer: str | None) -> None:
    assert boxed_answer(text) == answer


def test_gold_solutions_are_right_and_others_wrong() -> None:
    texts = [row["solution"] for _, row in json_lines(ROWS / "math.jsonl")]
    golds = [remove_boxed(last_boxed_only_string(text)) for text in texts]
    for gold, text in zip(golds, texts, strict=True):
        other = next(each for each in golds if each != gold)
        assert Math.judge(gold, text)["correct"]
        assert not Math.judge(gold, rf"{text}\n\boxed{{{other}}}")["correct"]


def test_rows_and_the_harness(tmp_path: Path) -> None:
    file = str(write_lines(tmp_path / "test.jsonl", ROW, {**ROW, "level": "Level ?"}))
    first, second = sorted(Math.read(file)["test"], key=lambda row: row["id"])
    assert first == {"id": 0, "question": "What is x?", "answer": r"\frac12", "subject": "Algebra", "level": 3}
    assert second["level"] is None
    task: Any = Math(data=file).harness(seed=0)
    assert [task.process_results(task.eval_docs[0], [text])["acc"] for text in (r"\boxed{0.5}", "0.5")] == [1, 0]


@pytest.mark.parametrize(("key", "value"), [("level", 3), ("solution", "5")])
def test_bad_rows_are_named(key: str, value: Any, tmp_path: Path) -> None:
    file = str(write_lines(tmp_path / "test.jsonl", ROW, {**ROW, key: value}))
    refused(lambda: Math.read(file), file, "line 2", f"'{key}'")
