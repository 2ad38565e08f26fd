"""Task `chats`: chats that ask for a calculation, and chats that hold one which nobody asks for."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Literal, NamedTuple

from pydantic import Field

from ani.data.arithmetic import SYMBOLS
from ani.data.chats import asked_chats, unasked_chats
from ani.data.sources import Message
from ani.evaluation.backend import Backend
from ani.evaluation.task import Answers, Measured
from ani.numbers import find_numbers
from ani.numbers.grammar import BOUNDARY
from ani.results.scores import TaskRecord
from ani.results.statistics import Estimate, share
from ani.values.arithmetic import SIGNS
from ani.values.calculations import calculation_before, number_behind
from ani.values.digits import is_value
from ani.values.pending import PendingReader

ROOM = 32
"""New tokens of an answer."""

Kind = Literal["asked", "raw", "unasked"]
_OPERATIONS: list[str] = [*SYMBOLS]
_LABELS: dict[Kind, str] = {
    "asked": "Asked in a chat",
    "raw": "Asked in a raw prompt",
    "unasked": "Not asked for: the base model's answer, word for word",
}


class ChatQuestion(NamedTuple):
    """A prompt, and the result of the calculation in it."""

    kind: Kind
    operation: str
    prompt: str | list[Message]
    result: str


class ChatAnswer(TaskRecord):
    """An answer to a question, a line of `chats.jsonl`."""

    known_by = "kind", "prompt"

    kind: Kind
    operation: str
    """Such as `addition`; empty where nobody asks."""
    prompt: str
    """The user's message, or the raw text."""
    result: str
    """Of the calculation."""
    output: str
    base_output: str | None = None
    """What the model answers without adapter, where nobody asks."""
    right: bool
    """Whether the result is among the answer's numbers; where nobody asks, whether the answer is the base model's."""
    mended: bool | None = None
    """Of an answer that isn't the base model's: whether the two first differ behind an equals sign that both write, and
    this one has the right result there."""


class Chats(Measured):
    """Exact results where they are asked for, and answers that stay where they aren't."""

    name = "chats"
    title = "Calculations in chats"
    note = (
        "Wordings that were never trained. An answer is exact if the result is among its numbers. Where nobody asks "
        "for the calculation, the answer should be what the model says without adapter, word for word; or it differs "
        "first in the result of an equation that the model itself began, which is right now. Wilson 95% intervals."
    )
    caption = "Calculations in chats"
    unit = "prompts"
    record = ChatAnswer

    count: int = Field(default=100, ge=1)
    """Prompts of each kind and operation; three times as many that ask for nothing."""

    def questions(self, seed: int) -> list[ChatQuestion]:
        """Operations in equal parts; wordings and calculations of the test split."""
        wanted = {(kind, name): self.count for kind in ("asked", "raw") for name in _OPERATIONS}
        found: list[ChatQuestion] = []
        for chat in asked_chats(40 * self.count, split="test", seed=seed):
            kind: Kind = "raw" if isinstance(chat.prompt, str) else "asked"
            if wanted.get((kind, chat.operation), 0) and chat.result.lstrip("-").isdigit():
                wanted[kind, chat.operation] -= 1
                found.append(ChatQuestion(kind, chat.operation, chat.prompt, chat.result))
        found.sort(key=lambda question: (question.kind, _OPERATIONS.index(question.operation)))
        unasked = unasked_chats(3 * self.count, split="test", seed=seed)
        return found + [ChatQuestion("unasked", "", each.prompt, each.result) for each in unasked]

    def answer(self, backend: Backend, questions: Sequence[ChatQuestion]) -> Answers:
        """Answer greedily; where nobody asks, once more without adapter."""
        unasked = [question.prompt for question in questions if question.kind == "unasked"]
        with backend.base():
            base = iter(backend.texts(unasked, ROOM) if unasked else [])
        outputs = backend.texts([question.prompt for question in questions], ROOM)
        for place, (question, output) in enumerate(zip(questions, outputs, strict=True)):
            prompt = question.prompt if isinstance(question.prompt, str) else question.prompt[0]["content"]
            record = ChatAnswer(
                kind=question.kind,
                operation=question.operation,
                prompt=prompt,
                result=question.result,
                output=output,
                base_output=next(base) if question.kind == "unasked" else None,
                right=any(number.value == Decimal(question.result) for number in find_numbers(output)),
            )
            if record.base_output is not None:
                same = output == record.base_output
                mended = None if same else _is_mended(output, record.base_output)
                record = record.model_copy(update={"right": same, "mended": mended})
            yield place, [record]

    @classmethod
    def measures(cls, records: Sequence[ChatAnswer]) -> dict[str, tuple[str, Estimate | None]]:
        found: dict[str, tuple[str, Estimate | None]] = {}
        for kind, label in _LABELS.items():
            of_kind = [record for record in records if record.kind == kind]
            for operation in ("", *_OPERATIONS):
                right = [record.right for record in of_kind if operation in ("", record.operation)]
                if right:
                    key = "_".join(filter(None, (kind, operation)))
                    found[key] = (f"{label}, {operation}" if operation else label, share(right))
        if unasked := [record for record in records if record.kind == "unasked"]:
            mended = [record.right or bool(record.mended) for record in unasked]
            found["unasked_or_mended"] = ("Not asked for: the same, or with a wrong equation mended", share(mended))
            pending = [record.right for record in unasked if PendingReader().feed([record.prompt + BOUNDARY])[0]]
            found["unasked_pending"] = ("Not asked for, but pending when the answer begins: the same", share(pending))
        return found


def _is_mended(output: str, base: str) -> bool:
    """Whether two answers differ first in a calculation's result, which `output` has right and `base` has not."""
    shared = next((i for i, (ours, theirs) in enumerate(zip(output, base, strict=False)) if ours != theirs), 0)
    signs = list(SIGNS.finditer(output[:shared]))
    if not signs:
        return False
    calculation = calculation_before(output, signs[-1].start())
    numbers = [number_behind(text[signs[-1].end() :]) for text in (output, base)]
    if calculation is None or None in numbers:
        return False
    right, wrong = (is_value(calculation.value, f"{number:f}") for number in numbers)
    return right and not wrong
