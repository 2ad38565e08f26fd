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
    Those of `find_numbers` without their signs, also with thousands as TeX (``1{,}234``) or thin blanks separate them;
    number words up to twenty. One with a needless 0 at its beginning makes a date or a code of all of it. Mixed numbers
    are sums (``1 1/2``, ``1\frac12``), but not before another fraction (in ``80\frac12\frac15`` all are factors).
Blanks
    Up to `MAX_BLANKS` between any two parts: more make a column of a table. A line break ends the expression, but in
    TeX before the sign.
Operators
    ``+ - − – * × · ⋅ ∙ ∗ / ÷ ^ **``, ``//`` and ``mod`` of what isn't negative, and their names in TeX. Powers come
    before products, these before sums, and equals go from left to right. Chained powers are doubtful (``2^3^2`` is 512,
    and 64 in a spreadsheet), so is a negated base outside TeX (``-2^2``), a quotient in a quotient with other blanks
    (``8 / 1/2``), and ``**`` with a blank on one side, which is bold type.
The letter x
    Multiplies with blanks on both sides and no sign behind it (``3 x 4``), or between two literals alone (``3x4``), but
    not in TeX. Elsewhere it is a variable, and ``0x10`` is a hexadecimal number.
Side by side
    A literal, a bracket or a constant directly before a bracket, root or constant (``2(3 + 4)``, ``2√3``, ``4π``), in
    TeX with blanks as well, is a factor. Not behind a quotient (``8/2(4)`` is 1 for some) or a unit.
Signs
    Directly before an operand, and not directly after another sign: ``3 * -5``; ``3--5`` has a dash, ``- 5`` a bullet.
Functions
    ``√ sqrt ln exp``, ``log`` with its base (without, it is 10 for some), ``sin cos tan``, ``gcd lcm max min``,
    ``| |``, ``⌊ ⌋``, ``⌈ ⌉``, ``\binom``, π, and e with a power. An angle is in degrees or radians if it says so
    (``30°``, ``2 rad``) or has a π, and doubtful otherwise.
Words
    Those of ``words.yaml``: between operands (``3 plus 4``), behind one (``squared``), before one (``half of``, ``the
    square root of``) or several (``the sum of 3 and 4``, ``subtract 3 from 4``). Spoken, precedence is doubtful: a word
    and an operator of another level don't stand beside each other (``3 plus 4 times 5``), nor does anything follow what
    a word is of (``half of 10 plus 4``). ``of`` multiplies behind a fraction or percent only.
Units
    Behind a literal or bracket may stand what it counts or measures, `MAX_UNIT` words at most (``3 red apples * $2 per
    apple``), in TeX in ``\text{}``. It changes nothing, so what might is none (``3 dozen``, ``4 halved``). Units of one
    quantity are not added to or divided by others before they are converted (``2 hours + 30 minutes``). Letters
    directly behind a digit are a variable, unless they are a known unit (``3ab``, ``3kg``).
Currency
    ``$ € £ ¥ ₹`` directly before a literal or behind it, the same one everywhere. In TeX ``\$``.
Percent
    ``5% * 40`` is 2 and ``5% + 10%`` is 15 (percent); ``1/4 * 100%`` is 25 (percent). ``40 + 5%`` and ``5% * 10%`` are
    doubtful: texts mean different things by them.

What stands before
==================

An expression that an equals sign follows begins where what stands before can't belong to it. That is not what isn't
known to compute, as any word may (``floor``, ``thrice``, ``3 lots of``), but what is known not to: the start of the
text; a line break, unless the line before ends in an operator, or in an operand where a sign follows, and is not the
line in which a chat template names who speaks; a relation; an opening bracket; where TeX's mathematics begins, unless
an operator stands before; a comma or full stop with a blank; a quotation mark, a colon unless after a digit; a label,
bold type or a bullet that begins a line; one of the words in ``words.yaml`` (``is``, ``a total of``), and before a
literal also a verb, to judge by its ending or the word before it, or a clause of words alone, since it has no operand
(``In May the volcano erupted 3 * 2 =``). The clause has at least three words, one of them from those of ``words.yaml``,
and its sentence has no word that works something out (``reciprocal``, ``multiply``).
A sign at the beginning needs more, as ``apples -3 + 4`` may be a difference.

A list in words begins with its words (``the sum of``), or with what stands before them in the same expression. Of a
chain (``3 + 4 = 7 * 2 =``) the last link is meant, in an open bracket what stands in it.

