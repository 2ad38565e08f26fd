"""Tracks which value is pending at each token of a text (known, and not yet written), and when it counts as written.

A reader is fed a text piece by piece, such as what each token adds to it, in as many calls as one likes. What it says
at a piece depends on no later one. It keeps the end of the text, at most `MAX_ASKED` asked values and as many of signs.

A value becomes known
    - behind a *sign*: a text that its class names (`Value.triggers`), such as ``=`` or ``is equal to``;
    - behind a *question*: at ``?``; at a line's end, since an order has no question mark; and at a message's end.
    - behind a *message* in which nothing is asked in known words, if a class says what it may want
      (`Value.held`).
    One that begins no later than the last that became known is that one, asked again: ``3 + 4 = ?``.
A message ends
    at a special token; at a text that the reader is given, for chat templates that change turns without special tokens;
    at ``Answer:`` and ``A:``, which change turns in raw prompts. Whose message it is isn't asked, as templates name
    roles in too many ways, and most rules hold for questions and answers alike.
Of several values is pending
    1. the last one behind a sign in the message that is being written: who writes ``5 * 6 =`` wants 30, whatever was
       asked. If another number stands behind the sign, it is pending up to the next sign or the line's end, for it may
       follow yet: ``3 + 4 = 5 + 2 = 7``. Who writes the value of a sign has done with all signs before it.
    2. the first that is asked, since answers follow the order of the questions. A message that asks drops what earlier
       messages asked: answers belong to the last question. When a message ends, the values of its signs are asked, too,
       if no number stands behind the sign: ``3 + 4 =`` may be all that a user writes.
It is written
    when a number that equals it or rounds it (`digits.py`) is over, which a later character shows: more digits
    may follow the last one. The number begins behind the place where the value became known. It is every pending value
    that it equals: the 7 of ``3 + 4 = 7`` answers the question, too. Other numbers leave what is asked pending, since
    many answers repeat the numbers of the question first.
It is not offered
    within another number, after which none of its characters may follow (`spelling.py`).
It is forgotten
    after `MEMORY` tokens, so that a question that nobody answers doesn't wait for ever.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Self

from ani.calculator.reader import VALUES
from ani.calculator.reader.digits import WRITTEN, is_value, undecided, writing, written
from ani.calculator.reader.exact import Exact
from ani.calculator.reader.spelling import spelled
from ani.calculator.reader.value import WINDOW, Value
from ani.numbers.grammar import BLANKS, BOUNDARY

MEMORY = 512
"""For how many tokens a value is pending at most."""
MAX_ASKED = 32
"""How many values of one message are pending together at most; of questions the first, of signs the last ones count."""

_DIRECTLY = re.compile(rf"(?:[{BLANKS}$€£¥₹(\[.−-]|\\[$(\[]|\\boxed\{{){{0,12}}")


class _Kind(Enum):
    """What stands at a place at which something may become known."""

    SIGN = auto()
    QUESTION = auto()
    LINE = auto()
    MESSAGE = auto()


_QUESTIONS = {_Kind.QUESTION: ("?", "？"), _Kind.LINE: ("\n", "\r"), _Kind.MESSAGE: (BOUNDARY, "Answer:", "A:")}
_FIRST = frozenset(BOUNDARY + "\n\r")  # of several of them, one ends something


class Pending(NamedTuple):
    """A value that is known and not yet written, and what is being written where it is pending."""

    name: str
    """Of its class in `ani.calculator.reader.VALUES`."""
    value: Exact
    text: str
    """What makes it known, as it is written."""
    currency: str
    """The sign of an amount of money."""
    written: str
    """The number that the text ends with, or a beginning of one."""


class _Item(NamedTuple):
    """A pending value, and where it became known."""

    pending: Pending
    place: int  # one past the character that made it known, from the text's beginning
    token: int
    message: int
    answered: bool = False  # whether a number stands behind its sign


class _Trigger(NamedTuple):
    """A text behind which something may become known, and whose values may."""

    text: str
    kind: _Kind
    values: Sequence[tuple[str, Value]]


class PendingReader:
    """Reads a text and says after each piece of it which value is pending.

    Args:
        ends: Texts that end a message (`ani.chat.message_ends`), beside special tokens.
    """

    def __init__(self, ends: Sequence[str] = ()) -> None:
        values: list[tuple[str, Value]] = [(name, value()) for name, value in reversed(VALUES.items())]
        triggers = [_Trigger(text, kind, values) for kind, texts in _QUESTIONS.items() for text in texts]
        triggers += [_Trigger(text, _Kind.MESSAGE, values) for text in ends]
        triggers += [_Trigger(text, _Kind.SIGN, [value]) for value in values for text in value[1].triggers]
        self._triggers: dict[str, list[_Trigger]] = {}  # by their last characters
        for trigger in triggers:
            self._triggers.setdefault(trigger.text[-1], []).append(trigger)
        self._last_characters = re.compile(f"[{re.escape(''.join(self._triggers))}]")
        self._kept = WINDOW + max(len(trigger.text) for trigger in triggers)
        self._text = BOUNDARY  # the last characters
        self._origin = -1  # of the first of them, from the text's beginning
        self._tokens = 0
        self._messages = 0
        self._last = -1  # where the last value that became known begins
        self._asked: list[_Item] = []  # of one message, in order
        self._signs: list[_Item] = []  # of the message that is being written, in order

    @property
    def idle(self) -> bool:
        """Whether nothing is known that could be pending."""
        return not (self._signs or self._asked)

    @property
    def tail(self) -> str:
        """The last characters of the text, some hundred of them; NUL characters for special tokens."""
        return self._text

    @property
    def _next(self) -> "_Item":
        """What is pending, unless it is too old, or something else is being written."""
        return self._signs[-1] if self._signs else self._asked[0]

    def may_learn(self, piece: str) -> bool:
        """Whether something may become known within a piece, whatever stands before it."""
        for match in self._last_characters.finditer(piece):
            shown = piece[: match.end()]
            if any(shown.endswith(each.text) or each.text.endswith(shown) for each in self._triggers[match[0]]):
                return True
        return False

    def copy(self) -> Self:
        """A reader that goes on from here by itself."""
        other = object.__new__(type(self))
        other.__dict__ |= self.__dict__  # what it holds is replaced, never changed
        return other

    def feed(self, pieces: Sequence[str]) -> list[Pending | None]:
        """Read on.

        Args:
            pieces: What each token adds to the text; empty where it only begins a character. Of special tokens as many
                NUL characters as they have.

        Returns:
            What is pending at the end of each piece.
        """
        end = len(self._text)
        self._text = text = self._text + "".join(pieces)
        steps = self._steps(end)
        found: list[Pending | None] = []
        for piece in pieces:
            end += len(piece)
            while steps and steps[-1][0] <= end:
                place, what = steps.pop()
                if isinstance(what, _Trigger):
                    self._learn(place, what)
                elif not self.idle:
                    self._write(what)
            found.append(None if self.idle else self._pending(end))
            self._tokens += 1
        if len(text) > 2 * self._kept:
            self._text = text[-self._kept :]
            self._origin += len(text) - self._kept
        return found

    def _steps(self, begin: int) -> list[tuple[int, _Trigger | re.Match[str]]]:
        """The triggers that end behind `begin`, and numbers that are shown to be over there, the last first."""
        text = self._text
        steps: list[tuple[int, _Trigger | re.Match[str]]] = []
        for match in self._last_characters.finditer(text, begin):
            for trigger in self._triggers[match[0]]:
                if text.endswith(trigger.text, 0, match.end()):
                    first = trigger.text[0]
                    before = text[match.end() - len(trigger.text) - 1]
                    if not ((first in _FIRST and before in _FIRST) or (first.isalpha() and before.isalnum())):
                        steps.append((match.end(), trigger))
        if steps or not self.idle:
            numbers = WRITTEN.finditer(text, undecided(text, begin))
            steps += [(match.end("over"), match) for match in numbers if match.end("over") > begin]
            # A number that a trigger shows to be over began before it.
            steps.sort(key=lambda step: (step[0], isinstance(step[1], _Trigger)), reverse=True)
        return steps

    def _learn(self, end: int, trigger: _Trigger) -> None:
        """Take in what becomes known behind a trigger, and a message's end."""
        place, kind = self._origin + end, trigger.kind
        if kind in (_Kind.LINE, _Kind.MESSAGE):
            end -= len(trigger.text)
        first = max(0, end - WINDOW)
        shown = self._text[first:end]
        held = kind is _Kind.MESSAGE and not (self._asked and self._asked[0].message == self._messages)
        for name, value in trigger.values:
            if known := value.known(shown) or (value.held(shown) if held else None):
                begin = self._origin + first + known.start
                if begin > self._last:
                    self._last = begin
                    pending = Pending(name, known.value, known.text, known.currency, "")
                    item = _Item(pending, place, self._tokens, self._messages)
                    if kind is _Kind.SIGN:
                        self._signs = [*self._unanswered(), item][-MAX_ASKED:]
                    else:
                        self._ask([item])
                break
        if kind is _Kind.LINE:
            self._signs = self._unanswered()
        elif kind is _Kind.MESSAGE:
            self._ask(self._unanswered())
            self._signs = []
            self._messages += 1

    def _unanswered(self) -> list[_Item]:
        """The values of this message's signs, but those behind whose sign a number stands."""
        return [item for item in self._signs if not item.answered]

    def _ask(self, items: list[_Item]) -> None:
        """Take in values that are asked for in this message."""
        if items and self._asked and self._asked[0].message != self._messages:
            self._asked = []
        self._asked = sorted(self._asked + items, key=lambda item: item.place)[:MAX_ASKED]

    def _write(self, match: re.Match[str]) -> None:
        """Take in that numbers are over: drop the values that they are."""
        place = self._origin + match.start()
        numbers = list(written(self._text, match))

        def is_written(item: _Item) -> bool:
            return item.place <= place and any(is_value(item.pending.value, number) for number in numbers)

        self._asked = [item for item in self._asked if not is_written(item)]
        for index in reversed(range(len(self._signs))):
            if is_written(self._signs[index]):
                self._signs = self._signs[index + 1 :]
                break
        if self._signs and _DIRECTLY.fullmatch(self._text, self._signs[-1].place - self._origin, match.start()):
            self._signs = [*self._signs[:-1], self._signs[-1]._replace(answered=True)]

    def _pending(self, end: int) -> Pending | None:
        """What is pending at a place; forgets what was known for too long."""
        while self._asked and self._tokens - self._asked[0].token >= MEMORY:
            self._asked = self._asked[1:]
        while self._signs and self._tokens - self._signs[0].token >= MEMORY:
            self._signs = self._signs[1:]
        if self.idle:
            return None
        item = self._next
        beginning = writing(self._text, max(0, item.place - self._origin), end)
        if not beginning:
            return item.pending
        pending = item.pending._replace(written=beginning)
        return pending if spelled(pending.value, pending.currency, pending.text, beginning).next(1) else None
