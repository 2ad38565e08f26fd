"""Pending values inside a model: read token by token, in whatever chunks, and the same with a cache and without."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ani
from ani.chat import rendered
from ani.data.collator import ENDED, IGNORED, NumberCollator, tokenize
from ani.data.records import Example
from ani.evaluation.engines import TransformersEngine
from ani.injection.attach import last_decision
from ani.injection.locate import NumberLocator
from ani.roles import Role
from tests.properties import examples
from tests.tiny import FAMILIES, attached
from tests.tokenizers import CHATML, llama3, qwen

CONFIG = {"layer": 1, "values": "pending", "policy": "after"}
TEXTS = st.lists(
    st.sampled_from(["Room 505", "48 / 2 =", " = ", "What is 7 * 8?", "56", "3 - 10 = -7", "1.5 + 2 = 3", "\n"]),
    min_size=1,
    max_size=5,
).map(" ".join)
QUESTION = "What is 57415 * 52880? Room 12 is empty – café 数."
ANSWER = "It is 57415 * 52880 = 3,036,105,200, as asked. Also: 10 / 3 = 3.33."


VALUES = ["pending", "both"]


def locator_of(tokenizer: Any, values: str = "pending") -> NumberLocator:
    return NumberLocator(tokenizer, ani.AniConfig(**{**CONFIG, "values": values}))


def with_chats(tokenizer: Any) -> Any:
    """A copy, as tests share tokenizers."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = CHATML
    return tokenizer


def chat_ids(tokenizer: Any) -> list[int]:
    text = rendered(tokenizer, [{"role": "user", "content": QUESTION}]) + ANSWER
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_value_is_pending_from_the_question_until_it_is_written() -> None:
    tokenizer = with_chats(qwen())
    ids, locator = chat_ids(tokenizer), locator_of(tokenizer)
    found = locator.pending(ids)
    text = [locator.scanner.text(ids[: token + 1]) for token in range(len(ids))]
    first = min(found)
    assert text[first].endswith("52880?") and str(found[first].value.rational) == "3036105200"
    last = max(token for token, each in found.items() if each.value.rational == 3036105200)
    assert text[last].endswith("3,036,105,200,")  # thousands may follow the comma
    assert {str(each.value.rational) for token, each in found.items() if token > last} == {"10/3"}
    batch = locator.batch([ids])
    assert batch.positions.tolist() == list(found) and batch.features.shape == (len(found), locator.encoder.width)
    assert bool(batch.features.any(dim=1).all())


@pytest.mark.parametrize("make", [qwen, llama3])
def test_chunks_and_branches_change_nothing(make: Any) -> None:
    tokenizer = with_chats(make())
    ids, locator = chat_ids(tokenizer), locator_of(tokenizer)
    whole = locator_of(tokenizer).pending(ids)
    assert len(whole) > 20

    @examples(20)
    @given(st.lists(st.integers(1, len(ids) - 1), unique=True, max_size=6).map(sorted))
    def check(cuts: list[int]) -> None:
        found: dict[int, Any] = {}
        for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            found |= locator.pending(ids[:stop], start=start)
            # Another row with the same beginning, as a beam's, goes on by itself, and no later token is known.
            other = [*ids[:stop], *tokenizer(" 7 = 8", add_special_tokens=False)["input_ids"]]
            assert {t: each for t, each in locator.pending(other, start=start).items() if t < stop} == {
                t: each for t, each in whole.items() if start <= t < stop
            }
        assert found == whole

    check()


def test_beside_numbers_pending_values_have_columns_of_their_own() -> None:
    tokenizer = with_chats(qwen())
    ids = chat_ids(tokenizer)
    both, pending = (locator_of(tokenizer, values) for values in reversed(VALUES))
    literals = NumberLocator(tokenizer, ani.AniConfig(layer=1, policy="after"))
    width = literals.encoder.width
    assert both.encoder.width == width + pending.encoder.width
    batch = both.batch([ids])
    features = dict(zip(batch.positions.tolist(), batch.features, strict=True))
    assert len(features) == len(batch)
    parts = {"literals": literals.batch([ids]), "pending": pending.batch([ids])}
    assert features.keys() == {token for part in parts.values() for token in part.positions.tolist()}
    for name, part in parts.items():
        own = dict(zip(part.positions.tolist(), part.features, strict=True))
        for token, found in features.items():
            columns = found[:width] if name == "literals" else found[width:]
            assert torch.equal(columns, own.get(token, torch.zeros_like(columns)))
    for token in range(len(ids)):  # and each token alone has the same
        alone = both.batch([ids[: token + 1]], start=token)
        assert len(alone) == (token in features) and all(torch.equal(each, features[token]) for each in alone.features)


