"""`asked`: the exact value that a text asks for, without a model."""

from ani.calculator.reader import Exact
from ani.calculator.reader.pending import PendingReader
from ani.numbers.signs import BOUNDARY


def asked(text: str) -> Exact | None:
    """The exact value that a user's message asks for at its end; None if it asks for none, or may mean several.

    A message that only contains a calculation (`He earns 3 + 4`) has no value here. For a calculator that value is
    pending, and the gate decides. `Exact.rational` is the value as a `Fraction`, None if it is irrational;
    `Exact.rounded(places)` gives its digits.
    """
    (pending,) = PendingReader(mentions=False).feed([text + BOUNDARY])
    return pending.value if pending else None


def shown(value: Exact, places: int) -> str:
    """The digits of a value; if they have no end, the first `places` after the point and an ellipsis."""
    return value.rounded(places) + "…" if value.ends is None else value.rounded(value.ends)
