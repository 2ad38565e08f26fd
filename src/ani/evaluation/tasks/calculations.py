"""Task `calculations`: exact results of expressions, and calculations in sentences that are meant, or not."""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any

from pydantic import Field

from ani.data.calculation_sentences import CalculationSentence, calculation_sentences
from ani.data.calculations import CalculationProblem, calculation_problems
from ani.data.diagnostic import Role
from ani.evaluation.backend import Backend
from ani.evaluation.scored import PromptAnswer, Scored, answers_to, first_number
from ani.evaluation.task import Answers
from ani.results.files import Integer, Run
from ani.results.scores import ONE_MODEL, Difference, Score, by_seed, differences, grouped, scores
from ani.results.sections import Figure, Section, headline, shares_over
from ani.results.statistics import Estimate, grouped_share, mean_of_two, share_facts
from ani.results.tables import Cell, Table, percent
from ani.values.calculations import number_behind


class CalculationAnswer(PromptAnswer):
    """What is written behind the equals sign of a problem, or of a sentence (which has a `kind`), a line of
    `calculations.jsonl`. Of a nominal one `prediction` is the first word."""

    role: Role = "quantitative"
    """Nominal: something else is meant than the calculation's result."""
    result: str
    """The exact one."""
    calculated: bool
    """Whether it begins with the result."""
    operations: list[str] = Field(default=[])
    """Of a problem, each once."""
    digits: Integer | None = None
    """Of a problem's longest operand."""
    operands: Integer | None = None
    """Of a problem."""
    kind: str | None = None
    """Of a sentence, such as `money` or `rounding`."""
    template: str | None = None
    """Of a sentence."""

    @property
    def told_apart(self) -> bool:
        """Whether a calculation that is meant is answered by its result, and another one is not."""
        return self.correct if self.role == "quantitative" else not self.calculated


class Calculations(Scored):
    """Problems by themselves, and sentences whose calculation is meant, or not."""

    name = "calculations"
    title = "Calculations"
    note = (
        "A problem's answer is exact if every digit is right. Each sentence ends at a calculation's equals sign. Its "
        "result is meant, and then should be the first number that is written. Or something else is, as in base 2 or "
        "where an error is quoted: then it is left alone if the result is not what comes next, and right if the first "
        "word is. Intervals of sentences resample templates as wholes; that of the mean of both roles takes these as "
        "independent, though each calculation stands in a sentence of either."
    )
    unit = "questions"
    record = CalculationAnswer
    what = "Exact results"
    heading = "Calculations"

    count: int = Field(default=200, ge=1)
    """Problems, and as many sentences."""
    digits: list[int] = Field(default=[2, 4, 6, 8])
    """Lengths of a problem's longest operand."""
    operands: list[int] = Field(default=[2, 3])
    """Of a problem. Each number, length and one of the four operations has its share."""

    def questions(self, seed: int) -> list[CalculationProblem | CalculationSentence]:
        """Problems, the shortest results first, and sentences; none stands in training data, nor does its template."""
        problems = calculation_problems(self.count, digits=self.digits, operands=self.operands, split="test", seed=seed)
        sentences = calculation_sentences(self.count, split="test", seed=seed)
        return [*sorted(problems, key=lambda problem: len(problem.answer)), *sentences]

    def answer(self, backend: Backend, questions: Sequence[CalculationProblem | CalculationSentence]) -> Answers:
        """Answer greedily."""
        for place, (question, output) in enumerate(zip(questions, _outputs(backend, questions), strict=True)):
            facts: dict[str, Any] = {"prompt": question.prompt, "output": output}
            if isinstance(question, CalculationProblem):
                facts |= {key: getattr(question, key) for key in ("answer", "digits", "operands")}
                facts |= {"result": question.answer, "operations": list(question.operations)}
            else:
                facts |= {key: getattr(question, key) for key in ("role", "result", "kind", "template")}
                facts["answer"] = question.completion.strip()
            yield place, [_judged(facts)]

    @classmethod
    def scores(cls, records: Sequence[CalculationAnswer]) -> list[Score]:
        """Of the problems: all, by operation, and by number of operands; the parts are digits."""
        problems = [record for record in records if record.kind is None]
        return [row for group in _GROUPS for row in scores(problems, group, _digits)]

    @classmethod
    def differences(cls, records: Sequence[CalculationAnswer], baseline: str) -> list[Difference]:
        """In exact answers, as for `scores`, and in how sentences are told apart."""
        problems = [record for record in records if record.kind is None]
        sentences = [record.model_copy(update={"correct": record.told_apart}) for record in records if record.kind]
        rows = [row for group in _GROUPS for row in differences(problems, baseline, group, _digits)]
        told = differences(
            sentences, baseline, lambda record: _ROLES[record.role], lambda _: None, attrgetter("template")
        )
        return [*rows, *told]

    @classmethod
    def summary(cls, records: Sequence[CalculationAnswer]) -> dict[str, Any]:
        sentences = {name: share_facts(found) for name, found in _sentences(records).items()}
        return {"exact": super().summary(records), "sentences": sentences}

    @classmethod
    def tables(cls, records: Sequence[CalculationAnswer], baseline: str | None = None) -> list[Table]:
        return [*super().tables(records, baseline), *(table for table in [_by_run(records)] if table.rows)]

    @classmethod
    def _gains(cls, rows: Sequence[Difference], baseline: str) -> Table:
        shown = super()._gains(rows, baseline)
        return shown._replace(caption=f"{shown.caption} (of sentences: templates resampled as wholes)")

    @classmethod
    def section(cls, records: Sequence[CalculationAnswer], run: Run) -> Section:
        shown = super().section(records, run)
        rows = cls.scores(records)
        everything = {row.run: row for row in rows if row.task == _ALL}
        headlines = []
        if len(everything) == 1:
            (exact,) = everything.values()
            for name, found in (
                ("Calculations, all", exact.overall),
                ("Calculations told apart", _sentences(records)[MEAN]),
            ):
                if found:
                    headlines.append(headline(name, found))
        curves = shares_over(
            "digits", "Share of exact results", {name: row.parts for name, row in everything.items()}, run.baseline
        )
        return shown._replace(
            figures=(Figure("Exact results of calculations", curves),),
            folded=(_by_kind(records),),
            headlines=tuple(headlines),
        )


