"""`Task`, the base class of evaluation tasks: questions, records, summary, tables.

A task's settings are its fields, set by `evaluation` in a comparison or by the options of `ani eval`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from ani.evaluation.engines import Engine
from ani.numbers import find_numbers
from ani.results.scores import ONE_MODEL, Answer, Difference, Score, TaskRecord, differences, grouped, scores
from ani.results.statistics import Estimate, difference_facts, holm, share_facts, sign_test
from ani.results.tables import Cell, Chart, Table, leader, percent, points
from ani.settings import Section, validated

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

Answers = Iterator[tuple[int, Sequence[TaskRecord]]]
"""Position of a question and its records, as soon as it is answered."""


class Pairs(NamedTuple):
    """Two models' results in pairs, for `ani diff`."""

    tables: list[Table]
    facts: dict[str, Any]
    """Values for JSON output."""


class Task(Section, ABC):
    """Base of all tasks; `ani.evaluation.tasks.TASKS` lists them."""

    name: ClassVar[str]
    """Name on the command line, in a comparison, and of the task's file."""
    title: ClassVar[str]
    """Title of the report's section; tasks of one title share their tables and section."""
    note: ClassVar[str] = ""
    """Text under the title."""
    unit: ClassVar[str]
    """Noun of the progress line, such as problems."""
    record: ClassVar[type[TaskRecord]]
    """Class of a line of the task's file."""
    needs_gate: ClassVar[bool] = False
    """True if only models with a gate are asked."""
    needs_score: ClassVar[bool] = False
    """True if it compares the log-probabilities of tokens (`Engine.score`)."""
    together: ClassVar[int] = 50
    """Number of questions in a call of `answer`."""

    @classmethod
    def asked(cls, **options: Any) -> Task:
        """Return the task with those command-line options that it has; raises InputError if one isn't valid."""
        if "count" in cls.model_fields:
            options["count"] = options.get("limit")
        given = {key: value for key, value in options.items() if key in cls.model_fields and value is not None}
        return validated(cls, given, f"the task {cls.name}")

    @abstractmethod
    def questions(self, seed: int) -> Sequence[Any]:
        """Return the questions, drawn by the seed; raises InputError if the data can't be read."""

    def check(self, questions: Sequence[Any], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
        """Raise InputError for bad input that is known before the model is asked."""

    @abstractmethod
    def answer(self, engine: Engine, questions: Sequence[Any]) -> Answers:
        """Ask the model some of the questions; yield the answers in any order."""

    def facts(self, questions: Sequence[Any]) -> Mapping[str, Any]:
        """Return the settings for `run.json`."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    @abstractmethod
    def summary(cls, records: Sequence[Any]) -> Any:
        """Return counts and shares with 95% intervals for JSON; None where nothing was counted."""

    @classmethod
    @abstractmethod
    def tables(cls, records: Sequence[Any], baseline: str | None = None) -> list[Table]:
        """Return the tables, with a baseline also the differences to it; raises InputError if the runs of a comparison
        were asked different questions."""

    @classmethod
    def details(cls, records: Sequence[Any], baseline: str | None = None) -> list[Table]:
        """Return longer tables, which only the report shows."""
        return []

    @classmethod
    def notes(cls, records: Sequence[Any]) -> list[str]:
        """Return the sentences above the tables in the report."""
        return [cls.note] if cls.note else []

    @classmethod
    def pairs(cls, records: Sequence[Any], baseline: str) -> Pairs | None:
        """Compare two models question by question; None: the task can't."""
        return None


class Measured(Task):
    """Base of tasks with a few shares as their result."""

    caption: ClassVar[str] = ""
    """Caption of the table; default: the title."""
    published: ClassVar[Mapping[str, str]] = {}
    """The values that the paper publishes, by measure."""

    @classmethod
    @abstractmethod
    def measures(cls, records: Sequence[Any]) -> dict[str, tuple[str, Estimate | None]]:
        """Return label and share by measure, for the records of one model, of all its seeds."""

    @classmethod
    def summary(cls, records: Sequence[Any]) -> dict[str, Any]:
        return {key: share_facts(found) for key, (_, found) in cls.measures(records).items()}

    @classmethod
    def tables(cls, records: Sequence[Any], baseline: str | None = None) -> list[Table]:
        runs = grouped(records, lambda record: record.run)
        columns = [cls.measures(of_run) for of_run in runs.values()]
        rows = (
            (
                Cell(label, (f"paper: {cls.published[key]}",) if key in cls.published else ()),
                *(percent(column[key][1]) for column in columns),
            )
            for key, (label, _) in columns[0].items()
        )
        header = ("Measure", *("Value" if run == ONE_MODEL else run for run in runs))
        return [Table(cls.caption or cls.title, header, tuple(rows), label_columns=1)]


class PromptAnswer(Answer):
    """The text that a model wrote after a prompt."""

    known_by = ("prompt",)

    prompt: str
    answer: str
    """Right answer."""
    output: str
    """Written text."""


class Scored(Task):
    """Base of tasks with right and wrong answers, counted by kind of question and by part, such as number of digits."""

    what: ClassVar[str]
    """Beginning of the tables' captions, such as "Exact answers"."""
    heading: ClassVar[str]
    """Header of the first column, such as "Operation"."""
    names: ClassVar[Mapping[str, str]] = {}
    """Name of a kind in JSON output, where it differs."""
    kinds: ClassVar[Sequence[Callable[[Any], str]]]
    """Functions from a record to its kind of question; each makes rows of the tables."""
    parts: ClassVar[str] = "number of digits"
    """Name of the parts, in captions."""
    chart: ClassVar[Chart] = "lines"

    @staticmethod
    def part(record: Any) -> Any:
        """Return the part of the questions that a record belongs to, or None; each part has a column in the tables."""
        return record.digits

    @classmethod
    def scores(cls, records: Sequence[Any]) -> list[Score]:
        """Return the shares of right answers by kind and run."""
        return [row for kind in cls.kinds for row in scores(records, kind, cls.part)]

    @classmethod
    def differences(cls, records: Sequence[Any], baseline: str) -> list[Difference]:
        """Return the gains in right answers by kind and run; raises InputError if runs were asked different
        questions."""
        return [row for kind in cls.kinds for row in differences(records, baseline, kind, cls.part)]

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
        tables = [accuracies(rows, f"{cls.what} by {cls.parts}", cls.heading, chart=cls.chart)] if rows else []
        if baseline is not None and (compared := cls.differences(records, baseline)):
            tables.append(gains(compared, baseline, cls.what, cls.heading))
        return tables

    @classmethod
    def pairs(cls, records: Sequence[Any], baseline: str) -> Pairs | None:
        rows = cls.differences(records, baseline)
        facts = {cls.names.get(row.task, row.task): facts_of(row) for row in rows}
        tables = [gains(rows, baseline, cls.what, cls.heading), changes(rows, baseline)] if rows else []
        return Pairs(tables, {cls.name: facts}) if rows else None


def gains(rows: Sequence[Difference], baseline: str, what: str, kinds: str) -> Table:
    """Return a row per kind (`kinds` heads their column) and run: its share minus the baseline's, in all and by
    part; p also by Holm's correction over the rows."""
    names, found = _columns(rows)
    cells = []
    for column in zip(*found, strict=True):
        known = [each.p for each in column if each is not None and each.p is not None]
        corrected = iter(holm(known) if len(known) > 1 else [None] * len(known))
        cells.append([points(each, None if each is None or each.p is None else next(corrected)) for each in column])
    return Table(
        f"{what} compared to {baseline}, in percentage points: the same problems in pairs, with 95% bootstrap "
        "intervals (over problems, and over training seeds where there are several) and the one-sided p of no gain",
        (kinds, "Run", *names),
        tuple((Cell(row.task), Cell(row.run), *of) for row, *of in zip(rows, *cells, strict=True)),
        label_columns=2,
    )


def accuracies(
    rows: Sequence[Score], what: str, kinds: str, unit: str = "digit", chart: Chart | None = "lines"
) -> Table:
    """Return a row per kind of question (`kinds` heads their column) and run, and a column per part, such as a number
    of units; the best run of a kind is bold."""
    names, shares = _columns(rows, unit)
    lines: list[tuple[Cell, ...]] = []
    for row, own in zip(rows, shares, strict=True):
        rivals = [found for each, found in zip(rows, shares, strict=True) if each.task == row.task]
        overall, *cells = (
            percent(one, leader=leader(column)) for one, column in zip(own, zip(*rivals, strict=True), strict=True)
        )
        lines.append((Cell(row.task), Cell(row.run), _with_seeds(overall, row), *cells))
    how = "Wilson 95% intervals"
    if any(row.overall.seeds > 1 for row in rows):
        how = "95% intervals: Wilson's, or of several training seeds bootstrapped over problems and seeds"
    return Table(f"{what}, with {how}", (kinds, "Run", *names), tuple(lines), 2, chart)


def facts_of(row: Difference, more: Mapping[str, Estimate] | None = None) -> dict[str, Any]:
    """Return the gains in all, by part and by `more`, the numbers of problems that the run fixes and breaks, and the
    sign test, for JSON output."""
    found = sign_test(row.fixed, row.broken)
    test = {} if found is None else difference_facts({"share": found})["share"]
    facts = difference_facts({"all": row.overall, **row.parts, **(more or {})})
    return {**facts, "changed": {"fixed": row.fixed, "broken": row.broken, **test}}


def changes(rows: Sequence[Difference], baseline: str) -> Table:
    """Return a row per kind: the numbers of problems that the run fixes and breaks."""
    lines = []
    for row in rows:
        counts = (row.overall.cases, row.fixed, row.broken)
        found = sign_test(row.fixed, row.broken)
        share = percent(found, counted=False)
        if found is not None:
            share = share._replace(details=(*share.details, f"p = {found.p:.3g}"))
        lines.append((Cell(row.task), *(Cell(str(count)) for count in counts), share))
    return Table(
        f"Problems fixed (wrong by {baseline}, right by {rows[0].run}) and broken (the reverse), with the exact 95% "
        "interval and the exact two-sided p of as many fixed as broken",
        ("Problems", "Asked", "Fixed", "Broken", "Fixed, of those that changed"),
        tuple(lines),
        label_columns=1,
    )


def _columns(
    rows: Sequence[Score] | Sequence[Difference], unit: str = "digit"
) -> tuple[list[str], list[list[Estimate | None]]]:
    """Return the columns' names, and each row's estimates in them: all parts together, and each part."""
    parts = sorted({part for row in rows for part in row.parts})
    names = [part if isinstance(part, str) else f"{part} {unit}{'' if part == 1 else 's'}" for part in parts]
    return ["All", *names], [[row.overall, *map(row.parts.get, parts)] for row in rows]


def _with_seeds(cell: Cell, row: Score) -> Cell:
    if len(row.by_seed) == 1:
        return cell
    found = [100 * each.value for each in row.by_seed]
    return cell._replace(details=(*cell.details, f"seeds {min(found):.1f}–{max(found):.1f}"))


def answers_to(engine: Engine, prompts: Sequence[str], expected: Iterable[str]) -> list[str]:
    """Return the text written after each prompt, greedily, with room for the longest of the expected answers. Give
    these with thousands separators, as a model may write them."""
    answers = [engine.method.write(f" {answer}") for answer in expected]
    longest = max(len(ids) for ids in cast(Any, engine.tokenizer)(answers, add_special_tokens=False)["input_ids"])
    return engine.texts(prompts, longest + 2)


def judged(output: str, number: Decimal | None, right: Decimal) -> dict[str, Any]:
    """Return a record's facts about an output and the number in it that is judged."""
    return {"output": output, "prediction": None if number is None else str(number), "correct": number == right}


def few_shot(examples: Iterable[tuple[str, str]], question: str) -> list[dict[str, str]]:
    """Return the chat messages of examples (question and answer) and of a question after them."""
    turns = [turn for example in examples for turn in zip(("user", "assistant"), example, strict=True)]
    return [{"role": role, "content": content} for role, content in (*turns, ("user", question))]


def first_number(output: str) -> Decimal | None:
    """Return the first number of a text; None if it has none."""
    found = find_numbers(output)
    return found[0].value if found else None
