"""Task `gsm8k`: word problems, 8-shot with chains of thought (paper, "GSM8K Evaluation Template"). Task `gsm8k-chat`:
the same problems in a plain chat."""

import re
from typing import Any

from ani.errors import InputError
from ani.evaluation.tasks.benchmarks import Benchmark, Row, boxed_answer, equivalent, last_number, text_of
from ani.numbers import find_numbers

GSM8K = [("openai/gsm8k", "main")]
MARKER = "####"
SAYS = "The answer is"
"""The two ways to give an answer: the paper's instruction asks for the first, its examples show the second."""

_SAYS = re.compile(r"the (?:final )?answer is", re.IGNORECASE)
_CALCULATION = re.compile(r"[\s\d.,+\-*/×÷()%]*=")
_DENOMINATOR = re.compile(r"\s*/\s*(\d+)\b(?![.,]\d)")


class Gsm8k(Benchmark):
    """Word problems, 8-shot with chains of thought."""

    name, hub = "gsm8k", GSM8K

    @staticmethod
    def row(record: Any, where: str) -> Row:
        """Return `question` and `answer` (plain digits)."""
        question, solution = text_of(record, "question", where), text_of(record, "answer", where)
        answer = marked_answer(solution) if MARKER in solution else None
        if answer is None:
            raise InputError(f"{where}: 'answer' must end in {MARKER} and a number")
        return {"question": question, "answer": answer[0]}

    @staticmethod
    def judge(answer: str, output: str) -> dict[str, Any]:
        """Return `prediction`, `marker` (`MARKER`, `SAYS` or None) and `correct`."""
        prediction, marker = marked_answer(output) or (None, None)
        correct = prediction is not None and equivalent(answer, prediction)
        return {"prediction": prediction, "marker": marker, "correct": correct}


class Gsm8kChat(Gsm8k):
    """GSM8K's problems in a plain chat, without examples."""

    name = "gsm8k-chat"

    @staticmethod
    def judge(answer: str, output: str) -> dict[str, Any]:
        """Return the facts of `Gsm8k.judge`. In an answer without a marker, as small models write, the last box counts,
        else the last number."""
        found = Gsm8k.judge(answer, output)
        if found["marker"] is None and (prediction := last_number(boxed_answer(output) or output)):
            found |= {"prediction": prediction, "correct": equivalent(answer, prediction)}
        return found


def marked_answer(text: str) -> tuple[str, str] | None:
    """Return the number, as plain digits, after the last `####`, else after the last "The answer is", and the marker.

    A number may be a fraction (`3/4`), or the result of a calculation (`3 + 4 = 7`); everything around it (`$`, a unit,
    a box) is left out.
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


read, results, chat_results = Gsm8k.read, Gsm8k.results, Gsm8kChat.results  # named by gsm8k.yaml and gsm8k-chat.yaml
