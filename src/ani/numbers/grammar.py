"""Finds the numbers of a text with their exact values, and the character that completes each.

The grammar
===========

Only ASCII digits count: other scripts' digits and superscripts are text. Every ASCII digit belongs to exactly one
number, and numbers are found from left to right, each as long as the rules allow::

    number   = [sign] mantissa [exponent]
    mantissa = integer ["." digits] | "." digits
    integer  = digits | thousands
    exponent = ("e" | "E") ["+" | "-"] 1*3digit

Thousands
    One to three digits, the first not 0, then groups of exactly three, each after a comma. Exactly three, because a
    comma also separates the items of a list: ``1,2,3`` is three numbers, ``1,2345`` is 1 and 2345, and ``1,234,5678``
    is 1234 and 5678.
Fraction
    A dot between digits. A dot without digits after it ends a sentence: ``3.`` is 3. A dot with nothing before it opens
    a fraction (``.5``) unless a word character, a closing bracket or another dot precedes: in ``Fig.5`` and ``1..5`` it
    is punctuation.
Dotted chain
    Digits joined by two dots or more (a leading dot that opens a fraction counts) are a version, an address or a date:
    ``192.168.1.1`` and ``2.0.1`` are integers only. A part of a chain takes no thousands and no exponent. An exponent
    is never followed by a fraction, so that in ``1e5.3`` the dot counts as a chain's.
Exponent
    Up to three digits, not followed by a letter or digit, after a mantissa that no letter or underscore precedes:
    hashes and names (``3e8f``, ``v2e5``) are not scientific notation. Three digits cover float64 and keep 10**exponent
    small enough to write out.
Sign
    ``+`` or ``-`` directly before the mantissa, where it can be neither an operator nor a hyphen. That is after the
    start of the text, a line break, a boundary, an opening bracket, or punctuation such as ``= < * , : $``; or after
    blanks, unless an operand precedes those: a digit, a closing bracket, ``%`` or a variable, which is a letter that
    follows no letter. So ``(-5``, ``= -5`` and ``to -5 degrees`` are negative, and ``3-5``, ``3 -5``, ``2x -5``,
    ``2020-11``, ``COVID-19`` and ``- 5`` contain 5, 11 and 19. Blanks are looked through up to `MAX_BLANKS` of them:
    more make a column of a table, whose sign is its own. The bound also lets a reader of a stream know how much context
    it needs (`settled`).
Boundary
    The character NUL. No number extends across it, and the text after it reads like the start of a text.

Prefixes
========

While a text is being written, the number so far at a digit is the number that ends there in `find_numbers` of the text
up to that digit: along ``1,2345`` it is 1, 2, 23, 1234, 2345. All rules but three look only to the left; the three look
at the digits after a comma (exactly three?), after an ``e`` (at most three, then no letter?) and at a second dot. So
each run of digits either *joins* the number before it or is *alone*, and `digit_runs` gives both beginnings with the
rule that decides; whole texts and prefixes are read off the same `Run`.

Ended numbers
=============

A number of a text is complete if every continuation of the text leaves it as it is: the same start, the same end
(`ended_spans`). A continuation can add digits to the last run, so no number is complete at its own last digit, and it
can then add what the three rules look ahead for. So a number is completed by

- the first character after it, as in ``345 +``, ``7%``, ``3-5`` or ``12\n``, or the boundary there;
- after a dot that may open a fraction, the character after the dot: ``3.`` may be 3.5, ``3. `` is 3. After a fraction
  the dot may make a chain: ``2.0.`` is 2.0 or 2 and 0, which the ``1`` of ``2.0.1`` decides for both. A part of a chain
  and a number with an exponent have no fraction, so that their dot is enough;
- after a comma that may open a group, what denies it three digits: of ``1,x`` the x, of ``1,23 `` the blank (for the 1
  as for the 23), of ``1,2345`` the 5. Where no group may follow (``0,``, ``1234,``, ``1.5,``) the comma is enough;
- after an ``e`` that may open an exponent, what denies it: of ``3em`` the m, of ``3e-x`` the x, of ``3e8f`` the f (for
  the 3 as for the 8), of ``1e1234`` the 4. Where none may follow (``v2e``, ``1e5e``) the ``e`` is enough.

A complete number stays complete, so one character completes each number, and at most two numbers have the same one.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum, auto
from typing import NamedTuple

BOUNDARY = "\0"
MAX_BLANKS = 8

_DIGITS = re.compile(r"[0-9]+")
# Runs of digits that can belong to one number. The group is set for the few with several runs.
_CLUSTER = re.compile(r"[0-9]+((?:[.,]|[eE][+-]?)[0-9]+)*")
_NUMERIC = "0123456789.,eE+-"
_ASCII_DIGITS = frozenset("0123456789")
_SIGNS = frozenset("+-")
BLANKS = " \t\N{NO-BREAK SPACE}"
_CLOSING = ")]}\N{FULLWIDTH RIGHT PARENTHESIS}"
_BEFORE_SIGN = frozenset(BOUNDARY + "\n\r" + "([{" + "=<>*/^,:;|&~!?\"'`$#@\\" + "“‘«（：，＝×÷·≤≥≠≈→")
# Where a number may begin whatever is before it: after a character that is in no number, or at a comma before
# anything but a group of three.
_RESTART = re.compile(r"[^0-9.,eE+\-]|,(?![0-9]{3}(?![0-9]))(?=[0-9]+[^0-9])")
# Blanks and two characters before them; three more as the text may open within a character.
_LOOK_BEHIND = MAX_BLANKS + 2 + 3


class Rule(Enum):
    """How a run of digits can join the number before it."""

    ALONE = auto()
    GROUP = auto()
    FRACTION = auto()
    EXPONENT = auto()


class Run(NamedTuple):
    """Consecutive ASCII digits `[begin, end)` of a text, and where the number that contains them can begin."""

    begin: int
    end: int
    alone: int
    """Where the number begins if the run does not join."""
    joined: int
    """Where the number begins if the run joins; `alone` under `Rule.ALONE`."""
    rule: Rule

    def start(self, cut: int, following: str) -> int:
        """Where the number that ends at `cut` begins, if the text continues after `cut` with `following`.

        Args:
            cut: In `(begin, end]`; before `end` for the number so far.
            following: The known text from `cut` on; at most two characters matter.
        """
        if self.rule is Rule.ALONE:
            return self.alone
        length = cut - self.begin
        match self.rule:
            case Rule.GROUP:
                joins = length == 3
            case Rule.FRACTION:
                joins = not (following[:1] == "." and following[1:2] in _ASCII_DIGITS)
            case Rule.EXPONENT:
                joins = length <= 3 and not following[:1].isalnum()
        return self.joined if joins else self.alone


def decimal_value(text: str) -> Decimal:
    """The exact value of one number as it is written, thousands separators included."""
    return Decimal(text.replace(",", ""))


def number_spans(text: str) -> dict[int, int]:
    """The numbers of a text as {start: end} in ascending order; linear in the text's length."""
    spans: dict[int, int] = {}
    for match in _CLUSTER.finditer(text):
        begin, end = match.span()
        before = text[begin - 1] if begin else BOUNDARY
        if match.lastindex is None and before not in "+-.":  # most numbers: one run, nothing to join
            spans[begin] = end
            continue
        for run in _runs_of_cluster(text, begin, end):
            # A run that joins has the start of the number before it, whose end it moves.
            spans[run.start(run.end, text[run.end : run.end + 2])] = run.end
    return spans


