"""Task `meant`: texts that hold a calculation whose result is meant, or something else (docs/meant.md).

Chats and raw prompts that ask for it, chats that only hold it, and sentences of both roles that end at its equals sign.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Literal, NamedTuple, get_args

from pydantic import Field

from ani.calculator.reader.arithmetic import SIGNS
from ani.calculator.reader.calculations import calculation_before, number_behind
from ani.calculator.reader.digits import is_value
from ani.calculator.reader.pending import PendingReader
from ani.data.arithmetic import SYMBOLS
from ani.data.calculation_sentences import calculation_sentences
from ani.data.chats import asked_chats, asked_messages, unasked_chats
from ani.data.sources import Message
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, Measured
from ani.numbers import find_numbers
from ani.numbers.grammar import BOUNDARY
from ani.results.scores import TaskRecord
from ani.results.statistics import Estimate, grouped_share, share

ROOM = 32
"""New tokens of an answer."""

Kind = Literal["asked", "asked otherwise", "raw", "sentence", "unasked", "other sentence"]
_OPERATIONS: list[str] = [*SYMBOLS]
_LABELS: dict[Kind, str] = {
    "asked": "Asked in a chat",
    "asked otherwise": "Asked in a chat, in words of another hand",
    "raw": "Asked in a raw prompt",
    "sentence": "Meant in a sentence",
    "unasked": "Not asked for: the base model's answer, word for word",
    "other sentence": "Not meant in a sentence: the result isn't written",
}


class MeantQuestion(NamedTuple):
    """A text that holds a calculation."""

    kind: Kind
    meant: bool
    prompt: str | list[Message]
    """A user's message, or a raw text."""
    result: str
    """The calculation's, exact."""
    operation: str = ""
    """Such as `addition`, where it is asked for."""
    completion: str | None = None
    """What stands behind a sentence's equals sign."""
    template: str | None = None
    """Of a sentence."""


class MeantAnswer(TaskRecord):
    """An answer to a question, a line of `meant.jsonl`."""

    known_by = "kind", "prompt"

    kind: Kind
    meant: bool
    operation: str
    """Such as `addition`; empty but in `asked` and `raw`."""
    template: str | None
    """Of a sentence."""
    prompt: str
    """The user's message, or the raw text."""
    result: str
    """Of the calculation."""
    output: str
    base_output: str | None = None
    """What the model answers without adapter, in `unasked`."""
    right: bool
    """Whether the result is among the answer's numbers; in `sentence` whether it is the first; in `unasked` whether the
    answer is the base model's; in `other sentence` whether the result doesn't stand behind the sign."""
    mended: bool | None = None
    """Of an answer that isn't the base model's: whether the two first differ behind an equals sign that both write, and
    this one has the right result there."""


class Meant(Measured):
    """Exact results where they are meant, and answers that stay where they aren't."""

    name = "meant"
    title = "Calculations that are meant, or not"
    note = (
        "Wordings that were never trained. An answer is exact if the result is among its numbers. Where nobody asks "
        "for the calculation, the answer should be what the model says without adapter, word for word; or it differs "
        "first in the result of an equation that the model itself began, which is right now. A sentence ends at an "
        "equals sign: its result should be the first number, or should not stand behind the sign. Wilson 95% "
        "intervals; of sentences, by resampling templates."
    )
    unit = "prompts"
    record = MeantAnswer

    count: int = Field(default=100, ge=1)
    """Prompts of each kind and operation, and sentences of each role; twice as many messages of another hand, and three
    times as many that ask for nothing."""
    kinds: list[Kind] = Field(default=[*get_args(Kind)], min_length=1)
    """Which kinds of prompts are asked."""

    def questions(self, seed: int) -> list[MeantQuestion]:
        """Operations in equal parts; wordings and calculations of the test split."""
        kinds: list[Kind] = [kind for kind in ("asked", "raw") if kind in self.kinds]
        wanted = {(kind, name): self.count for kind in kinds for name in _OPERATIONS}
        found: list[MeantQuestion] = []
        for chat in asked_chats(40 * self.count if wanted else 0, split="test", seed=seed):
            kind: Kind = "raw" if isinstance(chat.prompt, str) else "asked"
            if wanted.get((kind, chat.operation), 0) and chat.result.lstrip("-").isdigit():
                wanted[kind, chat.operation] -= 1
                found.append(MeantQuestion(kind, True, chat.prompt, chat.result, chat.operation))
        found.sort(key=lambda question: (question.kind, _OPERATIONS.index(question.operation)))
        messages = asked_messages(2 * self.count, seed=seed)
        found += [MeantQuestion("asked otherwise", True, each.prompt, each.result) for each in messages]
        unasked = unasked_chats(3 * self.count, split="test", seed=seed)
        found += [MeantQuestion("unasked", False, each.prompt, each.result) for each in unasked]
        for each in calculation_sentences(2 * self.count, split="test", seed=seed):
            meant = each.role == "quantitative"
            kind = "sentence" if meant else "other sentence"
            found.append(MeantQuestion(kind, meant, each.prompt, each.result, "", each.completion, each.template))
        return [question for question in found if question.kind in self.kinds]

    def answer(self, engine: Engine, questions: Sequence[MeantQuestion]) -> Answers:
        """Answer greedily; where nobody asks, once more without adapter."""
        unasked = [question.prompt for question in questions if question.kind == "unasked"]
        with engine.base():
            base = iter(engine.texts(unasked, ROOM) if unasked else [])
        outputs = engine.texts([question.prompt for question in questions], ROOM)
        for place, (question, output) in enumerate(zip(questions, outputs, strict=True)):
            prompt = question.prompt if isinstance(question.prompt, str) else question.prompt[0]["content"]
            facts = {**question._asdict(), "prompt": prompt, "output": output}
            del facts["completion"]
            result = Decimal(question.result)
            numbers = [number.value for number in find_numbers(output)]
            match question.kind:
                case "asked" | "asked otherwise" | "raw":
                    facts["right"] = result in numbers
                case "sentence":
                    facts["right"] = number_behind(output) == result or numbers[:1] == [result]
                case "other sentence":
                    facts["right"] = number_behind(output) != result
                case "unasked":
                    facts["base_output"] = before = next(base)
                    facts["right"] = output == before
                    facts["mended"] = None if output == before else _is_mended(output, before)
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
                    of_templates = grouped_share((record.template, record.right) for record in asked)
                    estimate = of_templates if asked[0].template else share(record.right for record in asked)
                    found[key] = (f"{label}, {operation}" if operation else label, estimate)
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
