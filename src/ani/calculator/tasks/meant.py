"""Task `meant`: prompts that contain a calculation; its result is meant, or something else is (docs/calculator.md)."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field

from ani.calculator.data.chats import asked_chats, asked_messages, unasked_chats
from ani.calculator.data.drawn_text import DrawnText
from ani.calculator.data.sentences import sentences
from ani.calculator.reader.calculations import number_after
from ani.calculator.reader.pending import PendingReader
from ani.calculator.tasks.stated import stated_numbers
from ani.data.arithmetic import SYMBOLS
from ani.data.records import Message
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, Measured
from ani.numbers.signs import BOUNDARY
from ani.results.scores import TaskRecord
from ani.results.statistics import Estimate, grouped_share

ROOM = 32
"""Maximum number of new tokens of an answer."""

Kind = Literal["asked", "asked otherwise", "raw", "sentence", "unasked", "other sentence"]
_OPERATIONS: list[str] = [*SYMBOLS]
_LABELS: dict[Kind, str] = {
    "asked": "Asked in a chat",
    "asked otherwise": "Asked in a chat, phrased by an independent writer",
    "raw": "Asked in a raw prompt",
    "sentence": "Meant in a sentence",
    "unasked": "Not asked for: the base model's answer, word for word",
    "other sentence": "Not meant in a sentence: the result is not written",
}


class MeantQuestion(TaskRecord):
    """A prompt that contains a calculation."""

    known_by = "kind", "prompt"

    kind: Kind
    meant: bool
    operation: str = ""
    """Such as `addition`; empty except in `asked` and `raw`."""
    template: str | None = None
    """A sentence's template."""
    prompt: str
    """The user's message, or the raw text."""
    result: str
    """The calculation's exact result."""


class MeantAnswer(MeantQuestion):
    """An answer to a question, a line of `meant.jsonl`."""

    output: str
    base_output: str | None = None
    """The base model's answer, in `unasked`."""
    right: bool
    """True if the result is among the answer's numbers that are no operands; in `sentence`, if it is the first of them;
    in `unasked`, if the answer is the base model's; in `other sentence`, if the result does not follow the sign."""


class Meant(Measured):
    """Exact results where they are meant, and unchanged answers where they are not."""

    name = "meant"
    title = "Calculations that are meant, or not"
    note = (
        "Wordings that the gate was not fitted on. An answer is exact if the result is among its numbers that "
        "are no operands (in `7 + 5 = 12` only 12 counts). Where nobody asks for the calculation, the answer should be "
        "the base model's, word for word. A sentence ends at an equals sign: its result should be the first number, or "
        "should not follow the sign. 95% intervals: Wilson's; templates of sentences and training seeds resampled."
    )
    unit = "prompts"
    record = MeantAnswer

    count: int = Field(default=100, ge=1)
    """Prompts per kind and operation, and sentences that mean the result or do not; twice as many in the words of an
    independent writer, and three times as many that ask for nothing."""

    def questions(self, seed: int) -> list[MeantQuestion]:
        """Equally many questions per operation; wordings and calculations of the test split."""
        wanted = {(raw, name): self.count for raw in (False, True) for name in _OPERATIONS}
        found: list[MeantQuestion] = []

        def add(kind: Kind, each: DrawnText, **facts: Any) -> None:
            facts.update(kind=kind, meant=each.meant, prompt=each.prompt, result=each.result)
            found.append(MeantQuestion(**facts))

        for chat in asked_chats(40 * self.count, split="test", seed=seed):
            if wanted.get((chat.raw, chat.operation)) and chat.result.lstrip("-").isdigit():
                wanted[chat.raw, chat.operation] -= 1
                add("raw" if chat.raw else "asked", chat, operation=chat.operation)
        found.sort(key=lambda question: (question.kind, _OPERATIONS.index(question.operation)))
        for each in asked_messages(2 * self.count, seed=seed):
            add("asked otherwise", each)
        for each in unasked_chats(3 * self.count, split="test", seed=seed):
            add("unasked", each)
        for each in sentences(2 * self.count, split="test", seed=seed):
            add("sentence" if each.meant else "other sentence", each, template=each.template)
        return found

    def answer(self, engine: Engine, questions: Sequence[MeantQuestion]) -> Answers:
        """Asks greedily; where nobody asks for a calculation, asks the base model too."""
        raw = "raw", "sentence", "other sentence"
        prompts: list[str | list[Message]] = [
            each.prompt if each.kind in raw else [{"role": "user", "content": each.prompt}] for each in questions
        ]
        unasked = [prompt for prompt, question in zip(prompts, questions, strict=True) if question.kind == "unasked"]
        with engine.base():
            base = iter(engine.texts(unasked, ROOM) if unasked else [])
        for place, (question, output) in enumerate(zip(questions, engine.texts(prompts, ROOM), strict=True)):
            facts = {**question.model_dump(exclude_unset=True), "output": output}
            result = Decimal(question.result)
            numbers = [number.value for number in stated_numbers(output)]
            match question.kind:
                case "asked" | "asked otherwise" | "raw":
                    facts["right"] = result in numbers
                case "sentence":
                    facts["right"] = numbers[:1] == [result] or (result in numbers and number_after(output) == result)
                case "other sentence":
                    facts["right"] = number_after(output) != result
                case "unasked":
                    facts["base_output"] = before = next(base)
                    facts["right"] = output == before
            yield place, [MeantAnswer(**facts)]

    @classmethod
    def measures(cls, records: Sequence[MeantAnswer]) -> dict[str, tuple[str, Estimate | None]]:
        found: dict[str, tuple[str, Estimate | None]] = {}
        for kind, label in _LABELS.items():
            of_kind = [record for record in records if record.kind == kind]
            for operation in ("", *_OPERATIONS):
                asked = [record for record in of_kind if operation in ("", record.operation)]
                if asked:
                    key = "_".join(filter(None, (kind.replace(" ", "_"), operation)))
                    estimate = grouped_share((r.template or r.identity, r.seed, r.right) for r in asked)
                    found[key] = (f"{label}, {operation}" if operation else label, estimate)
        if unasked := [record for record in records if record.kind == "unasked"]:
            pending = [record for record in unasked if PendingReader().feed([record.prompt + BOUNDARY])[0]]
            estimate = grouped_share((record.identity, record.seed, record.right) for record in pending)
            found["unasked_pending"] = ("Not asked for, but pending when the answer begins: the same", estimate)
        return found
