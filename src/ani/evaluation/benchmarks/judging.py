"""Finds the answer that a text gives, and tells whether it equals the right one."""

import re
import threading
from collections.abc import Sequence
from typing import Any

from ani.numbers import find_numbers

MARKER = "####"
SAYS = "The answer is"
"""GSM8K's two ways to give an answer: the paper's instruction wants the first, its examples show the second."""

LONGEST_ANSWER = 500
"""Characters; longer ones are compared as texts only, because parsing may take forever."""

_SAYS = re.compile(r"the (?:final )?answer is", re.IGNORECASE)
_CALCULATION = re.compile(r"[\s\d.,+\-*/×÷()%]*=")
_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"(?<!\\)[{}]")
_DENOMINATOR = re.compile(r"\s*/\s*(\d+)\b(?![.,]\d)")
_BASE = re.compile(r"\d\s*_\s*\{?(\d+)\}?$")
_NOT_SEEN = re.compile(r"\\(?:left|right|displaystyle|[!,;: ])|[$\s]")
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf)\{([^{}]*)\}")


def boxed_answer(text: str) -> str | None:
    r"""What the last complete `\boxed{…}` holds; None if there is none."""
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


def marked_answer(text: str) -> tuple[str, str] | None:
    """The number, as plain digits, after the last `####`, else after the last "The answer is", and which it was.

    A number may be a fraction (`3/4`), or come out of a calculation (`3 + 4 = 7`); everything else around it (`$`, a
    unit, a box) is left out.
    """
    for marker, pattern in ((MARKER, MARKER), (SAYS, _SAYS)):
        for match in reversed([*re.finditer(pattern, text)]):
            rest = text[match.end() :].replace("$", "")  # -$5 is a negative number
            while calculation := _CALCULATION.match(rest):
                rest = rest[calculation.end() :]
            for number in find_numbers(rest)[:1]:
                below = _DENOMINATOR.match(rest, number.end)
                return f"{number.value:f}" + (f"/{below[1]}" if below else ""), marker
    return None


def equivalent(gold: str, answer: str) -> bool:
    """Whether two answers mean the same: as texts, or as mathematics by math-verify.

    math-verify limits its time by a signal, which only the main thread may set; elsewhere it works without a limit.
    """
    if _plain(gold) == _plain(answer):
        return True
    if max(len(gold), len(answer)) > LONGEST_ANSWER:
        return False
    bases = [match[1] for text in (gold, answer) if (match := _BASE.search(text))]
    if len(set(bases)) > 1:
        return False  # 506_7 is not 506_8: math-verify leaves the base out
    from math_verify import LatexExtractionConfig, parse, verify

    seconds: Any = 5 if threading.current_thread() is threading.main_thread() else None
    parsed = [
        # In a box of its own: without one, a right answer may be read as nothing.
        parse(f"\\boxed{{{text}}}", [LatexExtractionConfig(boxed_match_priority=0)], parsing_timeout=seconds)
        for text in (gold.removesuffix("."), answer.removesuffix("."))
    ]
    return all(parsed) and bool(verify(*parsed, timeout_seconds=seconds))


def judge_gsm8k(answer: str, output: str) -> dict[str, Any]:
    """`prediction`, `marker` (which of the two ways; None if neither) and `correct`."""
    prediction, marker = marked_answer(output) or (None, None)
    correct = prediction is not None and equivalent(answer, prediction)
    return {"prediction": prediction, "marker": marker, "correct": correct}


def judge_math(answer: str, output: str) -> dict[str, Any]:
    """`prediction` (None without a box) and `correct`."""
    prediction = boxed_answer(output)
    return {"prediction": prediction, "correct": prediction is not None and equivalent(answer, prediction)}


def judge_mmlu(answer: int, output: Sequence[float]) -> dict[str, Any]:
    """`answer` and `prediction` (the likeliest) as letters, and `correct`."""
    best = max(range(4), key=lambda choice: output[choice])
    return {"answer": "ABCD"[answer], "prediction": "ABCD"[best], "correct": best == answer}


def gsm8k_results(doc: dict[str, Any], outputs: Sequence[str]) -> dict[str, float]:
    """lm-evaluation-harness's `process_results`."""
    return {"acc": float(judge_gsm8k(doc["answer"], outputs[0])["correct"])}


def math_results(doc: dict[str, Any], outputs: Sequence[str]) -> dict[str, float]:
    """lm-evaluation-harness's `process_results`."""
    return {"acc": float(judge_math(doc["answer"], outputs[0])["correct"])}


def _plain(answer: str) -> str:
    words = _WORDS.sub(r"\1", answer)
    return _NOT_SEEN.sub("", words).replace("dfrac", "frac").replace("tfrac", "frac").removesuffix(".")
