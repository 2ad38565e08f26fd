"""A second reader of pending values, from the prose of the rules; shares no code with `ani.calculator.reader`.

It reads every prefix of a text anew, one character at a time, and asks of each value what became of it, where the
library goes on from where it was and drops what is done. Numbers are fractions and lists of digits.
"""

from fractions import Fraction
from itertools import pairwise
from typing import Any

from tests.numbers import oracle

DIGITS = "0123456789"
ENDS = [" [/INST]"]


# --- the values of these tests: ``[7/3]`` before ``:=`` or where a question ends --------------------------------------


def told(text: str) -> tuple[Fraction, int] | None:
    """A fraction in square brackets at the end of a text, blanks and question marks apart, and where it begins."""
    text = text.rstrip(" ?")
    start = text.rfind("[")
    if not text.endswith("]") or start < 0:
        return None
    above, slash, below = text[start + 1 : -1].partition("/")
    if not slash or not above.lstrip("-").isdigit() or above.count("-") > 1 or not below.isdigit() or not int(below):
        return None
    return Fraction(int(above), int(below)), start


# --- which value ------------------------------------------------------------------------------------------------------


def pending(pieces: list[str], memory: int) -> tuple[Fraction, str] | None:
    """The value that is pending behind the last piece, and what is being written there."""
    text = "\0" + "".join(pieces)
    ends = [1 + len("".join(pieces[: i + 1])) for i in range(len(pieces))]
    events: list[tuple[int, int, Any]] = [(over, 0, (start, numbers)) for start, numbers, over in numbers_over(text)]
    for place in range(2, len(text) + 1):
        events += [(place, 1, ending) for ending in endings(text[:place])]
    signs: list[dict[str, Any]] = []
    asked: list[dict[str, Any]] = []
    message, latest = 0, 0

    def ask(*more: dict[str, Any]) -> None:
        nonlocal asked
        asked = sorted([old for old in asked if old["message"] == message or not more] + [*more], key=lambda v: v["at"])

    for place, _, event in sorted(events, key=lambda event: event[:2]):
        if isinstance(event[0], int):
            start, numbers = event
            done = [v for v in signs + asked if v["at"] <= start and any(right(v["value"], n) for n in numbers)]
            asked = [v for v in asked if v not in done]
            if written := [i for i, v in enumerate(signs) if v in done]:
                signs = signs[max(written) + 1 :]
            if signs and signs[-1]["at"] <= start <= signs[-1]["at"] + 12:
                signs[-1]["behind"] |= not text[signs[-1]["at"] : start].strip(" $-.([")
            continue
        kind, shown = event
        found = told(shown)
        if found and found[1] >= latest:
            latest = found[1] + 1
            token = next(i for i, end in enumerate(ends) if end >= place)
            value = {"value": found[0], "at": place, "token": token, "message": message, "behind": False}
            if kind == "sign":
                signs = [v for v in signs if not v["behind"]] + [value]
            else:
                ask(value)
        if kind == "line":
            signs = [v for v in signs if not v["behind"]]
        if kind == "message":
            ask(*(v for v in signs if not v["behind"]))
            signs = []
            if not is_role(shown):
                asked = [v for v in asked if message - v["message"] < 2]
                message += 1
    young = [[v for v in values if len(pieces) - 1 - v["token"] < memory] for values in (signs, asked)]
    first = young[0][-1] if young[0] else young[1][0] if young[1] else None
    if first is None:
        return None
    return first["value"], being_written(text, first["at"])


def is_role(message: str) -> bool:
    """Whether a message is a role's name in small letters."""
    name = message[message.rindex("\0") + 1 :]
    return name.isascii() and name.isalpha() and name.islower()


def endings(text: str) -> list[tuple[str, str]]:
    """What a text ends with that may make a value known: what kind it is, and the text that is asked about."""
    last, before = text[-1], text[-2]
    if text.endswith(":="):
        return [("sign", text[:-2])]
    if last == "?":
        return [("question", text)]
    if last == "\n":
        return [] if before in "\0\n" else [("line", text[:-1])]
    if last == "\0":
        return [] if before in "\0\n" else [("message", text[:-1])]
    for mark in ("A:", "Answer:", *ENDS):
        if text.endswith(mark) and (mark[0] == " " or not text[-len(mark) - 1].isalnum()):
            return [("message", text[: -len(mark)])]
    return []


def numbers_over(text: str) -> list[tuple[int, list[str], int]]:
    """(first digit, numbers, one past what shows that they are over) of every run of numbers that is over."""
    found = []
    i = 0
    while i < len(text):
        if text[i] not in DIGITS:
            i += 1
            continue
        end, over = run_end(text, i)
        if over <= len(text):
            found.append((i, numbers_of(text[:end], i), over))
        i = end
    return found