def digit_runs(text: str, start: int = 0) -> Iterator[Run]:
    """The runs of ASCII digits of a text, from left to right; of those that end by `start`, some may be left out."""
    # A number extends over these characters alone, so a run that ends before them can't join a later one.
    for match in _CLUSTER.finditer(text, len(text[:start].rstrip(_NUMERIC))):
        begin, end = match.span()
        before = text[begin - 1] if begin else BOUNDARY
        if match.lastindex is None and before not in "+-.":  # most numbers: one run, nothing to join
            yield Run(begin, end, begin, begin, Rule.ALONE)
        else:
            yield from _runs_of_cluster(text, begin, end)


def ended_spans(text: str, start: int = 0) -> list[tuple[int, int, int]]:
    """The numbers of a text that no continuation of it can change, from left to right; linear in the text's length.

    Returns:
        (begin, end, known): `text[begin:end]` is a number of every text that begins with `text[:known]`, and `known`,
        which never descends, is the least such. Those with `known` up to `start` may be left out.
    """
    found: dict[int, tuple[int, int]] = {}
    for run in digit_runs(text, start):
        end = run.end
        begin = run.start(end, text[end : end + 2])
        if begin != run.joined and run.joined in found:  # the number before might have gone on here, and has not
            known = end + 2 if run.rule is Rule.FRACTION else min(end + 1, run.begin + 4)
            found[run.joined] = found[run.joined][0], known
        known = end + 1
        match _rule_after(text, run, begin):
            case Rule.GROUP | Rule.FRACTION:
                known += 1
            case Rule.EXPONENT:
                known += 2 if text[end + 1 : end + 2] in _SIGNS else 1
            case Rule.ALONE if run.rule is Rule.FRACTION and text[end : end + 1] == ".":  # of a chain?
                known += 1
        found[begin] = end, known
    return [(begin, end, known) for begin, (end, known) in found.items() if known <= len(text)]


