"""The English words of calculations, read from ``words.yaml``."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import yaml

from ani.numbers.signs import BLANKS, BOUNDARY

BLANK = f"[{BLANKS}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}]"


_COUNTS = ("one", "two", "three", "four", "five", "six")
_DENIED = re.compile(r"(?:\b(?:not|never|least|most|than)\b|n['’]t\b)[^.!?]{0,24}\Z", re.IGNORECASE)
_COMMON = {"and", "or", "is", "was", "if", "to", "in", "on", "by", "from", "of", "with", "points", "choose", "score"}
"""Words of `changing` that mean no quantity where they follow none."""


class Phrase(NamedTuple):
    """Words that belong to a calculation."""

    text: str
    pattern: re.Pattern[str]
    kind: str
    """"operators", "functions", "suffix", "lists", "orders", or "joint": between a list's items."""
    value: Any
    """The operator, number or unit that the words mean; for a list, the operator of each joint."""


class Words:
    """The words of ``words.yaml``, which explains each of its keys."""

    def __init__(self, listed: dict[str, Any]) -> None:
        self.phrases: dict[str, list[Phrase]] = {}
        """Phrases by their first word, the longest first."""
        self.measures: dict[str, str] = {}
        """Units, such as "time:minute", by their names."""
        self.listed: dict[str, frozenset[str]] = {}
        """The other words, by key."""
        for phrase, kind, value in _phrases(listed):
            words = phrase.split(" ")
            pattern = re.compile(rf"{BLANK}+".join(map(re.escape, words)) + r"(?!\w)", re.IGNORECASE)
            self.phrases.setdefault(words[0], []).append(Phrase(phrase, pattern, kind, value))
        for quantity, units in listed["measures"].items():
            self.measures |= {name: f"{quantity}:{unit.split()[0]}" for unit in units for name in unit.split()}
        for key, names in listed.items():
            if isinstance(names, str):
                self.listed[key] = frozenset(re.split(r",\s+", names))
        for found in self.phrases.values():
            found.sort(key=lambda phrase: (-len(phrase.text), phrase.kind == "joint"))
        self.changing = self.listed["changing"]
        """Words after a number that may change it."""
        phrases = [phrase for found in self.phrases.values() for phrase in found]
        openings = [phrase.text for phrase in phrases if phrase.kind in ("functions", "lists", "orders")]
        named = rf"(?:{_any_of(openings)})(?!\w)|(?:{self._any('articles')}){BLANK}"
        self.opening = re.compile(
            rf"(?:[\n\r{BOUNDARY}]|(?<!\\)[.!?]{BLANK})\s*+(?:(?:(?:{self._any('introductions')}){BLANK}*)+:\s*)?"
            rf"(?=[0-9$€£¥₹(\[{{\\|√⌊⌈π+−.-]|[a-z]{{2,4}}\(|{named})|[;,]{BLANK}+(?={named})",
            re.IGNORECASE,
        )
        """Matches up to where an expression may begin without words of a question before it. A short word before a
        bracket may be a function: `gcd(12, 18)`."""
        self.question = re.compile(
            rf"\b(?:{self._any('questions')})(?!\w)"
            rf"(?:[:,]?{BLANK}+(?:{self._any('fillers')})(?!\w))*[:,]?{BLANK}*",
            re.IGNORECASE,
        )
        """Up to where a question's expression begins."""
        counted = rf"(?:[0-9]{{1,2}}|{'|'.join(_COUNTS)})(?={BLANK}(?:{self._any('rounding')})(?!\w))"
        self.nearest: dict[str, int] = listed["nearest"]
        """Place after the point by the word that follows "to the nearest"."""
        nearest = rf"nearest{BLANK}+(?P<unit>{_any_of([*self.nearest])})"
        closing = _any_of([*self.listed["closing"], *(f"to the nearest {unit}" for unit in self.nearest)])
        decimals = rf"(?P<count>[0-9]{{1,2}}|{'|'.join(_COUNTS)}){BLANK}+(?:decimals?|(?:decimal{BLANK}+)?places?)"
        self.rounding = re.compile(rf"(?<!\w)(?:{nearest}|{decimals})(?!\w)", re.IGNORECASE)
        """Words that say to which place a value is rounded."""
        self.closing = re.compile(
            rf"(?:(?:{closing})(?!\w)|{BLANK}*(?:[?.!,:;=()\"'`*$\\\])}}{BOUNDARY}\n\r]|\Z)"
            rf"|{BLANK}+(?:{closing})(?!\w)(?:{BLANK}+(?:(?:{self._any('closing_on')})(?!\w)|{counted}))*)*",
            re.IGNORECASE,
        )
        """Matches the words that may follow a question's expression, up to the end."""
        verbs = {form for verb in self.listed["verbs"] for form in _forms(verb)}
        self.before = self.listed["before"] | verbs
        """Words that may directly precede an expression that an equals sign follows."""
        known = self.before | self.listed["questions"] | self.listed["fillers"] | self.listed["mentioning"]
        self.preceding = re.compile(
            rf"(?:(?<!\\)[\n\r{BOUNDARY}.:;,!?=>(]|(?<!\w)(?:{_any_of(known)}))\Z", re.IGNORECASE
        )
        """Matches the end of a text that may directly precede an expression."""
        self.following = re.compile(
            rf"{BLANK}*(?:\Z|[\n\r{BOUNDARY})=]|[?.!,;:](?![\w'])|(?<!\w)(?:{self._any('following')})(?!\w))",
            re.IGNORECASE,
        )
        """Matches the beginning of a text that may directly follow an expression."""
        long = [name for name in self.measures if len(name) > 2]
        other = (self.listed["numbers"] - {"one"}) | self.listed["otherwise"] | self.changing - _COMMON
        units = rf"(?:in|to|into|as){BLANK}+(?:{_any_of([*self.measures])})"
        things = rf"how{BLANK}+many{BLANK}+(?!(?:is|are)\b)\w+{BLANK}+(?:is|are|do|does|did|has|have|in)"
        self.quantity = re.compile(
            rf"[0-9]|(?<!\w)(?:{_any_of([*long, *other])}|{units}|{things})(?!\w)", re.IGNORECASE
        )
        """A quantity, or a word that asks for one in another form."""

    def phrase(self, text: str, start: int, word: str) -> tuple[Phrase, int] | None:
        """The longest phrase that begins with a word at a place, and its end."""
        for phrase in self.phrases.get(word.lower(), ()):
            if found := phrase.pattern.match(text, start):
                return phrase, found.end()
        return None

    def places(self, text: str, end: int | None = None) -> int | None:
        """The place after the point to which a text asks to round, by its last words about it; None: it has none.

        Args:
            text: The text.
            end: Where a calculation begins that an equals sign follows. Then a number of places alone counts, if no
                digit is between it and the calculation.
        """
        *_, match = None, *self.rounding.finditer(text)
        if match is None or _DENIED.search(text[: match.start()]):
            return None
        if end is not None and (match["unit"] or re.search("[0-9]", text[match.end() : end])):
            return None
        if unit := match["unit"]:
            return self.nearest[" ".join(unit.lower().split())]
        count = match["count"].lower()
        return int(count) if count.isdigit() else _COUNTS.index(count) + 1

    def _any(self, key: str) -> str:
        return _any_of(self.listed[key])


