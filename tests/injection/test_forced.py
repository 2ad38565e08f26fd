"""`ForcedValues`: what is written where a value is pending is the value, whatever number the model prefers."""

import pytest
import torch

from ani.injection.forced import ForcedValues
from ani.injection.inspection import forced_gates
from tests.tiny import attached, pair


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


@pytest.mark.parametrize("opened", [True, False])
def test_a_gate_says_where(opened: bool) -> None:
    model, tokenizer = attached("llama", values="pending")
    texts = ["What is 123456 * 654321? It is", "3 - 10 ="]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    with forced_gates(model, opened):
        scores = model(**inputs).logits[:, -1].detach()
    scores[:, tokenizer.convert_tokens_to_ids("5")] = 99.0
    written = ForcedValues(tokenizer, model)(inputs["input_ids"], scores)
    expected = ForcedValues(tokenizer)(inputs["input_ids"], scores) if opened else scores
    assert torch.equal(written, expected) and torch.equal(written, scores) != opened