def run_end(text: str, i: int) -> tuple[int, int]:
    """One past the last digit of a run, and one past what shows that it is over; beyond the end if nothing does."""
    while True:
        while text[i : i + 1] and text[i] in DIGITS:
            i += 1
        for joint in (",\\!", ".", ",", "{,}"):
            behind = text[i + len(joint) : i + len(joint) + 1]
            if text.startswith(joint, i) and behind and behind in DIGITS:
                i += len(joint)
                break
        else:
            break
    over = i + 1
    for shown in (".", ",", "{", "{,", "{,}", ",\\", ",\\!"):
        if text.startswith(shown, i):
            over = i + len(shown) + 1
    return i, over


def numbers_of(text: str, start: int) -> list[str]:
    """The numbers that end a text, from the first digit of their run on; the first has the sign before it."""
    run = text[start:].replace("{,}", ",").replace(",\\!", ",")
    before = text[:start]
    if before.endswith(".") and not (before[:-1][-1:].isalnum() or before[:-1][-1:] in ("_", ".", ")", "]")):
        run, before = "." + run, before[:-1]
    found = [run[begin:end] for begin, end, _ in oracle.numbers(run)]
    if negative(before):
        found[0] = "-" + found[0]
    return found


def negative(before: str) -> bool:
    """Whether a number behind this text has a minus sign, before or behind a currency sign."""
    if before.endswith("$-"):
        return True
    before = before.removesuffix("$")
    return before.endswith("-") and not (before[:-1][-1:].isalnum() or before[:-1][-1:] in ("_", ")", "]", "}"))


def being_written(text: str, begin: int) -> str:
    """The longest end of a text, from a place on, that is a number, a beginning of one, or its signs."""
    for start in range(max(begin, len(text) - 60), len(text)):
        if is_beginning(text[:start], text[start:]):
            return text[start:]
    return ""


def is_beginning(before: str, tail: str) -> bool:
    """Whether the rest of a text is a number or a beginning of one, signs and all, and no part of another."""
    text = before + tail

    def last() -> str:
        return text[: len(text) - len(tail)][-1:]

    if tail[0] == "-":
        if last().isalnum() or last() in ("_", ")", "]", "}"):
            return False
        tail = tail[1:]
    if tail[:1] == "$":
        tail = tail[1:].removeprefix("-")
    if tail[:1] == ".":
        if last().isalnum() or last() in ("_", ".", ")", "]"):
            return False
        tail = tail[1:]
        if not tail:
            return True
    elif not tail:
        return True
    elif any(text[: len(text) - len(tail)].endswith(digit + joint) for digit in DIGITS for joint in ("", ".", ",")):
        return False
    joined = text[: len(text) - len(tail)]
    within = joined.endswith("{,}") or (joined.endswith(",\\!") and joined[-4:-3] in [*DIGITS])
    return tail[0] in DIGITS and not within and only_number(tail)


def only_number(tail: str) -> bool:
    for cut in ("{", "{,", ",\\"):
        tail = tail.removesuffix(cut)
    body = tail.replace("{,}", "").replace(",\\!", "")
    return all(character in DIGITS + ".," for character in body)


# --- which digits -----------------------------------------------------------------------------------------------------


def rounded(value: Fraction, places: int) -> Fraction:
    """Half away from zero."""
    scaled = abs(value) * 10**places
    units = scaled.numerator // scaled.denominator
    units += scaled - units >= Fraction(1, 2)
    return Fraction(units, 10**places) * (-1 if value < 0 else 1)


def right(value: Fraction, number: str) -> bool:
    """Whether a number is the value, or its rounding to one place or more."""
    places = len(number.partition(".")[2])
    written = Fraction(number.replace(",", ""))
    return written == value if places == 0 else written == rounded(value, places)


def expansion(value: Fraction, places: int) -> tuple[str, bool]:
    """The decimal form of a number without its sign, cut off, and whether that is all of it."""
    whole, rest = divmod(abs(value), 1)
    digits = ""
    while rest and len(digits) < places:
        digit, rest = divmod(rest * 10, 1)
        digits += str(digit)
    return f"{whole}.{digits}" if digits else str(whole), not rest


def chunks(pieces: list[str], cuts: list[int]) -> list[list[str]]:
    """The pieces, in as many parts as there are cuts and one more."""
    places = sorted({0, len(pieces), *(cut % (len(pieces) + 1) for cut in cuts)})
    return [pieces[a:b] for a, b in pairwise(places)]
