"""The result files a report is made from: one model a kind of record, read and checked line by line.

Knows nothing about statistics, tables or pages.
"""

from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from ani.errors import InputError
from ani.evaluation.tasks.data import BenchmarkName
from ani.untrusted import first_problem, one_line

Probability = Annotated[float, Field(ge=0, le=1)]
Integer = Annotated[int, Field(ge=-(2**53), le=2**53)]
"""What a float can hold too, as the statistics and figures have it."""
Gain = Annotated[float, Field(ge=-1, le=1)]


class Record(BaseModel):
    """Base of all records: unknown keys are ignored, values are never coerced from another type."""

    model_config = ConfigDict(frozen=True, strict=True)


class TrainedCell(Record):
    """A cell of a comparison: a variant trained with a seed, and the layer that it injects at."""

    variant: str
    seed: Integer | None = None
    layer: Integer | None = None
    """None: a model without ANI."""


class Run(Record):
    """`run.json`: where the results come from. Every key may be missing."""

    title: str = "Adaptive Numerical Injection"
    model: str | None = None
    layer: Integer | None = None
    policy: str | None = None
    adapter: str | None = None
    backend: str = "transformers"
    commit: str | None = None
    command: str | None = None
    date: str | None = None
    baseline: str | None = None
    """The run that a comparison's other runs are compared to."""
    cells: tuple[TrainedCell, ...] = ()
    """Of a comparison."""
    packages: dict[str, str] = {}
    settings: dict[str, Any] = {}


class Answer(Record):
    """One line of `arithmetic.jsonl`: a problem and the model's answer to it."""

    run: str
    operation: str
    digits: Integer = Field(ge=1)
    prompt: str | None = None
    answer: str | None = None
    """The right one."""
    prediction: str | None = None
    correct: bool
    seed: Integer | None = None
    """Of the training run that made the model, in a comparison."""


class BenchmarkAnswer(Record):
    """One line of `gsm8k.jsonl`, `math.jsonl` or `mmlu.jsonl`: a question and whether the model's answer is right."""

    task: BenchmarkName
    id: Integer
    correct: bool
    prediction: str | None = None
    prompt_hash: str
    truncated: bool = False
    subject: str | None = None
    level: Integer | None = None
    group: str | None = None
    run: str = "model"
    seed: Integer | None = None

    @property
    def part(self) -> str | None:
        """What the paper reports apart: of MATH easy and hard levels, of MMLU the group."""
        if self.task == "math" and self.level is not None:
            return "levels 1–3" if self.level <= 3 else "levels 4–5"
        return self.group


class RoutedNumber(Record):
    """A number of a tool-routing query, the gate's decision about it, and whether the model passed it to the tool."""

    role: Literal["nominal", "quantitative"]
    injected: bool | None = None
    passed: bool | None = None


class RoutedQuery(Record):
    """One line of `routing.jsonl`."""

    query: str
    call: Literal["called", "malformed", "none"]
    exact: bool
    numbers: list[RoutedNumber]


class TaggedDecision(Record):
    """One line of `finer.jsonl`: a number under a tag of FiNER-139, and the gate's decision."""

    text: str
    tag: str
    role: Literal["nominal", "quantitative"]
    injected: bool


class GatedNumber(Record):
    """A number of a text in `gate-shares.jsonl`."""

    injected: bool


class GatedText(Record):
    """One line of `gate-shares.jsonl`: a text and the decisions about its numbers."""

    source: str
    group: str | None = None
    numbers: list[GatedNumber]


class TrainingStep(Record):
    """One line of `training_log.jsonl`: what was logged at a step. Every key but `step` may be missing."""

    step: Integer = Field(ge=0)
    loss: float | None = None
    cross_entropy: float | None = None
    penalty: float | None = None
    gate_open_quantitative: Probability | None = None
    gate_open_nominal: Probability | None = None
    gate_logit_quantitative: float | None = None
    gate_logit_nominal: float | None = None
    embedding_ratio: float | None = None
    tokens_per_second: float | None = None
    learning_rate: float | None = None


