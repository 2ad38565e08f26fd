"""The kinds of exact values that a text makes known, so that they can be pending.

A kind of value is one class and one line here. `VALUES` is open to kinds of one's own; one that stands later is asked
earlier, so that yours go before ours.
"""

from ani.values.arithmetic import Arithmetic
from ani.values.counts import Counts
from ani.values.durations import Durations
from ani.values.exact import Exact
from ani.values.value import Known, Value

__all__ = ["VALUES", "Exact", "Known", "Value"]

VALUES: dict[str, type[Value]] = {value.name: value for value in (Arithmetic, Durations, Counts)}
"""Every kind of value by its name."""
