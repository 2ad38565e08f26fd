"""`ForcedResults`: what is written after a calculation is its exact result, whatever the model prefers."""

import re
from decimal import Decimal
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessorList

from ani import InputError
from ani.injection.forced import ForcedResults, ForcedValues
from ani.numbers.calculations import number_behind, remainder
from tests.properties import examples
from tests.tiny import FAMILIES, pair
from tests.tokenizers import ALL, llama3

TEXTS = {
    "The area: 123456 * 654321 =": "80779853376",
    "3 - 10 =": "-7",
    "$23.50 + $188.75 + $7 =": "219.25",
    "1 / 8 =": "0.125",
    "999 + 24 = 1,0": "1023",
    "half of 48 / 2 =": None,  # which may be 12
    "No calculation, 505": None,
}


def generated(family: str, texts: list[str], processors: list[Any], **settings: Any) -> list[str]:
    model, tokenizer = pair(family)
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    ids = model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        do_sample=False,
        eos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        **{"max_new_tokens": 24, "logits_processor": LogitsProcessorList(processors), **settings},
    )
    return [str(text) for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_written_in_batches_and_elsewhere_nothing_changes(family: str) -> None:
    """Random models never end a text: what follows the result must not go on with it, whatever they choose."""
    forced = [ForcedResults(pair(family)[1])]
    texts = list(TEXTS)
    outputs = generated(family, texts, forced)
    plain = generated(family, texts, [])
    for text, output, free in zip(texts, outputs, plain, strict=True):
        if (result := TEXTS[text]) is None:
            assert output == free
            continue
        behind = output[text.index("=") + 1 :]
        assert number_behind(behind) == Decimal(result), behind
        assert output != free
    assert generated(family, texts[:1], forced) == outputs[:1]
    beams = generated(family, texts[:1], forced, num_beams=3)
    assert number_behind(beams[0].split("=")[1]) == Decimal(80779853376)


@pytest.mark.parametrize("name", ["qwen", "llama3", "smollm2"])
def test_allowed_are_all_tokens_that_go_on_with_the_result(name: str) -> None:
    """Against the whole vocabulary, text by text."""
    tokenizer = ALL[name]()
    forced = ForcedResults(tokenizer)
    vocabulary = sorted(tokenizer.get_vocab().values())
    scores = torch.zeros(1, max(vocabulary) + 1)
    texts = {token: forced.scanner.text([token]) for token in vocabulary if token not in tokenizer.all_special_ids}
    writings = {
        token: text for token, text in texts.items() if text and not set(text) - set(" \t\xa0$€£+-−.,0123456789")
    }

    @examples(8)
    @given(
        st.sampled_from(["12 * 85 =", "3 - 1500 =", "1 / 8 =", "$2.50 * 3 =", "1234567 * 3 =", "5 - 5.5 =", "0 * 5 ="]),
        st.integers(0, 12),
        st.sampled_from(["", " ", "  ", " $"]),
    )
    def check(text: str, digits: int, before: str) -> None:
        begun = remainder(text)
        assert begun is not None
        text += before + begun.upcoming[:digits]
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = forced(torch.tensor([ids]), scores.clone())[0]
        allowed = {token for token, score in enumerate(found.tolist()) if score == 0}
        assert scores.eq(0).all()
        rest = remainder(text)
        if rest is None:
            assert len(allowed) == scores.shape[1]
        elif rest.upcoming:
            assert allowed == {token for token, more in writings.items() if remainder(text + more) is not None}
        else:
            refused = {token for token, more in texts.items() if re.match(r"[.,]?[0-9]", more, re.ASCII)}
            assert allowed == set(range(scores.shape[1])) - refused

    check()


def test_a_point_that_ends_a_sentence_stays_one() -> None:
    tokenizer = llama3()
    forced = ForcedResults(tokenizer)
    for text, open_ in (("6 * 4 = 24.", False), ("6 * 4 = 24,", False), ("So 24.", True), ("6 * 4 = 2.", True)):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        scores = forced(ids, torch.zeros(1, len(tokenizer)))[0]
        digit, word = (tokenizer.encode(each, add_special_tokens=False)[0] for each in ("5", " apples"))
        assert (scores[digit] == 0) == open_ and scores[word] == 0, text


def test_a_tokenizer_that_cannot_write_results_is_refused() -> None:
    tokenizer = llama3()
    vocabulary = {k: v for k, v in tokenizer.get_vocab().items() if k != "8"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "get_vocab", lambda: vocabulary)
        with pytest.raises(InputError, match="has no token '8': results can't be written in it"):
            ForcedResults(tokenizer)


@pytest.mark.parametrize("family", ["qwen3", "llama", "mistral"])
@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("What is 123456 * 654321? It is", "80779853376"),
        ("3 - 10 =", "-7"),
        ("1 / 3 = 0.", "33333"),
        ("No sum, 505. It is", None),
    ],
)
def test_pending_values_are_written_where_the_model_begins_a_number(family: str, text: str, due: str | None) -> None:
    model, tokenizer = pair(family)
    forced = ForcedValues(tokenizer)
    digit, word = (tokenizer(each, add_special_tokens=False)["input_ids"][-1] for each in ("5", " word"))

    def preferring(token: int) -> torch.Tensor:
        scores = torch.zeros(1, model.config.vocab_size)
        scores[0, token] = 9.0
        return scores

    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert torch.equal(forced(ids, preferring(word)), preferring(word))
    if due is None:
        assert torch.equal(forced(ids, preferring(digit)), preferring(digit))
        return
    written = ""
    while len(written) < len(due):
        ids = torch.cat([ids, forced(ids, preferring(digit)).argmax(-1, keepdim=True)], dim=1)
        written = forced.locator.scanner.text(ids[0].tolist()).rpartition(text)[2].strip()
    assert written == due
    if text.endswith("="):
        assert forced(ids, preferring(digit))[0, digit] == -torch.inf