class GateDecision(Record):
    """One line of `gating.jsonl`: what the gate did with a number whose role is known."""

    role: Literal["nominal", "quantitative"]
    alpha: Probability | None = None
    injected: bool
    domain: str | None = None
    run: str | None = None
    """Only in a comparison, as `seed`."""
    seed: Integer | None = None

    @property
    def right(self) -> bool:
        """Whether the gate did what the role asks for: open for a quantity, closed for a name."""
        return self.injected == (self.role == "quantitative")


class TextLoss(Record):
    """One line of a comparison's `language.jsonl`: the loss on a text's word tokens, in nats, summed."""

    run: str
    seed: Integer | None = None
    kind: Literal["plain", "nominal"]
    text: str
    tokens: Integer = Field(ge=1)
    loss: FiniteFloat


class InspectedNumber(Record):
    """A number of an inspected sentence, at its characters `[start, end)`."""

    text: str
    value: str
    start: Integer = Field(ge=0)
    end: Integer
    alpha: Probability | None = None
    injected: bool


class InspectedSentence(Record):
    """One line of `inspected.jsonl`: a sentence and its numbers, in the order of the text."""

    text: str
    numbers: tuple[InspectedNumber, ...]

    @model_validator(mode="after")
    def _numbers_stand_in_text(self) -> Self:
        last = 0
        for number in self.numbers:
            found = self.text[number.start : number.end]
            if number.start < last or not found or found != number.text:
                raise ValueError(
                    f"number {number.text!r} does not stand at characters [{number.start}, {number.end}) "
                    "of the text, after the number before it"
                )
            last = number.end
        return self


class ProbedLayer(Record):
    """One line of `layers.jsonl`: what linear probes read of numbers' roles after a layer, with 95% intervals."""

    layer: Integer = Field(ge=0)
    random_split: Probability
    random_split_low: Probability
    random_split_high: Probability
    held_out: Probability
    held_out_low: Probability
    held_out_high: Probability
    control: Probability
    selectivity: Gain
    selectivity_low: Gain
    selectivity_high: Gain


class SelectedLayer(Record):
    """`selection.json`: the layer to inject at, and why; the other layers are those that it is compared to."""

    layer: Integer
    best: Integer
    """Of the greatest held-out accuracy, smoothed."""
    argmax: Integer
    """The paper's rule."""
    early_peak: Integer | None
    reason: str


R = TypeVar("R", bound=Record)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        raise InputError(f"{one_line(path)} can't be read: {error.strerror}; replace or delete it") from error


def read_object(path: Path, kind: type[R]) -> R:
    """Reads a file of one JSON object. Raises InputError, naming the file and the key, if it is malformed."""
    try:
        return kind.model_validate_json(_bytes(path))
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error)}; correct the file or delete it") from error


def read_lines(path: Path, kind: type[R]) -> list[R]:
    """Reads a file of JSON lines (blank lines are skipped).

    Raises:
        InputError: a line is malformed; names the file, the line and the key.
    """
    records = []
    # Split on b"\n" alone: str.splitlines would also break at U+2028, which may stand raw in a JSON string.
    for number, line in enumerate(_bytes(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(kind.model_validate_json(line))
        except ValidationError as error:
            message = f"{path}, line {number}: {first_problem(error)}; correct the line or delete it"
            raise InputError(message) from error
    return records


def as_records(records: Iterable[R | Mapping[str, Any]], kind: type[R]) -> list[R]:
    """The same check for records in memory. Raises InputError, naming the record's position from 0."""
    checked = []
    for position, record in enumerate(records):
        try:
            checked.append(kind.model_validate(record))
        except ValidationError as error:
            raise InputError(f"record {position}: {first_problem(error)}") from error
    return checked
