"""Chats that ask for a calculation in many wordings, and chats that contain a calculation which nobody asks for.

Asked
    A wording combines an optional prefix (a greeting, a role, the form of the answer), a question and an optional
    suffix, all from `chat_templates.yaml`. A chat is used only if its result is pending (`ani.calculator.reader`) where
    the answer writes it.
Not asked
    Templates of many kinds around a calculation that is quoted, named, described or forbidden. They have no answer: the
    model's own answer is right. Some begin as asked chats do, so that the beginning alone decides nothing.
"""

import random
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import islice

from ani.calculator.data.drawn_expressions import plain
from ani.calculator.data.drawn_text import DrawnText
from ani.calculator.data.worded_calculations import (
    CHATS,
    Calculation,
    Wording,
    drawn_calculation,
    number,
    quoted_calculation,
)
from ani.calculator.reader.pending import PendingReader
from ani.data.arithmetic import split_of
from ani.data.diagnostic import ENDLESS, rounds
from ani.data.split import Split, check_split, read_templates
from ani.numbers.signs import BOUNDARY

RAW = 0.25
"""The share of asked prompts that are raw texts instead of chats."""
RESULT_ONLY = 0.85
"""The share of completions that are the result alone."""
_ATTEMPTS = 30
"""The number of wordings that are tried for a calculation; some do not fit it."""
_EXACT_PLACES = 5
"""A result with more decimal places is rounded."""
_PLACES = {2: "two", 3: "three", 4: "four"}
"""Numbers of decimal places that a chat may ask for, and their words."""


def asked_chats(count: int, *, split: Split, seed: int = 0) -> list[DrawnText]:
    """Draws distinct chats and raw texts that ask for a calculation, each with an answer.

    The list depends on the arguments alone, and a larger count only appends. The splits have neither wording nor
    calculation in common.
    """
    check_split(split, count)
    found: dict[str, DrawnText] = {}
    chats = drawn_asked_chats(split, seed)
    while len(found) < count:
        chat = next(chats)
        if chat.prompt not in found and is_pending(chat):
            found[chat.prompt] = chat
    return list(found.values())


def asked_messages(count: int, *, seed: int = 0) -> list[DrawnText]:
    """Draws distinct test chats that ask for a calculation in the words of a writer who had seen none of our texts,
    whether the reader understands them or not."""
    return _quoting_chats("messages", count, "test", seed)


def unasked_chats(count: int, *, split: Split, seed: int = 0) -> list[DrawnText]:
    """Draws distinct chats that contain a calculation which nobody asks for, otherwise like `asked_chats`.

    Every template is used once before any is used twice.
    """
    return _quoting_chats("unasked", count, split, seed)


def _quoting_chats(part: str, count: int, split: Split, seed: int) -> list[DrawnText]:
    check_split(split, count)
    rng = random.Random(f"{part} chats {split} {seed}")
    found: dict[str, DrawnText] = {}
    templates = rounds(dict.fromkeys(_texts(part, split), ENDLESS), rng)
    while len(found) < count:
        template = next(templates)
        while (chat := _quoting_chat(part, template, split, rng)).prompt in found:
            pass
        found[chat.prompt] = chat
    return list(found.values())


def _quoting_chat(part: str, template: str, split: Split, rng: random.Random) -> DrawnText:
    calculation = quoted_calculation(rng)
    while split_of(calculation.key) != split:
        calculation = quoted_calculation(rng)
    result, wording, text = plain(calculation.value), Wording(calculation, rng), template
    for slot in dict.fromkeys(_SLOT.findall(template)):
        text = text.replace(f"{{{slot}}}", result if slot == "r" else wording.write(slot))
    if part == "unasked" and rng.random() < 0.2:
        before = rng.choice(_texts("prefixes", split, "greetings", "roles", "situations"))
        text = before + ("" if before[-1] == "\n" else " ") + text
    return DrawnText(text, result, template, meant=part == "messages")


def drawn_asked_chats(split: Split, seed: int = 0) -> Iterator[DrawnText]:
    """Draws chats without end, also repeated ones and ones whose result is not pending."""
    rng = random.Random(f"asked chats {split} {seed}")
    while True:
        calculation = drawn_calculation(rng)
        if split_of(calculation.key) == split:
            attempts = (_asked_chat(calculation, split, rng) for _ in range(_ATTEMPTS))
            yield from islice(filter(None, attempts), 1)


