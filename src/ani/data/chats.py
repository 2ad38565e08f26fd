"""Chats that ask for a calculation in many wordings, and chats that hold a calculation which nobody asks for.

Asked
    A wording is composed of what comes before (a greeting, a role, the form of the answer, nothing), the question
    itself, and what comes after (`chat_templates.yaml`). Only chats are drawn whose result is pending
    (`ani.calculator.reader.pending`) where the answer writes it, as nothing else can be trained on.
Not asked
    Templates of many kinds around a calculation that is quoted, named, described or forbidden. They have no answer of
    their own: the model's is right. Some begin as asked chats do, so that a beginning tells nothing.
"""

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import NamedTuple

from ani.calculator.reader.pending import PendingReader
from ani.data.arithmetic import SYMBOLS, Operation, split_of
from ani.data.calculations import combined, drawn_expression, leaf, plain
from ani.data.diagnostic import ENDLESS, rounds
from ani.data.sources import Message
from ani.data.split import Split, add_new, check_split, read_templates
from ani.numbers.grammar import BOUNDARY

RAW = 0.25
"""The share of asked prompts that are plain texts, not chats."""
RESULT_ONLY = 0.85
"""The share of completions that are the result alone."""
BELOW_ONE = 0.1
"""The share of calculations for training that are drawn as quotients below 1, which come up too seldom else: a module
that has seen few of them writes 0.74 as 1."""
_ATTEMPTS = 30
"""Wordings that are tried for a calculation; some don't go together with it."""
_MOST_DIGITS = 8
_MOST_QUOTED_DIGITS = 6  # of a calculation that isn't asked for
_EXACT_PLACES = 5  # a result with more is rounded
_PLACES = (2, 3, 4)
_PLACE_WORDS = {2: "two", 3: "three", 4: "four"}


class AskedChat(NamedTuple):
    """A prompt that asks for a calculation, and an answer."""

    prompt: str | list[Message]
    """One user message, or a raw text."""
    completion: str
    """The answer, with the result once."""
    result: str
    """As the completion writes it: exact, or rounded half away from zero."""
    operation: str
    """Such as `addition`, `root`; `several`: of three operands."""
    template: str
    """The wording with its slots."""


class HeldChat(NamedTuple):
    """A prompt that holds a calculation, and asks for it or not."""

    prompt: list[Message]
    """One user message."""
    result: str
    """The calculation's exact value."""
    template: str
    """Of `chat_templates.yaml`."""


def asked_chats(count: int, *, split: Split, seed: int = 0) -> list[AskedChat]:
    """Draws distinct chats that ask for a calculation, each with an answer.

    The list depends on the arguments alone, and a larger count only appends. The splits share no wording, and no
    calculation with this or another generator's other split.
    """
    check_split(split, count)
    found: dict[str, AskedChat] = {}
    chats = drawn_asked_chats(split, seed)

    def drawn() -> tuple[str, AskedChat] | None:
        text = _text(chat := next(chats))
        return (text, chat) if text not in found and is_pending(chat) else None

    for _ in range(count):
        add_new(found, drawn)
    return list(found.values())


def asked_messages(count: int, *, seed: int = 0) -> list[HeldChat]:
    """Draws distinct test chats that ask for a calculation in the words of a writer who had seen nothing of ours, be
    they understood or not; as `unasked_chats`."""
    return _held_chats("messages", count, "test", seed)


def unasked_chats(count: int, *, split: Split, seed: int = 0, pending: bool = False) -> list[HeldChat]:
    """Draws distinct chats that hold a calculation which nobody asks for, every template once before any twice.

    The list depends on the arguments alone, and a larger count only appends. The splits share neither template nor
    calculation. `pending` keeps those alone where a value is pending all the same when the answer begins: elsewhere
    there is nothing to decide.
    """
    return _held_chats("unasked", count, split, seed, pending)


def _held_chats(part: str, count: int, split: Split, seed: int, pending: bool = False) -> list[HeldChat]:
    check_split(split, count)
    rng = random.Random(f"{part} chats {split} {seed}")
    found: dict[str, HeldChat] = {}
    templates = rounds(dict.fromkeys(_texts(part, split), ENDLESS), rng)
    while len(found) < count:
        template = next(templates)
        chat = _held(part, template, split, rng)
        while (text := chat.prompt[0]["content"]) in found:
            chat = _held(part, template, split, rng)
        if not pending or PendingReader().feed([text + BOUNDARY])[0]:
            found[text] = chat
    return list(found.values())


