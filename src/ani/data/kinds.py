"""The kinds of training data that a recipe can name (`kind:`).

A new kind is a class here and a member of `DataSource`.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

from pydantic import Field

from ani.data.arithmetic import MOST_DIGITS, Operation, arithmetic_problems
from ani.data.sources import (
    ANNOTATION,
    MATH,
    Example,
    checked_roles,
    diagnostic_examples,
    hub_records,
    labelled_numbers,
    names_file,
    problem_example,
    read_jsonl,
    record_examples,
    solved_problems,
)
from ani.settings import Section


class _Kind(Section, ABC):
    """A kind of source: its settings, and the training examples that they give."""

    kind: str

    @abstractmethod
    def examples(self, seed: int) -> list[Example]:
        """Its examples, all from training splits."""

    @property
    def on_hub(self) -> bool:
        """Whether it is fetched from the hub."""
        return self.kind == "hub"


class _GeneratedData(_Kind):
    count: int = Field(ge=1)
    """Examples in all."""


class _StoredData(_Kind):
    limit: int | None = Field(default=None, ge=1)
    """The first so many examples; null: all."""


class ArithmeticData(_GeneratedData):
    """N-digit arithmetic from our generator; lengths and operations in equal parts."""

    kind: Literal["arithmetic"]
    digits: list[Annotated[int, Field(ge=1, le=MOST_DIGITS)]] = Field(default=[2, 4, 6, 8, 10, 12])
    """Lengths of the operands."""
    operations: list[Operation] = Field(default=["addition"])
    """One or several; quotients are exact."""

    def examples(self, seed: int) -> list[Example]:
        settings = self.model_dump(exclude={"kind"})
        return list(map(problem_example, arithmetic_problems(**settings, split="train", seed=seed)))


class DiagnosticData(_GeneratedData):
    """Sentences with names and quantities from our generator, with their roles."""

    kind: Literal["diagnostic"]

    def examples(self, seed: int) -> list[Example]:
        return diagnostic_examples(self.count, seed=seed)


class LabelledData(_StoredData):
    """Numbers labelled one by one (`ani/data/labelled_numbers.md`), in natural texts (GSM8K's and MATH's training
    problems, dictionaries, manuals, changelogs) and in sentences of our own."""

    kind: Literal["labelled"]
    natural: bool = True
    """Whether to include the natural texts; without them the task `gates` can test on them."""

    def examples(self, seed: int) -> list[Example]:
        lines = [*labelled_numbers(natural=False), *(labelled_numbers(natural=True) if self.natural else ())]
        return [example for where, record in lines for example in record_examples(record, where)][: self.limit]


class _PublishedData(_StoredData):
    path: str
    """On the hub, or a JSON-lines file of it."""
    limit: int | None = Field(default=None, ge=1)
    """So many examples, drawn by the recipe's seed; null: all."""

    @property
    def on_hub(self) -> bool:
        return not names_file(self.path)


class Gsm8kData(_PublishedData):
    """GSM8K's training problems with their solutions, the calculator's annotations removed. Their numbers are
    quantities, so that the solutions' calculations are meant."""

    kind: Literal["gsm8k"]
    path: str = "openai/gsm8k"

    def examples(self, seed: int) -> list[Example]:
        return [
            Example(prompt, ANNOTATION.sub("", answer), checked_roles("quantitative", prompt, where))
            for where, prompt, answer in solved_problems(self.path, self.limit, "question", "answer", ["main"], seed)
        ]


class MathData(_PublishedData):
    """MATH's training problems with their solutions."""

    kind: Literal["math"]
    path: str = "EleutherAI/hendrycks_math"

    def examples(self, seed: int) -> list[Example]:
        solved = solved_problems(self.path, self.limit, "problem", "solution", [subject for _, subject in MATH], seed)
        return [Example(prompt, solution) for _, prompt, solution in solved]


class JsonlData(_StoredData):
    """The user's own examples (`ani.data.sources`)."""

    kind: Literal["jsonl"]
    path: str
    """A JSON-lines file."""

    def examples(self, seed: int) -> list[Example]:
        return read_jsonl(self.path)[: self.limit]


class HubData(_StoredData):
    """A dataset on the hub with prompt and completion, or messages."""

    kind: Literal["hub"]
    name: str
    """On the hub."""
    split: str = "train"
    """Its part."""

    def examples(self, seed: int) -> list[Example]:
        records = hub_records(self.name, self.split, self.limit, "a local JSONL file with kind: jsonl")
        return [each for where, record in records for each in record_examples(record, where)][: self.limit]


DataSource = Annotated[
    ArithmeticData | Gsm8kData | MathData | DiagnosticData | LabelledData | JsonlData | HubData,
    Field(discriminator="kind"),
]
