from pathlib import Path
from typing import Any

import datasets
import pytest

from ani.evaluation.tasks.gsm8k import Gsm8k, marked_answer
from ani.text_files import json_lines
from tests.json_lines import write_lines
from tests.refusals import refused

ROWS = Path(__file__).parents[2] / "rows"
"""Rows of our own in the form of the data sets."""
ROW = {"question": "How many?", "answer": "Many.\n#### 1,234"}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 7\nNo, wait.\n#### $1,234.50 in 2 years", ("1234.50", "####")), ("#### -$5", ("-5", "####")),
        (r"#### **\boxed{42}**", ("42", "####")), ("#### 3/4 cups", ("3/4", "####")), ("#### none", None),
        ("The answer is 2 * (3 + $4) = 2 * 7 = $14.", ("14", "The answer is")),
        ("The answer is 9. If x = 2, it is 7.", ("9", "The answer is")), ("The answer is 9. #### 8", ("8", "####")),
        ("It is 18.", None),
    ],
)  # fmt: skip
def test_marked_numbers(text: str, answer: tuple[str, str] | None) -> None:
    assert marked_answer(text) == answer


def test_gold_solutions_are_right_and_altered_ones_wrong() -> None:
    for _, row in json_lines(ROWS / "gsm8k.jsonl"):
        gold = row["answer"].split("#### ")[1].replace(",", "")
        assert Gsm8k.judge(gold, row["answer"])["correct"]
        assert not Gsm8k.judge(gold, f"{row['answer']}\n#### {gold}1")["correct"]


def test_rows_and_the_harness(tmp_path: Path) -> None:
    file = str(write_lines(tmp_path / "test.jsonl", ROW))
    for data in (file, str(tmp_path)):
        assert list(Gsm8k.read(data)["test"]) == [{"id": 0, "question": "How many?", "answer": "1234"}]
    task: Any = Gsm8k(data=file).harness(seed=0)
    assert [task.process_results(task.eval_docs[0], [f"#### {n}"])["acc"] for n in (1234, 1235)] == [1, 0]


def test_sets_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def load_dataset(name: str, *configuration: str, split: str, streaming: bool) -> list[Any]:
        asked.append((name, *configuration, split))
        return [ROW]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(
        datasets, "get_dataset_config_names", lambda name: ["main"] if "openai" in name else ["default"]
    )
    for name in (None, "openai/gsm8k", "some/gsm8k"):
        assert len(Gsm8k.read(name)["test"]) == 1
    assert asked == [("openai/gsm8k", "main", "test")] * 2 + [("some/gsm8k", "test")]


def test_bad_rows_and_files_without_a_question_are_named(tmp_path: Path) -> None:
    file = str(write_lines(tmp_path / "test.jsonl", ROW, {**ROW, "answer": "5"}))
    refused(lambda: Gsm8k.read(file), file, "line 2", "'answer'")
    refused(lambda: Gsm8k.read(str(tmp_path / "nothing.jsonl")), "nothing.jsonl")
    refused(lambda: Gsm8k.read(str(write_lines(tmp_path / "test.jsonl"))), "no question")