Questions
=========

A question or order is some words of ``words.yaml`` (``What is``, ``Please calculate``), an expression, and a closing of
words that ask for nothing else (``? Just the number.``, ``to two decimals``): ``in binary`` is none. Without the words
an expression may be the question that begins a line, a sentence, or stands behind a colon with an introduction (``Add
two numbers:``); then it is no date and no number with a hyphen or slash (``555-1234``). What else was said before is
free.

People ask in more words than can be listed. So where a message ends that asks for nothing in these words, the
calculation that it holds may be what it asks for (``my homework says 3 + 4 and i dont get it``), whatever it is asked
about it: that is left to a gate. Not if it holds another number, or a word that works something out (``the reciprocal
of 3 + 4``) or has the value written otherwise (``in binary``).

The value
=========

`Exact`: a rational, or a real whose digits are known to be right. What has none, such as ``1/0`` and
``√-2``, or none that can be decided, is no calculation.

The expression has at most `MAX_LENGTH` characters and `MAX_WORK` operands, where roots and functions count for five, so
that no text costs more than a millisecond, and a reader of a stream knows how much context it needs. A longer
expression is no calculation, not a shorter one.

Equations
=========

A text's equations are its calculations with the number behind the sign, if it stands there alone: in ``3 + 4 = 5 + 2``,
``= 3/4``, ``= 1 1/2`` or ``= 3 r 1`` it may not be what the left side is said to be. An equation is right if the number
is the value, rounded to the number's places (of a half, up or down), or that in percent. One in another unit of what
its left side measures (``$0.05 * 4 = 20 cents``) is left out, unless the numbers agree.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, cast

from ani.calculator.reader.exact import SURE_PLACES, Exact
from ani.calculator.reader.expressions import Found, read
from ani.calculator.reader.tokens import MONEY, OPERATORS, TEX, UNIT, WORD, Token, starts_of, tokens_of
from ani.calculator.reader.words import BLANK, words
from ani.numbers.grammar import BLANKS, BOUNDARY, MAX_BLANKS, decimal_value, number_spans

MAX_LENGTH = 200
"""Characters of an expression, with what stands between it and the sign."""
_CONTEXT = 64  # characters before the expression that say whether it is whole
LOOK_BEHIND = MAX_LENGTH + _CONTEXT
"""Characters before an equals sign that are looked at."""
MAX_QUESTION = 480
"""Characters of a question with what is said around it."""
MAX_STARTS = 3
"""Places at which a question's expression may begin."""

