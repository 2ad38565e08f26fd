"""`values: results` and `both`: what is still to be written of a calculation, in prompts and answers alike."""

from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import ani
from ani import AniConfig, InputError
from ani.data.collator import NumberCollator, tokenize
from ani.data.sources import Example
from ani.injection.attach import last_decision, number_locator
from ani.injection.inspection import another_value, forced_gates, forced_numbers, replaced_results
from ani.injection.locate import NumberLocator
from ani.numbers.calculations import Calculation
from tests.properties import examples
from tests.tiny import FAMILIES, attached, pair
from tests.tokenizers import ALL

VALUES = ["results", "both"]
TEXTS = [
    "Calculate 48 / 2 = 24.",
    "So 345 + 678 = 1,023 and 3 - 7 = -4; x = 5",
    "Room 505: 12 * 3.5 =",
    "1 + 1 = 3 rooms",
]
texts = st.lists(
    st.sampled_from(
        ["Room 505", "48 / 2 =", " = ", "7 * 8 = 56", "x", "3 - 10 = -7", "1.5 + 2 = 3", "=", "12 +", ", "]
    ),
    min_size=1,
    max_size=5,
).map(" ".join)


@cache
def model_of(family: str, values: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return attached(family, values=values, policy="after")


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> torch.Tensor:
    return torch.as_tensor(tokenizer(text, return_tensors="pt")["input_ids"])


@torch.no_grad()
def logits_of(model: PreTrainedModel, ids: torch.Tensor, **given: Any) -> torch.Tensor:
    return torch.as_tensor(model(input_ids=ids, **given).logits)


@pytest.mark.parametrize("name", list(ALL))
@pytest.mark.parametrize("values", VALUES)
def test_each_token_carries_what_the_text_so_far_says(name: str, values: str) -> None:
    tokenizer = ALL[name]()
    locator = NumberLocator(tokenizer, AniConfig(layer=1, values=values, policy="after"))
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        whole = locator.batch([ids])
        features = dict(zip(whole.positions.tolist(), whole.features, strict=True))
        assert len(features) == len(whole)
        for t in range(len(ids)):
            streamed = locator.batch([ids[: t + 1]], start=t)
            assert len(streamed) == (t in features)
            if t in features:
                assert torch.equal(streamed.features[0], features[t])
        results = locator.scanner.scan_results(ids)
        assert results.keys() <= features.keys() and (values == "both" or results.keys() == features.keys())
        for t, result in results.items():
            expected = locator.encoder.remainder.encode([result.upcoming])[0]  # type: ignore[union-attr]
            assert torch.equal(features[t][-len(expected) :], expected)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_lookahead(family: str, values: str) -> None:
    model, tokenizer = model_of(family, values)

    @examples(4)
    @given(texts, texts)
    def check(text: str, other: str) -> None:
        ids, others = ids_of(tokenizer, text), ids_of(tokenizer, other * 20)
        t = ids.shape[1] // 2
        variant = torch.cat([ids[:, : t + 1], others[:, -(ids.shape[1] - t - 1) :]], dim=1)[:, : ids.shape[1]]
        torch.testing.assert_close(
            logits_of(model, variant)[:, : t + 1], logits_of(model, ids)[:, : t + 1], rtol=0, atol=1e-4
        )

    check()


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_has_the_states_of_a_prompt(family: str, values: str) -> None:
    """Token by token with a cache, in a left-padded batch, and the same text given back as a prompt."""
    model, tokenizer = model_of(family, values)
    model.generation_config.eos_token_id = None
    for text in TEXTS:
        ids = ids_of(tokenizer, text)
        cache, steps = None, []
        for t in range(ids.shape[1]):
            with torch.no_grad():
                output = model(input_ids=ids[:, t : t + 1], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            steps.append(output.logits[:, -1])
        torch.testing.assert_close(torch.stack(steps, dim=1), logits_of(model, ids), rtol=0, atol=1e-4)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(
        **{key: batch[key] for key in ("input_ids", "attention_mask")},
        max_new_tokens=8,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    mask = torch.cat([batch["attention_mask"], torch.ones(len(TEXTS), 8, dtype=torch.long)], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    full = logits_of(model, output.sequences, attention_mask=mask, position_ids=positions)
    torch.testing.assert_close(torch.stack(output.logits, dim=1), full[:, -9:-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("values", VALUES)
def test_training_carries_what_generation_does(values: str) -> None:
    model, tokenizer = model_of("llama", values)
    locator = number_locator(model)
    example = tokenize(Example("Calculate 48 / 2 =", " 24 rooms", ("nominal",) * 2), tokenizer, locator, 64)
    numbers = NumberCollator(tokenizer, locator)([example])["numbers"]
    expected = locator.batch([example.input_ids])
    assert torch.equal(numbers.positions, expected.positions) and torch.equal(numbers.features, expected.features)
    results = locator.results(example.input_ids)
    roles = dict(zip(numbers.positions.tolist(), numbers.roles.tolist(), strict=True))
    assert {roles[token] for token in results} == {0}  # the calculation's, also while it is answered


@pytest.mark.parametrize("values", VALUES)
def test_inspection_shows_the_result(values: str) -> None:
    model, tokenizer = model_of("llama", values)
    found = ani.inspect(model, tokenizer, "Room 505: 48 / 2 = 24 and 3 + 4 =")
    signs = [each for each in found if each.text == "="]
    assert [(str(each.value), each.start) for each in signs] == [("24", 17), ("7", 32)]
    assert [each.text for each in found if each.text != "="] == (
        [] if values == "results" else ["505", "48", "2", "24", "3", "4"]
    )
    decision = last_decision(model)
    assert decision is not None and all(0 <= each.alpha <= 1 for each in signs)


def test_replaced_results_are_injected() -> None:
    """As if the text had another calculation, with the value for its result."""
    model, tokenizer = model_of("llama", "results")
    ids = ids_of(tokenizer, "So 48 / 2 = 7")
    with forced_gates(model, True):
        plain = logits_of(model, ids)
        with pytest.raises(KeyError), replaced_results(model, lambda calculation: calculation.value + Decimal("46.5")):
            found = number_locator(model).results(ids[0].tolist())
            assert [result.upcoming for result in found.values()] == ["70.5", "70.5", "0.5"]
            assert str(ani.inspect(model, tokenizer, "So 48 / 2 =")[0].value) == "70.5"
            assert not torch.equal(logits_of(model, ids), plain)
            raise KeyError
        assert torch.equal(logits_of(model, ids), plain)


@pytest.mark.parametrize("opened", [True, False])
def test_the_gate_of_one_calculation_is_forced(opened: bool) -> None:
    """At its equals sign and all that is written of its result, also in what follows a prompt."""
    model, tokenizer = model_of("llama", "results")
    prompt = "So 48 / 2 = 24, and 48 / 2 ="
    learnt = ani.inspect(model, tokenizer, prompt)
    sign = learnt[1].last_token
    with forced_numbers(model, {tuple(tokenizer(prompt)["input_ids"]): {sign: opened}}):
        assert ani.inspect(model, tokenizer, prompt) == [learnt[0], learnt[1].model_copy(update={"injected": opened})]
        logits_of(model, ids_of(tokenizer, prompt + " 24, or 48 / 2 = 24"))
    decision = last_decision(model)
    assert decision is not None
    applied = (decision.injection.alpha > 0).tolist()
    as_learnt = (decision.injection.logits > 0).tolist()
    at = number_locator(model).results(ids_of(tokenizer, prompt + " 24, or 48 / 2 = 24")[0].tolist())
    places = decision.numbers.positions.tolist()
    assert places == list(at) and sum(place >= sign for place in places) > 3
    ends = max(place for place in places if place < sign + 4)
    for place, now, before in zip(places, applied, as_learnt, strict=True):
        assert now == (opened if sign <= place <= ends else before)


@given(st.decimals(-1000, 1000, places=2), st.text(max_size=5))
def test_another_value_has_the_same_form_and_no_digit_in_common(value: Decimal, text: str) -> None:
    calculation = Calculation(text, value, "")
    other = another_value(calculation)
    assert other == another_value(calculation)
    for a, b in zip(f"{value:f}", f"{other:f}", strict=True):
        assert (a == b) == (not a.isdigit()) and b != "0"


def test_an_adapter_keeps_its_values(tmp_path: Path) -> None:
    model, tokenizer = model_of("llama", "both")
    ani.save_adapter(model, tmp_path / "adapter")
    fresh = pair("llama")[0]
    ani.load_adapter(fresh, tokenizer, tmp_path / "adapter")
    ids = ids_of(tokenizer, TEXTS[1])
    assert torch.equal(logits_of(fresh, ids), logits_of(model, ids))


@pytest.mark.parametrize(
    "settings", [{"policy": "terminal", "values": "both"}, {"values": "results", "combine": "replace"}]
)
def test_values_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs combine='add', and beside literals a causal policy"):
        AniConfig(layer=1, **settings)


def test_a_gate_of_results_decides_about_no_number() -> None:
    from ani.evaluation.backend import TransformersBackend

    with pytest.raises(InputError, match="injects results of calculations alone"):
        TransformersBackend(*model_of("llama", "results")).decide_roles("Room 505")
