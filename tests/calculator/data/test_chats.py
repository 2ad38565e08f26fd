import re
from collections import Counter
from decimal import Decimal
from itertools import chain
from typing import cast

import pytest

from ani.calculator.data.chats import asked_chats, unasked_chats
from ani.calculator.data.drawn_text import DrawnText
from ani.calculator.data.sentences import sentences
from ani.calculator.data.worded_calculations import CHATS
from ani.calculator.reader.pending import PendingReader
from ani.data.split import Split, read_templates
from ani.errors import InputError
from ani.numbers import find_numbers
from ani.numbers.signs import BOUNDARY

SPLITS: tuple[Split, ...] = ("train", "test")
PLAIN = {"addition", "subtraction", "multiplication", "division"}
FILE = read_templates(CHATS, "ani.calculator.data")
Drawn = dict[Split, list[DrawnText]]


def operands(chat: DrawnText) -> tuple[Decimal, ...]:
    """The numbers of the prompt in some order, without those of its template."""
    own = Counter(abs(number.value) for number in find_numbers(chat.prompt))
    return tuple(sorted((own - Counter(abs(number.value) for number in find_numbers(chat.template))).elements()))


@pytest.fixture(scope="module")
def asked() -> Drawn:
    return {split: asked_chats(800, split=split) for split in SPLITS}


@pytest.fixture(scope="module")
def unasked() -> Drawn:
    return {split: unasked_chats(1900, split=split) for split in SPLITS}


@pytest.mark.parametrize("split", SPLITS)
def test_the_result_is_right_and_pending_where_it_begins(asked: Drawn, split: Split) -> None:
    for chat in asked[split]:
        begin = chat.completion.rindex(chat.result)
        end = "" if chat.raw else BOUNDARY
        (*_, pending) = PendingReader().feed([chat.prompt + end, *chat.completion[:begin]])
        assert pending is not None, chat
        places = len(chat.result.partition(".")[2])
        assert Decimal(chat.result) == Decimal(pending.value.rounded(places)), chat
        assert pending.value.ends is None or pending.value.ends <= places or places in (2, 3, 4), chat
        assert not re.search(r"\{[a-z]+\}", chat.prompt + chat.completion), chat


def test_the_splits_share_neither_wording_nor_calculation(asked: Drawn, unasked: Drawn) -> None:
    for part in ("prefixes", "asks", "suffixes", "raw", "unasked"):
        train, test = (
            [each.casefold().strip(".!,:\n ") for texts in FILE[part].values() for each in texts[split]]
            for split in SPLITS
        )
        assert not set(train) & set(test)
    assert not {chat.template for chat in unasked["train"]} & {chat.template for chat in unasked["test"]}
    own, other = (
        {(chat.operation, operands(chat)) for chat in asked[split] if chat.operation in PLAIN - {"division"}}
        for split in SPLITS
    )
    # `3 - 4` and `4 - 3`, signs and groups of digits count as one here, so that some short ones are in both
    assert len(own & other) < 0.02 * len(other)


def test_lists_follow_the_seed_and_grow_at_the_end(asked: Drawn) -> None:
    assert asked_chats(300, split="test") == asked["test"][:300] != asked_chats(300, split="test", seed=1)
    for chats in asked.values():
        assert len({chat.prompt for chat in chats}) == len(chats)


def test_bad_input_is_named() -> None:
    for draw in (asked_chats, unasked_chats, sentences):
        for count, split in ((-1, "test"), (3, "validation")):
            with pytest.raises(InputError, match=f"{count}|{split}"):
                draw(count, split=cast(Split, split))


def test_the_tests_of_others_are_no_training_data(asked: Drawn) -> None:
    for chat in chain(*asked.values()):
        assert "Directly return" not in chat.prompt and "Add two numbers" not in chat.prompt
        assert not (chat.raw and re.match(r"Q: What is .*?\s+A:", chat.prompt)) or chat in asked["test"]
