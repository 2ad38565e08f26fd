"""Tracks which value is pending at each token of a text (known, and not yet written), and when it counts as written.

A reader receives a text piece by piece, such as the text of each token, in any number of calls. Its report at a piece
depends on no later piece. It keeps the end of the text, at most `MAX_ASKED` asked values and as many values of signs.

A value becomes known
    - after a *sign*: a text that its class names (`Value.triggers`), such as ``=`` or ``is equal to``;
    - after a *question*: at ``?``; at a line's end, since an order has no question mark; and at a message's end;
    - after a *message* that asks for nothing in listed words, if a class finds a value in it (`Value.mentioned`).
    A value that begins no later than the last known one is that value, asked again: ``3 + 4 = ?``.
A message ends
    at a special token; at one of the reader's `ends`, for chat templates that change turns without special tokens; at
    ``Answer:`` and ``A:``, which change turns in raw prompts. The rules are the same for questions and answers, because
    templates name roles in too many ways.
One of several values is pending
    1. the last one after a sign in the message that is being written: ``5 * 6 =`` wants 30, whatever was asked. If
       another number follows the sign, the value stays pending up to the next sign or the line's end, as it may
       follow yet: ``3 + 4 = 5 + 2, or 7``. When the value of a sign is written, the values of all earlier signs end.
    2. the first that is asked, since answers follow the order of the questions. A message that asks removes the values
       that earlier messages asked for, and so does the end of the second message after them: the first one answers,
       the second one is the next turn's question. When a message ends, its signs' values count as asked, if no other
       side of an equation (``12``, ``x + 2``) follows the sign: ``3 + 4 =`` may be all that a user writes. A role's
       name between special tokens is no message.
A value is written
    when a number that equals it or rounds it (`digits.py`) is complete, which only a later character shows. The number
    begins after the place where the value became known. One number writes every pending value that it equals: the 7 of
    ``3 + 4 = 7`` also answers the question. After other numbers a value stays pending, because many answers repeat the
    numbers of the question first.
A value is not reported
    within another number, which the value's characters cannot continue (`spelling.py`).
A value is forgotten
    after `MEMORY` tokens.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Self

from ani.calculator.reader import VALUES
from ani.calculator.reader.calculations import redefined
from ani.calculator.reader.digits import WRITTEN, is_value, undecided, writing, written
from ani.calculator.reader.exact import Exact
from ani.calculator.reader.spelling import DECIMALS, GROUPED, Spelling
from ani.calculator.reader.value import WINDOW, Value
from ani.calculator.reader.words import words
from ani.numbers.signs import BLANKS, BOUNDARY

MEMORY = 512
"""Tokens for which a value is pending at most."""
MAX_ASKED = 32
"""Values of one message that are pending together at most: the first ones of questions, the last ones of signs."""

_DIRECTLY = re.compile(rf"(?:[{BLANKS}$€£¥₹(\[.−-]|\\(?:[$(\[]|left|(?:boxed|[dt]?frac)\{{)){{0,12}}")
_SIDE = re.compile(
    rf"[{BLANKS}$(\[]*+(?!__|\.\.|[?…]|\\(?:_|[lc]?dots|square|Box|boxed\{{\}}|underline))"
    rf"((?:[^$?;.,\\\n\r{BOUNDARY}]|[.,](?!\s|\Z)|\\[^\])])*)"
)
"""Matches after an equals sign the equation's other side, but no blank to fill in."""
_VARIABLE = re.compile(r"(?<![\w\\'’])(?![AaI] [A-Za-z]{2})[A-Za-z](?![\w'’])")
"""Matches a letter that stands alone, but the words "a" and "I"."""
_ROLE = re.compile(rf"{BOUNDARY}[a-z]+\Z")


class _Kind(Enum):
    """Kind of a place at which a value may become known."""

    SIGN = auto()
    QUESTION = auto()
    LINE = auto()
    MESSAGE = auto()


_QUESTIONS = {_Kind.QUESTION: ("?", "？"), _Kind.LINE: ("\n", "\r"), _Kind.MESSAGE: (BOUNDARY, "Answer:", "A:")}
_FIRST = frozenset(BOUNDARY + "\n\r")  # several of them in a row end one line or message


class Pending(NamedTuple):
    """A value that is known and not yet written, and the number that the text is writing."""

    name: str
    """Name of the value's class in `ani.calculator.reader.VALUES`."""
    value: Exact
    text: str
    """The part of the text that makes the value known, such as the calculation."""
    currency: str
    """The sign of an amount of money."""
    places: int | None = None
    """Places after the point to which the message asks to round it; None: it does not say."""
    written: str = ""
    """The number at the end of the text, or its beginning; empty: none."""

    def rounded(self, places: int) -> Self:
        """The value as a message asks to round it, to places after the point; a negative number means tens, hundreds,
        and so on."""
        if places < 1:
            return self._replace(value=Exact.of(int(self.value.rounded(places))))
        return self._replace(places=places)

    def spelling(self, text: str) -> Spelling:
        """The spelling of the value with what is written of it."""
        grouped, filled = (find.search(self.text) is not None for find in (GROUPED, DECIMALS))
        return Spelling(self.value, bool(self.currency), grouped, self.places, text, filled)


class _Item(NamedTuple):
    """A pending value, and where it became known."""

    pending: Pending
    place: int  # one past the character that made it known, from the text's beginning
    token: int
    message: int
    answered: bool = False  # whether a number follows its sign


class _Trigger(NamedTuple):
    """A text after which a value may become known, and the values that it concerns."""

    text: str
    kind: _Kind
    values: Sequence[tuple[str, Value]]


