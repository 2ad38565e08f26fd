from pathlib import Path
from typing import Any

from lm_eval.tasks.hendrycks_math.utils import last_boxed_only_string, remove_boxed

from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks.benchmarks import boxed_answer
from ani.evaluation.tasks.math import Math
from ani.injection.methods import METHODS
from ani.text_files import json_lines
from tests.answers import answers_of
from tests.evaluation.tasks.test_gsm8k import ROWS
from tests.json_lines import write_lines
from tests.refusals import refused
from tests.tiny import tiny
from tests.tokenizers import qwen

ROW = {"problem": "What is x?", "level": "Level 3", "type": "Algebra", "solution": r"It is $\boxed{\frac12}$."}


def test_boxes() -> None:
    expected = {r"\boxed{1} or rather $\boxed{\frac{1}{2}}$": r"\frac{1}{2}", r"\boxed{ \{1, 2\} }": r"\{1, 2\}"}
    expected |= {r"\boxed {x^{2}} and \boxed{cut sho": "x^{2}", r"\boxed{}": "", "8": None, r"\boxed{\frac{1}": None}
    assert {text: boxed_answer(text) for text in expected} == expected


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


class Says(TransformersEngine):
    """Gives one answer; a word is a token."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.tokenizer, self.method, self.config = answers, qwen(), METHODS["ani"], tiny("qwen3").config

    def ids(self, prompt: Any) -> list[int]:
        return [1]

    def generate(self, prompts: Any, *_: Any, **__: Any) -> Any:
        return enumerate(self.answers)


def test_answers_are_judged_by_length_and_rule(tmp_path: Path) -> None:
    file = str(write_lines(tmp_path / "test.jsonl", ROW, ROW, ROW))
    late = "So " * 30
    says = [rf"\boxed{{\frac12}} {late}", rf"{late} \boxed{{0.5}}", rf"\boxed{{3}} {late} \boxed{{\frac{{1}}{{2}}}}"]
    task = Math(data=file, cut=20)
    records = answers_of(task, Says(*says), task.questions(0))
    whole, cut, rules = "2,048 tokens", "20 tokens", ("as text", "math-verify")
    expected = [(True, True, True, True), (False, False, False, True), (False, False, False, True)]
    columns = [f"{length}, {rule}" for length in (cut, whole) for rule in rules]
    assert [record.ways for record in records] == [dict(zip(columns, verdicts, strict=True)) for verdicts in expected]
    assert [record.correct for record in records] == [True, True, True]
    table = Math.tables(records)[-1]
    assert table.header == ("Run", *columns)
    assert [cell.text for cell in table.rows[0][1:]] == ["33.3%", "33.3%", "33.3%", "100.0%"]


def test_bad_rows_are_named(tmp_path: Path) -> None:
    file = str(write_lines(tmp_path / "test.jsonl", ROW, {**ROW, "level": 3}))
    refused(lambda: Math.read(file), file, "line 2", "'level'")
