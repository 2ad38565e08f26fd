"""No value is wrong: thousands of texts whose right values the generator knows (`texts_by_rule`)."""

from collections import Counter

import pytest

from ani.calculator.reader.pending import PendingReader
from ani.numbers.signs import BOUNDARY
from tests.calculator.texts_by_rule import EXAMPLES, texts


def value_of(message: str) -> object:
    pending = PendingReader().feed([message, BOUNDARY])[-1]
    return pending.value.rational if pending else None


@pytest.mark.parametrize(("asking", "count", "least"), [(True, 3000, 500), (False, 1500, 100)])
def test_a_value_is_right_or_there_is_none(asking: bool, count: int, least: int) -> None:
    found = Counter[str]()
    for text in texts(count, seed=7, asking=asking):
        value = value_of(text.message)
        assert value is None or value in text.right, text
        found["right"] += value is not None
    assert found["right"] >= least  # saying nothing at all would be right, too


@pytest.mark.parametrize(("message", "right"), EXAMPLES.items())
def test_texts_that_had_a_wrong_value(message: str, right: object) -> None:
    assert value_of(message) in (right, None)
