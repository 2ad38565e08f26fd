"""Finds the numbers of a text with their exact values, and the character that completes each.

The grammar
===========

Only ASCII digits count: other scripts' digits and superscripts are text. Numbers are found from left to right, each as
long as the rules allow; every ASCII digit belongs to one number, or to an unread literal::

    number   = [sign [currency]] mantissa [exponent]         (sign: `ani.numbers.signs`)
    mantissa = integer ["." digits] | "." digits
    integer  = digits | thousands | indian
    exponent = ("e" | "E") [sign] 1*3digit

Thousands
    One to three digits, the first not 0, then groups of exactly three, each after the same separator. Exactly three,
    because a comma also separates the items of a list: ``1,2,3`` is three numbers, ``1,2345`` is 1 and 2345, and
    ``1,234,5678`` is 1234 and 5678. The other separators and their doubts: a Swiss apostrophe (``1'234.50``, ``1’234``)
    may be a mark of feet or minutes, but three digits after it are no inches or seconds; TeX's ``1,\\!234`` and
    ``1,\\! 234`` have no other use; TeX's ``1{,}234`` may be 1.234 in a German text, as ``3{,}14`` is 3.14; the
    underscore of ``1_234`` may join the parts of a name; a narrow space (U+2009, U+202F) may separate two numbers.
Indian
    One or two digits, the first not 0, then one to three groups of two and one of three, each after a comma:
    ``12,34,567``. It may be a list of short items, but that was read no better as 12 and 34567.
Fraction
    A dot between digits; without digits after it, it ends a sentence (``3.``). A dot with no digit before it opens a
    fraction (``.5``), but not after a word character, a closing bracket or another dot (``Fig.5``, ``1..5``).
Dotted chain
    Digits joined by two dots or more (a leading dot that opens a fraction counts) are a version, an address or a date:
    ``192.168.1.1`` and ``2.0.1`` are integers only. A part of a chain takes no thousands and no exponent. An exponent
    is never followed by a fraction, so that in ``1e5.3`` the dot counts as a chain's.
Exponent
    Up to three digits, which cover float64, not followed by a letter or digit, after a mantissa that no letter or
    underscore precedes: hashes and names (``3e8f``, ``v2e5``) are not scientific notation.
Unread literal
    Digits that are one number, but in a convention that is not read: no number, because a part would be a wrong value.
    A decimal comma after one to three groups of thousands (``1.234,56``, ``1.234.567,8``, ``1'234,50``), unless another
    separator and a digit follow, as in a list; and ``{,}`` that is not before thousands (``3{,}14``).
Scale
    No part of the number: ``1.5k`` and ``$2M`` contain 1.5 and 2, as ``10%`` contains 10 and ``2 million`` 2. A letter
    at the digits may mean another thing (``401k``, ``5K``, ``2M``), and the model sees it next to the number.
Boundary
    The character NUL. No number extends across it, and the text after it reads like the start of a text.

Prefixes
========

While a text is being written, the number so far at a digit is the number that ends there in `find_numbers` of the text
up to that digit: along ``1,2345`` it is 1, 2, 23, 1234, 2345. Most rules look only to the left, the others at digits
and at what follows them. So each run of digits either *joins* numbers before it or is *alone*, and `digit_runs` gives
both beginnings with the rule that decides; whole texts and prefixes are read off the same `Run`.

Ended numbers
=============

A number of a text is complete if every continuation of the text leaves it as it is: the same start, the same end
(`ended_spans`). Digits may follow the last run, so no number is complete at its own last digit. It is completed by

- the first character after it, as in ``345 +``, ``7%``, ``3-5`` or ``12\\n``, or the boundary there;
- after a dot that may open a fraction, the character after the dot: ``3.`` may be 3.5, ``3. `` is 3. After a fraction
  the dot may make a chain: ``2.0.`` is 2.0 or 2 and 0, which the ``1`` of ``2.0.1`` decides for both. A part of a chain
  and a number with an exponent have no fraction, so that their dot is enough;
- after a separator that may open a group, what denies it three digits: of ``1,x`` the x, of ``1,23 `` the blank (for
  the 1 as for the 23), of ``1,2345`` the 5. Where no group may follow (``0,``, ``1234,``, ``1.5,``) it is enough;
- in a possible Indian number or unread literal, what denies it: the blank of ``12,34,5 `` (for all three), ``1.234, ``;
- after an ``e`` that may open an exponent, what denies it: of ``3em`` the m, of ``3e-x`` the x, of ``3e8f`` the f (for
  the 3 as for the 8), of ``1e1234`` the 4. Where none may follow (``v2e``, ``1e5e``) the ``e`` is enough.

A complete number stays complete, so one character completes each number, and at most five have the same one.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from ani.numbers.signs import MONEY, with_sign

_MAX_GROUPS = 3  # of two digits in an Indian number, of three before a decimal comma

THIN = "'’_\u2009\u202f"
"""Separators of thousands that no list has."""
JOINTS = rf".,eE+\-−{THIN}{{}}\\! "
"""Characters between a number's runs of digits, for a class of a regular expression."""
_DIGITS = re.compile(r"[0-9]+")
# Runs of digits that can belong to one number. The first group is set after what may open a number, the second for
# several runs.
_BEFORE = rf"(?<=[.+\-−].)|(?<=[+\-−\\][{''.join(MONEY)}].)"
_CLUSTER = re.compile(rf"[0-9]({_BEFORE})?[0-9]*((?:[.{THIN}]|,(?:\\! ?)?|\{{,\}}|[eE][+\-−]?)[0-9]+)*")
_OPENING = frozenset("." + THIN + ",{eE")
_OPENED = re.compile(r",(?:\\(?:! ?)?)?|\{(?:,\}?)?|[eE][+\-−]?")
_SIMPLE = re.compile(r"[0-9]+\.[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_FIRST_JOINTS = "." + THIN, "." + THIN + ","
_POINT = re.compile(r"(?<![\w.)\]}）])\.")  # opens a fraction
_ASCII_DIGITS = frozenset("0123456789")

Rule = Enum("Rule", "ALONE GROUP INDIAN BRACED FRACTION EXPONENT COMMA")
"""How a run of digits can join the number before it."""
_WHOLE = (Rule.ALONE, Rule.GROUP, Rule.INDIAN)


class Run(NamedTuple):
    """Consecutive ASCII digits `[begin, end)` of a text, and where the number that contains them can begin."""

    begin: int
    end: int
    alone: int
    """Where the number begins if the run does not join."""
    joined: int
    """Where the number begins if the run joins. It and the numbers after it depend on this run."""
    rule: Rule = Rule.ALONE
    joint: str = ""
    """The characters between this run and the one before it in the same cluster."""
    opens: str = ""
    """The characters after the run that keep an Indian number or a decimal comma possible."""

    def start(self, cut: int, following: str) -> int:
        """Where the number that ends at `cut` begins, if the text continues after `cut` with `following`.

        Args:
            cut: In `(begin, end]`; before `end` for the number so far.
            following: The known text from `cut` on; at most two characters matter.
        """
        match self.rule:
            case Rule.ALONE:
                return self.alone
            case Rule.FRACTION:
                joins = not (following[1:2] in _ASCII_DIGITS and following[0] == ".")
            case Rule.GROUP | Rule.INDIAN:
                joins = cut - self.begin == 3
            case Rule.EXPONENT:
                joins = cut - self.begin <= 3 and not following[:1].isalnum()
            case _:
                joins = not (following[1:2] in _ASCII_DIGITS and following[0] in ".," + THIN)
                joins = joins or (self.rule is Rule.BRACED and cut - self.begin == 3)
        return self.joined if joins else self.alone

    def is_read(self, cut: int, start: int) -> bool:
        """False if what begins at `start` and ends at `cut` is an unread literal."""
        unread = self.rule is Rule.COMMA or (self.rule is Rule.BRACED and cut - self.begin != 3)
        return not unread or start == self.alone


def number_spans(text: str) -> dict[int, int]:
    """The numbers of a text as {start: end} in ascending order; linear in the text's length."""
    spans: dict[int, int] = {}
    for match in _CLUSTER.finditer(text):
        begin, end = match.span()
        if match.lastindex is None or (match[1] is None and _SIMPLE.fullmatch(text, begin, end)):  # most numbers
            spans[begin] = end
            continue
        for run, start in _runs_of_cluster(text, match):
            while start != run.alone and spans and next(reversed(spans)) >= start:
                spans.popitem()  # it is longer now
            if run.is_read(run.end, start):
                spans[start] = run.end
    return spans


def digit_runs(text: str, start: int = 0) -> Iterator[tuple[Run, int]]:
    """The runs of ASCII digits of a text, from left to right, each with the place where the number that ends with it
    begins; of those that end by `start`, some may be left out."""
    # A number extends over these characters alone, so a run that ends before them can't join a later one.
    for match in _CLUSTER.finditer(text, len(text[:start].rstrip("0123456789" + JOINTS))):
        begin, end = match.span()
        if match.lastindex is None:  # most numbers: one run, nothing to join
            yield Run(begin, end, begin, begin), begin
        else:
            yield from _runs_of_cluster(text, match)


def ended_spans(text: str, start: int = 0) -> list[tuple[int, int, int]]:
    """The numbers of a text that no continuation of it can change, from left to right; linear in the text's length.

    Returns:
        (begin, end, known): `text[begin:end]` is a number of every text that begins with `text[:known]`, and `known`,
        which never descends, is the least such. Those with `known` up to `start` may be left out.
    """
    found: dict[int, tuple[int, int]] = {}
    for run, begin in digit_runs(text, start):
        end = run.end
        if begin != run.alone:
            while found and next(reversed(found)) >= begin:
                found.popitem()
        elif begin != run.joined:  # the numbers before might have gone on here, and have not
            late = run.rule in (Rule.FRACTION, Rule.COMMA, Rule.BRACED)
            _put_off(found, run.joined, end + 2 if late else min(end + 1, run.begin + 4))
        if begin == run.alone or run.is_read(end, begin):
            found[begin] = end, end + 1 + _after(text, run, begin)[1]
        if run.opens:
            _put_off(found, run.joined, end + 1 + (text[end : end + 1] in run.opens))
    return [(begin, end, known) for begin, (end, known) in found.items() if known <= len(text)]


def _put_off(found: dict[int, tuple[int, int]], first: int, known: int) -> None:
    """The numbers from `first` on are not complete before `known`."""
    for begin in reversed(found):
        if begin < first:
            break
        end, earlier = found[begin]
        found[begin] = end, max(earlier, known)


def _runs_of_cluster(text: str, cluster: re.Match[str]) -> Iterator[tuple[Run, int]]:
    previous: Run | None = None
    start = opening = cluster.start()  # of the number that contains the previous run; of the first number
    groups, opens = 0, ""
    for match in _DIGITS.finditer(text, *cluster.span()):
        begin, end = match.span()
        alone = joined = begin
        rule, joint = Rule.ALONE, ""
        if previous is not None:
            joint = text[previous.end : begin]
            rule, _ = _after(text, previous, start)
            if rule is not Rule.ALONE:
                joined = start
            if joint in opens:
                joined = opening
                if joint == opens and groups:
                    rule = Rule.INDIAN
                groups += 1
                fits = groups <= _MAX_GROUPS and end - begin == (2 if joint == "," else 3) and rule is not Rule.COMMA
                further = joint if groups < _MAX_GROUPS else ","  # another group, or only the decimal comma
                opens = "" if not fits else "," if joint == "," else "," + further
            else:
                opens = ""
        elif cluster[1] is None or text[begin - 1] != ".":
            if cluster[1] is not None:
                alone = joined = opening = with_sign(text, begin)
            if end - begin <= 3 and text[begin] != "0":
                opens = _FIRST_JOINTS[end - begin < 3]
        elif _POINT.match(text, begin - 1):
            rule, joined = Rule.FRACTION, with_sign(text, begin - 1)
        previous = Run(begin, end, alone, joined, rule, joint, opens if groups else "")
        start = previous.start(end, text[end : end + 2])
        yield previous, start


def _after(text: str, run: Run, start: int) -> tuple[Rule, int]:
    """The rule by which digits could join the number `[start, run.end)`, by the characters after it, and how many of
    these characters could be before the digits."""
    joint = text[run.end : run.end + 1]
    if joint not in _OPENING:
        return Rule.ALONE, 0
    part, length = run.rule if start != run.alone else Rule.ALONE, run.end - run.begin  # part of its number
    if part is Rule.BRACED:
        part = Rule.GROUP if length == 3 else Rule.COMMA
    is_decimal = run.rule is Rule.FRACTION
    before = text[run.begin - 1] if run.begin and part is Rule.ALONE else ""
    chain = before == "." and (is_decimal or text[run.begin - 2 : run.begin - 1] in _ASCII_DIGITS)
    if joint == ".":
        fraction = not chain and part in _WHOLE
        return (Rule.FRACTION, 1) if fraction else (Rule.ALONE, int(is_decimal))  # a chain?
    if joint in "{eE" or text.startswith(",\\", run.end):
        joint = _OPENED.findall(text, run.end, run.end + 4)[0]
    if joint[0] == "," and len(run.opens) > 1:
        return Rule.COMMA if joint == "," else Rule.ALONE, 1
    if chain:
        return Rule.ALONE, 0
    if joint[0] in "eE":
        named = start and (text[start - 1].isalpha() or text[start - 1] == "_")
        return (Rule.ALONE, 0) if named or part in (Rule.EXPONENT, Rule.COMMA) else (Rule.EXPONENT, len(joint))
    groups, shared = part is Rule.ALONE and length <= 3 and text[run.begin] != "0", len(joint)
    if part is Rule.GROUP:  # another group needs the same separator
        groups, shared = joint == run.joint, sum(a == b for a, b in zip(joint, run.joint, strict=False))
    if joint[0] == "{":
        return Rule.BRACED if groups else Rule.COMMA, len(joint)
    return (Rule.GROUP, shared) if groups else (Rule.ALONE, shared * (part is Rule.GROUP))