_BLANK_END = re.compile(rf"(?:{BLANK}|\\[,;:!> ]|~|\\q?quad|\\left|\\displaystyle|(?<![^\s{BOUNDARY}])\*\*)*\Z")
_MATH_BEGIN = re.compile(r"(?:\$\$?|\\[(\[]|\\begin\{[a-z]+\*?\})\Z")
_OPERATOR_END = re.compile(rf"(?:[{re.escape(''.join(c for c in OPERATORS if len(c) == 1))}]|\\[a-z]+)\Z")
_BREAK = r"[\n\r]|\\\\(?:\[[^\]\n]*\])?|(?<!\\)&"
_LINE_END = re.compile(rf"(?:{BLANK}|{_BREAK})*(?:{_BREAK})\Z|{BOUNDARY}\Z")
_ROLE = re.compile(rf"{BOUNDARY}[a-z]{{2,}}\Z")
"""The line of a chat template that names who speaks: ``<|im_start|>user``."""
_LAST_WORDS = re.compile(rf"(?:(?P<first>{WORD}){BLANK}+)?(?<![\\\w])(?P<last>{WORD}|e\.g\.|i\.e\.)\Z")
_OPERAND_ENDS = (*"0123456789)]}%°",)
_OPERAND_END = re.compile(r"[\w)\]}%°!$]\Z")
_LABEL = re.compile(rf"(?:^|[\n\r{BOUNDARY}])\s*(?:[•*>]|#+|[0-9a-z]{{1,2}}\))\Z")
_SEPARATE = re.compile(
    rf"""(?:[(\[{{（=<>≈≤≥≠→⇒;：，。]
    |(?<![0-9])["'“‘`]
    |(?<![{BLANKS}])[,.?:][ ]
    |(?<=[^\W\d_][^\W\d_])![ ]
    |(?<![0-9{BLANKS}]):
    |\\(?:approx|leq?|geq?|neq?|Rightarrow|Longrightarrow|implies|to|therefore))\ ?\Z""",
    re.VERBOSE,
)
_SENTENCE = re.compile(rf"[\n\r={BOUNDARY}]|[.?!]\s")
_CLAUSE = re.compile(r"[,;:]\s")
_WORDS_ALONE = re.compile(rf"(?:{WORD}(?:-{WORD})*{BLANK})+")
_WORKED_OUT = re.compile(r"[^-0-9.,/:–−]")
_BEHIND = re.compile(
    rf"{BLANK}{{0,{MAX_BLANKS}}}(?:\\boxed\{{)?(?:\\?[{MONEY}](?P<later>[-−])|(?P<sign>[-−])?(?:\\?[{MONEY}])?)"
)
_GOES_ON = re.compile(
    rf"{BLANK}{{0,{MAX_BLANKS}}}(?:[-−–+*×·⋅÷/^]{BLANK}{{0,{MAX_BLANKS}}}[{MONEY}(.]?[0-9]|(?<={BLANK})[0-9]"
    r"|[rR]\s?[0-9]|remainder)"
)
_BEGINS = re.compile(rf"(?:[\s{BOUNDARY}:;]|(?<!\S)[\"'“‘`*$(\[]{{1,3}}|\\[(\[])\Z")
_ENDS = re.compile(rf"(?![\w°²³%^!])(?!{BLANK}*[-−–+*×·⋅÷/^]{BLANK}*[\w(])")
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
        tokens = tokens_of(window[: start + MAX_LENGTH], start, to_break=True)
        opening = next((i for i, token in enumerate(tokens) if token.kind != "math"), 0)
        if tokens and tokens[opening].kind == "break":  # as nearly always
            continue
        found = read(window, tokens[opening:])
        if found and found.counted and window.count(found.counted, found.start, found.end) < 2:
            found = found._replace(end=found.end - len(found.counted))  # "in Roman numerals" is no unit
        if found is None or not words().closing.fullmatch(window, found.end):
            continue
        written = window[found.start : found.end]
        exclaimed = (
            written[-1] == "!" and not written[:-1].isdigit() and window[found.end : found.end + 1] not in tuple("?.=$")
        )
        bare = not (starts[start] or found.order or _WORKED_OUT.search(written))
        if not exclaimed and not bare and not _DATE.fullmatch(written):  # 3 + 4! may be 7
            return _calculation(found, window, first - 1)
    return None


def calculation_mentioned(text: str, end: int) -> Calculation | None:
    """The calculation in a message that ends at a place, if it may be asked for in words that nobody listed."""
    first = text.rfind(BOUNDARY, 0, end) + 1
    window = BOUNDARY + text[first:end]
    numbers = number_spans(window) if len(window) <= MAX_QUESTION else None
    if not numbers:
        return None
    begin, last = min(numbers), max(numbers.values())
    start = window.find(" ", max(0, begin - _CONTEXT), begin) + 1 if begin > _CONTEXT else 1
    tokens = tokens_of(window[: last + _CONTEXT], start) if last - begin <= MAX_LENGTH else []
    # An expression goes over no break, and closes its brackets.
    broken = max(
        (index for index, token in enumerate(tokens) if token.kind == "break" and token.start < last), default=-1
    )
    closed = max((index for index, token in enumerate(tokens) if token.kind == "close"), default=-1)
    starts = [
        index
        for index, token in enumerate(tokens)
        if index > broken
        and token.start <= begin
        and token.kind not in ("math", "unit", "joint")
        and (token.kind != "open" or index < closed)
    ]
    for index in starts[-2 * MAX_STARTS :]:
        found = read(window, tokens[index:])
        if found and found.end >= last:
            return _calculation(found, window, first - 1) if _stands_alone(found, window) else None
    return None


