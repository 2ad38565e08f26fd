"""Task `math`: competition problems, 4-shot with chains of thought (paper, "MATH Evaluation Template"). Task
`math-chat`: the same problems in a plain chat."""

from collections.abc import Sequence
from typing import Any, cast

from pydantic import Field

from ani.data.sources import MATH
from ani.errors import InputError
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers
from ani.evaluation.tasks.benchmarks import (
    Benchmark,
    BenchmarkAnswer,
    BenchmarkQuestion,
    Row,
    boxed_answer,
    equivalent,
    last_number,
    same_text,
    text_of,
)


class Math(Benchmark):
    """Competition problems, 4-shot with chains of thought."""

    name, hub = "math", MATH

    cut: int | None = Field(default=None, ge=1)
    """Also judge answers that are cut off after this many tokens, and by their text alone, without math-verify."""

    def answer(self, engine: Engine, questions: Sequence[BenchmarkQuestion]) -> Answers:
        for place, (record,) in super().answer(engine, questions):
            more = {} if self.cut is None else {"ways": self.ways(engine, questions[place], cast(Any, record))}
            yield place, [record.model_copy(update=more)]

    def ways(self, engine: Engine, question: BenchmarkQuestion, record: BenchmarkAnswer) -> dict[str, bool]:
        """Return the verdict on the whole answer and on the one that is cut off, by each rule."""
        tokens = cast(Any, engine.tokenizer)(record.output, add_special_tokens=False)["input_ids"]
        cut = str(engine.tokenizer.decode(tokens[: self.cut]))
        return {
            f"{room:,} tokens, {name}": (found := boxed_answer(text)) is not None and rule(str(record.answer), found)
            for room, text in ((self.cut or 0, cut), (question.new_tokens, str(record.output)))
            for name, rule in (("as text", same_text), ("math-verify", equivalent))
        }

    @staticmethod
    def row(record: Any, where: str) -> Row:
        """Return `question`, `answer` (LaTeX), `subject` and `level` (1 to 5; None: the set says "Level ?")."""
        question, solution = text_of(record, "problem", where), text_of(record, "solution", where)
        if not (answer := boxed_answer(solution)):
            raise InputError(rf"{where}: 'solution' must contain the answer in \boxed{{}}")
        subject, level = (text_of(record, key, where) for key in ("type", "level"))
        level = level.removeprefix("Level ")
        known = int(level) if level in ("1", "2", "3", "4", "5") else None
        return {"question": question, "answer": answer, "subject": subject, "level": known}

    @staticmethod
    def judge(answer: str, output: str) -> dict[str, Any]:
        """Return `prediction` (None without a box) and `correct`."""
        prediction = boxed_answer(output)
        return {"prediction": prediction, "correct": prediction is not None and equivalent(answer, prediction)}


class MathChat(Math):
    """MATH's problems in a plain chat, without examples."""

    name = "math-chat"

    @staticmethod
    def judge(answer: str, output: str) -> dict[str, Any]:
        """Return the facts of `Math.judge`. In an answer without a box the last number counts."""
        found = Math.judge(answer, output)
        if found["prediction"] is None and (prediction := last_number(output)):
            found = {"prediction": prediction, "correct": equivalent(answer, prediction)}
        return found


read, results, chat_results = Math.read, Math.results, MathChat.results  # named by math.yaml and math-chat.yaml
