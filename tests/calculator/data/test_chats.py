import re
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from importlib import resources
from itertools import chain, islice

import pytest
import yaml

from ani.calculator.data.chats import (
    AskedChat,
    UnaskedChat,
    asked_chats,
    asked_messages,
    drawn_asked_chats,
    is_pending,
    prompt_text,
    unasked_chats,
)
from ani.calculator.reader.pending import PendingReader
from ani.data.split import Split
from ani.errors import InputError
from ani.numbers import find_numbers
from ani.numbers.grammar import BOUNDARY

SPLITS: tuple[Split, ...] = ("train", "test")
PLAIN = {"addition", "subtraction", "multiplication", "division"}
FILE = yaml.safe_load(resources.files("ani.calculator.data").joinpath("chat_templates.yaml").read_text("utf-8"))
Asked = dict[Split, list[AskedChat]]
Unasked = dict[Split, list[UnaskedChat]]


def operands(chat: AskedChat | UnaskedChat) -> tuple[Decimal, ...]:
    """The numbers of the prompt in some order, without those of its template."""
    own = Counter(abs(number.value) for number in find_numbers(prompt_text(chat)))
    return tuple(sorted((own - Counter(abs(number.value) for number in find_numbers(chat.template))).elements()))


@pytest.fixture(scope="module")
def asked() -> Asked:
    return {split: asked_chats(1500, split=split) for split in SPLITS}


@pytest.fixture(scope="module")
def unasked() -> Unasked:
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
        is_raw = isinstance(chat.prompt, str)
        held = {chat.template} & raw if is_raw else {text for text in never if text in chat.template}
        if held and is_pending(chat):
            raw, never = raw - held, never - held
        if not (raw or never):
            break
    assert not raw and not never
    assert {chat.template for chat in drawn if isinstance(chat.prompt, str)} <= set(FILE["raw"]["texts"][split])


def test_examples_of_numbers_are_drawn_anew(asked: Asked) -> None:
    pattern = r"Return only the result, e\.g\. (.*?)\.(?= |\n|\Z)"
    found = [
        match[1]
        for chat in islice(drawn_asked_chats("train"), 6000)
        if (match := re.search(pattern, prompt_text(chat)))
    ]
    assert len(found) > 5 and len({*found}) > len(found) // 2
    assert all(re.fullmatch("[0-9]{1,5}", each) for each in found)
    assert not any(
        "{" in prompt_text(chat)
        for chat in asked["train"]
        if "$" not in prompt_text(chat) and "\\" not in prompt_text(chat)
    )


@pytest.mark.parametrize("split", SPLITS)
def test_the_result_is_right_and_pending_where_it_begins(asked: Asked, split: Split) -> None:
    for chat in asked[split]:
        begin = chat.completion.rindex(chat.result)
        end = "" if isinstance(chat.prompt, str) else BOUNDARY
        (*_, pending) = PendingReader().feed([prompt_text(chat) + end, *chat.completion[:begin]])
        assert pending is not None, chat
        places = len(chat.result.partition(".")[2])
        assert Decimal(chat.result) == Decimal(pending.value.rounded(places)), chat
        assert pending.value.ends is None or pending.value.ends <= places or places in (2, 3, 4), chat
        assert not re.search(r"\{[a-z]+\}", prompt_text(chat) + chat.completion), chat


def test_what_is_drawn(asked: Asked) -> None:
    chats = asked["train"]
    shares = Counter(chat.operation in PLAIN for chat in chats)
    assert 0.7 < shares[True] / len(chats) < 0.92  # decimals and money are among them
    assert PLAIN | {"several", "power", "square", "root", "remainder", "percentage", "mean", "half"} == {
        chat.operation for chat in chats
    }
    assert 0.2 < sum(isinstance(chat.prompt, str) for chat in chats) / len(chats) < 0.3
    assert 0.8 < sum(chat.completion.strip().strip("$€£") == chat.result for chat in chats) / len(chats) < 0.9
    for split in SPLITS:
        results = [chat.result for chat in asked[split] if chat.operation == "division"]
        assert 0.1 < sum("." in result for result in results) / len(results) < 0.4
    assert len({chat.template for chat in chats}) > 0.5 * len(chats)
    assert "{x} =" in {chat.template for chat in chats if not isinstance(chat.prompt, str)}
    for symbol in ("*", "×", " x ", "·", r"\times", "÷", "/", "−", "$", r"\("):
        assert any(symbol in prompt_text(chat) for chat in chats), symbol


def test_messages_of_another_hand_are_all_drawn_and_mostly_understood() -> None:
    chats = asked_messages(200)
    assert {chat.template for chat in chats} == set(FILE["messages"]["natural"]["test"])
    assert chats[:99] == asked_messages(99) != asked_messages(99, seed=1)
    found = [PendingReader().feed([prompt_text(chat) + BOUNDARY])[0] for chat in chats]
    assert all(pending is None or pending.value.rational == Fraction(chat.result)
               for chat, pending in zip(chats, found, strict=True))  # fmt: skip
    assert sum(pending is not None for pending in found) > 0.75 * len(chats)


def test_the_tests_of_others_are_no_training_data(asked: Asked, unasked: Unasked) -> None:
    for split in SPLITS:
        assert not any(
            "Directly return" in prompt_text(chat) or "Add two numbers" in prompt_text(chat) for chat in asked[split]
        )
    raw = [prompt_text(chat) for chat in asked["train"] if isinstance(chat.prompt, str)]
    assert not any(re.match(r"Q: What is .*?\s+A:", each) for each in raw)


def test_the_splits_share_neither_wording_nor_calculation(asked: Asked, unasked: Unasked) -> None:
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


def test_lists_follow_the_seed_and_grow_at_the_end(asked: Asked, unasked: Unasked) -> None:
    for split in SPLITS:
        assert asked_chats(300, split=split) == asked[split][:300] != asked_chats(300, split=split, seed=1)
        assert unasked_chats(99, split=split) == unasked[split][:99] != unasked_chats(99, split=split, seed=1)
        for chats in (asked[split], unasked[split]):
            assert len({prompt_text(chat) for chat in chats}) == len(chats)


@pytest.mark.parametrize("split", SPLITS)
def test_every_unasked_template_holds_its_calculation(unasked: Unasked, split: Split) -> None:
    templates = {each for texts in FILE["unasked"].values() for each in texts[split]}
    assert {chat.template for chat in unasked[split]} == templates
    for chat in unasked[split]:
        assert len(operands(chat)) >= 2 or chat.template.count("{") == 1, chat
        assert Fraction(chat.result).denominator == 1 and chat.prompt[0]["role"] == "user"
    assert len({each for texts in FILE["unasked"].values() for which in SPLITS for each in texts[which]}) >= 150


@pytest.mark.parametrize("draw", [asked_chats, unasked_chats])
def test_bad_input_is_named(draw: type) -> None:
    with pytest.raises(InputError, match="-1"):
        draw(-1, split="train")
    with pytest.raises(InputError, match="validation"):
        draw(1, split="validation")
    assert draw(0, split="train") == []


def test_of_those_that_nobody_asks_for_some_are_pending_all_the_same() -> None:
    chats = unasked_chats(60, split="train", pending=True)
    assert chats == unasked_chats(80, split="train", pending=True)[:60]
    assert all(PendingReader().feed([chat.prompt[0]["content"] + BOUNDARY])[0] for chat in chats)
    assert len({chat.template for chat in chats}) > 30
