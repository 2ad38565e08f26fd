"""Decides how far a reader of a growing text must read back."""

import re

from ani.numbers.grammar import JOINTS, THIN
from ani.numbers.signs import LOOK_BEHIND

# Where a number may begin whatever is before it: after a character that is in no number or in none here, or at a comma
# before items that are no groups.
_RESTART = re.compile(
    rf"[^0-9{JOINTS}]|[{THIN}}}](?=[^0-9])|!(?=[^0-9 ])|\\(?=[^!])|\{{(?=[^,])|(?<!\\!) "
    r"|,(?![0-9]{2,3},)[0-9]+,(?=[0-9])|(?:,[0-9]{2}){4},(?=[0-9])"
)
CLOSED = re.compile(f"(?:[^0-9{JOINTS}\udc80-\udcfe]| (?=[^0-9]))[{JOINTS}]*\\Z")
"""The end of a token after which no number can continue: a character that is in no number, then no digit."""
OPEN = re.compile(rf"\A[{JOINTS}]*\Z")
"""A token after which a number continues if it does after the token before."""


def settled(context: str) -> bool:
    """True if a text that continues after `context` reads the same whatever comes before `context`.

    That is so if no number can extend through the context from its beginning, and what decides about the sign of a
    number that begins in it is in it too. The context may open within a character, which is three bytes at most.
    """
    return _RESTART.search(context, LOOK_BEHIND + 3) is not None