def _stands_alone(found: Found, window: str) -> bool:
    """Whether nothing around an expression belongs to it, and no word around it asks for more than its value."""
    end = found.end - len(found.counted)
    written, before, behind = window[found.start : end], window[: found.start], window[end:]
    if written[-1] == "!" or not (found.order or _WORKED_OUT.search(written)) or _DATE.fullmatch(written):
        return False
    if not _BEGINS.search(before) or _OPERATOR_END.search(before.rstrip(BLANKS)) or not _ENDS.match(behind):
        return False
    listed = words().listed
    *_, last = ["", *re.findall(WORD, before.lower())]
    fillers = tuple(filler for filler in listed["fillers"] if filler.endswith(f" {last}"))
    if last in listed["of"] and not before.lower().rstrip().endswith(fillers):
        return False
    around = {word.lower() for word in re.findall(WORD, f"{before} {behind}")}
    return not around & (listed["computing"] | listed["otherwise"])


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
        return not _OPERATOR_END.search(before[: match.start()].rstrip(BLANKS + "$"))
    if label := _LABEL.search(before) if gap else None:
        before = before[: label.start() + 1]
    if match := _LINE_END.search(before):
        line = before[: match.start()].rstrip()
        if _ROLE.search(line):
            return True
        goes_on = (signed and _OPERAND_END.search(line)) or (label and line[-1:] in _OPERAND_ENDS)
        return not (goes_on or _OPERATOR_END.search(line))
    if match := _LAST_WORDS.search(before):
        return gap > 0 and (_may_be_last(match, first, signed) or _is_clause_of_words(context, first, signed))
    return _SEPARATE.search(before + " " * min(gap, 1)) is not None


def _may_be_last(match: re.Match[str], first: Token, signed: bool) -> bool:
    """Whether the last two words of a text can't belong to the expression behind them."""
    listed, before, last = words().listed, (match["first"] or "").lower(), match["last"].lower()
    known = listed["before_signs" if signed else "before"]
    if last in known or f"{before} {last}" in known:
        return True
    if signed or first.kind not in ("number", "money") or last in listed["computing"]:
        return False
    if match["last"].istitle():
        return before in listed["before_names"]
    if before in listed["before_verbs"]:
        return len(last) > 2
    verb, at = (before, "first") if last in listed["before_particles"] else (last, "last")
    other = verb in listed["computing"] or verb in listed["changing"] or verb in words().measures
    follows_operand = match.string[: match.start(at)].rstrip()[-1:] in _OPERAND_ENDS
    return verb.endswith(words().endings) and len(verb) > 3 and not other and not follows_operand


def _is_clause_of_words(context: str, first: Token, signed: bool) -> bool:
    """Whether the clause before a literal has words alone, and its sentence none that works something out."""
    sentence = _SENTENCE.split(context)[-1]
    clause = _CLAUSE.split(sentence)[-1]
    seen = len(sentence) < len(context)  # from its beginning on
    if signed or first.kind not in ("number", "money") or not seen or not _WORDS_ALONE.fullmatch(clause):
        return False
    names = re.findall(WORD, clause.lower())
    variables = any(len(name) == 1 for name in {*names} - {"a", "i"})
    return (
        len(names) > 2
        and names[-1] not in words().listed["clause_ends"]
        and not variables
        and not words().plain.isdisjoint(names)
        and words().operands.isdisjoint(names)
        and words().calculating.isdisjoint(re.findall(WORD, sentence.lower()))
    )


# --- equations --------------------------------------------------------------------------------------------------------


class Equation(NamedTuple):
    """A written calculation and the number behind its equals sign."""

    calculation: Calculation
    written: Decimal
    percent: bool
    """Whether a percent sign stands behind the number."""

    @property
    def right(self) -> bool:
        """Whether the number is the value, rounded to the places that it has."""
        value = self.calculation.value.rational
        if value is None:
            value = Fraction(self.calculation.value.rounded(SURE_PLACES - 1))
        number, last = Fraction(self.written), Fraction(10) ** cast(int, self.written.as_tuple().exponent)
        return any(abs(number / scale - value) <= last / scale / 2 for scale in (1, 100)[: 1 + self.percent])


def equations(text: str) -> list[Equation]:
    """The written equations of a text, from left to right."""
    found = []
    for sign in re.finditer("=", text):
        value, end = _number_at(text, sign.end())
        if value is None or _GOES_ON.match(text, end):
            continue
        if calculation := calculation_before(text, sign.start()):
            unit = UNIT.match(text, end)
            measure = words().measures.get(unit[2].lower()) if unit else None
            equation = Equation(calculation, value, text.startswith(("%", "\\%"), end))
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
    first = behind.end() - 1 if behind.end() else 0  # with what stands before it
    numbers = number_spans(text[first : first + MAX_LENGTH])
    end = next((first + end for start, end in numbers.items() if first + start in (behind.end() - 1, behind.end())), 0)
    if not end or end <= behind.end():
        return None, 0
    value = abs(decimal_value(text[behind.end() : end]))
    return -value if behind["sign"] or behind["later"] else value, end
