r"""The grammar of written calculations: finds the one that ends at a place of a text, with its exact value.

The grammar
===========

A calculation is an expression that ends at a place: that of an equals sign (`calculation_before`), or the end of a
question or an order (`calculation_asked`). What its characters leave in doubt is no calculation, because a wrong result
does harm and a missing one does none; what only the sense of the words tells, as of the range ``90-100 =``, is left to
a gate::

    expression = operand (operator operand)* with an operator, a function, a fraction, a "!" or a mixed number
    operand    = [sign] power | list
    power      = factor ["^" exponent]
    factor     = (literal | bracket | function | constant) [unit | "!" | "²" | "%" | currency]*

Literals
    Those of `find_numbers` without their signs, also with thousands as TeX (``1{,}234``) or thin blanks separate them,
    times the scale words after them (``2 million``, ``5k``, ``10 lakh``; ``$5M``, since 5M may be molar); number words
    of any size (``two hundred and five``, ``one point five``, ``half a million``). One with a needless 0 at its
    beginning makes a date or a code of all of it. Mixed numbers are sums (``1 1/2``, ``1\frac12``), but not before
    another fraction (in ``80\frac12\frac15`` all are factors).
Neighbours
    A number that touches a letter, a digit, or a sign that is not listed, is none (``A26``, ``#5``, ``12,34``, ``~3``).
    A sign without blanks between numbers, beside one with blanks, makes a range, a size or a date (``90-100 + 5``).
Blanks
    Up to `MAX_BLANKS` between any two parts: more make a column of a table. A line break ends the expression, but in
    TeX before the sign.
Operators
    ``+ - − – * × · ⋅ ∙ ∗ / ÷ ^ **``, ``//`` and ``mod`` of what isn't negative, and their names in TeX. Powers come
    before products, these before sums, and equals go from left to right. Chained powers are doubtful (``2^3^2`` is 512,
    and 64 in a spreadsheet), so is a negated base outside TeX (``-2^2``), a quotient in a quotient with other blanks
    (``8 / 1/2``), and ``**`` with a blank on one side, which is bold type.
The letter x
    Multiplies with blanks on both sides and no sign after it (``3 x 4``), or between two literals alone (``3x4``), but
    not in TeX. Elsewhere it is a variable, and ``0x10`` is a hexadecimal number.
Side by side
    A literal, a bracket or a constant directly before a bracket, root or constant (``2(3 + 4)``, ``2√3``, ``4π``), in
    TeX with blanks as well, is a factor. Not after a quotient (``8/2(4)`` is 1 for some) or a unit.
Signs
    Directly before an operand, and not directly after another sign: ``3 * -5``; ``3--5`` has a dash, ``- 5`` a bullet.
Functions
    ``√ sqrt ln exp``, ``log`` with its base (without, it is 10 for some), ``sin cos tan``, ``gcd lcm max min``,
    ``| |``, ``⌊ ⌋``, ``⌈ ⌉``, ``\binom``, π, and e with a power. An angle is in degrees or radians if it says so
    (``30°``, ``2 rad``) or has a π, and doubtful otherwise.
Words
    Those of ``words.yaml``: between operands (``3 plus 4``), after one (``squared``), before one (``half of``, ``the
    square root of``) or several (``the sum of 3 and 4``, ``subtract 3 from 4``). Spoken, precedence is doubtful: a word
    and an operator of another level are not next to each other (``3 plus 4 times 5``), nor does anything follow the
    argument of a word (``half of 10 plus 4``). ``of`` multiplies after a fraction or percent only.
Units
    After a literal or bracket may be the unit that all operands of a sum or difference share: one of ``measures``, or a
    noun (``3 apples + 2 apples``). A product or quotient has one unit at most, and no noun. Nothing is converted, but
    cents that are added to dollars or euros (``$5 + 50 cents``). Any other word next to an operand is not understood.
Currency
    ``$ € £ ¥ ₹`` directly before or after a literal, the same one everywhere. In TeX ``\$``. The quotient of two
    amounts is a ratio, not an amount.
Percent
    ``5% * 40`` is 2 and ``5% + 10%`` is 15 (percent); ``1/4 * 100%`` is 25 (percent); ``20% off 80`` is 64, and ``80
    increased by 25%`` is 100. ``40 + 5%`` and ``5% * 10%`` are doubtful: texts mean different things by them.

What precedes and follows
=========================

A calculation is understood completely, or it is none. So lists (``words.yaml``) say what may directly precede the first
operand and directly follow the last one; any other word, digit, letter or currency makes it no calculation.

An expression that an equals sign follows may begin at the start of the text; after a line break, unless the line before
ends in an operator, or in an operand where a sign follows, and is not the line in which a chat template names who
speaks; after a relation, an opening bracket, a comma or full stop with a blank, a quotation mark, a colon but after a
digit; where TeX's mathematics begins, unless an operator precedes that is no bullet; after a label, bold type or a
bullet that begins a line; after a word of ``before`` or a form of one of ``verbs``. A sign at the beginning needs more,
as ``apples -3 + 4`` may be a difference.

A list in words begins with its words (``the sum of``), or with what precedes them in the same expression. Of a chain
(``3 + 4 = 7 * 2 =``) the last link is meant, in an open bracket what is in it.

Questions
=========

A question or order is some words of ``questions`` (``What is``, ``Please calculate``), an expression, and a closing of
words that ask for nothing else (``? Just the number.``, ``to two decimals``): ``in binary`` is none. Without the words
an expression may be the question that begins a line or a sentence, or follows a colon with an introduction (``Add two
numbers:``). What else was said before is free.

People ask in more words than can be listed. So where a message ends that asks for nothing in these words, the only
calculation that it contains may be asked for (``my homework says 3 + 4 and i dont get it``): a gate decides. It
contains no other quantity: no digit, number word, fraction, unit or scale word (``3 plus 2 million`` may be 5 million),
no question for a number of something else (``how many digits does``), and no word of ``otherwise``, which ask for
another value (``the reciprocal of 3 + 4``) or another form (``in binary``).

A bare date, score or number with hyphens or slashes is no question (``555-1234``, ``24/7``, ``4-4-2``), nor is an
answer to choose (``A. 3 + 4``), an order that is denied (``don't compute``), or a line within a fraction. A message
that gives a sign another meaning (``a*b = a^2 - b``) asks for no value by it (`redefined`).

The value
=========

`Exact`: a rational, or a real whose digits are known to be right. What has none, such as ``1/0`` and ``√-2``, or none
that can be decided, is no calculation. Nor is one whose value has no end as a decimal, and which texts write in another
form: several fractions (``1/3 + 2/7``), in a question also one of TeX, roots and π in TeX, and a root to simplify. Its
digits are meant after ``≈``, and where a text speaks of decimals or rounding.

The expression has at most `MAX_LENGTH` characters and `MAX_WORK` operands, where roots and functions count for five, so
that no text costs more than a millisecond, and a reader of a stream knows how much context it needs. A longer
expression is no calculation, not a shorter one.
"""