def _phrases(listed: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for kind in ("operators", "functions", "suffix"):
        for value, names in listed[kind].items():
            yield from ((phrase, kind, value) for phrase in names.split(", "))
    for kind in ("lists", "orders"):
        for phrase, joints in listed[kind].items():
            yield phrase, kind, joints
            yield from ((joint, "joint", None) for joint in joints)


def _any_of(phrases: Iterator[str] | list[str] | frozenset[str]) -> str:
    """A pattern that matches any phrase, a longer one before its own beginning. Phrases are grouped by their first
    character, so that the pattern tries few of them at each place of a text."""
    rests: dict[str, list[str]] = {}
    for phrase in sorted(phrases, key=len, reverse=True):
        rests.setdefault(phrase[0], []).append(re.escape(phrase[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(found)})" for first, found in rests.items())


def _forms(verb: str) -> Iterator[str]:
    """The forms of a regular verb, and some that don't exist (``knited``)."""
    yield from (verb, verb + "s", verb + "es")
    yield from (stem + end for stem in (verb.removesuffix("e"), verb + verb[-1]) for end in ("ed", "ing"))
    if verb.endswith("y"):
        yield from (verb[:-1] + "ies", verb[:-1] + "ied")


@cache
def words() -> Words:
    """The words, read once."""
    return Words(yaml.safe_load((resources.files("ani.calculator.reader") / "words.yaml").read_text("utf-8")))
