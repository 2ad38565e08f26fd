"""Kind `counts`: how many letters are in a word, or letters or words in a quoted text, where a question asks.

Case makes no difference to a letter. All letters of a word are only counted where quotation marks or ``the word`` say
that the word itself is meant: ``How many letters are there in Hawaiian?`` asks for an alphabet's. Nor is a letter
counted that has neither ``'s`` nor quotation marks nor ``the letter``: ``How many m are in km?`` asks for metres.
"""

import re

from ani.values.exact import Exact
from ani.values.value import Known, Value, mentions

_MAX_QUESTION = 400
_WORDS = ("how many", "number of", "count")  # one of them is in every question
_QUOTED = r"\"(?P<{0}1>[^\"\n]+)\"|“(?P<{0}2>[^”\n]+)”|(?<!\w)'(?P<{0}3>[^'\n]+)'|‘(?P<{0}4>[^’\n]+)’"
_LETTER = (
    r"(?:(?:the )?letters? )?(?:[\"'“‘](?P<a>[a-z])[\"'”’](?:['’]?s)?|(?P<b>[a-z])['’]s|(?-i:(?P<c>[A-Z])s))"
    r"|(?:the )?letters? (?P<d>[a-z])"
)
_IN = (
    r"(?:s? (?:are|is|occur|appear))?(?: there)?(?: occurs?| appears?)? in (?:the (?:word|name|text|sentence|phrase) )?"
)
_LETTERS = re.compile(
    rf"(?:how many|count|number of)(?: times does| the)? (?:{_LETTER}){_IN}"
    rf"(?:{_QUOTED.format('q')}|(?P<word>[a-z]+))[?.]?\s*\Z",
    re.IGNORECASE,
)
_ALL = re.compile(
    rf"(?:how many|count|number of)(?: the)? (?P<what>letters|words){_IN}"
    rf"(?:{_QUOTED.format('q')}|(?<=the word )(?P<word>[a-z]+))[?.]?\s*\Z",
    re.IGNORECASE,
)


class Counts(Value):
    """``How many r's are in strawberry?``, ``How many words are there in "to be or not to be"?``."""

    name = "counts"

    def known(self, text: str) -> Known | None:
        """The count that a question at the end asks for."""
        first = max(0, len(text) - _MAX_QUESTION)
        if not mentions(text[first:], _WORDS):
            return None
        match = _LETTERS.search(text, first) or _ALL.search(text, first)
        if match is None:
            return None
        groups = match.groupdict()
        counted = next(groups[name] for name in ("q1", "q2", "q3", "q4", "word") if groups[name]).lower()
        if groups.get("what"):
            count = len(counted.split()) if groups["what"].lower() == "words" else sum(map(str.isalpha, counted))
        else:
            count = counted.count(next(groups[name] for name in "abcd" if groups[name]).lower())
        return Known(Exact.of(count), match[0].strip(), match.start())
