"""Sentences with the gate of every number, to be looked at on the page; judges nothing."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from ani.evaluation.backend import Backend
from ani.evaluation.task import Answers, Task
from ani.results.decisions import LEGEND, DecidedText
from ani.results.files import Run
from ani.results.scores import ONE_MODEL
from ani.results.sections import Section
from ani.results.tables import Table


class Inspected(Task):
    """Sentences to look at; for models with a gate."""

    name = "inspected"
    title = "Inspected sentences"
    note = f"Every number of a sentence with its value, α and gate. {LEGEND}"
    unit = "sentences"
    record = DecidedText
    needs_gate = True

    texts: list[str] = Field(min_length=1)
    """Each is read as a prompt by itself."""

    def questions(self, seed: int) -> list[str]:
        return self.texts

    def answer(self, backend: Backend, questions: Sequence[str]) -> Answers:
        for place, text in enumerate(questions):
            yield place, [DecidedText(run=ONE_MODEL, text=text, numbers=backend.decide(text))]

    @classmethod
    def summary(cls, records: Sequence[DecidedText]) -> list[dict[str, Any]]:
        return [record.model_dump(mode="json", include={"text", "numbers"}) for record in records]

    @classmethod
    def tables(cls, records: Sequence[DecidedText], baseline: str | None = None) -> list[Table]:
        return []

    @classmethod
    def section(cls, records: Sequence[DecidedText], run: Run) -> Section:
        return super().section(records, run)._replace(sentences=tuple(records))