def _outputs(backend: Backend, questions: Sequence[CalculationProblem | CalculationSentence]) -> list[str]:
    """What is written behind each equals sign, with room for a currency sign."""
    results = [each.answer if isinstance(each, CalculationProblem) else each.result for each in questions]
    words = [_word(each.completion) for each in questions if isinstance(each, CalculationSentence)]
    return answers_to(
        backend,
        [question.prompt for question in questions],
        [*(f"${Decimal(result):,}." for result in results), *words],
    )


def _judged(facts: dict[str, Any]) -> CalculationAnswer:
    output, result = facts["output"], Decimal(facts["result"])
    prediction: str | None
    if facts.get("role") == "nominal":
        prediction = _word(output) or None
        correct = prediction == _word(facts["answer"])
    else:
        number = _number(output)
        prediction, correct = None if number is None else f"{number:f}", number == result
    facts |= {"prediction": prediction, "correct": correct, "calculated": number_behind(output) == result}
    return CalculationAnswer(run=ONE_MODEL, **facts)


def _number(output: str) -> Decimal | None:
    """The number that stands behind the sign, or the first one of what does."""
    behind = number_behind(output)
    return first_number(output) if behind is None else behind


def _word(text: str) -> str:
    """The first one, without the punctuation that ends it."""
    return next(iter(text.split()), "").rstrip(".,;:!?")


_ALL = "all"
MEAN = "mean of both"
_GROUPS: tuple[Callable[[CalculationAnswer], str], ...] = (
    lambda record: _ALL,
    lambda record: record.operations[0] if len(record.operations) == 1 else "several operations",
    lambda record: f"{record.operands} operands",
)
_ROLES: dict[Role, str] = {"quantitative": "meant: answered", "nominal": "not meant: left alone"}
_digits = attrgetter("digits")


def _sentences(records: Iterable[CalculationAnswer]) -> dict[str, Estimate | None]:
    """How sentences are told apart; those of one template may depend on each other, both roles are taken as
    independent."""
    sentences = [record for record in records if record.kind]

    def share(role: Role, key: Callable[[CalculationAnswer], bool]) -> Estimate | None:
        return grouped_share((record.template, key(record)) for record in sentences if record.role == role)

    answered, alone = (share(role, attrgetter("told_apart")) for role in _ROLES)
    return {
        **dict(zip(_ROLES.values(), (answered, alone), strict=True)),
        MEAN: mean_of_two(answered, alone) if answered and alone else None,
        "not meant: right": share("nominal", attrgetter("correct")),
    }


def _by_run(records: Sequence[CalculationAnswer]) -> Table:
    """How sentences are told apart, one row a run."""
    lines = []
    for run, found in grouped((record for record in records if record.kind), attrgetter("run")).items():
        by_seed(run, found)
        lines.append((Cell(run), *map(percent, _sentences(found).values())))
    return Table(
        "Calculations in sentences, with 95% intervals (templates resampled as wholes)",
        ("Run", *(name.capitalize() for name in _sentences(()))),
        tuple(lines),
        label_columns=1,
    )


def _by_kind(records: Sequence[CalculationAnswer]) -> Table:
    """The same, one row a kind of sentences, one column a run."""
    runs = list(dict.fromkeys(record.run for record in records))
    kinds = grouped(records, attrgetter("role", "kind"))
    return Table(
        "Calculations that are meant and answered, or not meant and left alone, by kind of sentence: 95% intervals",
        ("Kind", "Meant", *runs),
        tuple(
            (
                Cell(kind),
                Cell("yes" if role == "quantitative" else "no"),
                *(percent(grouped_share((r.template, r.told_apart) for r in found if r.run == run)) for run in runs),
            )
            for (role, kind), found in kinds.items()
            if kind
        ),
        label_columns=2,
    )
