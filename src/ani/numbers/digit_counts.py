"""NumeroLogic's number format, which writes the digit count before a number: `42` → `2:42`.

Schwartz et al., "NumeroLogic: Number Encoding for Enhanced LLMs' Numerical Reasoning" (arXiv 2404.00459): a model that
reads or writes from the left then knows each digit's place. Decimals have two counts, before and after the point:
`3.14` → `1.2:3.14`. The ANI paper's baseline writes no braces around the form, so neither do we. A sign stays in front
(`-5` → `-1:5`); separators and exponents are not counted (`1,234` → `4:1,234`).
"""

import re

from ani.numbers.text import number_pieces

_NUMBER = re.compile(
    r"(?P<sign>(?:[+−-](?:\\?[$€£¥₹])?)?)(?P<whole>[^.eE]*)(?:\.(?P<fraction>[0-9]*))?(?P<exponent>[eE][+−-]?[0-9]+)?"
)
_COUNTS = re.compile(r"(?<![0-9])(0|[1-9][0-9]*)(?:\.(0|[1-9][0-9]*))?:")
_DIGITS = frozenset("0123456789")
_SEPARATORS = frozenset(",'’_\u2009\u202f{}\\! ")


def digit_counted_pieces(text: str) -> list[tuple[str, bool]]:
    """A text with the digit counts before every number, in pieces; True for a number with its counts."""
    return [(_with_counts(piece) if is_number else piece, is_number) for piece, is_number in number_pieces(text)]


def _with_counts(number: str) -> str:
    match = _NUMBER.fullmatch(number)
    assert match is not None, number
    counts = str(sum(character in _DIGITS for character in match["whole"]))
    if match["fraction"] is not None:
        counts += f".{len(match['fraction'])}"
    return f"{match['sign']}{counts}:{number[len(match['sign']) :]}"


def remove_digit_counts(text: str) -> str:
    """Removes the digit counts wherever they are right: the inverse of `digit_counted_pieces`, joined.

    Exact but where a colon follows an exponent (`1e5:00`), which the published form does not know, or an unread literal
    (`1.234,5:00`). A text that only looks like one with counts (the time `2:42`) loses its first number.
    """
    parts: list[str] = []
    end = 0
    while match := _COUNTS.search(text, end):
        number = _counted(text, match.end(), match[1], match[2])
        # Without a number the counts may begin later, as in `7.2:42`, where the 7 belongs to the text before.
        parts += [text[end : match.start() + 1]] if number is None else [text[end : match.start()], number]
        end = match.start() + 1 if number is None else match.end() + len(number)
    return "".join([*parts, text[end:]])


def _counted(text: str, start: int, whole: str, fraction: str | None) -> str | None:
    """The number at `start` with these counts of digits before and after the point; None if there is no such number."""
    end, left = start, int(whole[:19])  # Python reads no int of thousands of digits
    while left and end < len(text) and (text[end] in _DIGITS or (text[end] in _SEPARATORS and end > start)):
        left -= text[end] in _DIGITS
        end += 1
    if left:
        return None
    if fraction is not None:
        count = int(fraction[:19])
        digits = text[end + 1 : end + 1 + count]
        if text[end : end + 1] != "." or len(digits) < count or not set(digits) <= _DIGITS:
            return None
        end += 1 + count
    return text[start:end] or None
