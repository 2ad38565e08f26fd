"""Reads a text and finds the exact values that it asks for.

`VALUES` is a registry: a kind of value is one class and one entry. A kind that is registered later is asked earlier, so
that a user's kinds come before ours.
"""

from ani.calculator.reader.arithmetic import Arithmetic
from ani.calculator.reader.exact import Exact
from ani.calculator.reader.value import Known, Value

__all__ = ["VALUES", "Exact", "Known", "Value"]

VALUES: dict[str, type[Value]] = {Arithmetic.name: Arithmetic}
"""Kinds of values, by name."""
