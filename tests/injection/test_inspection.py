"""`inspect` reports each number where the text has it, with the decision that the forward pass took."""

import copy
import unicodedata
from contextlib import nullcontext
from decimal import Decimal
from typing import Any

import pytest
import torch
from tokenizers import normalizers

from ani import inspect
from ani.injection.decisions import NumberDecision, decisions_table
from ani.injection.inspection import forced_gates, injected_as
from ani.injection.model_parts import ani_module, number_locator
from ani.injection.number_batch import text_ids
from tests.properties import cover, deep
from tests.refusals import refused
from tests.tiny import FAMILIES, MIXED_TEXT, attached, encode, logits_of, pair

VALUES = "505 10 3.5 1234 -7 2020 11 12 8 15 40 66 7 90417 0.25 18 18.25 2 0 1 19 99 100"


@cover(family=FAMILIES, policy=["terminal", "running", "after"])
def test_offsets_values_and_decisions(family: str, policy: str) -> None:
    model, tokenizer = attached(family, policy=policy)
    decisions = inspect(model, tokenizer, MIXED_TEXT)
    assert [decision.value for decision in decisions] == [Decimal(value) for value in VALUES.split()]
    ids = tokenizer(MIXED_TEXT)["input_ids"]
    for decision in decisions:
        assert MIXED_TEXT[decision.start : decision.end] == decision.text
        assert 0 <= decision.first_token <= decision.last_token < len(ids)
        tokens = tokenizer.decode(ids[decision.first_token : decision.last_token + 1])
        assert decision.text in tokens
        # Under `after` the token that shows the 2 of 2.0.1 to be over has the 0.
        left_out = policy == "after" and decision.text == "2"
        assert (decision.alpha is None) == left_out
        assert decision.injected == ((decision.alpha or 0) > 0.5)
    assert {decision.injected for decision in decisions} == {True, False}


@pytest.mark.parametrize("family", FAMILIES)
def test_offsets_in_awkward_texts(family: str) -> None:
    model, tokenizer = attached(family)
    for text in (" 7 and 8", "\n12", "5", "x²3 7", "café 12 数 7", "🙂 12", "<s> 4 <|im_end|> 5"):
        decisions = inspect(model, tokenizer, text)
        assert decisions and all(text[each.start : each.end] == each.text for each in decisions)


def test_under_after_a_text_ends_with_the_end_token() -> None:
    model, tokenizer = attached("gemma", policy="after")
    for text in ("holds 10", "holds 10."):
        (number,) = inspect(model, tokenizer, text)
        assert inspect(model, tokenizer, text + tokenizer.eos_token) == [number] and number.alpha is not None


def test_a_notebook_shows_the_text_with_its_gates() -> None:
    text = "<b>7</b> people & room 505 on floor 3, 12 keys"
    model, tokenizer = attached("llama")
    shown = inspect(model, tokenizer, text)
    html = shown._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html and "people &amp; room" in html
    assert html.count('<mark class="open"') == sum(decision.injected for decision in shown)
    assert html.count("<mark ") == len(shown) == 4
    for decision in shown:
        assert f"= {decision.value} · α {decision.alpha:.3f} · {'open' if decision.injected else 'closed'}" in html
    model.train()
    assert inspect(model, tokenizer, text) == list(shown) and model.training  # without dropout


def test_text_without_numbers_and_model_without_ani() -> None:
    assert inspect(*attached("gemma"), "no number here") == []
    refused(lambda: inspect(*pair("gemma"), "12"), "ani.attach")


def test_numbers_that_overflow_are_left_alone() -> None:
    model, tokenizer = attached("gemma", overflow="skip", integer_digits=4)
    small, large, other = inspect(model, tokenizer, "from 12 to 123456 and 9999")
    assert large.alpha is None and not large.injected and large.value == 123456
    assert None not in (small.alpha, other.alpha)
    assert [d.alpha for d in inspect(model, tokenizer, "only 123456")] == [None]


METHODS: dict[str, dict[str, Any]] = {
    "terminal": {},
    "running": {"policy": "running"},
    "after": {"policy": "after"},
    "static": {"gate": "open", "combine": "replace"},
    "substituted": {"gate": "open", "combine": "substitute", "layer": 0},
}