import re
from decimal import Decimal
from typing import NamedTuple

from ani.calculator.reader.exact import Exact
from ani.calculator.reader.expressions import Found, read
from ani.calculator.reader.tokens import FRACTIONS, MONEY, OPERATORS, SCALE, TEX, WORD, Token, starts_of, tokens_of
from ani.calculator.reader.words import BLANK, words
from ani.numbers.grammar import number_spans
from ani.numbers.signs import BLANKS, BOUNDARY, MAX_BLANKS
from ani.numbers.text import decimal_value

MAX_LENGTH = 200
"""Characters of an expression at most, up to the sign."""
_CONTEXT = 64  # characters before the expression that say whether it is whole
LOOK_BEHIND = MAX_LENGTH + _CONTEXT
"""Characters before an equals sign that are read."""
MAX_QUESTION = 480
"""Characters of a question at most, with the text around it."""
MAX_STARTS = 3
"""Places at which a question's expression may begin."""
_BLANK_END = re.compile(rf"(?:{BLANK}|\\[,;:!> ]|~|\\q?quad|\\left|\\displaystyle|(?<![^\s{BOUNDARY}])\*\*)*\Z")
_MATH_BEGIN = re.compile(r"(?:(?<![A-Za-z])\$\$?|\\[(\[]|\\begin\{[a-z]+\*?\})\Z")
_OPERATOR_END = re.compile(
    rf"(?:[{re.escape(''.join(c for c in OPERATORS if len(c) == 1))}]|\\[a-z]+(?:_(?:\w|\{{\w+\}}))?)\Z"
)
"""Matches an operator, or a command of TeX with its index, such as ``\\log_{16}``."""
_BREAK = r"[\n\r]|\\\\(?:\[[^\]\n]*\])?|(?<!\\)&"
_LINE_END = re.compile(rf"(?:{BLANK}|{_BREAK})*(?:{_BREAK})\Z|{BOUNDARY}\Z")
_ROLE = re.compile(rf"{BOUNDARY}[a-z]{{2,}}\Z")
"""The line of a chat template that names who speaks: ``<|im_start|>user``."""
_LAST_WORDS = re.compile(rf"(?:(?P<first>{WORD}){BLANK}+)?(?<![\\\w])(?P<last>{WORD}|e\.g\.|i\.e\.)\Z")
_OPERAND_ENDS = (*"0123456789)]}%°",)
_OPERAND_END = re.compile(r"[\w)\]}%°!$]\Z")
_LABEL = re.compile(rf"(?:^|[\n\r{BOUNDARY}])\s*(?:[•*>]|#+|[0-9a-z]{{1,2}}\))\Z")
_BULLET = re.compile(rf"[\n\r{BOUNDARY}]{BLANK}*[-*+]{BLANK}+\Z")
"""Matches a bullet before TeX's mathematics, which may also be a sign elsewhere."""
_SEPARATE = re.compile(
    rf"""(?:[(\[{{（=<>≈≤≥≠→⇒;：，。]
    |(?<![0-9])["'“‘`]
    |(?<![{BLANKS}])[,.?:][ ]
    |(?<=[^\W\d_][^\W\d_])![ ]
    |(?<![0-9{BLANKS}]):
    |\\(?:approx|leq?|geq?|neq?|Rightarrow|Longrightarrow|implies|to|therefore))\ ?\Z""",
    re.VERBOSE,
)
_DEFINED = re.compile(
    r"(?<![A-Za-z\\])(?P<left>[a-z]) ?(?P<sign>\*) ?[a-z]\$? ?=[^*.;?\n]*(?<![A-Za-z\\])(?P=left)(?![A-Za-z])"
    r"|(?P<bracket>\[)[a-z]\]"
)
"""Matches a text that gives a sign another meaning: `a*b = a^2 - b`, `[x]` for a whole part."""
_DENIED = re.compile(
    r"(?:\bnot|n['’]t|\bnever|\bwithout|\brefuse|\binstead of)(?: \w+ly)?(?: (?:to|even|just))* \Z", re.IGNORECASE
)
"""Matches before an order that nobody gives: `do not compute`, `refuse politely to calculate`."""
_OPTION = re.compile(rf"(?:[\n\r{BOUNDARY}]|\A){BLANK}*\(?[A-H][.)]{BLANK}+\Z")
"""Matches the letter of an answer to choose."""
_SEVERAL_FRACTIONS = re.compile(r"[0-9]/[0-9].*[0-9]/[0-9]")
_AS_DECIMAL = re.compile(r"\b(?:decimals?|nearest|round(?:ed)?)\b", re.IGNORECASE)
_WORKED_OUT = re.compile(r"[^-0-9./:–xX]")
_QUOTIENT = re.compile(r"(?!(?:19|20)[0-9]{2}/)[0-9]{3,}/[0-9]+|[0-9]+[xX][0-9]+")
"""A bare quotient or product that is no date, score or season."""
_MARKS = {'"': '"', "'": "'", "“": "”", "‘": "’", "`": "`", "**": "**", "*": "*", "(": ")", "[": "]", "$": "$"}
_MARKS |= {r"\(": r"\)", r"\[": r"\]", "$$": "$$"}
_AFTER_SIGN = re.compile(
    rf"{BLANK}{{0,{MAX_BLANKS}}}(?:\\boxed\{{)?(?:\\?[{MONEY}](?P<later>[-−])|(?P<sign>[-−])?(?:\\?[{MONEY}])?)"
)


