"""`Task`, the base class of evaluation tasks: questions, records, summary, tables.

A task's settings are its fields: what `evaluation` says of it in a comparison, or the options of `ani eval`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from ani.evaluation.engines import Engine
from ani.numbers import find_numbers
from ani.results.scores import ONE_MODEL, Answer, Difference, Score, TaskRecord, differences, grouped, scores
from ani.results.statistics import Estimate, difference_facts, share_facts, sign_test
from ani.results.tables import Cell, Table, leader, percent, points
from ani.settings import Section, validated

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

Answers = Iterator[tuple[int, Sequence[TaskRecord]]]
"""The place of a question and its records, as soon as it is answered."""


class Pairs(NamedTuple):
    """Two models' results in pairs, for `ani diff`."""

    tables: list[Table]
    facts: dict[str, Any]
    """For scripts."""


class Task(Section, ABC):
    """Base of all tasks; `ani.evaluation.tasks.TASKS` lists them."""

    name: ClassVar[str]
    """On the command line, in a comparison, and of its file."""
    title: ClassVar[str]
    """Of its section of the page; tasks of one title share their tables and section."""
    note: ClassVar[str] = ""
    """Under the title."""
    unit: ClassVar[str]
    """What is counted while it runs, such as problems."""
    record: ClassVar[type[TaskRecord]]
    """A line of its file."""
    needs_gate: ClassVar[bool] = False
    """Only asked of models with a gate."""
    together: ClassVar[int] = 50
    """Questions that `answer` is given at once. What it has given is not asked again by a run that goes on."""

    @classmethod
    def asked(cls, **options: Any) -> Task:
        """The task with those of the command line's options that it has; raises InputError if one isn't valid."""
        if "count" in cls.model_fields:
            options["count"] = options.get("limit")
        given = {key: value for key, value in options.items() if key in cls.model_fields and value is not None}
        return validated(cls, given, f"the task {cls.name}")

    @abstractmethod
    def questions(self, seed: int) -> Sequence[Any]:
        """What is asked; the same seed draws the same. Raises InputError if the data can't be read."""

    def check(self, questions: Sequence[Any], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
        """Raises InputError for what can be told before the model is asked."""

    @abstractmethod
    def answer(self, engine: Engine, questions: Sequence[Any]) -> Answers:
        """Ask the model some of the questions; each has its place in `questions`, in any order."""

    def facts(self, questions: Sequence[Any]) -> Mapping[str, Any]:
        """What `run.json` says of it."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    @abstractmethod
    def summary(cls, records: Sequence[Any]) -> Any:
        """For scripts: counts and shares with 95% intervals (None where nothing was counted)."""

    @classmethod
    @abstractmethod
    def tables(cls, records: Sequence[Any], baseline: str | None = None) -> list[Table]:
        """For the terminal; in a comparison with a baseline also the differences to it. Raises InputError if the runs
        of a comparison were asked different questions."""

    @classmethod
    def details(cls, records: Sequence[Any], baseline: str | None = None) -> list[Table]:
        """Further, longer tables, which only the report shows."""
        return []

    @classmethod
    def notes(cls, records: Sequence[Any]) -> list[str]:
        """Sentences above the tables in the report."""
        return [cls.note] if cls.note else []

    @classmethod
    def pairs(cls, records: Sequence[Any], baseline: str) -> Pairs | None:
        """Two models' records in pairs; None: this task isn't judged question by question."""
        return None


class Measured(Task):
    """Base of tasks whose records make a few shares."""

    caption: ClassVar[str] = ""
    """Of its table, where it isn't the title."""

    @classmethod
    @abstractmethod
    def measures(cls, records: Sequence[Any]) -> dict[str, tuple[str, Estimate | None]]:
        """Of one model, trained with one seed or several; measure: what it is called, and its share."""

    @classmethod
    def summary(cls, records: Sequence[Any]) -> dict[str, Any]:
        return {key: share_facts(found) for key, (_, found) in cls.measures(records).items()}

    @classmethod
    def tables(cls, records: Sequence[Any], baseline: str | None = None) -> list[Table]:
        runs = grouped(records, lambda record: record.run)
        columns = [cls.measures(of_run).values() for of_run in runs.values()]
        rows = ((Cell(row[0][0]), *(percent(found) for _, found in row)) for row in zip(*columns, strict=True))
        header = ("Measure", *("Value" if run == ONE_MODEL else run for run in runs))
        return [Table(cls.caption or cls.title, header, tuple(rows), label_columns=1)]


class PromptAnswer(Answer):
    """What a model wrote behind a prompt that no other question has."""

    known_by = ("prompt",)

    prompt: str
    answer: str
    """What should be written."""
    output: str
    """What was."""


class Scored(Task):
    """Base of tasks whose answers are counted."""

    what: ClassVar[str]
    """Begins the captions of tables, such as "Exact answers"."""
    heading: ClassVar[str]
    """What the first column names, such as "Operation"."""
    names: ClassVar[Mapping[str, str]] = {}
    """Name of a kind in JSON output, where it differs."""

    kinds: ClassVar[Sequence[Callable[[Any], str]]]
    """What kind of question a record is of, by each of these; the parts are its `digits`."""

    @classmethod
    def scores(cls, records: Sequence[Any]) -> list[Score]:
        """Right answers by kind of question and run."""
        return [row for kind in cls.kinds for row in scores(records, kind, attrgetter("digits"))]

    @classmethod
    def differences(cls, records: Sequence[Any], baseline: str) -> list[Difference]:
        """Gains in right answers likewise; raises InputError if runs were asked different questions."""
        return [row for kind in cls.kinds for row in differences(records, baseline, kind, attrgetter("digits"))]

    @classmethod
    def summary(cls, records: Sequence[Any]) -> dict[str, Any]:
        return {
            cls.names.get(row.task, row.task): {
                str(part): share_facts(found) for part, found in {"all": row.overall, **row.parts}.items()
            }
            for row in cls.scores(records)
        }

    @classmethod
    def tables(cls, records: Sequence[Any], baseline: str | None = None) -> list[Table]:
        rows = cls.scores(records)
        tables = [accuracies(rows, f"{cls.what} by number of digits", cls.heading)] if rows else []
        if baseline is not None and (compared := cls.differences(records, baseline)):
            tables.append(cls._gains(compared, baseline))
        return tables

    @classmethod
    def pairs(cls, records: Sequence[Any], baseline: str) -> Pairs | None:
        rows = cls.differences(records, baseline)
        facts = {
            cls.names.get(row.task, row.task): {**difference_facts({"all": row.overall, **row.parts}), **changed(row)}
            for row in rows
        }
        return Pairs([cls._gains(rows, baseline), changes(rows, baseline)], {cls.name: facts}) if rows else None

    @classmethod
    def _gains(cls, rows: Sequence[Difference], baseline: str) -> Table:
        """One row a kind and run: its share minus the baseline's, in all and by part."""
        names, found = _columns(rows)
        return Table(
            f"{cls.what} compared to {baseline}, in percentage points: the same problems in pairs, with 95% bootstrap "
            "intervals and the one-sided p of no gain",
            (cls.heading, "Run", *names),
            tuple(
                (Cell(row.task), Cell(row.run), *map(points, columns)) for row, columns in zip(rows, found, strict=True)
            ),
            label_columns=2,
        )


def accuracies(rows: Sequence[Score], what: str, kinds: str, unit: str = "digit") -> Table:
    """One row a kind of question (such as an operation; `kinds` is their column's name) and run, all together and a
    column a number of units; a kind's best is bold."""
    names, shares = _columns(rows, unit)
    lines: list[tuple[Cell, ...]] = []
    for row, own in zip(rows, shares, strict=True):
        rivals = [found for each, found in zip(rows, shares, strict=True) if each.task == row.task]
        overall, *cells = (
            percent(one, leader=leader(column)) for one, column in zip(own, zip(*rivals, strict=True), strict=True)
        )
        lines.append((Cell(row.task), Cell(row.run), _with_seeds(overall, row), *cells))
    return Table(f"{what}, with Wilson 95% intervals", (kinds, "Run", *names), tuple(lines), 2, "lines")


def changed(row: Difference) -> dict[str, Any]:
    """For JSON output: how many problems the run mends and breaks, and the sign test."""
    found = sign_test(row.mended, row.broken)
    facts = {} if found is None else difference_facts({"share": found})["share"]
    return {"changed": {"mended": row.mended, "broken": row.broken, **facts}}


def changes(rows: Sequence[Difference], baseline: str) -> Table:
    """One row a kind: how many problems the run mends and breaks."""
    header = ("Problems", "Asked", "Mended", "Broken", "Mended, of those that changed")
    lines = []
    for row in rows:
        counts = (row.overall.cases, row.mended, row.broken)
        found = sign_test(row.mended, row.broken)
        share = percent(found, counted=False)
        if found is not None:
            share = share._replace(details=(*share.details, f"p = {found.p:.3g}"))
        lines.append((Cell(row.task), *(Cell(str(count)) for count in counts), share))
    return Table(
        f"Problems mended (wrong by {baseline}, right by {rows[0].run}) and broken (the reverse), with the exact 95% "
        "interval and the exact two-sided p of as many mended as broken",
        header,
        tuple(lines),
        label_columns=1,
    )


def _columns(
    rows: Sequence[Score] | Sequence[Difference], unit: str = "digit"
) -> tuple[list[str], list[list[Estimate | None]]]:
    """What the columns are called, all parts together and each part, a number of units; and what every row has in
    them."""
    parts = sorted({part for row in rows for part in row.parts})
    names = [f"{part} {unit}{'' if part == 1 else 's'}" for part in parts]
    return ["All", *names], [[row.overall, *map(row.parts.get, parts)] for row in rows]


def _with_seeds(cell: Cell, row: Score) -> Cell:
    if len(row.by_seed) == 1:
        return cell
    found = [100 * each.value for each in row.by_seed]
    return cell._replace(details=(*cell.details, f"seeds {min(found):.1f}–{max(found):.1f}"))


def answers_to(
    engine: Engine, prompts: Sequence[str], expected: Iterable[str], read_as: Sequence[str] | None = None
) -> list[str]:
    """What is written behind each prompt, greedily, with room for the expected answers; `read_as` as in `Engine`.

    They are best given with thousands separators: a model that writes them must not be cut short.
    """
    answers = [engine.method.write(f" {answer}") for answer in expected]
    longest = max(len(ids) for ids in cast(Any, engine.tokenizer)(answers, add_special_tokens=False)["input_ids"])
    return engine.texts(prompts, longest + 2, read_as)


def judged(output: str, number: Decimal | None, right: int) -> dict[str, Any]:
    """What a record says of an output, of which a number is judged."""
    return {"output": output, "prediction": None if number is None else str(number), "correct": number == right}


def few_shot(examples: Iterable[tuple[str, str]], question: str) -> list[dict[str, str]]:
    """The chat messages of examples, each a question and its answer, and of a question behind them."""
    turns = [turn for example in examples for turn in zip(("user", "assistant"), example, strict=True)]
    return [{"role": role, "content": content} for role, content in (*turns, ("user", question))]


def first_number(output: str) -> Decimal | None:
    """The one that is judged."""
    found = find_numbers(output)
    return found[0].value if found else None
