import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks.hendrycks_math.utils import last_boxed_only_string, remove_boxed

from ani.evaluation.tasks.benchmarks import equivalent
from ani.evaluation.tasks.gsm8k import Gsm8k, marked_answer
from ani.evaluation.tasks.math import Math, boxed_answer
from ani.text_files import json_lines

ROWS = Path(__file__).parents[2] / "rows"
"""Rows of our own in the form of the data sets."""


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{8}.", "8"),
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


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3 * 6 = 18\n#### 18", ("18", "####")),
        ("#### 7\nNo, wait.\n#### $1,234.50 in 2 years", ("1234.50", "####")),
        ("#### [-5]", ("-5", "####")),
        ("#### -$5", ("-5", "####")),
        (r"#### **\boxed{42}**", ("42", "####")),
        ("####\n42", ("42", "####")),
        ("#### 3/4 cups", ("3/4", "####")),
        ("#### none", None),
        ("The answer is 9.", ("9", "The answer is")),
        ("The answer is 2 * (3 + $4) = 2 * 7 = $14.", ("14", "The answer is")),
        ("The answer is 9. If x = 2, it is 7.", ("9", "The answer is")),
        ("so the final answer is: $20.", ("20", "The answer is")),
        ("The answer is 9. #### 8", ("8", "####")),
        ("The answer is 9.\n#### ?", ("9", "The answer is")),
        ("It is 18.", None),
        ("", None),
    ],
)
def test_marked_numbers(text: str, answer: tuple[str, str] | None) -> None:
    assert marked_answer(text) == answer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("18", "18.00"),
        ("0.75", "3/4"),
        (r"\frac{1}{2}", r"\dfrac12"),
        ("1234", "1,234"),
        (r"10,\!000", "10000"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"\text{(C)}", "C"),
        ("1,2", "2,1"),
        ("5", "x = 5"),
        (r"90^\circ", "90"),
        (r"\frac{7}{5} + \frac{1}{5}i.", r"\frac{7+i}{5}"),
    ],
)
def test_equal_answers(one: str, other: str) -> None:
    assert equivalent(one, other) and equivalent(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("18", "-18"),
        ("1234", "1,235"),
        (r"\frac{1}{2}", "0.49"),
        ("(1,2)", "(2,1)"),
        ("3", "3,5"),
        ("506_7", "506_8"),
        (r"\text{odd}", r"\text{even}"),
        ("1", r"\frac{"),
        ("1" * 600, "1" * 599 + "2"),
    ],
)
def test_different_answers(one: str, other: str) -> None:
    assert not equivalent(one, other) and not equivalent(other, one)


def test_off_the_main_thread() -> None:
    judged: list[bool] = []
    thread = threading.Thread(target=lambda: judged.extend([equivalent("1/2", "0.5"), equivalent("1/2", "0.6")]))
    thread.start()
    thread.join()
    assert judged == [True, False]


def changed(answer: str, others: Iterator[str]) -> str:
    """The answer with its first digit one greater, or another question's."""
    digit = next((i for i, character in enumerate(answer) if character.isdigit()), None)
    if digit is None:
        return next(other for other in others if other != answer)
    return answer[:digit] + str((int(answer[digit]) + 1) % 10) + answer[digit + 1 :]


@pytest.mark.parametrize(
    ("name", "solution", "read", "judge", "write"),
    [
        ("gsm8k", "answer", lambda text: text.split("#### ")[1].replace(",", ""), Gsm8k.judge, "#### {}"),
        ("math", "solution", lambda text: remove_boxed(last_boxed_only_string(text)), Math.judge, r"\boxed{{{}}}"),
    ],
)
def test_gold_solutions_are_right_and_altered_ones_wrong(
    name: str, solution: str, read: Callable[[str], str], judge: Callable[[str, str], dict[str, Any]], write: str
) -> None:
    texts = [row[solution] for _, row in json_lines(ROWS / f"{name}.jsonl")]
    golds = [read(text) for text in texts]
    right = sum(judge(gold, text)["correct"] for gold, text in zip(golds, texts, strict=True))
    altered = [f"{text}\n{write.format(changed(gold, iter(golds)))}" for gold, text in zip(golds, texts, strict=True)]
    wrong = sum(not judge(gold, text)["correct"] for gold, text in zip(golds, altered, strict=True))
    assert right == wrong == len(texts) >= 10
