"""Value `arithmetic`: the result of a calculation, known after an equals sign, a question or an order."""

from collections.abc import Callable
from functools import lru_cache

from ani.calculator.reader.calculations import Calculation, calculation_asked, calculation_before, calculation_mentioned
from ani.calculator.reader.value import Known, Value


class Arithmetic(Value):
    """Results of the calculations that `ani.calculator.reader.calculations` understands."""

    name = "arithmetic"
    triggers = ("=", "＝", "≈", "\\approx", "equals", "is equal to", "are equal to")

    def known(self, text: str) -> Known | None:
        """Return the result of the calculation before an equals sign at the end, or of the question at the end."""
        sign = next(filter(text.endswith, self.triggers), None)
        if sign:
            return _found(calculation_before, text, len(text) - len(sign))
        return _found(calculation_asked, text, len(text))

    def mentioned(self, message: str) -> Known | None:
        """The result of the one calculation in a message that asks for nothing in words of ours."""
        return _found(calculation_mentioned, message, len(message))


@lru_cache(maxsize=4096)  # a line's end asks what its sign has asked, and a chat's next prompt repeats the whole chat
def _found(finder: Callable[[str, int], Calculation | None], text: str, end: int) -> Known | None:
    found = finder(text, end)
    return Known(found.value, found.text, found.start, found.currency) if found else None
