"""DOC"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, cast

from ani.numbers.grammar import BLANKS, BOUNDARY, MAX_BLANKS, decimal_value, number_spans
from ani.values.exact import Exact
from ani.values.expressions import MONEY, OPERATORS, TEX, UNIT, WORD, Found, Token, read, starts_of, tokens_of
from ani.values.words import BLANK, words

MAX_LENGTH = 200
"""Characters of an expression, with what stands between it and the sign."""
_CONTEXT = 64  # characters before the expression that say whether it is whole
LOOK_BEHIND = MAX_LENGTH + _CONTEXT
"""Characters before an equals sign that are looked at."""
MAX_QUESTION = 480
"""Characters of a question with what is said around it."""
MAX_STARTS = 3
"""Places at which a question's expression may begin."""

_BLANK_END = re.compile(rf"(?:{BLANK}|\\[,;:!> ]|~|\\q?quad|\\left|\\displaystyle)*\Z")
_MATH_BEGIN = re.compile(r"(?:\$\$?|\\[(\[]|\\begin\{[a-z]+\*?\})\Z")
_OPERATOR_END = re.compile(rf"(?:[{re.escape(''.join(c for c in OPERATORS if len(c) == 1))}]|\\[a-z]+)\Z")
_LINE_END = re.compile(rf"(?:[\n\r]|{BLANK}|\\\\(?:\[[^\]\n]*\])?|&)*(?:[\n\r]|\\\\(?:\[[^\]\n]*\])?|&)\Z|{BOUNDARY}\Z")
_LAST_WORDS = re.compile(rf"(?:(?P<first>{WORD}){BLANK}+)?(?<![\\\w])(?P<last>{WORD}|e\.g\.|i\.e\.)\Z")
_OPERAND_ENDS = (*"0123456789)]}%°",)
_OPERAND_END = re.compile(r"[\w)\]}%°!$]\Z")
_SEPARATE = re.compile(
    rf"""(?:[(\[{{（=<>≈≤≥≠→⇒;：，。]
    |(?:^|[\n\r{BOUNDARY}])\s*(?:[•*>]|\#+|\(?[0-9a-z]{{1,2}}\))[ ]
    |(?<![0-9])["'“‘`]
    |(?<![{BLANKS}])[,.!?:][ ]
    |(?<![0-9{BLANKS}]):
    |(?:^|[\n\r{BLANKS}{BOUNDARY}])[*_]{{1,3}}
    |\\(?:approx|leq?|geq?|neq?|Rightarrow|Longrightarrow|implies|to|therefore|qquad|quad))\ ?\Z""",
    re.VERBOSE,
)
_PLAIN = re.compile(r"[^-0-9.,/:–−]")
_BEHIND = re.compile(
    rf"{BLANK}{{0,{MAX_BLANKS}}}(?:\\boxed\{{)?(?:\\?[{MONEY}](?P<later>[-−])|(?P<sign>[-−])?(?:\\?[{MONEY}])?)"
)
_GOES_ON = re.compile(
    rf"{BLANK}{{0,{MAX_BLANKS}}}(?:[-−–+*×·⋅÷/^]{BLANK}{{0,{MAX_BLANKS}}}[{MONEY}(.]?[0-9]|(?<={BLANK})[0-9]|[rR]\s?[0-9]|remainder)"
)
_DATE = re.compile(r"[0-9]{4}([-/])[0-9]{1,2}\1[0-9]{1,2}|[0-9]{1,2}([-/])[0-9]{1,2}\2[0-9]{2,4}")


class Calculation(NamedTuple):
    """A written calculation with its exact value."""

    text: str
    """The expression as it is written."""
    start: int
    """Its first character."""
    value: Exact
    currency: str
    """The sign that its literals bear, or nothing."""


def calculation_before(text: str, end: int) -> Calculation | None:
    """The calculation that ends directly before a place, that of an equals sign, if there is one."""
    first = max(0, end - LOOK_BEHIND)
    window = text[first:end] if first else BOUNDARY + text[:end]
    tokens = tokens_of(window, max(window.rfind("="), window.rfind(BOUNDARY)) + 1)
    if window.endswith("!") and not TEX.search(window):
        return None  # 3 != 4
    while tokens and tokens[-1].kind == "math":
        tokens.pop()
    for start in starts_of(tokens):
        if (found := read(window, tokens[start:])) and found.end == tokens[-1].end:
            token = tokens[start]
            if len(window) - token.start > MAX_LENGTH or not _may_stand_before(window, token, found.signed):
                return None
            return _calculation(found, window, first or -1)
    return None


def calculation_asked(text: str, end: int) -> Calculation | None:
    """The calculation that a question or an order asks for which ends at a place, if there is one."""
    first = max(0, end - MAX_QUESTION, text.rfind(BOUNDARY, 0, len(text[:end].rstrip(BOUNDARY + " \n"))) + 1)
    window = BOUNDARY + text[first:end]
    starts = {match.end(): True for match in words().question.finditer(window)}
    starts = {match.end(): False for match in words().opening.finditer(window)} | starts
    for start in sorted(starts, reverse=True)[:MAX_STARTS]:
        tokens = tokens_of(window[: start + MAX_LENGTH], start)
        opening = next((i for i, token in enumerate(tokens) if token.kind != "math"), 0)
        found = read(window, tokens[opening:])
        if found and found.counted and window.count(found.counted, found.start, found.end) < 2:
            found = found._replace(end=found.end - len(found.counted))  # "in Roman numerals" is no unit
        if found is None or not words().closing.fullmatch(window, found.end):
            continue
        written = window[found.start : found.end]
        if (
            written[-1] == "!"
            and found.end - found.start > 3
            and window[found.end : found.end + 1] not in tuple("?.=$")
        ):
            continue  # 3 + 4! may be 7
        if _DATE.fullmatch(written) or not (starts[start] or found.order or _PLAIN.search(written)):
            continue
        return _calculation(found, window, first - 1)
    return None


