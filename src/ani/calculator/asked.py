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


def shown(value: Exact, places: int) -> str:
    """The digits of a value; of one with endless digits the first ones after the point, with an ellipsis."""
    return value.rounded(places) + "…" if value.ends is None else value.rounded(value.ends)
