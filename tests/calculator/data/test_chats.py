import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import chain, islice

import pytest

from ani.calculator.data.chats import asked_chats, asked_messages, drawn_asked_chats, is_pending, unasked_chats
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
def test_few_drawings_are_dropped_and_no_wording_never_works(split: Split) -> None:
    chats = drawn_asked_chats(split, seed=1)
    drawn = list(islice(chats, 2000))
    assert sum(map(is_pending, drawn)) > 0.9 * len(drawn)  # a number around the question may hide its calculation
    parts = ("prefixes", "asks", "suffixes")
    never = {text for part in parts for texts in FILE[part].values() for text in texts[split]}
    raw = set(FILE["raw"]["texts"][split])
    for chat in chain(drawn, islice(chats, 30_000)):
        is_raw = chat.raw
        used = {chat.template} & raw if is_raw else {text for text in never if text in chat.template}
        if used and is_pending(chat):
            raw, never = raw - used, never - used
        if not (raw or never):
            break
    assert not raw and not never
    assert {chat.template for chat in drawn if chat.raw} <= set(FILE["raw"]["texts"][split])


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


def test_messages_of_another_writer_are_all_drawn_and_mostly_understood() -> None:
    chats = asked_messages(200)
    assert {chat.template for chat in chats} == set(FILE["messages"]["natural"]["test"])
    assert chats[:99] == asked_messages(99) != asked_messages(99, seed=1)
    found = [PendingReader().feed([chat.prompt + BOUNDARY])[0] for chat in chats]
    assert all(pending is None or pending.value.rational == Fraction(chat.result)
               for chat, pending in zip(chats, found, strict=True))  # fmt: skip
    assert sum(pending is not None for pending in found) > 0.75 * len(chats)


def test_the_tests_of_others_are_no_training_data(asked: Drawn) -> None:
    for chat in chain(*asked.values()):
        assert "Directly return" not in chat.prompt and "Add two numbers" not in chat.prompt
        assert not (chat.raw and re.match(r"Q: What is .*?\s+A:", chat.prompt)) or chat in asked["test"]


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


def test_lists_follow_the_seed_and_grow_at_the_end(asked: Drawn, unasked: Drawn) -> None:
    for split in SPLITS:
        assert asked_chats(300, split=split) == asked[split][:300] != asked_chats(300, split=split, seed=1)
        assert unasked_chats(99, split=split) == unasked[split][:99] != unasked_chats(99, split=split, seed=1)
        for chats in (asked[split], unasked[split]):
            assert len({chat.prompt for chat in chats}) == len(chats)


@pytest.mark.parametrize("split", SPLITS)
def test_every_unasked_template_contains_its_calculation(unasked: Drawn, split: Split) -> None:
    templates = {each for texts in FILE["unasked"].values() for each in texts[split]}
    assert {chat.template for chat in unasked[split]} == templates
    for chat in unasked[split]:
        assert len(operands(chat)) >= 2 or chat.template.count("{") == 1, chat
        assert Fraction(chat.result).denominator == 1
    assert len({each for texts in FILE["unasked"].values() for which in SPLITS for each in texts[which]}) >= 150


@pytest.mark.parametrize("draw", [asked_chats, unasked_chats, sentences])
@pytest.mark.parametrize(("count", "split", "named"), [(-1, "test", "-1"), (3, "validation", "validation")])
def test_bad_input_is_named(draw: Callable[..., object], count: int, split: Split, named: str) -> None:
    with pytest.raises(InputError, match=named):
        draw(count, split=split)
    assert draw(0, split="train") == []