def drawn_asked_chats(split: Split, seed: int = 0) -> Iterator[AskedChat]:
    """All that `asked_chats` draws, without end: also what came before, and what isn't pending."""
    rng = random.Random(f"asked chats {split} {seed}")
    while True:
        calculation = _below_one(rng) if split == "train" and rng.random() < BELOW_ONE else _calculation(rng)
        if split_of(calculation.key) == split:
            attempts = (_asked(calculation, split, rng) for _ in range(_ATTEMPTS))
            yield from islice(filter(None, attempts), 1)


def is_pending(chat: AskedChat) -> bool:
    """Whether each character of the result is pending where the completion writes it."""
    ended = chat.prompt if isinstance(chat.prompt, str) else chat.prompt[0]["content"] + BOUNDARY
    begin = chat.completion.rindex(chat.result)
    states = PendingReader().feed([ended, *chat.completion])[begin:]
    last = len(chat.result) - 1
    for index, (character, pending) in enumerate(zip(chat.result, states, strict=False)):
        if pending is None:
            return False
        following = pending.next(1)[0]
        if character != following.character and (index < last or character != following.last):
            return False
    return True


def _text(chat: AskedChat) -> str:
    return chat.prompt if isinstance(chat.prompt, str) else chat.prompt[0]["content"]


def _message(content: str) -> list[Message]:
    return [{"role": "user", "content": content}]


# --- templates --------------------------------------------------------------------------------------------------------


_FILE = "chat_templates.yaml"


@cache
def _texts(part: str, split: Split, *kinds: str) -> list[str]:
    """The texts of some kinds of a part; of all if none is named."""
    found = read_templates(_FILE)[part]
    return [text for kind in kinds or found for text in found[kind][split]]


_SLOT = re.compile(r"\{([a-z]+)\}")
_WHOLE = re.compile(r"\b(?:integer|whole number)", re.IGNORECASE)
"""What only a whole result can satisfy."""


# --- calculations -----------------------------------------------------------------------------------------------------


class _Calculation(NamedTuple):
    """A drawn calculation before it is written."""

    operation: str
    parts: tuple[str, ...]
    """Operands, and where symbols are between them these and parentheses."""
    value: Fraction
    """Its first dozen digits, if it is a root that is no fraction."""
    key: str
    """The same for both orders of a sum's or product's operands."""
    currency: str = ""

    @property
    def operands(self) -> list[str]:
        return [part for part in self.parts if part[-1].isdigit()]