class Calculation(NamedTuple):
    """A written calculation with its exact value."""

    text: str
    """The expression as it is written."""
    start: int
    """Place of the first character in the text."""
    value: Exact
    currency: str
    """The currency sign of the value; empty: it is no amount of money."""


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
            exact = not text.startswith(("≈", r"\approx"), end) and _has_exact_form(found, window)
            too_long = len(window) - token.start > MAX_LENGTH
            if exact or too_long or not _may_stand_before(window, token, found.signed):
                return None
            return _calculation(found, window, first or -1)
    return None


def calculation_asked(text: str, end: int) -> Calculation | None:
    """The calculation that a question or an order asks for which ends at a place, if there is one."""
    first = max(0, end - MAX_QUESTION, text.rfind(BOUNDARY, 0, len(text[:end].rstrip(BOUNDARY + " \n"))) + 1)
    window = BOUNDARY + text[first:end]
    openings, orders = words().opening.finditer(window), words().question.finditer(window)
    starts = {match.end() for match in openings if not _no_question_follows(window[: match.end()])}
    starts |= {match.end() for match in orders if not _DENIED.search(window, 0, match.start())}
    for start in sorted(starts, reverse=True)[:MAX_STARTS]:
        tokens = tokens_of(window[: start + MAX_LENGTH], start, to_break=True)
        opening = next((i for i, token in enumerate(tokens) if token.kind != "math"), 0)
        if tokens and tokens[opening].kind == "break":  # as nearly always
            continue
        found = read(window, tokens[opening:])
        if found and words().closing.fullmatch(window, found.end) and _is_whole(found, window, closed=True):
            return _calculation(found, window, first - 1)
    return None


