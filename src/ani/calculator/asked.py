"""`asked`: the exact value that a text asks for, without a model."""

from ani.calculator.reader import Exact
from ani.calculator.reader.pending import PendingReader
from ani.numbers.grammar import BOUNDARY


def asked(text: str) -> Exact | None:
    """The exact value that a text asks for at its end, as a user's message; None: none, or it is doubtful.

    `Exact.rational` is the value as a `Fraction`, None if it is irrational; `Exact.rounded(places)` gives its digits.
    """
    (pending,) = PendingReader().feed([text + BOUNDARY])
    return pending.value if pending else None
