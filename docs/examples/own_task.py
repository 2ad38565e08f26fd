"""A task of one's own, beside ANI's: of two numbers such as 9.9 and 9.11, which is larger?"""

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from pydantic import Field

from ani.cli import main
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, Task
from ani.evaluation.tasks import TASKS
from ani.numbers import find_numbers
from ani.results.scores import Answer, scores
from ani.results.statistics import grouped_share, share_facts
from ani.results.tables import Cell, Table, percent


class LargerAnswer(Answer):
    """A line of `larger.jsonl`, beside what every answer says: run, seed, prediction, correct."""

    known_by = ("question",)  # by which the runs of a comparison are paired
    question: str
    output: str


class Larger(Task):
    """Its settings are its fields: `larger: {count: 20}` in a comparison, `--limit 20` of `ani eval`."""

    name = "larger"
    title = "The larger number"  # of its section of the page
    unit = "pairs"
    record = LargerAnswer
    count: int = Field(default=100, ge=1, le=10_000)

    def questions(self, seed: int) -> list[tuple[str, str]]:
        draw = random.Random(f"larger {seed}")
        wholes = draw.sample(range(10_000), self.count)
        return [(f"{n}.{draw.randint(1, 9)}", f"{n}.{draw.randint(1, 9)}{draw.randint(1, 9)}") for n in wholes]

    def answer(self, engine: Engine, questions: Sequence[Any]) -> Answers:
        asked = [f"Which is larger, {a} or {b}? The larger one is" for a, b in questions]
        for place, output in engine.generate(asked, max_new_tokens=12):
            said = next((number.value for number in find_numbers(output)), None)
            right = said == max(map(Decimal, questions[place]))
            judged = {"prediction": None if said is None else str(said), "correct": right}
            yield place, [LargerAnswer(question=asked[place], output=output, **judged)]

    @classmethod
    def summary(cls, records: Sequence[Any]) -> Any:  # of --json
        return share_facts(grouped_share((r.question, r.seed, r.correct) for r in records))

    @classmethod
    def tables(cls, records: Sequence[Any], baseline: str | None = None) -> list[Table]:
        runs = scores(records, task=lambda _: cls.name, part=lambda _: None)  # shares are means over seeds
        rows = tuple((Cell(row.run), percent(row.overall)) for row in runs)
        return [Table("The larger of two numbers, with 95% intervals", ("Run", "Right"), rows, label_columns=1)]


TASKS[Larger.name] = Larger

if __name__ == "__main__":  # ANI's command line, which knows it now
    main()