def _no_question_follows(before: str) -> bool:
    """Return whether a text ends with the letter of an answer to choose, or within braces, as of a fraction."""
    return _OPTION.search(before) is not None or before.count("{") > before.count("}")


def calculation_mentioned(text: str, end: int) -> Calculation | None:
    """The only calculation of a message that ends at a place, if the message contains no other quantity."""
    first = text.rfind(BOUNDARY, 0, end) + 1
    window = BOUNDARY + text[first:end]
    if len(window) > MAX_QUESTION or not words().quantity.search(window):
        return None
    tokens = tokens_of(window, 1)
    starts = [
        i for i, token in enumerate(tokens) if token.kind not in ("break", "math", "unit", "joint", "close", "suffix")
    ]
    for index in starts[: 2 * MAX_STARTS]:
        found = read(window, tokens[index:])
        if found and found.end - found.start <= MAX_LENGTH:
            others = words().quantity.search(window[: found.start] + BOUNDARY + window[found.end :])
            doubtful = others or SCALE.search(window, found.start, found.end)  # 3 plus 2 million may be 5 million
            return None if doubtful or not _is_whole(found, window) else _calculation(found, window, first - 1)
    return None


def redefined(text: str) -> frozenset[str]:
    """The signs of calculations to which a text gives another meaning, such as the asterisk of `a*b = a^2 - b`."""
    return frozenset(match["sign"] or match["bracket"] for match in _DEFINED.finditer(text))


