"""`Value`, the base class: which exact number a text makes known."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from ani.calculator.reader.exact import Exact

WINDOW = 1024
"""Characters of a text that `Value.known` gets at most."""


class Known(NamedTuple):
    """A number that a text has made known, and by what."""

    value: Exact
    text: str
    """The part of the text that makes the number known, such as the calculation."""
    start: int
    """Place of the first character of `text` in the text that `Value.known` got."""
    currency: str = ""
    """The sign of an amount of money, which is written to cents."""


class Value(ABC):
    """Base of all kinds of values; `ani.calculator.reader.VALUES` lists them."""

    name: ClassVar[str]
    triggers: ClassVar[tuple[str, ...]] = ()
    """Texts after which the value may become known, such as an equals sign; the end of a question is always one. A
    trigger that begins with a letter is none directly after a letter or digit."""

    @abstractmethod
    def known(self, text: str) -> Known | None:
        """Return the number that a text makes known at its end, where a trigger or a question ends; None: no number.

        Args:
            text: The last `WINDOW` characters so far. NUL characters stand for special tokens and for the beginning of
                the text.
        """

    def mentioned(self, message: str) -> Known | None:
        """Return the number that a complete message may ask for in words that no list has; None: no number.

        It is called if no question of the message made a value known. A gate decides whether the number is wanted.

        Args:
            message: As `text` of `known`; the message begins after the last NUL character.
        """
        return None