@pytest.mark.parametrize("method", METHODS)
def test_closed_gates_are_the_base_model(method: str) -> None:
    model, tokenizer = attached("gemma", **METHODS[method])
    ids = encode(tokenizer)
    base: Any = pair("gemma")[0]

    def run(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            return model(input_ids=ids).logits, model.generate(ids, max_new_tokens=8, do_sample=False)

    learnt = run(model)
    with forced_gates(model, False):
        assert not any(number.injected for number in inspect(model, tokenizer, MIXED_TEXT))
        for ours, expected in zip(run(model), run(base), strict=True):
            assert torch.equal(ours, expected)
    for again, before in zip(run(model), learnt, strict=True):
        assert torch.equal(again.nan_to_num(), before.nan_to_num())
    assert not torch.equal(learnt[0], run(base)[0])


@cover(policy=["terminal", "digitwise", "running", "after"], family=["llama", "qwen3"][: 1 + deep()])
def test_a_prompt_is_read_as_another(family: str, policy: str) -> None:
    """In a padded batch, from a cache and by beams: as if the other's numbers were given to each forward by hand."""
    model, tokenizer = attached(family, policy=policy)
    more = "Is it 345? It is 345, and 1 more:"
    encoded, other = (
        tokenizer([text, more], return_tensors="pt", padding=True, padding_side="left")
        for text in ("Is 345 + 678 =", "Is 512 + 401 =")
    )
    read_as = other["input_ids"]
    length = read_as.shape[1]

    def by_hand(ids: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.functional.pad(encoded["attention_mask"], (0, ids.shape[1] - length), value=1)
        rows = text_ids(torch.cat([read_as, ids[:, length:]], dim=1), mask)
        response = [[place >= length for place in range(len(row))] for row in rows]
        numbers = number_locator(model).batch(rows, response=response)
        with torch.inference_mode():
            return torch.as_tensor(model(input_ids=ids, attention_mask=mask, numbers=numbers).logits[:, -1])

    def generated(read: bool, **settings: Any) -> Any:
        settings |= {"do_sample": False, "output_logits": True, "return_dict_in_generate": True, "eos_token_id": None}
        pairs = zip(encoded["input_ids"], read_as, encoded["attention_mask"].bool(), strict=True)
        others = {tuple(own[mask].tolist()): other[mask].tolist() for own, other, mask in pairs}
        with injected_as(model, others) if read else nullcontext():
            return model.generate(**encoded, max_new_tokens=6, **settings)

    plain, found = generated(False), generated(True)
    assert not torch.equal(found.logits[0][0], plain.logits[0][0])
    assert torch.equal(found.logits[0][1], plain.logits[0][1])
    for step, logits in enumerate(found.logits):  # what is generated says what it says
        torch.testing.assert_close(logits, by_hand(found.sequences[:, : length + step]), rtol=0, atol=1e-4)
    beams = generated(True, num_beams=2).sequences
    assert torch.equal(generated(True, num_beams=2, use_cache=False).sequences, beams)
    assert torch.equal(generated(False).sequences, plain.sequences)


def test_places_are_those_of_the_text_where_the_tokenizer_normalizes_it() -> None:
    model, tokenizer = attached("qwen3", policy="after")
    tokenizer = copy.deepcopy(tokenizer)
    text = "Cafe\u0301 Nr. 505: 12 + 30 = 42"
    composed = inspect(model, tokenizer, unicodedata.normalize("NFC", text))
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    found = inspect(model, tokenizer, text)
    assert [each.text for each in found] == ["505", "12", "30", "42"]
    for each, other in zip(found, composed, strict=True):
        assert text[each.start : each.end] == each.text and each.start == other.start + 1  # an accent of its own
        assert (each.value, each.alpha, each.injected) == (other.value, other.alpha, other.injected)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    (number,) = inspect(model, tokenizer, "10² m")
    assert (number.text, number.value, number.start) == ("10²", 102, 0)


def test_forced_gates_are_those_of_a_gate_that_learnt_it() -> None:
    model, tokenizer = attached("gemma")
    learnt = inspect(model, tokenizer, MIXED_TEXT)
    with torch.inference_mode(), forced_gates(model, True):
        opened, logits = inspect(model, tokenizer, MIXED_TEXT), logits_of(model, encode(tokenizer))
    assert opened == [number.model_copy(update={"injected": True}) for number in learnt] != learnt
    assert inspect(model, tokenizer, MIXED_TEXT) == learnt
    with torch.inference_mode():
        ani_module(model).gate.outer.bias.fill_(1e9)
    assert torch.equal(logits, logits_of(model, encode(tokenizer)))


@pytest.mark.parametrize(("alpha", "role"), [(0.497, None), (0.503, None), (0.02, "name"), (0.98, "quantity")])
def test_the_table_names_no_role_where_the_gate_is_undecided(alpha: float, role: str | None) -> None:
    number = NumberDecision(text="5", value=Decimal(5), start=0, end=1, alpha=alpha, injected=alpha > 0.5)
    (shown,) = decisions_table([number]).columns[-1].cells
    assert {word for word in ("name", "quantity") if word in str(shown)} == ({role} if role else set())
