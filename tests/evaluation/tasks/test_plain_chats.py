"""Tasks `gsm8k-chat` and `math-chat`: the question alone, and an answer without a marker or box counts, too."""

from pathlib import Path
from typing import Any, cast

import pytest

from ani.evaluation.tasks import TASKS
from tests.json_lines import write_lines

GSM8K = {"question": "How many are 2 and 3?", "answer": "2 + 3 = 5.\n#### 5"}
MATH = {"problem": "How many are 2 and 3?", "solution": r"\boxed{5}.", "type": "Algebra", "level": "Level 1"}


@pytest.mark.parametrize(
    ("task", "record", "right"),
    [("gsm8k", GSM8K, "They are 5. The answer is 5."), ("math", MATH, r"They are \boxed{5}.")],
)
def test_a_plain_chat_contains_the_question_and_how_to_mark_the_answer(
    task: str, record: dict[str, Any], right: str, tmp_path: Path
) -> None:
    file = str(write_lines(tmp_path / "test.jsonl", record))
    chat: Any = TASKS[f"{task}-chat"](data=file)
    ((question,), (shots,)) = (each.questions(0) for each in (chat, TASKS[task](data=file)))
    (message,) = question.messages
    assert message["role"] == "user" and message["content"].startswith("How many are 2 and 3?\n\n")
    assert "Olivia" not in message["content"] and "Olivia" in shots.messages[-1]["content"]
    assert question.generation == shots.generation and question.doc == shots.doc
    assert chat.judge(question.doc["answer"], right)["correct"]


def test_without_a_marker_the_last_box_or_number_of_a_plain_chat_counts() -> None:
    judge: Any = TASKS["gsm8k-chat"]
    for text in (r"2 + 3 = \boxed{5} of 7", "2 + 3 = 5", "The answer is 5, not 6.", "#### 5\n6"):
        assert judge.judge("5", text)["correct"], text
        assert not judge.judge("4", text)["correct"], text
    assert judge.judge("5", "Five.")["prediction"] is None


def test_without_a_box_the_last_number_of_a_plain_chat_counts() -> None:
    chat, shots = (TASKS[name] for name in ("math-chat", "math"))
    judge: Any = chat
    assert judge.judge(r"\frac{1}{2}", "0.5")["correct"] and judge.judge("-1", "It is 7 - 8 = -1.")["correct"]
    assert not judge.judge("7", r"\boxed{5} or 7")["correct"]
    assert judge.judge("7", "Seven.") == {"prediction": None, "correct": False}
    assert not cast(Any, shots).judge("7", "7")["correct"]


@pytest.mark.parametrize(("task", "record"), [("gsm8k", GSM8K), ("math", MATH)])
def test_the_harness_judges_a_plain_chat_alike(task: str, record: dict[str, Any], tmp_path: Path) -> None:
    file = str(write_lines(tmp_path / "test.jsonl", record))
    for name, right in ((f"{task}-chat", 1), (task, 0)):
        tasks: Any = TASKS[name]
        harness: Any = tasks(data=file).harness(0)
        assert harness.config.process_results({"answer": "5"}, ["2 + 3 = 5"]) == {"acc": right}