@pytest.mark.parametrize(
    "settings", [{"policy": "terminal", "values": "both"}, {"values": "pending", "combine": "replace"}]
)
def test_values_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs combine='add', and beside literals a causal policy"):
        ani.AniConfig(**{"layer": 1, **settings})


def test_a_gate_of_pending_values_decides_about_no_number() -> None:
    with pytest.raises(ani.InputError, match="injects pending values alone"):
        TransformersEngine(*attached("llama", **CONFIG)).decide_roles("Room 505")


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_changes_what_is_before_it(family: str, values: str) -> None:
    model, tokenizer = attached(family, **{**CONFIG, "values": values, "gate": "open"})

    @examples(4)
    @given(TEXTS, TEXTS)
    def check(text: str, other: str) -> None:
        ids, others = (tokenizer(each, return_tensors="pt")["input_ids"] for each in (text, other * 20))
        t = ids.shape[1] // 2
        variant = torch.cat([ids[:, : t + 1], others[:, -(ids.shape[1] - t - 1) :]], dim=1)[:, : ids.shape[1]]
        with torch.inference_mode():
            found, expected = (model(input_ids=each).logits[:, : t + 1] for each in (variant, ids))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)

    check()


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma"])
def test_generation_with_a_cache_equals_a_forward_over_all(family: str, values: str) -> None:
    model, tokenizer = attached(family, **{**CONFIG, "values": values, "gate": "open"})
    texts = ["What is 12 + 34? It is", "Calculate 345 * 678 = 23", "No sum"]
    encoded = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(
        **encoded, max_new_tokens=8, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    generated = output.sequences
    beams = model.generate(**encoded, max_new_tokens=4, num_beams=3, do_sample=False)
    assert beams.shape[0] == 3
    mask = torch.cat([encoded["attention_mask"], torch.ones(3, generated.shape[1] - encoded["input_ids"].shape[1])], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0).long()
    with torch.inference_mode():
        logits = model(input_ids=generated, attention_mask=mask.long(), position_ids=positions).logits
    decision = last_decision(model)
    assert decision is not None and set(decision.numbers.rows.tolist()) >= {0, 1}
    start = encoded["input_ids"].shape[1]
    assert (torch.stack(output.logits, dim=1) - logits[:, start - 1 : -1]).abs().max() <= 1e-4


def test_roles_say_where_the_next_token_writes_the_value() -> None:
    tokenizer = with_chats(qwen())
    locator = locator_of(tokenizer)
    prompt = [{"role": "user", "content": "What is 12 + 30?"}]
    row = tokenize(Example(prompt, "So 12 + 30 = 42."), tokenizer, locator, 512)
    numbers = NumberCollator(tokenizer, locator)([row])["numbers"]
    pieces, _ = locator.scanner.pieces(row.input_ids)
    roles = dict(zip(numbers.positions.tolist(), numbers.roles.tolist(), strict=True))
    answer = {pieces[token]: role for token, role in roles.items() if token >= row.prompt_length}
    four = max(token for token, piece in enumerate(pieces) if piece == "4")
    assert roles[four - 1] == roles[four] == Role.QUANTITATIVE
    assert roles[row.prompt_length - 1] == Role.NOMINAL  # "So"
    end = max(token for token, piece in enumerate(pieces) if piece == "2")
    assert roles[end] == Role.QUANTITATIVE  # "." ends it
    assert Role.UNKNOWN not in roles.values() and "So" in answer


def test_behind_a_nominal_number_no_value_is_meant() -> None:
    tokenizer = with_chats(qwen())
    for values in VALUES:
        locator = locator_of(tokenizer, values)
        for role, expected in (("nominal", Role.NOMINAL), ("quantitative", Role.QUANTITATIVE)):
            row = tokenize(Example("Calculate 48 / 2 =", "24", (role, role)), tokenizer, locator, 64)
            numbers = NumberCollator(tokenizer, locator)([row])["numbers"]
            sign = row.prompt_length - 1
            assert numbers.roles[numbers.positions == sign].tolist() == [expected]


def test_of_values_alone_the_tokens_that_write_them_are_learnt() -> None:
    tokenizer = with_chats(qwen())
    locator = locator_of(tokenizer)
    row = tokenize(
        Example([{"role": "user", "content": "What is 12 + 30?"}], "So 12 + 30 = 42 or"), tokenizer, locator, 512
    )
    batch = NumberCollator(tokenizer, locator, values_only=True)([row])
    learnt = [token for token, label in enumerate(batch["labels"][0].tolist()) if label != IGNORED]
    assert [tokenizer.decode(row.input_ids[token]) for token in learnt] == [" ", "4", "2", " or"]
    *digits, behind = (row.input_ids[token] for token in learnt)
    assert batch["labels"][0, learnt].tolist() == [*digits, ENDED - behind]