def _number(rng: random.Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def _signed(value: Fraction | int) -> str:
    return "-" * (value < 0) + plain(abs(Fraction(value)))


def _of_two(operation: Operation, left: Fraction | int, right: Fraction | int, currency: str = "") -> _Calculation:
    found = combined(SYMBOLS[operation], leaf(_signed(left)), leaf(_signed(right)))
    return _Calculation(operation, found.parts, found.value, found.key, currency)


def _plain(rng: random.Random, most: int = _MOST_DIGITS) -> _Calculation:
    """One of the four operations on whole numbers."""
    operation = rng.choice(tuple(SYMBOLS))
    digits, others = rng.randint(1, most), rng.randint(1, most)
    if operation in ("addition", "subtraction") and rng.random() < 0.7:
        others = digits
    left, right = _perhaps_negative(rng, _number(rng, digits), _number(rng, others))
    if operation == "division":
        right = right or 3
        if most < _MOST_DIGITS or rng.random() < 0.8:  # exact; the dividend is no longer than 12 digits
            left = right * _number(rng, rng.randint(1, min(most, 12 - len(str(abs(right))))))
    return _of_two(operation, left, right)


def _below_one(rng: random.Random) -> _Calculation:
    """A quotient between -1 and 1."""
    right = max(2, _number(rng, rng.randint(1, _MOST_DIGITS)))
    return _of_two("division", *_perhaps_negative(rng, rng.randrange(1, right), right))


def _perhaps_negative(rng: random.Random, left: int, right: int) -> tuple[int, int]:
    if rng.random() < 0.3:
        left, right = (value if rng.random() < 0.5 else -value for value in (left, right))
    return left, right


def _decimal(rng: random.Random) -> _Calculation:
    operation = rng.choice(tuple(SYMBOLS))
    left, right = (Fraction(_number(rng, rng.randint(2, 6)), 10 ** rng.randint(0, 2)) for _ in range(2))
    if operation == "division":
        right = right or Fraction(5, 2)
        left = right * _number(rng, rng.randint(1, 4))
    return _of_two(operation, left, right)


def _money(rng: random.Random) -> _Calculation:
    operation = rng.choice(tuple(SYMBOLS))
    left, right = (Fraction(_number(rng, rng.randint(3, 6)), rng.choice((1, 100, 100))) for _ in range(2))
    if operation == "subtraction":
        left, right = max(left, right), min(left, right)
    elif operation != "addition":
        right = Fraction(rng.randint(2, 40))
        if operation == "division":
            left = right * left
    return _of_two(operation, left, right, rng.choice("$$$€£"))


def _several(rng: random.Random) -> _Calculation:
    while True:
        symbols = tuple(SYMBOLS.values())
        found = drawn_expression(rng, 3, rng.randint(1, 4), rng.choice(symbols), symbols)
        if found:
            return _Calculation("several", found.parts, found.value, found.key)


def _power(rng: random.Random) -> _Calculation:
    found = combined("^", leaf(str(rng.randint(2, 30))), leaf(str(rng.randint(2, 6))))
    return _Calculation("power", (found.parts[0], found.parts[2]), found.value, found.key)


def _square(rng: random.Random) -> _Calculation:
    found = combined("^", leaf(str(_number(rng, rng.randint(1, 4)))), leaf("2"))
    return _Calculation("square", found.parts[:1], found.value, found.key)


def _root(rng: random.Random) -> _Calculation:
    radicand = _number(rng, rng.randint(1, 3)) ** 2 if rng.random() < 0.7 else _number(rng, rng.randint(1, 5))
    value = Fraction(math.isqrt(radicand * 10**24), 10**12)
    return _Calculation("root", (str(radicand),), value, f"sqrt {radicand}")


def _remainder(rng: random.Random) -> _Calculation:
    left, right = _number(rng, rng.randint(2, 6)), rng.randint(2, 99)
    return _Calculation("remainder", (str(left), str(right)), Fraction(left % right), f"{left} mod {right}")


def _percentage(rng: random.Random) -> _Calculation:
    percent, of = rng.choice((5, 10, 15, 20, 25, 30, 40, 50, 75, rng.randint(1, 99))), _number(rng, rng.randint(2, 5))
    return _Calculation("percentage", (str(percent), str(of)), Fraction(percent * of, 100), f"{percent}% of {of}")


def _mean(rng: random.Random) -> _Calculation:
    left, right = sorted(_number(rng, rng.randint(1, 5)) for _ in range(2))
    key = f"mean {left} {right}"
    return _Calculation("mean", (str(right), str(left)), Fraction(left + right, 2), key)


def _half(rng: random.Random) -> _Calculation:
    of = _number(rng, rng.randint(2, 6))
    return _Calculation("half", (str(of),), Fraction(of, 2), f"half {of}")


_DRAWS: dict[Callable[[random.Random], _Calculation], float] = {
    _plain: 75, _decimal: 6, _money: 4, _several: 4, _percentage: 3, _square: 2, _root: 2, _power: 1.5, _remainder: 1.5,
    _mean: 0.5, _half: 0.5,
}  # fmt: skip


def _calculation(rng: random.Random) -> _Calculation:
    (draw,) = rng.choices(tuple(_DRAWS), tuple(_DRAWS.values()))
    return draw(rng)


def _places(value: Fraction) -> int | None:
    """How many places an exact decimal fraction has; None if there are more than are written."""
    return next((places for places in range(_EXACT_PLACES + 1) if (value * 10**places).denominator == 1), None)


def _rounded(value: Fraction, places: int) -> str | None:
    """Half away from zero; None where that changes more than the last digit, so that it would not be pending."""
    scaled = abs(value) * 10**places
    steps = int(scaled + Fraction(1, 2))
    if steps // 10 != int(scaled) // 10 or not steps:
        return None
    return "-" * (value < 0) + f"{steps // 10**places}.{steps % 10**places:0{places}d}"


# --- writing ----------------------------------------------------------------------------------------------------------

_WRITTEN: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "+": ("+", ("+",)),
    "-": ("---−–", ("-",)),
    "*": ("****×××x·", (r"\times", r"\times", r"\cdot")),
    "/": ("//÷", (r"\div", "/")),
}
"""An operator's symbols in plain text and in TeX."""


