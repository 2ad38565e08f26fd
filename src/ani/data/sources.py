"""Sources of training data: one class each, by the `kind` that a recipe names.

A source has settings (its fields), `examples`, and one line of description (its docstring). To add one, write a
subclass of `DataSource` and enter it in `SOURCES`; recipes then know its kind.
"""

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, SerializeAsAny

from ani.data.arithmetic import MOST_DIGITS, ArithmeticProblem, Operation, arithmetic_problems
from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences, sentence_limit
from ani.data.records import (
    OURS,
    Example,
    checked_keys,
    checked_roles,
    data_records,
    hub_records,
    labelled_numbers,
    read_examples,
    record_examples,
    text_of,
)
from ani.errors import InputError
from ani.revisions import pinned
from ani.settings import Section

_SUBJECTS = "algebra counting_and_probability geometry intermediate_algebra number_theory prealgebra precalculus"
MATH = [("EleutherAI/hendrycks_math", subject) for subject in _SUBJECTS.split()]
"""MATH on the hub, by its configurations."""
ANNOTATION = re.compile(r"<<[^<>]*>>")
"""GSM8K's calculator marks: `48/2 = <<48/2=24>>24`."""


class DataSource(Section, ABC):
    """Base class of all sources."""

    kind: str
    """Name of the source, a key of `ani.data.sources.SOURCES`."""
    hub_key: ClassVar[str | None] = None
    """The key that names a dataset on the hub."""

    def pinned(self) -> Self:
        """The source with the commit of its dataset on the hub (`ani.revisions.pinned`)."""
        if self.hub_key is None:
            return self
        return self.model_copy(update={self.hub_key: pinned(getattr(self, self.hub_key), "dataset")})

    @abstractmethod
    def examples(self, seed: int) -> list[Example]:
        """Examples of the training split."""


class ArithmeticSource(DataSource):
    """N-digit arithmetic from our generator; lengths and operations in equal parts."""

    count: int = Field(ge=1)
    """Number of examples."""
    digits: list[Annotated[int, Field(ge=1, le=MOST_DIGITS)]] = Field(default=[2, 4, 6, 8, 10, 12])
    """Lengths of the operands."""
    operations: list[Operation] = Field(default=["addition"])
    """One or several; quotients are exact."""

    def examples(self, seed: int) -> list[Example]:
        settings = self.model_dump(exclude={"kind"})
        return list(map(problem_example, arithmetic_problems(**settings, split="train", seed=seed)))


class DiagnosticSource(DataSource):
    """Sentences with names and quantities from our generator, with their roles."""

    count: int = Field(ge=1)
    """Number of examples."""

    def examples(self, seed: int) -> list[Example]:
        # Sentences that end with a number make no example, so more are drawn than are needed.
        sentences = diagnostic_sentences(min(2 * self.count, sentence_limit("train")), split="train", seed=seed)
        examples = list(sentence_examples(sentences))
        if len(examples) < self.count:
            raise InputError(f"kind: diagnostic has count={self.count}; lower it to at most {len(examples)}")
        return examples[: self.count]


class LabelledSource(DataSource):
    """Numbers labelled one by one (`ani/data/labelled_numbers.md`), in natural texts and in sentences of our own."""

    limit: int | None = Field(default=None, ge=1)
    """Number of examples, from the first; null: all."""
    natural: bool = True
    """True: with the natural texts. False: without them, so that the task `gates` can test on them."""

    def examples(self, seed: int) -> list[Example]:
        found = [each for each in labelled_numbers() if self.natural or each[1]["source"] == OURS]
        return [example for where, record in found for example in record_examples(record, where)][: self.limit]