def _runs_of_cluster(text: str, cluster_begin: int, cluster_end: int) -> Iterator[Run]:
    previous: Run | None = None
    start = cluster_begin  # of the number that contains the previous run
    for match in _DIGITS.finditer(text, cluster_begin, cluster_end):
        begin, end = match.span()
        alone = joined = begin
        rule = Rule.ALONE
        if previous is not None:
            rule = _rule_after(text, previous, start)
            if rule is not Rule.ALONE:
                joined = start
        elif begin == 0 or text[begin - 1] != ".":
            alone = joined = _signed(text, begin)
        elif begin == 1 or not _is_word_or_end(text[begin - 2]):
            rule, joined = Rule.FRACTION, _signed(text, begin - 1)
        previous = Run(begin, end, alone, joined, rule)
        start = previous.start(end, text[end : end + 2])
        yield previous


def _rule_after(text: str, run: Run, start: int) -> Rule:
    """The rule by which digits could join the number `[start, run.end)`, by the character after it."""
    part = run.rule if start != run.alone else Rule.ALONE  # of its number
    before = text[max(0, run.begin - 2) : run.begin]
    if part is Rule.ALONE and before[-1:] == "." and (run.rule is Rule.FRACTION or before[:1] in _ASCII_DIGITS):
        return Rule.ALONE  # part of a dotted chain
    match text[run.end : run.end + 1]:
        case "." if part in (Rule.ALONE, Rule.GROUP):
            return Rule.FRACTION
        case "," if part is Rule.GROUP:
            return Rule.GROUP
        case "," if part is Rule.ALONE and run.end - run.begin <= 3 and text[run.begin] != "0":
            return Rule.GROUP
        case "e" | "E" if part is not Rule.EXPONENT and not (
            start and (text[start - 1].isalpha() or text[start - 1] == "_")
        ):
            return Rule.EXPONENT
    return Rule.ALONE


def settled(context: str) -> bool:
    """True if a text that continues after `context` reads the same whatever comes before `context`.

    That is so if no number can extend through the context from its beginning, and what decides about the sign of
    a number that begins in it is in it too. The context may open in the middle of a character's bytes.
    """
    return _RESTART.search(context, _LOOK_BEHIND) is not None


def _signed(text: str, begin: int) -> int:
    """The start of the number whose mantissa begins at `begin`: one less if a sign belongs to it."""
    sign = begin - 1
    if sign < 0 or text[sign] not in "+-":
        return begin
    if sign == 0 or text[sign - 1] in _BEFORE_SIGN:
        return sign
    if text[sign - 1] not in BLANKS:
        return begin
    first = max(0, sign - MAX_BLANKS - 1)
    ahead = first + len(text[first:sign].rstrip(BLANKS)) - 1  # the last character before the blanks
    if ahead < first:
        return sign
    character = text[ahead]
    if character.isdigit() or character == "%" or character in _CLOSING:
        return begin
    is_variable = character.isalpha() and not (ahead and text[ahead - 1].isalpha())
    return begin if is_variable else sign


def _is_word_or_end(character: str) -> bool:
    """True if a dot after this character is punctuation, not a fraction's."""
    return character.isalnum() or character == "_" or character == "." or character in _CLOSING
