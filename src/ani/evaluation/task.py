"""`Task`, the base class of evaluation tasks: questions, records, summary, tables, a section of the report.

A task's settings are its fields: what `evaluation` says of it in a comparison, or the options of `ani eval`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ani.evaluation.backend import Backend
from ani.results.files import Run
from ani.results.scores import ONE_MODEL, TaskRecord, grouped
from ani.results.sections import Section
from ani.results.statistics import Estimate, share_facts
from ani.results.tables import Cell, Table, percent
from ani.settings import Section as Settings
from ani.settings import validated

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

Answers = Iterator[tuple[int, Sequence[TaskRecord]]]
"""The place of a question and its records, as soon as it is answered."""


class Pairs(NamedTuple):
    """Two models' results in pairs, for `ani diff`."""

    tables: list[Table]
    facts: dict[str, Any]
    """For scripts."""


class Task(Settings, ABC):
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

    @property
    def gates_numbers(self) -> bool:
        """Whether it is only asked where a gate decides about numbers, and not about pending values alone."""
        return False

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
    def answer(self, backend: Backend, questions: Sequence[Any]) -> Answers:
        """Ask the model some of the questions; each has its place in `questions`, in any order."""

    def batches(self, backend: Backend, questions: Sequence[Any]) -> list[list[int]]:
        """Batches of questions, as places in `questions`. Processes that share an evaluation take whole batches, so
        that each computes what a single process would."""
        places = list(range(len(questions)))
        return [places[first : first + self.together] for first in places[:: self.together]]

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
    def section(cls, records: Sequence[Any], run: Run) -> Section:
        """Of the report's page."""
        notes = (cls.note,) if cls.note else ()
        return Section(cls.name, cls.title, notes, tables=tuple(cls.tables(records, run.baseline)))

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