class SolvedProblems(DataSource):
    """Base class of published problems with their solutions, as `Q: …\\nA:` and the solution."""

    hub_key = "path"
    path: str
    """Dataset on the hub (`NAME` or `NAME@REVISION`), or a JSON-lines file of it."""
    limit: int | None = Field(default=None, ge=1)
    """Number of examples, drawn by the recipe's seed; null: all."""

    keys: ClassVar[tuple[str, str]]
    """Fields of a record with the problem and with the solution."""
    configurations: ClassVar[Sequence[str]]
    """Configurations of the dataset on the hub."""

    def problems(self, seed: int) -> Iterator[tuple[str, str, str]]:
        """Place, prompt and completion of the drawn problems, in random order, since MATH is sorted by subject. Raises
        InputError if the data can't be read or is empty, or a record is malformed."""
        records = [*data_records(self.path, "train", None, "a local JSONL file as path", self.configurations)]
        if not records:
            raise InputError(f"data file {self.path} contains no examples")
        random.Random(f"solved problems {seed}").shuffle(records)
        for where, record in records[: self.limit]:
            checked_keys(record, self.keys, where)
            problem, solution = (text_of(record, key, where) for key in self.keys)
            yield where, f"Q: {problem}\nA:", f" {solution}"


class Gsm8kSource(SolvedProblems):
    """GSM8K's training problems with their solutions, without the calculator's annotations; numbers are quantities."""

    path: str = "openai/gsm8k"
    keys, configurations = ("question", "answer"), ("main",)

    def examples(self, seed: int) -> list[Example]:
        return [
            Example(prompt, ANNOTATION.sub("", solution), checked_roles("quantitative", prompt, where))
            for where, prompt, solution in self.problems(seed)
        ]


class MathSource(SolvedProblems):
    """MATH's training problems with their solutions."""

    path: str = MATH[0][0]
    keys, configurations = ("problem", "solution"), tuple(subject for _, subject in MATH)

    def examples(self, seed: int) -> list[Example]:
        return [Example(prompt, solution) for _, prompt, solution in self.problems(seed)]


class JsonlSource(DataSource):
    """Your own examples in a JSON-lines file (`ani.data.records` describes its records)."""

    path: str
    """JSON-lines file."""
    limit: int | None = Field(default=None, ge=1)
    """Number of examples, from the first; null: all."""

    def examples(self, seed: int) -> list[Example]:
        return read_examples(self.path)[: self.limit]


class HubSource(DataSource):
    """A dataset on the hub with prompt and completion, or messages."""

    hub_key = "name"
    name: str
    """Name on the hub, or `NAME@REVISION`."""
    split: str = "train"
    """Split of the dataset."""
    limit: int | None = Field(default=None, ge=1)
    """Number of examples, from the first; null: all."""

    def examples(self, seed: int) -> list[Example]:
        records = hub_records(self.name, self.split, self.limit, "a local JSONL file with kind: jsonl")
        return [each for where, record in records for each in record_examples(record, where)][: self.limit]


SOURCES: dict[str, type[DataSource]] = {
    "arithmetic": ArithmeticSource,
    "diagnostic": DiagnosticSource,
    "labelled": LabelledSource,
    "gsm8k": Gsm8kSource,
    "math": MathSource,
    "jsonl": JsonlSource,
    "hub": HubSource,
}
"""Every source by its kind; open to your own."""


def _source(raw: Any) -> Any:
    if not isinstance(raw, Mapping):
        return raw
    if not isinstance(kind := raw.get("kind"), str) or kind not in SOURCES:
        raise ValueError(f"kind must be one of {', '.join(SOURCES)}, not {kind!r:.80}")
    return SOURCES[kind].model_validate(raw)


AnySource = Annotated[SerializeAsAny[DataSource], BeforeValidator(_source)]
"""A source in a recipe, of the class that its `kind` has in `SOURCES`."""


def problem_example(problem: ArithmeticProblem) -> Example:
    """`Calculate 12 + 34 =` → ` 46`; every number is a quantity."""
    return Example(problem.prompt, f" {problem.answer}", checked_roles("quantitative", problem.prompt, ""))


def sentence_examples(sentences: Iterable[DiagnosticSentence]) -> Iterator[Example]:
    """Labelled sentences, each cut after its last number: the rest is the completion. Sentences whose rest has fewer
    than two words are left out."""
    for sentence in sentences:
        cut = sentence.spans[-1][1]
        prompt, completion = sentence.text[:cut], sentence.text[cut:]
        if len(completion.split()) >= 2:
            yield Example(prompt, completion, sentence.roles)
