"""N-digit arithmetic by real generation (paper Table 2); knows nothing about training."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Self, cast

from pydantic import Field, model_validator

from ani.data.arithmetic import SYMBOLS, ArithmeticProblem, Operation, arithmetic_problems, chained_sums
from ani.errors import InputError
from ani.numbers import find_numbers
from ani.results.files import Integer, Run
from ani.results.scores import ONE_MODEL, Answer, Difference, Score, differences, grouped, scores
from ani.results.sections import Curves, Figure, Headline, Section
from ani.results.statistics import Estimate, difference_facts, share, share_facts
from ani.results.tables import Cell, Table, leader, percent, points
from ani.settings import Section as Settings
from ani.settings import validated
from ani.tasks.answering import Answerer
from ani.tasks.task import Count, Pairs, Task

PAPER_DIGITS = (2, 4, 6, 8, 10, 12)
"""Digit lengths of the paper's Table 2; it poses 100 problems of each."""
HEADLINES = 4
"""More accuracies than these are left to the table."""
_NAMES: dict[str, str] = {symbol: name for name, symbol in SYMBOLS.items()}


class ArithmeticAnswer(Answer):
    """One answered problem, a line of `arithmetic.jsonl`."""

    operation: str
    digits: Integer = Field(ge=1)
    prompt: str | None = None
    answer: str | None = None
    """The right one."""
    chain: Integer | None = None
    """Of an addition: the longest run of places through which a carry must travel."""
    output: str | None = None
    """What the model wrote."""

    @property
    def identity(self) -> tuple[int, str | None]:
        """Length and prompt."""
        return self.digits, self.prompt


class Problems(Settings):
    """Problems of some operations and lengths."""

    count: int = Field(default=100, ge=1)
    """Problems for each length and operation; the paper has 100."""
    digits: list[int] = Field(default=list(PAPER_DIGITS))
    """Lengths of the operands."""
    operations: list[Operation] = Field(default=["addition"])
    """Of `addition`, `subtraction`, `multiplication` and `division`."""
    chains: list[int] | None = None
    """Of additions: as many problems for each of these numbers of places through which a carry must travel, such as
    `[0, 1, 2, 3, 4, 6]`, which need operands of one digit more; null: as they come."""

    @model_validator(mode="after")
    def _of_additions(self) -> Self:
        if self.chains is not None and self.operations != ["addition"]:
            raise ValueError("chains are those of additions: ask other operations apart, in a list of problems")
        return self

    def drawn(self, seed: int) -> list[ArithmeticProblem]:
        """Of the test split."""
        count = self.count * len(self.digits)
        if self.chains is not None:
            return chained_sums(
                count * len(self.chains), digits=self.digits, chains=self.chains, split="test", seed=seed
            )
        count *= len(self.operations)
        return arithmetic_problems(count, digits=self.digits, operations=self.operations, split="test", seed=seed)


