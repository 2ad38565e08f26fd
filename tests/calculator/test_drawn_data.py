"""The calculator's generated texts, by a hash of them in order: a refactoring must not change them."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from ani.calculator.data.chats import asked_chats, asked_messages, unasked_chats
from ani.calculator.data.sentences import sentences
from ani.calculator.tasks.calculations import Calculations
from ani.calculator.tasks.rivals import Rivals

DRAWS: dict[str, Callable[[], Any]] = {
    "asked, train": lambda: [tuple(each) for each in asked_chats(200, split="train")],
    "asked, test": lambda: [tuple(each) for each in asked_chats(200, split="test")],
    "unasked, train": lambda: [tuple(each) for each in unasked_chats(200, split="train")],
    "unasked, test": lambda: [tuple(each) for each in unasked_chats(200, split="test")],
    "messages": lambda: [tuple(each) for each in asked_messages(200)],
    "sentences, train": lambda: [tuple(each) for each in sentences(200, split="train")],
    "sentences, test": lambda: [tuple(each) for each in sentences(200, split="test")],
    "calculations": lambda: [tuple(each) for each in Calculations().questions(0)],
    "rivals": lambda: [each.model_dump() for each in Rivals(count=20).questions(0)],
}
HASHES = {
    "asked, train": "c2769c609ce8",
    "asked, test": "a64dcbbef41c",
    "unasked, train": "4e7d825e1204",
    "unasked, test": "bde934fe9482",
    "messages": "7bb4b694b2b8",
    "sentences, train": "7399b57f0d5f",
    "sentences, test": "a14ee5554e66",
    "calculations": "38b37ae2c325",
    "rivals": "cda6c26fc458",
}


@pytest.mark.parametrize("name", DRAWS)
def test_drawn_texts_stay_the_same(name: str) -> None:
    assert hashlib.sha256(repr(DRAWS[name]()).encode()).hexdigest()[:12] == HASHES[name]
