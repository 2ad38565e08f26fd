"""Task `calculations`: exact results of expressions."""

from collections.abc import Sequence
from decimal import Decimal

from pydantic import Field

from ani.calculator.reader.calculations import number_behind
from ani.data.calculations import CalculationProblem, calculation_problems
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, PromptAnswer, Scored, answers_to, first_number
from ani.results.records import Integer, Run
from ani.results.sections import Figure, Section, headline, shares_over


class CalculationAnswer(PromptAnswer):
    """What is written behind the equals sign of a problem, a line of `calculations.jsonl`."""

    operations: list[str]
    """Each once."""
    digits: Integer
    """Of the longest operand."""
    operands: Integer


class Calculations(Scored):
    """Expressions of two operands or more."""

    name = "calculations"
    title = "Calculations"
    note = "An answer is exact if every digit is right."
    unit = "questions"
    record = CalculationAnswer
    what = "Exact results"
    heading = "Calculations"
    kinds = (
        lambda record: "all",
        lambda record: record.operations[0] if len(record.operations) == 1 else "several operations",
        lambda record: f"{record.operands} operands",
    )

    count: int = Field(default=200, ge=1)
    """Problems."""
    digits: list[int] = Field(default=[2, 4, 6, 8])
    """Lengths of a problem's longest operand."""
    operands: list[int] = Field(default=[2, 3])
    """Of a problem. Each number, length and one of the four operations has its share."""

    def questions(self, seed: int) -> list[CalculationProblem]:
        """Problems that stand in no training data, the shortest results first."""
        problems = calculation_problems(self.count, digits=self.digits, operands=self.operands, split="test", seed=seed)
        return sorted(problems, key=lambda problem: len(problem.answer))

    def answer(self, engine: Engine, questions: Sequence[CalculationProblem]) -> Answers:
        """Answer greedily, with room for a currency sign."""
        outputs = answers_to(
            engine,
            [problem.prompt for problem in questions],
            [f"${Decimal(problem.answer):,}." for problem in questions],
        )
        for place, (problem, output) in enumerate(zip(questions, outputs, strict=True)):
            behind = number_behind(output)
            number = first_number(output) if behind is None else behind
            facts = {key: getattr(problem, key) for key in ("prompt", "answer", "digits", "operands")}
            facts |= {"operations": [*problem.operations], "output": output}
            facts |= {
                "prediction": None if number is None else f"{number:f}",
                "correct": number == Decimal(problem.answer),
            }
            yield place, [CalculationAnswer(**facts)]

    @classmethod
    def section(cls, records: Sequence[CalculationAnswer], run: Run) -> Section:
        shown = super().section(records, run)
        everything = {row.run: row for row in cls.scores(records) if row.task == "all"}
        headlines = [headline("Calculations, all", row.overall) for row in everything.values()]
        curves = shares_over(
            "digits", "Share of exact results", {name: row.parts for name, row in everything.items()}, run.baseline
        )
        return shown._replace(
            figures=(Figure("Exact results of calculations", curves),),
            headlines=tuple(headlines) if len(headlines) == 1 else (),
        )
