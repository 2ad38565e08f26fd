"""Masks the scores of the next token so that a value is written, from its opening to its end."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from ani.calculator.reader.pending import Pending
from ani.calculator.reader.spelling import PIECES, Spelling, opening_at
from ani.calculator.rows import Row
from ani.numbers import NumberScanner

_CHARACTERS = frozenset("0123456789.,{}\\!").union(*PIECES)
_OPERATORS = r"(?:times|cdot|div|[dt]?frac)"  # TeX's, after the backslash; a number and a fraction are a mixed number
_GOES_ON = re.compile(
    r"(?:[.,]|\{,\}|,\\!)?[\d²³¹⁰⁴-⁹½¼¾]|\{,|\{\Z|[eE](?:[-+−]?\d|[-+−]?\Z)"
    rf"| ?(?:[-+−–×·⋅÷/^](?![A-Za-z])|\*(?!\*)|x\d*\Z|\\{_OPERATORS})"
)
"""Matches the text of a token that would make a number of another value, or an operand (`/month` does not)."""
_UNFINISHED_MACRO = re.compile(r"\\(?!(?:approx|q?quad|implies|Rightarrow|rightarrow|to)\b)[A-Za-z]* *\Z")
"""Matches a text that the name or the argument of a TeX macro would follow."""
_ARGUMENT_BEGINS = re.compile(r"(?:\\(?!(?:boxed|text|textbf|mathbf|mathrm)\{)[A-Za-z]+|[}^_])\{\Z")
"""Matches a text up to the beginning of the argument of a TeX macro, a power or an index."""
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Rule(NamedTuple):
    """The tokens that may come next."""

    tokens: torch.Tensor
    """Token ids, int64 (N,)."""
    allowed: bool
    """True if only these tokens may come next; False if all others may."""
    openings: torch.Tensor | None = None
    """More tokens, int64 (M,), that open the number with a currency sign, bold type or TeX; they may come next where
    the most likely token is one of them."""


class Writer:
    """Knows the tokens that values are written with: every token that spells the next characters.

    Args:
        scanner: The scanner of the tokenizer.
        vocabulary: The tokenizer's tokens with their ids.
    """

    def __init__(self, scanner: NumberScanner, vocabulary: Mapping[str, int]) -> None:
        self._tokens: dict[str, list[int]] = defaultdict(list)
        self._goes_on: dict[int, str] = {}
        operators: list[int] = []
        for name, token in vocabulary.items():
            (piece,), begun = scanner.pieces([token])
            if begun:
                continue
            if piece and _CHARACTERS.issuperset(piece) and not _BYTE.fullmatch(name):  # a byte is decoded with others
                self._tokens[piece].append(token)
            if _GOES_ON.match(piece):
                self._goes_on[token] = piece
            if re.match(_OPERATORS, piece):
                operators.append(token)
        self._longest = max(len(piece) for piece in self._tokens if any(map(str.isdigit, piece)))
        self._operators = _ids(operators)
        self._rule = lru_cache(maxsize=4096)(self._new_rule)

    def begun(self, rows: Mapping[int, Row], logits: Callable[[list[int]], Sequence[float]]) -> dict[int, Row]:
        """The rows whose pending value begins after their last token, because the gate is open; each with its spelling.

        Args:
            rows: The rows by index.
            logits: Returns the gate's logits for rows by their indices.
        """
        undecided = [index for index, row in rows.items() if row.pending and not row.spelling]
        found = {}
        for index, logit in zip(undecided, logits(undecided) if undecided else (), strict=True):
            row = rows[index]
            if logit > 0 and row.pending and (spelling := self.begin(row.pending, row.reader.tail)):
                found[index] = row._replace(spelling=spelling)
        return found

    def begin(self, pending: Pending, text: str) -> Spelling | None:
        """The spelling of a value whose gate is open; None where the text ends with something that it cannot follow.

        Args:
            pending: The value.
            text: The end of the text.
        """
        if _within_macro(text.removesuffix(pending.written)):
            return None
        digits = any(character.isdigit() or character == "." for character in pending.written)
        spelling = pending.spelling("")
        spelling = spelling._replace(text=pending.written if digits else opening_at(text, spelling.negative))
        return spelling if spelling.next(1) else None

    def mask(self, spelling: Spelling, scores: torch.Tensor) -> None:
        """Set the scores of all tokens that may not come next to −∞, in place.

        Args:
            spelling: What is written so far.
            scores: Of one row, shape (vocabulary,). They stay as they are where none of the allowed tokens has a score,
                and after a backslash with which the model opens no number.
        """
        rule = self._rule(spelling)
        tokens = rule.tokens.to(scores.device)
        if rule.openings is not None and bool((rule.openings == scores.argmax().cpu()).any()):
            tokens = torch.cat([tokens, rule.openings.to(scores.device)])
        elif rule.allowed and spelling.text.endswith("\\") and not bool((rule.tokens == scores.argmax().cpu()).any()):
            return  # the backslash doesn't open the number: it begins another macro, such as \frac
        if not rule.allowed:
            scores[tokens] = -torch.inf
        elif (chosen := scores[tokens]).isfinite().any():
            scores.fill_(-torch.inf)
            scores[tokens] = chosen

    def _new_rule(self, spelling: Spelling) -> Rule:
        following = spelling.next(self._longest)
        assert following is not None
        if following.may_end:
            goes_on = _ids(i for i, piece in self._goes_on.items() if piece not in following.digits)
            return Rule(self._operators if spelling.text.endswith("\\") else goes_on, allowed=False)
        texts = {*following.openings, *(whole + digits for whole in following.whole for digits in following.digits)}
        plain = {text for text in texts if not text.strip(" -0123456789.,")} or texts
        rest = self._ids_of(texts - plain)
        return Rule(self._ids_of(plain), allowed=True, openings=rest if len(rest) else None)

    def _ids_of(self, texts: Iterable[str]) -> torch.Tensor:
        return _ids(token for text in texts for token in self._tokens.get(text, ()))


def _within_macro(text: str) -> bool:
    """Return whether a text ends within a TeX macro, a power or an index that is no opening, as after `\\frac{1}{`."""
    text = re.sub(r"\\[{}]", "", text)
    if _UNFINISHED_MACRO.search(text):
        return True
    depth = 0
    for place in reversed(range(len(text))):
        depth += (text[place] == "}") - (text[place] == "{")
        if depth < 0:
            return _ARGUMENT_BEGINS.search(text[: place + 1]) is not None
    return False


def _ids(tokens: Iterable[int]) -> torch.Tensor:
    return torch.tensor(sorted(tokens), dtype=torch.long)
