"""How bad input must be refused; knows nothing about what refuses it."""

from collections.abc import Callable

import pytest

from ani import InputError


def refused(call: Callable[[], object], *words: str) -> str:
    """The one sentence of the error that a call must raise; it holds the words, one after the other."""
    with pytest.raises(InputError) as caught:
        call()
    message = rest = str(caught.value)
    assert message and "\n" not in message and len(message) < 2000
    message.encode()  # can be printed
    for word in words:
        assert word in rest, message
        rest = rest.partition(word)[2]
    return message
