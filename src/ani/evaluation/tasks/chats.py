"""Task `chats`: chats that ask for a calculation, and chats that hold one which nobody asks for.

The others' wordings are made again by rule: OccamLLM's (arXiv 2406.06576), NUPA's (arXiv 2411.03766) and BIG-bench's
`arithmetic` (arXiv 2206.04615).
"""

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal, NamedTuple, cast

from pydantic import Field

from ani.data.arithmetic import COMPUTE, SYMBOLS, Operation
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

Kind = Literal["asked", "raw", "occam", "nupa", "bigbench", "unasked"]
_WORDS: dict[str, str] = {
    "addition": "plus",
    "subtraction": "minus",
    "multiplication": "times",
    "division": "divided by",
}
_NUPA = "Directly return the answer as an integer without any comma separator, like 123 . {} two numbers: {} ="
_NUPA_VERBS: dict[str, str] = {"addition": "Add", "subtraction": "Subtract", "multiplication": "Multiply"}
_LABELS: dict[Kind, str] = {
    "asked": "Asked in a chat",
    "raw": "Asked in a raw prompt",
    "occam": "OccamLLM's `a + b =`",
    "nupa": "NUPA's instruction",
    "bigbench": "BIG-bench's `Q: … A:`",
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
        """Operations in equal parts; wordings and calculations of the test split, numbers of others' by their rules."""
        wanted = {(kind, name): self.count for kind in ("asked", "raw") for name in _WORDS}
        found: list[ChatQuestion] = []
        for chat in asked_chats(40 * self.count, split="test", seed=seed):
            kind: Kind = "raw" if isinstance(chat.prompt, str) else "asked"
            if wanted.get((kind, chat.operation), 0) and chat.result.lstrip("-").isdigit():
                wanted[kind, chat.operation] -= 1
                found.append(ChatQuestion(kind, chat.operation, chat.prompt, chat.result))
        found.sort(key=lambda question: (question.kind, [*_WORDS].index(question.operation)))
        rng = random.Random(f"chats {seed}")
        others: tuple[Kind, ...] = ("occam", "nupa", "bigbench")
        for kind in others:
            for name in _WORDS if kind != "nupa" else _NUPA_VERBS:
                found += [_of_others(kind, name, rng) for _ in range(self.count)]
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
            for operation in ("", *_WORDS):
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


def _of_others(kind: Kind, name: str, rng: random.Random) -> ChatQuestion:
    """OccamLLM's signed integers of up to 3, 5 or 7 digits, NUPA's of 2 to 8 digits, or BIG-bench's of 1 to 5 digits;
    quotients are exact."""
    if kind == "occam":
        most = 10 ** rng.choice((3, 5, 7))
        left, right = rng.randint(-most, most), rng.randint(-most, most) or 7
    else:
        digits = rng.randint(*((2, 8) if kind == "nupa" else (1, 5)))
        left, right = (rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
    if name == "division":
        left *= right
    symbol = SYMBOLS[cast(Operation, name)]
    written, result = f"{left} {symbol} {right}", str(COMPUTE[symbol](left, right))
    if kind == "bigbench":
        return ChatQuestion(kind, name, f"Q: What is {left} {_WORDS[name]} {right}? A:", result)
    content = f"{written} =" if kind == "occam" else _NUPA.format(_NUPA_VERBS[name], written)
    return ChatQuestion(kind, name, [{"role": "user", "content": content}], result)