class PendingReader:
    """Reads a text and reports after each piece which value is pending.

    Args:
        ends: Texts that end a message (`ani.chat.message_ends`), beside special tokens.
        mentions: Also report values that a message contains and does not ask for in known words (`Value.mentioned`).
    """

    def __init__(self, ends: Sequence[str] = (), *, mentions: bool = True) -> None:
        self._mentions = mentions
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
        self._redefined = frozenset[str]()  # signs with another meaning

    @property
    def idle(self) -> bool:
        """True if no value is known that could be pending."""
        return not (self._signs or self._asked)

    @property
    def tail(self) -> str:
        """The last characters of the text, some hundred of them; NUL characters for special tokens."""
        return self._text

    def may_learn(self, piece: str) -> bool:
        """Return whether a value may become known within a piece, whatever precedes the piece."""
        for match in self._last_characters.finditer(piece):
            shown = piece[: match.end()]
            if any(shown.endswith(each.text) or each.text.endswith(shown) for each in self._triggers[match[0]]):
                return True
        return False

    def copy(self) -> Self:
        """Return an independent reader that has read the same text."""
        other = object.__new__(type(self))
        other.__dict__ |= self.__dict__  # attributes are replaced, never changed in place
        return other

    def feed(self, pieces: Sequence[str]) -> list[Pending | None]:
        """Read on.

        Args:
            pieces: The text of each token; empty where a token only begins a character. A special token is as many NUL
                characters as its text has.

        Returns:
            The value that is pending at the end of each piece, or None.
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
        """The triggers that end after `begin`, and the numbers that are complete there, in reverse order."""
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
            # A number that a trigger completes began before the trigger.
            steps.sort(key=lambda step: (step[0], isinstance(step[1], _Trigger)), reverse=True)
        return steps

    def _learn(self, end: int, trigger: _Trigger) -> None:
        """Record the value that becomes known after a trigger, and the end of a line or message."""
        place, kind = self._origin + end, trigger.kind
        if kind in (_Kind.LINE, _Kind.MESSAGE):
            end -= len(trigger.text)
        first = max(0, end - WINDOW)
        shown = self._text[first:end]
        message = shown[shown.rfind(BOUNDARY) + 1 :]
        unasked = (
            self._mentions and kind is _Kind.MESSAGE and not (self._asked and self._asked[0].message == self._messages)
        )
        self._redefined |= redefined(message)
        if kind is _Kind.SIGN:  # another equation begins, with a value or without one: `1/2 = x/8, so x =`
            self._signs = self._unanswered(place)
        for name, value in trigger.values:
            if known := value.known(shown) or (value.mentioned(shown) if unasked else None):
                begin = self._origin + first + known.start
                if begin > self._last and not any(sign in known.text for sign in self._redefined):
                    self._last = begin
                    start = known.start - len(shown) + len(message) if kind is _Kind.SIGN else None
                    places = words().places(message, start)
                    if places is None:  # an answer sets up what is asked
                        places = next((i.pending.places for i in self._asked if i.pending.value == known.value), None)
                    pending = Pending(name, known.value, known.text, known.currency)
                    pending = pending if places is None else pending.rounded(places)
                    item = _Item(pending, place, self._tokens, self._messages)
                    if kind is _Kind.SIGN:
                        self._signs = [*self._signs, item][-MAX_ASKED:]
                    else:
                        self._ask([item])
                break
        if kind is _Kind.LINE:
            self._signs = self._unanswered(self._origin + end)
        elif kind is _Kind.MESSAGE:
            self._ask(self._unanswered(self._origin + end))
            self._signs = []
            if (places := words().places(message)) is not None:
                self._asked = [self._rounded(item, places) for item in self._asked]
            if not _ROLE.search(shown):
                self._asked = [item for item in self._asked if item.message >= self._messages - 1]
                self._messages += 1

    def _rounded(self, item: _Item, places: int) -> _Item:
        """An item that the message which ends asks to round, if it is of this message."""
        if item.message != self._messages or item.pending.places is not None:
            return item
        return item._replace(pending=item.pending.rounded(places))

    def _unanswered(self, end: int) -> list[_Item]:
        """The values of this message's signs that no other side of an equation follows in the text up to `end`: a
        number, or an unknown in an expression, as `3 + 4 = x + 2` asks for another value than 7."""

        def equated(item: _Item) -> bool:
            near = end - item.place <= WINDOW  # of the text before, more or less is kept, by how it came in pieces
            side = _SIDE.match(self._text, item.place - self._origin, end - self._origin) if near else None
            written = side[1].strip(f"{BLANKS})]}}*") if side else ""
            return re.search("[0-9]", written) is not None or (len(written) > 1 and bool(_VARIABLE.search(written)))

        return [item for item in self._signs if not item.answered and not equated(item)]

    def _ask(self, items: list[_Item]) -> None:
        """Record values that this message asks for."""
        if items and self._asked and self._asked[0].message != self._messages:
            self._asked = []
        self._asked = sorted(self._asked + items, key=lambda item: item.place)[:MAX_ASKED]

    def _write(self, match: re.Match[str]) -> None:
        """Remove the values that a complete number writes."""
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
        """Return the value that is pending at a place, and forget values that are too old."""
        while self._asked and self._tokens - self._asked[0].token >= MEMORY:
            self._asked = self._asked[1:]
        while self._signs and self._tokens - self._signs[0].token >= MEMORY:
            self._signs = self._signs[1:]
        if self.idle:
            return None
        item = self._signs[-1] if self._signs else self._asked[0]
        beginning = writing(self._text, max(0, item.place - self._origin), end)
        if not beginning:
            return item.pending
        pending = item.pending._replace(written=beginning)
        return pending if pending.spelling(beginning).next(1) else None