class _Writer:
    """Writes one calculation, everywhere with the same operands and symbols."""

    def __init__(self, calculation: _Calculation, rng: random.Random) -> None:
        self.calculation, self.rng = calculation, rng
        self.wordings: dict[str, list[str]] = read_templates(_FILE)["wordings"].get(calculation.operation, {})
        self.grouped = not calculation.currency and rng.random() < 0.06
        self.done: dict[str, str] = {}

    @property
    def slots(self) -> set[str]:
        """What can be written of it; which way round a difference is meant is doubtful if it is negative."""
        slots = {*self.wordings, *("x" for part in self.calculation.parts if part in _WRITTEN)}
        return slots - {"n"} if self.calculation.value < 0 and self.calculation.operation == "subtraction" else slots

    def write(self, slot: str) -> str:
        if slot not in self.done:
            if slot in self.wordings:
                text = self.rng.choice(self.wordings[slot])
                for name, part in zip("ab", self.calculation.operands, strict=False):
                    text = text.replace(f"{{{name}}}", self._operand(part))
                self.done[slot] = text
            else:
                self.done[slot] = self._tex() if slot == "t" else self._symbols()
        return self.done[slot]

    def _operand(self, literal: str, counted: bool = True) -> str:
        whole, point, fraction = literal.partition(".")
        if self.grouped and len(whole.lstrip("-")) > 3:
            whole = f"{int(whole):,}"
        if self.calculation.currency and counted:
            fraction = point and f"{fraction:0<2}"
            whole = self.calculation.currency + whole
        return whole + point + fraction

    def _symbols(self) -> str:
        way = self.rng.random()
        if way < 0.1 and not self.calculation.currency:
            tex = self._tex()
            return (f"${tex}$", f"${tex}$", rf"\({tex}\)", tex)[self.rng.randrange(4)]
        return self._joined(0, tight=way > 0.85)

    def _tex(self) -> str:
        parts = self.calculation.parts
        if self.calculation.operation == "division" and self.rng.random() < 0.3:
            return rf"\frac{{{self._operand(parts[0])}}}{{{self._operand(parts[2])}}}"
        return self._joined(1)

    def _joined(self, tex: int, tight: bool = False) -> str:
        signs = {symbol: self.rng.choice(ways[tex]) for symbol, ways in _WRITTEN.items()}
        bracketed = tight or signs["*"] == "x" or self.rng.random() < 0.5  # `3 x -4` may be an equation's
        text = ""
        factors = set("*/") & set(self.calculation.parts)
        for index, part in enumerate(self.calculation.parts):
            if part in signs:
                text += signs[part] if tight else f" {signs[part]} "
            elif part in ("(", ")"):
                text += part
            else:
                operand = self._operand(part, not index or not factors)
                text += f"({operand})" if index and part[0] == "-" and bracketed else operand
        return text


# --- asked ------------------------------------------------------------------------------------------------------------

_SENTENCES = ("greetings", "forms", "roles", "situations", "examples")


