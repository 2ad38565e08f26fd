"""The calculator's generated examples, by a hash of their texts in order: a refactoring must not change them."""

from typing import Any

import pytest

from tests.paper import project


@pytest.mark.parametrize(
    ("source", "hashes"),
    [
        ({"kind": "calculations", "count": 300}, ["394c36d87a7c", "ebb6cda8c3b0"]),
        ({"kind": "asked-chats", "count": 300}, ["868a90b04774", "b6f0f484b88b"]),
    ],
)
def test_examples_stay_the_same(source: dict[str, Any], hashes: list[str]) -> None:
    assert [project.drawn(source, seed) for seed in (0, 1)] == hashes