def is_pending(chat: DrawnText) -> bool:
    """Return whether the result is pending where the completion writes it."""
    before = chat.completion[: chat.completion.rindex(chat.result)]
    pending = PendingReader().feed([chat.prompt + ("" if chat.raw else BOUNDARY), *before])[-1]
    if pending is None:
        return False
    written = pending.written + chat.result
    return pending.spelling(written).next(1) is not None


@cache
def _texts(part: str, split: Split, *kinds: str) -> list[str]:
    """The texts of some kinds of a part, or of all kinds if none is named."""
    found = read_templates(CHATS, __package__)[part]
    return [text for kind in kinds or found for text in found[kind][split]]


_SLOT = re.compile(r"\{([a-z]+)\}")
_WHOLE = re.compile(r"\b(?:integer|whole number)", re.IGNORECASE)
"""Words that only a whole result satisfies."""


def _places(value: Fraction) -> int | None:
    """The number of decimal places of an exact decimal fraction; None if it has too many."""
    return next((places for places in range(_EXACT_PLACES + 1) if (value * 10**places).denominator == 1), None)


def _rounded(value: Fraction, places: int) -> str | None:
    """Rounds half away from zero; None if that changes more than the last digit, because then it is not pending."""
    scaled = abs(value) * 10**places
    steps = int(scaled + Fraction(1, 2))
    if steps // 10 != int(scaled) // 10 or not steps:
        return None
    return "-" * (value < 0) + f"{steps // 10**places}.{steps % 10**places:0{places}d}"


def _asked_chat(calculation: Calculation, split: Split, rng: random.Random) -> DrawnText | None:
    """A chat that asks for a calculation; None if the drawn parts do not fit together."""
    exact = _places(calculation.value)
    wording = Wording(calculation, rng)
    places, rounded = (exact, False) if exact is not None else (rng.choice(tuple(_PLACES)), rng.random() < 0.5)
    priced = bool(calculation.currency) and exact != 0
    if priced and (exact is None or exact > 2):
        return None
    places = 2 if priced else places
    result = _rounded(calculation.value, places or 2) if exact is None or priced else plain(calculation.value)
    if result is None:
        return None
    raw = not rounded and rng.random() < RAW
    if raw:
        template = shown = rng.choice(_texts("raw", split, "texts"))
    else:
        template, shown = _composed(rounded, split, rng)
    shown = re.sub(r"\{e\}", lambda _: str(number(rng, rng.randint(1, 5))), shown)
    slots = dict.fromkeys(_SLOT.findall(shown))
    if not slots.keys() <= {*wording.slots, "places"} or ("." in result and _WHOLE.search(shown)):
        return None
    for slot in slots:
        written = wording.write(slot) if slot != "places" else rng.choice((str(places), _PLACES[places or 0]))
        if shown.startswith(f"{{{slot}}}") and rng.random() < 0.7:
            written = written[0].upper() + written[1:]
        shown = shown.replace(f"{{{slot}}}", written)
    answer = _answer(wording, result, raw, rng)
    if raw and not shown.endswith(("\n", " ")):
        answer = f" {answer}"
    return DrawnText(shown, result, template, True, raw, calculation.operation, answer)


def _in_lower_case(ask: str) -> str:
    """Begins with a small letter, unless the text is in capitals or begins with "I"."""
    return ask if ask[1:2].isupper() or re.match(r"I\b", ask) else ask[:1].lower() + ask[1:]


def _composed(rounded: bool, split: Split, rng: random.Random) -> tuple[str, str]:
    """A template of prefix, question and suffix, and the same as it is typed: with some letters in lower case."""
    (kind,) = ("rounded",) if rounded else rng.choices(("questions", "beginnings", "signs"), (50, 20, 30))
    ask = rng.choice(_texts("asks", split, kind))
    typed = _in_lower_case(ask) if rng.random() < 0.25 else ask
    before: list[str] = []
    if rng.random() < 0.6:
        sentences = _texts("prefixes", split, "greetings", "forms", "roles", "situations", "examples")
        before.append(rng.choice(sentences))
        if rng.random() < 0.15:
            before.append(rng.choice(sentences))
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


def _answer(wording: Wording, result: str, raw: bool, rng: random.Random) -> str:
    currency = wording.calculation.currency
    written = f"{currency}{result}" if currency and rng.random() < 0.7 else result
    if rng.random() < RESULT_ONLY:
        return written
    if raw:
        return f"{written}."
    template = rng.choice(read_templates(CHATS, __package__)["answers"])
    if "{x}" in template:
        slot = "x" if "x" in wording.written or "x" in wording.slots else next(iter(wording.wordings))
        template = template.replace("{x}", wording.write(slot))
    text: str = template.replace("{r}", written)
    return text[0].upper() + text[1:]
