"""`Value`, the base class: which exact number a text makes known."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from ani.calculator.reader.exact import Exact

WINDOW = 1024
"""Characters of a text that a value is shown."""


class Known(NamedTuple):
    """A number that a text has made known, and by what."""

    value: Exact
    text: str
    """What makes it known, as it is written."""
    start: int
    """Its first character, in the text that was shown."""
    currency: str = ""
    """The sign of an amount of money, which is written to cents."""


class Value(ABC):
    """Base of all kinds of values; `ani.calculator.reader.VALUES` lists them."""

    name: ClassVar[str]
    triggers: ClassVar[tuple[str, ...]] = ()
    """Behind which texts, besides the end of a question, it may become known, such as an equals sign. One that begins
    with a letter doesn't stand behind a letter or digit."""

    @abstractmethod
    def known(self, text: str) -> Known | None:
        """What a text makes known at its end, which is that of a trigger or of a question; None: nothing.

        Args:
            text: The last `WINDOW` characters so far. NUL characters stand for special tokens and for the beginning of
                the text.
        """

    def held(self, message: str) -> Known | None:
        """What a message that has ended may want, if no value of a question in it is known; None: nothing. A gate
        decides whether it does.

        Args:
            message: As of `known`; it begins behind the last NUL character.
        """
        return None
