"""Task `math`: competition problems, 4-shot with chains of thought (paper, "MATH Evaluation Template")."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ani.data.sources import MATH
from ani.errors import InputError
from ani.evaluation.tasks.benchmarks import Benchmark, Row, equivalent, rows, split, text_of

if TYPE_CHECKING:
    from datasets import Dataset

_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"(?<!\\)[{}]")


class Math(Benchmark):
    """Competition problems, 4-shot with chains of thought."""

    name = "math"

    @staticmethod
    def read(data: str | None = None, seed: int = 0, **_: Any) -> "dict[str, Dataset]":
        """Return rows of `id`, `question`, `answer` (LaTeX), `subject`, `level` (1 to 5; None: the set says "Level
        ?")."""
        return split(rows(data, "test", MATH, _row), seed)

    @staticmethod
    def judge(answer: str, output: str) -> dict[str, Any]:
        """Return `prediction` (None without a box) and `correct`."""
        prediction = boxed_answer(output)
        return {"prediction": prediction, "correct": prediction is not None and equivalent(answer, prediction)}


def boxed_answer(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}`; None if there is none."""
    boxes = {box.end() - 1 for box in _BOX.finditer(text)}
    opened: list[int] = []
    last: tuple[int, int] | None = None  # the braces around the box that begins last
    for brace in _BRACE.finditer(text):
        place = brace.start()
        if brace[0] == "{":
            opened.append(place)
        elif opened and (start := opened.pop()) in boxes and (last is None or start > last[0]):
            last = (start, place)
    return None if last is None else text[last[0] + 1 : last[1]].strip()


def results(doc: dict[str, Any], outputs: Sequence[str]) -> dict[str, float]:
    """Return lm-evaluation-harness's `process_results`."""
    return {"acc": float(Math.judge(doc["answer"], outputs[0])["correct"])}


def _row(record: Any, where: str) -> Row:
    question, solution = text_of(record, "problem", where), text_of(record, "solution", where)
    answer = boxed_answer(solution)
    if not answer:
        raise InputError(rf"{where}: 'solution' must contain the answer in \boxed{{}}")
    level = text_of(record, "level", where).removeprefix("Level ")
    return {
        "question": question,
        "answer": answer,
        "subject": text_of(record, "type", where),
        "level": int(level) if level in ("1", "2", "3", "4", "5") else None,
    }


read = Math.read  # math.yaml names it