def _asked(calculation: _Calculation, split: Split, rng: random.Random) -> AskedChat | None:
    """A chat that asks for a calculation; None if the parts that were drawn don't go together."""
    exact = _places(calculation.value)
    writer = _Writer(calculation, rng)
    places, rounded = (exact, False) if exact is not None else (rng.choice(_PLACES), rng.random() < 0.5)
    if calculation.currency and exact != 0:
        places = 2
        if exact is None or exact > 2:
            return None
    if exact is None or (calculation.currency and exact != 0):
        result = _rounded(calculation.value, places or 2)
    else:
        result = _signed(calculation.value)
    if result is None:
        return None
    raw = not rounded and rng.random() < RAW
    if raw:
        template = rng.choice(_texts("raw", split, "texts"))
        shown = template
    else:
        template, shown = _composed(rounded, split, rng)
    shown = re.sub(r"\{e\}", lambda _: str(_number(rng, rng.randint(1, 5))), shown)
    named = {slot: None for slot in _SLOT.findall(shown)}
    if not named.keys() <= {*writer.slots, "places"} or ("." in result and _WHOLE.search(shown)):
        return None
    for slot in named:
        written = writer.write(slot) if slot != "places" else rng.choice((str(places), _PLACE_WORDS[places or 0]))
        if shown.startswith(f"{{{slot}}}") and rng.random() < 0.7:
            written = written[0].upper() + written[1:]
        shown = shown.replace(f"{{{slot}}}", written)
    answer = _answer(writer, result, raw, rng)
    if raw and not shown.endswith(("\n", " ")):
        answer = f" {answer}"
    return AskedChat(shown if raw else _message(shown), answer, result, calculation.operation, template)


def _in_lower_case(ask: str) -> str:
    """With a small first letter, unless all of it is in capitals or it begins with "I"."""
    return ask if ask[1:2].isupper() or re.match(r"I\b", ask) else ask[:1].lower() + ask[1:]


def _composed(rounded: bool, split: Split, rng: random.Random) -> tuple[str, str]:
    """A template of prefix, question and suffix, and the same as it is typed: with some letters in lower case."""
    (kind,) = ("rounded",) if rounded else rng.choices(("questions", "beginnings", "signs"), (50, 20, 30))
    ask = rng.choice(_texts("asks", split, kind))
    typed = _in_lower_case(ask) if rng.random() < 0.25 else ask
    before: list[str] = []
    if rng.random() < 0.6:
        before.append(rng.choice(_texts("prefixes", split, *_SENTENCES)))
        if rng.random() < 0.15:
            before.append(rng.choice(_texts("prefixes", split, *_SENTENCES)))
    if kind == "questions" and rng.random() < 0.2:
        before = [rng.choice(_texts("prefixes", split, "lead-ins"))]
        typed = _in_lower_case(ask)
    gap = "\n" if before and before[-1][-1] != "," and rng.random() < 0.2 else " "
    head = "".join(text if text[-1] == "\n" else text + gap for text in before)
    tail = ""
    if rng.random() < 0.45:
        free = rng.random() < 0.5
        suffix = rng.choice(_texts("suffixes", split, "free" if free else "closings"))
        line = not ask.endswith("?") and (free or kind == "signs" or ask[-1] not in ".!")
        tail = ("\n" if line or rng.random() < 0.2 else " ") + suffix
    return head + ask + tail, head + typed + tail


def _answer(writer: _Writer, result: str, raw: bool, rng: random.Random) -> str:
    currency = writer.calculation.currency
    written = f"{currency}{result}" if currency and rng.random() < 0.7 else result
    if rng.random() < RESULT_ONLY:
        return written
    if raw:
        return f"{written}."
    template = rng.choice(read_templates(_FILE)["answers"])
    if "{x}" in template:
        slot = "x" if "x" in writer.done or "x" in writer.slots else next(iter(writer.wordings))
        template = template.replace("{x}", writer.write(slot))
    text: str = template.replace("{r}", written)
    return text[0].upper() + text[1:]


# --- held ------------------------------------------------------------------------------------------------------------


def _held(part: str, template: str, split: Split, rng: random.Random) -> HeldChat:
    """A chat with this template."""
    calculation = _plain(rng, _MOST_QUOTED_DIGITS)
    while split_of(calculation.key) != split:
        calculation = _plain(rng, _MOST_QUOTED_DIGITS)
    result, writer, text = _signed(calculation.value), _Writer(calculation, rng), template
    for slot in dict.fromkeys(_SLOT.findall(template)):
        text = text.replace(f"{{{slot}}}", result if slot == "r" else writer.write(slot))
    if part == "unasked" and rng.random() < 0.2:
        before = rng.choice(_texts("prefixes", split, "greetings", "roles", "situations"))
        text = before + ("" if before[-1] == "\n" else " ") + text
    return HeldChat(_message(text), result, template)
