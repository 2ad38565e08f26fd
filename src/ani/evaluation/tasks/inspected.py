"""Sentences with the gate of every number, to be looked at on a terminal or on the page; judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ani.evaluation.backend import Backend
from ani.evaluation.task import Answers, Task
from ani.results.decisions import DecidedText
from ani.results.files import Run
from ani.results.scores import ONE_MODEL
from ani.results.sections import Section
from ani.results.tables import Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

OPEN_STYLE = "bold white on dark_green"
CLOSED_STYLE = "black on grey70"


class Inspected(Task):
    """Sentences to look at; for models with a gate."""

    name = "inspected"
    title = "Inspected sentences"
    note = (
        "Every number of a sentence with its gate: ● underlined, open (the number's features are injected); ○ "
        "dashed, closed (left alone)."
    )
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


def marked_text(decided: DecidedText) -> Text:
    """The sentence with every number coloured by its gate: `[10]` injected, grey left alone."""
    from rich.text import Text

    text, end = Text(), 0
    for number in decided.numbers:
        text.append(decided.text[end : number.start])
        # Not by colour alone: an open gate also gets brackets.
        shown = f"[{number.text}]" if number.injected else number.text
        text.append(shown, OPEN_STYLE if number.injected else CLOSED_STYLE)
        end = number.end
    text.append(decided.text[end:])
    return text


def inspection_table(decided: DecidedText) -> RichTable:
    """Every number with its exact value, α = σ(z) and the decision."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable("number", "value", "α", "gate", title=None)
    for number in decided.numbers:
        decision = "open: injected as a quantity" if number.injected else "closed: left alone as a name"
        if number.alpha is None:
            decision = "left alone: out of range, or its token has a later one"
        table.add_row(Text(number.text), number.value, "–" if number.alpha is None else f"{number.alpha:.3f}", decision)
    if not decided.numbers:
        table.add_row("–", "–", "–", "no number in the text")
    return table