def _calculation(found: Found, window: str, first: int) -> Calculation:
    return Calculation(window[found.start : found.end], first + found.start, found.value, found.currency)


def _may_stand_before(text: str, first: Token, signed: bool) -> bool:
    """Whether what stands before an expression's first token can't belong to it."""
    context = text[max(0, first.start - _CONTEXT) : first.start]
    before = _BLANK_END.sub("", context)
    gap = len(context) - len(before)
    if signed and text[first.end] in BLANKS and before[-1:] not in tuple("=&([{<>"):
        return False  # a bullet
    if match := _MATH_BEGIN.search(before):
        before = before[: match.start()].rstrip()
        return not _OPERATOR_END.search(before)
    if match := _LINE_END.search(before):
        line = before[: match.start()].rstrip()
        return not line or not (_OPERATOR_END.search(line) or (signed and _OPERAND_END.search(line)))
    if match := _LAST_WORDS.search(before):
        first_word, last = (match["first"] or "").lower(), match["last"].lower()
        known = words().listed["before_signs"] if signed else words().listed["before"]
        if not gap or last in known or f"{first_word} {last}" in known:
            return gap > 0
        if signed or first.kind not in ("number", "money"):
            return False
        if match["last"].istitle():
            return first_word in words().listed["before_names"]
        if first_word in words().listed["before_verbs"] and last not in words().listed["computing"] and len(last) > 2:
            return True
        verb, at = (first_word, "first") if last in words().listed["before_particles"] else (last, "last")
        known = words().listed["computing"] | words().listed["changing"] | words().measures.keys()
        before = before[: match.start(at)].rstrip()
        return (
            verb.endswith(words().endings) and len(verb) > 3 and verb not in known and before[-1:] not in _OPERAND_ENDS
        )
    return _SEPARATE.search(before + " " * min(gap, 1)) is not None


# --- equations --------------------------------------------------------------------------------------------------------


class Equation(NamedTuple):
    """A written calculation and the number behind its equals sign."""

    calculation: Calculation
    written: Decimal
    percent: bool
    """Whether a percent sign stands behind the number."""

    @property
    def right(self) -> bool:
        """Whether the number is the value, rounded to the places that it has; of a half, up or down."""
        places = -cast(int, self.written.as_tuple().exponent)
        value = Fraction(self.calculation.value.rounded(max(places, 0) + 30))
        error = Fraction(1, 2 * 10**places) if places >= 0 else Fraction(10**-places, 2)
        forms = (Fraction(self.written), Fraction(self.written) / 100) if self.percent else (Fraction(self.written),)
        return any(abs(form - value) <= error for form in forms)


def equations(text: str) -> list[Equation]:
    """The written equations of a text, from left to right.

    Left out are those whose number does not stand alone (``= 5 + 2``, ``= 3/4``, ``= 1 1/2``, ``= 3 r 1``), as it may
    not be what the left side is said to be, and those in another unit (``$0.05 * 4 = 20 cents``).
    """
    found = []
    for sign in re.finditer("=", text):
        value, end = _number_at(text, sign.end())
        if value is None or _GOES_ON.match(text, end):
            continue
        if calculation := calculation_before(text, sign.start()):
            unit = UNIT.match(text, end)
            measure = words().measures.get(unit[2].lower()) if unit else None
            equation = Equation(calculation, value, text[end : end + 1] == "%")
            if equation.right or not measure or not _in_another_unit(calculation, measure):
                found.append(equation)
    return found


def _in_another_unit(calculation: Calculation, measure: str) -> bool:
    """Whether a calculation has units of what a unit measures, and not that one."""
    quantity = measure.split(":")[0]
    units = {words().measures.get(word.lower(), ":") for word in re.findall(WORD, calculation.text)}
    units |= {"money:"} if calculation.currency else set()
    return measure not in units and any(unit.startswith(f"{quantity}:") for unit in units)


def number_behind(text: str) -> Decimal | None:
    """The number with which a text behind an equals sign begins, as in an equation; None: with something else."""
    return _number_at(text, 0)[0]


def _number_at(text: str, begin: int) -> tuple[Decimal | None, int]:
    """The number directly behind an equals sign, and its end."""
    behind = _BEHIND.match(text, begin)
    if behind is None:
        return None, 0
    begin = behind.end()
    numbers = {start + (text[start] in "+-"): end for start, end in number_spans(text[: begin + MAX_LENGTH]).items()}
    if begin not in numbers:
        return None, 0
    value = decimal_value(text[begin : numbers[begin]])
    return -value if behind["sign"] or behind["later"] else value, numbers[begin]
