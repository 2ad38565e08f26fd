"""Number formats of two baselines: NumeroLogic, which writes the digit count first, and reversed digits.

NumeroLogic: `42` → `2:42`
    Schwartz et al., "NumeroLogic: Number Encoding for Enhanced LLMs' Numerical Reasoning" (arXiv 2404.00459): the
    number of digits stands before the number, so that a model that reads or writes from the left knows each digit's
    place. Integers `42` → `2:42`, decimals `3.14` → `1.2:3.14` (digits before and after the point). The ANI paper's
    baseline writes no braces around it, so neither do we. A sign stays in front (`-5` → `-1:5`), separators and
    exponents stay inside and are not counted (`1,234` → `4:1,234`).
Reversed: `12345` → `54321`
    A sum's digits can then be written in the order in which its carries travel (Lee et al., "Teaching Arithmetic to
    Small Transformers", arXiv 2307.03381). Sign and exponent stay where they are, thousands separators are left out:
    `-1,234.5` → `-5.4321`, `1.5e3` → `5.1e3`.
"""

import re

from ani.numbers.grammar import number_pieces

_COUNTED_NUMBER = re.compile(
    r"(?P<sign>[+−-]?)(?P<whole>[0-9,]*)(?:\.(?P<fraction>[0-9]*))?(?P<exponent>[eE][+-]?[0-9]+)?"
)
_REVERSED_NUMBER = re.compile(r"(?P<sign>[+−-]?)(?P<mantissa>[0-9,.]*)(?P<exponent>.*)")
_DIGITS = frozenset("0123456789")
_COUNTS = re.compile(r"(?<![0-9])(0|[1-9][0-9]*)(?:\.(0|[1-9][0-9]*))?:")


def digit_counted_pieces(text: str) -> list[tuple[str, bool]]:
    """A text with the digit counts before every number, in pieces; True for a number with its counts."""
    return [(_with_counts(piece) if is_number else piece, is_number) for piece, is_number in number_pieces(text)]


def _with_counts(number: str) -> str:
    match = _COUNTED_NUMBER.fullmatch(number)
    assert match is not None, number
    counts = str(len(match["whole"].replace(",", "")))
    if match["fraction"] is not None:
        counts += f".{len(match['fraction'])}"
    return "".join([match["sign"], counts, ":", number[len(match["sign"]) :]])


def remove_digit_counts(text: str) -> str:
    """Take the digit counts away wherever they are right: the inverse of `digit_counted_pieces`, joined.

    Exact but for exponents that a colon follows (`1e5:00`), which the published form does not know. A text that only
    looks like one with counts (the time `2:42`) loses its first number.
    """
    parts: list[str] = []
    end = 0
    while match := _COUNTS.search(text, end):
        number = _counted(text, match.end(), _count(match[1]), None if match[2] is None else _count(match[2]))
        if number is None:
            # The counts may begin later, as in `7.2:42`, where the 7 belongs to what is before.
            parts.append(text[end : match.start() + 1])
            end = match.start() + 1
            continue
        parts += [text[end : match.start()], number]
        end = match.end() + len(number)
    return "".join([*parts, text[end:]])


def _count(digits: str) -> int:
    """A digit count; Python refuses to read an int of thousands of digits, and no text has 10^18 to count."""
    return int(digits[:19])


def _counted(text: str, start: int, whole: int, fraction: int | None) -> str | None:
    """What stands at `start`, if it is a number with so many digits before and after the point."""
    end = start
    while whole and end < len(text) and (text[end] in _DIGITS or (text[end] == "," and end > start)):
        whole -= text[end] != ","
        end += 1
    if whole:
        return None
    if fraction is not None:
        digits = text[end + 1 : end + 1 + fraction]
        if text[end : end + 1] != "." or len(digits) < fraction or not set(digits) <= _DIGITS:
            return None
        end += 1 + fraction
    return text[start:end] or None


def reversed_pieces(text: str) -> list[tuple[str, bool]]:
    """A text with every number turned around, in pieces; True for a number."""
    return [(_turned(piece) if is_number else piece, is_number) for piece, is_number in number_pieces(text)]


def turn_back(text: str) -> str:
    """Turn every number around: the inverse of `reversed_pieces`, joined, but for thousands separators and the zero
    that it writes before a bare point."""
    return "".join(piece for piece, _ in reversed_pieces(text))


def _turned(number: str) -> str:
    match = _REVERSED_NUMBER.fullmatch(number)
    assert match is not None, number
    mantissa = match["mantissa"].replace(",", "")
    return match["sign"] + ("0" + mantissa if mantissa.startswith(".") else mantissa)[::-1] + match["exponent"]
