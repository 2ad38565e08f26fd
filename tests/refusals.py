"""The check that bad input is refused."""

from collections.abc import Callable

import pytest

from ani import InputError


def refused(call: Callable[[], object], *words: str) -> str:
    """Check that a call raises InputError with one printable line that contains the words in order (`…`: any text)."""
    with pytest.raises(InputError) as caught:
        call()
    message = rest = str(caught.value)
    assert message and "\n" not in message and len(message) < 2000
    message.encode()  # can be printed
    for word in map(str.strip, "…".join(words).split("…")):
        assert word in rest, message
        rest = rest[rest.index(word) + len(word) :]
    return message