class Arithmetic(Task):
    """N-digit arithmetic, answered by generation: `Problems`, or a list of them where operations differ in those."""

    name = "arithmetic"
    title = "Arithmetic"
    note = "An answer is exact if every digit is right. Bars and small print: Wilson 95% intervals."
    unit = "problems"
    record = ArithmeticAnswer
    together = 50
    what: ClassVar[str] = "Exact answers"
    """Begins the names of tables and figures."""

    problems: list[Problems] = Field(default=[Problems()], min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and "problems" not in raw:
            return {"problems": [raw]}
        return {"problems": raw} if isinstance(raw, list) else raw

    @model_validator(mode="after")
    def _asked_once(self) -> Self:
        asked = Counter((op, n) for each in self.problems for op in each.operations for n in each.digits)
        if twice := [pair for pair, times in asked.items() if times > 1]:
            raise ValueError(f"{twice[0][0]} of {twice[0][1]} digits is asked more than once")
        return self

    @classmethod
    def asked(cls, limit: int | None = None, operations: Sequence[Operation] | None = None, **_: Any) -> "Arithmetic":
        given = {"count": limit, "operations": operations}
        return validated(cls, {key: value for key, value in given.items() if value is not None}, f"the task {cls.name}")

    def questions(self, seed: int) -> list[ArithmeticProblem]:
        """The problems, shortest first; none of them stands in training data, whatever the seed."""
        problems = [problem for each in self.problems for problem in each.drawn(seed)]
        return sorted(problems, key=lambda problem: problem.digits)

    def answer(
        self, answerer: Answerer, questions: Sequence[ArithmeticProblem], count: Count
    ) -> Iterator[ArithmeticAnswer]:
        """Answer greedily; the number that is judged must equal the right answer exactly."""
        for problem, output in zip(questions, self.written(answerer, questions), strict=True):
            number = self.judged(output)
            yield ArithmeticAnswer(
                run=ONE_MODEL,
                operation=problem.operation,
                digits=problem.digits,
                prompt=problem.prompt,
                answer=str(problem.answer),
                chain=problem.chain,
                output=output,
                prediction=None if number is None else str(number),
                correct=number == problem.answer,
            )
        count(len(questions))

    def written(self, answerer: Answerer, problems: Sequence[ArithmeticProblem]) -> list[str]:
        """What the model writes behind each problem."""
        return answers_to(answerer, [each.prompt for each in problems], [f"{each.answer:,}" for each in problems])

    def judged(self, output: str) -> Decimal | None:
        """The number of an output that is judged."""
        return first_number(output)

    def facts(self, questions: Sequence[ArithmeticProblem]) -> Mapping[str, Any]:
        return (self.problems[0] if len(self.problems) == 1 else self).model_dump(exclude_none=True)

    @classmethod
    def summary(cls, records: Sequence[ArithmeticAnswer]) -> dict[str, Any]:
        return {
            _NAMES.get(operation, operation): {
                str(digits): share_facts(share(answer.correct for answer in answers))
                for digits, answers in sorted(grouped(found, lambda answer: answer.digits).items())
            }
            for operation, found in grouped(records, lambda answer: answer.operation).items()
        }

    @classmethod
    def scores(cls, records: Sequence[ArithmeticAnswer]) -> list[Score]:
        """By operation; the parts are digits."""
        return scores(records, lambda answer: answer.operation, lambda answer: answer.digits)

    @classmethod
    def chains(cls, records: Sequence[ArithmeticAnswer]) -> list[Score]:
        """Of additions; the parts are carry chains."""
        known = [answer for answer in records if answer.chain is not None]
        return scores(known, lambda answer: answer.operation, lambda answer: answer.chain)

    @classmethod
    def differences(cls, records: Sequence[ArithmeticAnswer], baseline: str) -> list[Difference]:
        """By operation; the parts are digits. Raises InputError also if answers lack their prompt."""
        for answer in records:
            if answer.prompt is None:
                raise InputError(f"run {answer.run!r}: an answer lacks its prompt, so runs can't be compared in pairs")
        return differences(records, baseline, lambda answer: answer.operation, lambda answer: answer.digits)

    @classmethod
    def tables(cls, records: Sequence[ArithmeticAnswer], baseline: str | None = None) -> list[Table]:
        tables = [accuracies(cls.scores(records), f"{cls.what} by number of digits", "Operation")]
        if baseline is not None and (compared := cls.differences(records, baseline)):
            tables.append(gains(compared, f"{cls.what} compared to {baseline}", "Operation"))
        if chained := cls.chains(records):
            what = "Exact additions by the longest run of places through which a carry must travel"
            tables.append(accuracies(chained, what, "Operation", "place"))
        if judged := [answer for answer in records if answer.answer is not None]:
            tables.append(_errors(judged))
        return tables

    @classmethod
    def section(cls, records: Sequence[ArithmeticAnswer], run: Run) -> Section:
        rows = cls.scores(records)
        notes = [cls.note]
        if any(len(row.by_seed) > 1 for row in rows):
            notes.append("Shares are means over training seeds; intervals are for other problems, not for other seeds.")
        notes += [
            f"{row.run}, {row.task}: {row.unreadable} of {row.overall.cases * row.overall.seeds} answers held no "
            "number."
            for row in rows
            if row.unreadable
        ]
        figures = []
        for operation in dict.fromkeys(row.task for row in rows):
            runs = {row.run: row.parts for row in rows if row.task == operation}
            curves = Curves("digits", "Share of exact answers by number of digits", runs, run.baseline)
            figures.append(Figure(f"{cls.what}, {operation}", curves))
        if chained := {row.run: row.parts for row in cls.chains(records)}:
            curves = Curves("places", "Share of exact additions by carry chain", chained, run.baseline)
            figures.append(Figure("Exact additions by the places through which a carry travels", curves))
        headlines = []
        for row in rows if len(rows) <= HEADLINES else ():
            value, (interval, asked), _ = percent(row.overall._replace(seeds=1))
            headlines.append(Headline(f"{cls.what}, {row.task}, {row.run}", value, f"{interval}, {asked}"))
        shown = super().section(records, run)
        return shown._replace(notes=tuple(notes), figures=tuple(figures), headlines=tuple(headlines))

    @classmethod
    def pairs(cls, records: Sequence[ArithmeticAnswer], baseline: str) -> Pairs | None:
        runs = grouped(records, lambda answer: answer.run).values()
        common = set.intersection(*({answer.operation for answer in found} for found in runs))
        rows = cls.differences([answer for answer in records if answer.operation in common], baseline)
        if not rows:
            return None
        facts = {_NAMES.get(row.task, row.task): difference_facts({"all": row.overall, **row.parts}) for row in rows}
        return Pairs([gains(rows, f"{cls.what} compared to {baseline}", "Operation")], facts)


def answers_to(answerer: Answerer, prompts: Sequence[str], expected: Iterable[str]) -> list[str]:
    """What is written behind each prompt, greedily, with room for the expected answers.

    They are best given with thousands separators: a model that writes them must not be cut short.
    """
    method = answerer.method
    answers = [method.write(f" {answer}") for answer in expected]
    longest = max(len(ids) for ids in cast(Any, answerer.tokenizer)(answers, add_special_tokens=False)["input_ids"])
    return [*map(method.read, answerer.greedy_texts([*map(method.write, prompts)], longest + 2))]


def first_number(output: str) -> Decimal | None:
    """The one that is judged."""
    found = find_numbers(output)
    return found[0].value if found else None


def _columns(
    rows: Sequence[Score] | Sequence[Difference], unit: str = "digit"
) -> tuple[list[str], list[list[Estimate | None]]]:
    """What the columns are called, all parts together and each part, a number of units or a name; and what every row
    has in them."""
    parts = sorted({part for row in rows for part in row.parts})
    names = [part if isinstance(part, str) else f"{part} {unit}{'' if part == 1 else 's'}" for part in parts]
    return ["All", *names], [[row.overall, *map(row.parts.get, parts)] for row in rows]


def accuracies(rows: Sequence[Score], what: str, tasks: str, unit: str = "digit") -> Table:
    """One row a task (such as an operation; `tasks` is their column's name) and run, all together and a column a number
    of units; a task's best is bold."""
    names, shares = _columns(rows, unit)
    lines: list[tuple[Cell, ...]] = []
    for row, own in zip(rows, shares, strict=True):
        rivals = [found for each, found in zip(rows, shares, strict=True) if each.task == row.task]
        overall, *cells = (
            percent(one, leader=leader(column)) for one, column in zip(own, zip(*rivals, strict=True), strict=True)
        )
        lines.append((Cell(row.task), Cell(row.run), _with_seeds(overall, row), *cells))
    return Table(
        f"{what}, with Wilson 95% intervals",
        (tasks, "Run", *names),
        tuple(lines),
        label_columns=2,
    )


def _with_seeds(cell: Cell, row: Score) -> Cell:
    if len(row.by_seed) == 1:
        return cell
    found = [100 * each.value for each in row.by_seed]
    return cell._replace(details=(*cell.details, f"seeds {min(found):.1f}–{max(found):.1f}"))


def gains(rows: Sequence[Difference], what: str, tasks: str) -> Table:
    """One row a task and run: its accuracy minus the baseline's, in all and by digit count."""
    names, found = _columns(rows)
    return Table(
        f"{what}, in percentage points: the same problems in pairs, with 95% bootstrap intervals and the one-sided p "
        "of no gain",
        (tasks, "Run", *names),
        tuple((Cell(row.task), Cell(row.run), *map(points, columns)) for row, columns in zip(rows, found, strict=True)),
        label_columns=2,
    )


def _errors(answers: Sequence[ArithmeticAnswer]) -> Table:
    """One row an operation and run: what became of its answers, those of all seeds together."""
    kinds = {"carries": "Carries", "digits": "Other digits", "length": "Length or sign"}
    rows = []
    for operation, of_operation in grouped(answers, lambda answer: answer.operation).items():
        for run, found in grouped(of_operation, lambda answer: answer.run).items():
            wrong = [_kind_of_error(answer) for answer in found if not answer.correct]
            cells = (
                Cell(f"{wrong.count(kind) / len(found):.1%}", (f"{wrong.count(kind)} of {len(found)}",))
                for kind in kinds
            )
            rows.append((Cell(operation), Cell(run), *cells))
    return Table(
        "How wrong answers are wrong: every wrong digit off by one, as by a lost carry; other digits; another length "
        "or sign, or no number (shares of all answers)",
        ("Operation", "Run", *kinds.values()),
        tuple(rows),
        label_columns=2,
    )


def _kind_of_error(answer: ArithmeticAnswer) -> str:
    right, given = str(answer.answer), answer.prediction or ""
    written = given.removeprefix("-").isdecimal() and right.removeprefix("-").isdecimal()
    if not written or len(right) != len(given) or right.startswith("-") != given.startswith("-"):
        return "length"
    pairs = [(a, b) for a, b in zip(right, given, strict=True) if a != b]
    return "carries" if all((int(a) - int(b)) % 10 in (1, 9) for a, b in pairs) else "digits"
