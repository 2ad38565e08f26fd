from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.diagnostic import diagnostic_sentences
from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks import language
from ani.evaluation.tasks.language import Language, LanguageText, TextLoss
from ani.injection.methods import METHODS, Method
from ani.numbers import find_numbers
from tests.answers import answers_of
from tests.json_lines import write_lines
from tests.refusals import refused
from tests.tiny import MIXED_TEXT, attached, encode, logits_of, pair

NO_NUMBERS = "How many dollars did the seven shops earn in all?"
NUMBERS = "Room 505 holds -7 or 3D: 1,234 €uros <|im_end|>12"
EARLIER = "Room 12 was free"
# Which tokens count, by hand: not the number's own, the one after it, the first one, or a special one.
WORDS = {
    "qwen3": ([1, 9, 12, 13, 20, 21], ["Ġ", "Ġ", ":", "Ġ", "uros", "Ġ"]),
    # To Mistral <|im_end|> is text.
    "mistral": ([1, 9, 12, 13, *range(20, 28)], ["▁", "▁", ":", "▁", "uros", "▁<", "|", "im", "_", "end", "|", ">"]),
}


def texts_of(*texts: str) -> list[LanguageText]:
    return [LanguageText("nominal" if find_numbers(text) else "plain", text) for text in texts]


def scored(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[LanguageText],
    method: Method = METHODS["ani"],
) -> list[TextLoss]:
    return answers_of(Language(texts="", count=1), TransformersEngine(model, tokenizer, method), texts)


def language_texts(source: str, field: str, count: int, seed: int) -> list[LanguageText]:
    return Language(texts=source, field=field, count=count).questions(seed)


def loss_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, positions: Sequence[int]) -> float:
    """The loss at positions of a text, from the logits of the text alone, in float64."""
    ids = encode(tokenizer, text)
    logs = logits_of(model, ids)[0].double().log_softmax(dim=-1)
    return -sum(float(logs[t - 1, ids[0, t]]) for t in positions)


def test_without_numbers_it_is_the_loss_of_transformers() -> None:
    model, tokenizer = pair("gemma")
    (record,) = scored(model, tokenizer, texts_of(NO_NUMBERS))
    ids = encode(tokenizer, NO_NUMBERS)
    with torch.inference_mode():
        mean = model(input_ids=ids, labels=ids).loss.item()
    assert record.kind == "plain" and record.text == NO_NUMBERS
    assert record.tokens == ids.shape[1] - 1 > 8
    assert record.loss == pytest.approx(mean * record.tokens, rel=1e-5)


@pytest.mark.parametrize("family", WORDS)
def test_word_tokens_around_numbers(family: str) -> None:
    model, tokenizer = pair(family)
    positions, names = WORDS[family]
    found = tokenizer.convert_ids_to_tokens(tokenizer(NUMBERS)["input_ids"])
    assert [found[t] for t in positions] == names
    (record,) = scored(model, tokenizer, texts_of(NUMBERS))
    assert record.tokens == len(positions)
    assert record.loss == pytest.approx(loss_of(model, tokenizer, NUMBERS, positions), rel=1e-5)


@pytest.mark.parametrize("family", ["mistral"])  # padded left by default
@pytest.mark.parametrize(
    "config",
    [{}, {"layer": 0, "gate": "open", "combine": "substitute"}, {"policy": "digitwise", "gate": "open"}],
    ids=["ani", "substitute", "digitwise"],
)
def test_a_batch_gives_what_each_text_gives_alone(
    family: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "BATCH_SIZE", 4)
    model, tokenizer = attached(family, **config)
    texts = texts_of(MIXED_TEXT, "42", NO_NUMBERS, NUMBERS, "7 ", EARLIER)
    records = scored(model, tokenizer, texts)
    assert [record.text for record in records] == [MIXED_TEXT, NO_NUMBERS, NUMBERS, EARLIER]
    alone = [record for text in texts for record in scored(model, tokenizer, [text])]
    assert [record.tokens for record in records] == [record.tokens for record in alone]
    assert [record.loss for record in records] == pytest.approx([record.loss for record in alone], rel=1e-5)
    base, _ = pair(family)
    plain, nominal = (scored(base, tokenizer, [texts[i]])[0].loss for i in (2, 0))
    assert plain == alone[1].loss and abs(nominal - alone[0].loss) > 0.01


GOOD = [f"{name} walked home slowly through the rain that evening" for name in ("Ann", "Bob", "Cid", "Dan", "Eve")]
BAD = ["too few words", "a text of eight words with the number 5", "word " * 8 + "x" * 1000, ""]


def write(path: Path, records: Sequence[Any]) -> str:
    return str(write_lines(path, *records))


def test_plain_texts_and_nominal_sentences(tmp_path: Path) -> None:
    source = write(tmp_path / "texts.jsonl", [{"body": text} for text in (*BAD, *GOOD, *GOOD)])
    texts = language_texts(source, "body", 5, seed=3)
    assert [text.kind for text in texts] == ["plain"] * 5 + ["nominal"] * 5
    assert sorted(text.text for text in texts[:5]) == GOOD
    assert language_texts(source, "body", 2, seed=3) == texts[:2] + texts[5:7]
    orders = {tuple(language_texts(source, "body", 5, seed=seed)) for seed in range(4)}
    assert len(orders) == 4


def test_nominal_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    roles = {sentence.text: set(sentence.roles) for sentence in diagnostic_sentences(400, split="test", seed=5)}
    sentences = [text.text for text in Language(count=60).questions(seed=5)]
    assert len(set(sentences)) == 60
    for sentence in sentences:
        assert roles[sentence] == {"nominal"}
        assert len(sentence[find_numbers(sentence)[0].end :].split()) >= 5
    # The first sentences drawn may contain none.
    assert all(len(Language(count=1).questions(seed)) == 1 for seed in range(4))
    monkeypatch.setattr(language, "sentence_limit", lambda split: 60)
    refused(lambda: Language(count=60).questions(seed=5), "60")


def test_bad_sources_are_named(tmp_path: Path) -> None:
    for records, named in (([{"text": GOOD[0]}, {"text": None}], "line 2…'text'"), ([{"text": GOOD[0]}], "1 …6")):
        source = write(tmp_path / "texts.jsonl", records)
        refused(lambda source=source: language_texts(source, "text", 6, seed=0), named)


def test_numbers_written_in_another_way() -> None:
    counted = "Room 2:12 was free"
    model, tokenizer = pair("qwen3")
    found = tokenizer.convert_ids_to_tokens(tokenizer(counted)["input_ids"])
    assert [name.strip("Ġ▁") for name in found] == ["Room", "", "2", ":", "1", "2", "was", "free"]
    (before,), (rewritten,) = (
        scored(model, tokenizer, texts_of(EARLIER), method=METHODS[name]) for name in ("sft", "numerologic")
    )
    assert before.tokens == rewritten.tokens == 2
    assert rewritten.text == EARLIER
    assert rewritten.loss == pytest.approx(loss_of(model, tokenizer, counted, [1, 7]), rel=1e-5)
    assert before.loss == pytest.approx(loss_of(model, tokenizer, EARLIER, [1, 5]), rel=1e-5)
