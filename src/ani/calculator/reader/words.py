"""The English words of calculations, read from ``words.yaml``."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import yaml

from ani.numbers.grammar import BLANKS, BOUNDARY

BLANK = f"[{BLANKS}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}]"


class Phrase(NamedTuple):
    """Words that belong to a calculation."""

    text: str
    pattern: re.Pattern[str]
    kind: str
    """"operators", "functions", "behind", "lists", "orders", "number", or "joint": between a list's items."""
    value: Any
    """What it stands for; of lists, by joint."""


class Words:
    """The words of ``words.yaml``, which explains each of its keys."""

    def __init__(self, listed: dict[str, Any]) -> None:
        self.phrases: dict[str, list[Phrase]] = {}
        """By their first words, the longest first."""
        self.measures: dict[str, str] = {}
        """Units by their names, as "time:minute"."""
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
        self.endings = tuple(self.listed["before_endings"])
        self.plain = self.listed["before"] | self.listed["articles"]
        """Words that work nothing out."""
        self.operands = (self.listed["numbers"] | self.listed["changing"]) - self.plain
        """Words that may be an operand, or change one."""
        phrases = [phrase for found in self.phrases.values() for phrase in found]
        joints = {phrase.text for phrase in phrases if phrase.kind == "joint"}
        spoken = {
            word
            for phrase in phrases
            if phrase.kind not in ("number", "joint")
            for word in phrase.text.split()
            if len(word) > 2  # "a quarter of" has more than its article
        }
        self.calculating = (self.listed["computing"] | self.listed["otherwise"] | spoken) - joints
        self.calculating -= self.plain | self.listed["of"]
        """Words that work something out, or may be part of saying so."""
        openings = [phrase.text for phrase in phrases if phrase.kind in ("functions", "lists", "orders")]
        named = rf"(?:{_any_of(openings)})(?!\w)|(?:{self._any('articles')}){BLANK}"
        self.opening = re.compile(
            rf"(?:[\n\r{BOUNDARY}]|[.!?]{BLANK})\s*+(?:(?:(?:{self._any('introductions')}){BLANK}*)+:\s*)?"
            rf"(?=[0-9$€£¥₹(\[{{\\|√⌊⌈π+−.-]|{named})|[;,]{BLANK}+(?={named})",
            re.IGNORECASE,
        )
        """Up to where an expression may stand that no question's words come before."""
        self.question = re.compile(
            rf"\b(?:{self._any('questions')})(?!\w)"
            rf"(?:[:,]?{BLANK}+(?:{self._any('fillers')})(?!\w))*[:,]?{BLANK}*",
            re.IGNORECASE,
        )
        """Up to where a question's expression begins."""
        self.closing = re.compile(
            rf"(?:(?:{self._any('closing')})(?!\w)|[0-9]{{1,2}}(?={BLANK}(?:{self._any('rounding')})(?!\w))"
            rf"|[\s?.!,:;=()\"'`*$\\\])}}{BOUNDARY}])*",
            re.IGNORECASE,
        )
        """What may stand behind it."""

    def phrase(self, text: str, start: int, word: str) -> tuple[Phrase, int] | None:
        """The longest phrase that begins with a word at a place, and its end."""
        for phrase in self.phrases.get(word.lower(), ()):
            if found := phrase.pattern.match(text, start):
                return phrase, found.end()
        return None

    def _any(self, key: str) -> str:
        return _any_of(self.listed[key])


def _phrases(listed: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for kind in ("operators", "functions", "behind"):
        for value, names in listed[kind].items():
            yield from ((phrase, kind, value) for phrase in names.split(", "))
    for kind in ("lists", "orders"):
        for phrase, joints in listed[kind].items():
            yield phrase, kind, joints
            yield from ((joint, "joint", None) for joint in joints)
    yield from ((word, "number", str(i)) for i, word in enumerate(re.split(r",\s+", listed["numbers"])))


def _any_of(phrases: Iterator[str] | list[str] | frozenset[str]) -> str:
    """A pattern that matches any phrase, a longer one before its own beginning. Phrases are grouped by their first
    character, so that the pattern tries few of them at each place of a text."""
    rests: dict[str, list[str]] = {}
    for phrase in sorted(phrases, key=len, reverse=True):
        rests.setdefault(phrase[0], []).append(re.escape(phrase[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(found)})" for first, found in rests.items())


@cache
def words() -> Words:
    """The words, read once."""
    return Words(yaml.safe_load((resources.files("ani.calculator.reader") / "words.yaml").read_text("utf-8")))
