import copy
from pathlib import Path

import pytest
from tokenizers import normalizers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import ani
from ani import InputError
from ani.data.diagnostic import diagnostic_sentences
from ani.evaluation.gating import decisions, evaluate_gating, inspection_record
from ani.models import load_model, load_tokenizer

TEXT = "Room 505 holds 1,234 people"


@pytest.fixture(scope="module")
def attached(tiny_model: Path, tiny_adapter: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    tokenizer = load_tokenizer(str(tiny_model))
    return ani.load_adapter(load_model(str(tiny_model), dtype="float32"), tokenizer, tiny_adapter), tokenizer


def test_a_record_for_every_number_with_its_role(
    attached: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = attached
    sentences = diagnostic_sentences(25, split="test")
    counted: list[int] = []
    records = list(evaluate_gating(model, tokenizer, sentences, counted.append))
    assert sum(counted) == len(sentences)
    expected = [(s, span, role) for s in sentences for span, role in zip(s.spans, s.roles, strict=True)]
    assert len(records) == len(expected)
    for record, (sentence, (start, end), role) in zip(records, expected, strict=True):
        assert record["text"] == sentence.text
        assert (record["start"], record["end"]) == (start, end)
        assert (record["role"], record["domain"]) == (role, sentence.domain)
        assert record["alpha"] is not None and 0 <= record["alpha"] <= 1
        assert record["injected"] is (record["alpha"] > 0.5)
    assert {record["injected"] for record in records} == {True, False}


def test_the_records_are_what_inspect_says(attached: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    model, tokenizer = attached
    record = inspection_record(model, tokenizer, TEXT)
    assert record["text"] == TEXT
    assert [number["text"] for number in record["numbers"]] == ["505", "1,234"]
    assert [number["value"] for number in record["numbers"]] == ["505", "1234"]
    for number, decision in zip(record["numbers"], ani.inspect(model, tokenizer, TEXT), strict=True):
        assert TEXT[number["start"] : number["end"]] == number["text"] == decision.text
        assert (number["alpha"], number["injected"]) == (decision.alpha, decision.injected)
    assert inspection_record(model, tokenizer, "No number") == {"text": "No number", "numbers": []}


def test_a_tokenizer_that_changes_numbers_is_refused(
    attached: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = attached[0], copy.deepcopy(attached[1])
    assert [decision.value for decision in decisions(model, tokenizer, "It is 10² m, or 5")] == [10, 5]
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    assert [decision.value for decision in decisions(model, tokenizer, "It is 10 m")] == [10]
    with pytest.raises(InputError, match=r"turns the numbers \['10', '5'\] .* into \['102', '5'\]"):
        decisions(model, tokenizer, "It is 10² m, or 5")


def test_a_number_that_is_left_alone_has_no_alpha(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    model = load_model(str(tiny_model), dtype="float32")
    ani.attach(model, tokenizer, ani.AniConfig(layer=1, integer_digits=3, overflow="skip"))
    small, large = inspection_record(model, tokenizer, TEXT)["numbers"]
    assert small["alpha"] == 0.5
    assert (large["alpha"], large["injected"]) == (None, False)


def test_a_model_without_ani_is_refused(tiny_model: Path) -> None:
    model = load_model(str(tiny_model), dtype="float32")
    with pytest.raises(InputError, match="no ANI module"):
        list(evaluate_gating(model, load_tokenizer(str(tiny_model)), diagnostic_sentences(1, split="test")))
