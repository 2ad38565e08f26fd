"""The gate's decisions about the numbers of a text, as a record; knows nothing about models or what is shown."""

from typing import Self

from pydantic import Field, model_validator

from ani.results.files import Integer, Probability, Record
from ani.results.scores import TaskRecord


class DecidedNumber(Record):
    """A number of a text, at its characters `[start, end)`, and the gate's decision about it."""

    text: str
    value: str
    start: Integer = Field(ge=0)
    end: Integer
    alpha: Probability | None = None
    """σ(z); None where the number got nothing: it is out of range, or `after` gives its token a later one."""
    injected: bool


class DecidedText(TaskRecord):
    """A text and its numbers, in their order; a line of `inspected.jsonl`."""

    text: str
    numbers: tuple[DecidedNumber, ...]

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