def _is_whole(found: Found, window: str, *, closed: bool = False) -> bool:
    """Return whether the characters and words next to an expression are known not to change its value.

    Args:
        closed: The words that follow are known already.
    """
    written, before, after = window[found.start : found.end], window[: found.start], window[found.end :]
    if not (_WORKED_OUT.search(written) or _QUOTIENT.fullmatch(written)):
        return False
    if written[-1] == "!" and (not written[:-1].isdigit() or after[:1] not in ("?", ".", "=", "$")):
        return False  # 3 + 4! may be 7
    if _has_exact_form(found, window, asked=True):
        return False
    for _ in range(2):  # "…", **…**, \(…\)
        before, after = before.rstrip(BLANKS), after.lstrip(BLANKS) if after.lstrip(BLANKS)[:1] in "=" else after
        mark = next((each for each in (before[-2:], before[-1:]) if each in _MARKS), "")
        if mark and after.startswith(_MARKS[mark]):
            before, after = before.removesuffix(mark), after.removeprefix(_MARKS[mark])
    return bool(words().preceding.search(before[-_CONTEXT:]) and (closed or words().following.match(after)))


def _has_exact_form(found: Found, window: str, *, asked: bool = False) -> bool:
    """Return whether texts write a value as a fraction, or with a root or π, because it has no end as a decimal.

    Args:
        found: The calculation.
        window: The text around it.
        asked: A question asks for the value, so a single fraction in TeX is to be simplified.
    """
    if found.value.ends is not None or _AS_DECIMAL.search(window):
        return False
    written = window[found.start : found.end]
    if found.value.rational is None:
        return "\\" in written or (asked and "simplif" in window[: found.start].lower())
    # After a sign the model may write either one: 3.33, or TeX's fraction, before which no value is written.
    return bool(_SEVERAL_FRACTIONS.search(written)) or (asked and any(name in written for name in FRACTIONS))


def _calculation(found: Found, window: str, first: int) -> Calculation:
    return Calculation(window[found.start : found.end], first + found.start, found.value, found.currency)


def _may_stand_before(text: str, first: Token, signed: bool) -> bool:
    """Return whether the text before an expression's first token is known not to belong to the expression."""
    context = text[max(0, first.start - _CONTEXT) : first.start]
    before = _BLANK_END.sub("", context)
    gap = len(context) - len(before)
    if signed and text[first.end] in BLANKS and before[-1:] not in tuple("=&([{<>"):
        return False  # a bullet
    if match := _MATH_BEGIN.search(before):
        outside = before[: match.start()]
        return _BULLET.search(outside) is not None or not _OPERATOR_END.search(outside.rstrip(BLANKS + "$"))
    if label := _LABEL.search(before) if gap else None:
        before = before[: label.start() + 1]
    if match := _LINE_END.search(before):
        line = before[: match.start()].rstrip()
        if _ROLE.search(line):
            return True
        goes_on = (signed and _OPERAND_END.search(line)) or (label and line[-1:] in _OPERAND_ENDS)
        return not (goes_on or _OPERATOR_END.search(line))
    if match := _LAST_WORDS.search(before):
        known = words().listed["before_signs"] if signed else words().before
        last = match["last"].lower()
        if len(last) == 1 and TEX.search(text):
            return False  # a variable
        return gap > 0 and (last in known or f"{(match['first'] or '').lower()} {last}" in known)
    return _SEPARATE.search(before + " " * min(gap, 1)) is not None


def number_after(text: str) -> Decimal | None:
    """The number with which a text after an equals sign begins; None: it begins with something else."""
    sign = _AFTER_SIGN.match(text)
    if sign is None:
        return None
    first = sign.end() - 1 if sign.end() else 0  # with the character before the number
    numbers = number_spans(text[first : first + MAX_LENGTH])
    end = next((first + end for start, end in numbers.items() if first + start in (sign.end() - 1, sign.end())), 0)
    if not end or end <= sign.end():
        return None
    value = abs(decimal_value(text[sign.end() : end]))
    return -value if sign["sign"] or sign["later"] else value
