import copy
import json
import zipfile
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import pytest
from tokenizers import normalizers

import ani
from ani.evaluation.backend import TransformersBackend
from ani.evaluation.tasks.finer import NOMINAL_TAGS, Finer, FinerSentence, TaggedDecision, TaggedNumber
from tests.answers import answers_of
from tests.json_lines import write_lines
from tests.refusals import refused
from tests.tiny import attached, pair

TEXT = "The 7.00 % notes of $ 1,250 million are due in 2024 , under Note 8 ."
SENTENCES = [
    FinerSentence(TEXT, (TaggedNumber(4, 8, "Rate"), TaggedNumber(47, 51, "DebtInstrumentMaturityDate"))),
    FinerSentence("We have 2 segments .", (TaggedNumber(8, 9, "Segments"),)),
]


@pytest.mark.parametrize(("family", "policy"), [("qwen3", "terminal"), ("mistral", "terminal"), ("mistral", "after")])
def test_a_record_for_every_tagged_number(family: str, policy: str) -> None:
    model, tokenizer = attached(family, policy=policy)
    records = answers_of(Finer(), TransformersBackend(model, tokenizer), SENTENCES)
    assert [(r.value, r.tag, r.role) for r in records] == [
        ("7.00", "Rate", "quantitative"),
        ("2024", "DebtInstrumentMaturityDate", "nominal"),
        ("2", "Segments", "quantitative"),
    ]
    inspected = {d.text: d for d in ani.inspect(model, tokenizer, TEXT)}
    for record in records[:2]:
        assert TEXT[record.start : record.end] == record.value
        decision = inspected[record.value]
        assert (record.alpha, record.injected) == (decision.alpha, decision.injected)
        assert record.alpha is not None


def test_a_model_without_ani_is_refused() -> None:
    refused(lambda: answers_of(Finer(), TransformersBackend(*pair("qwen3")), SENTENCES), "no ANI module")


def test_a_sentence_whose_numbers_the_tokenizer_changes_is_left_out_and_counted() -> None:
    model, tokenizer = attached("mistral")
    rewritten = FinerSentence("It is 10² m in 2024", (TaggedNumber(6, 8, "Area"), TaggedNumber(15, 19, "Year")))
    answerer = TransformersBackend(model, copy.deepcopy(tokenizer))
    answerer.tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    alone, records = (answers_of(Finer(), answerer, asked) for asked in (SENTENCES, [rewritten, *SENTENCES]))
    assert [(r.value, r.rewritten) for r in records[:2]] == [(None, True)] * 2 and records[2:] == alone
    assert Finer.summary(records) == {**Finer.summary(alone), "sentences_left_out": 1}
    (table,), (of_others,) = Finer.tables(records), Finer.tables(alone)
    assert table.rows[:-1] == of_others.rows and table.rows[-1][1].text == "1"
    runs = [record.model_copy(update={"run": run}) for run, of in (("a", alone), ("b", records)) for record in of]
    (table,) = Finer.tables(runs)
    assert table.header == ("Measure", "a", "b") and [cell.text for cell in table.rows[-1][1:]] == ["0", "1"]


def test_summary() -> None:
    def record(text: str, role: Literal["nominal", "quantitative"], injected: bool) -> TaggedDecision:
        return TaggedDecision(text=text, tag="T", role=role, alpha=0.1, injected=injected)

    records = [
        *(record(text, "nominal", injected) for text, injected in [("a", False), ("a", False), ("b", True)]),
        *(record(text, "quantitative", injected) for text, injected in [("a", True), ("c", False)]),
    ]
    summary = Finer.summary(records)
    assert summary.pop("sentences_left_out") == 0
    counts = {name: (share["right"], share["total"]) for name, share in summary.items()}
    assert counts == {"nominal_bypassed": (2, 3), "quantitative_injected": (1, 2), "precision": (2, 3)}
    assert summary["nominal_bypassed"]["share"] == pytest.approx(2 / 3)
    assert Finer.summary([])["precision"]["share"] is None


# --- the sentences ---

MATURITY = "DebtInstrumentMaturityDate"
SENTENCE = "The 7.00 % notes of $ 1,250 million are due on March 15 , 2024 , under Note 8 ."
NOTES = {
    "id": 0,
    "tokens": SENTENCE.split(),
    "ner_tags": "O B-DebtInstrumentInterestRateStatedPercentage O O O O B-DebtInstrumentFaceAmount O O O O "
    f"B-{MATURITY} I-{MATURITY} I-{MATURITY} I-{MATURITY} O O O O O".split(),
}
PLAIN = {"tokens": ["Sales", "rose", "by", "12", "%", "."], "ner_tags": ["O"] * 6}
SEGMENTS = {"tokens": ["We", "have", "2", "segments"], "ner_tags": ["O", "O", "B-NumberOfReportableSegments", "O"]}
WORDS = {"tokens": ["We", "have", "two", "segments"], "ner_tags": ["O", "O", "B-NumberOfReportableSegments", "O"]}


def finer_sentences(source: Path, limit: int | None = None, seed: int = 0) -> list[FinerSentence]:
    return Finer(data=str(source), limit=limit).questions(seed)


def test_tagged_numbers_and_their_roles(tmp_path: Path) -> None:
    found = finer_sentences(write_lines(tmp_path / "f.jsonl", PLAIN, NOTES, WORDS, SEGMENTS))
    first, second = sorted(found, key=lambda sentence: -len(sentence.numbers))
    assert first.text == SENTENCE
    assert [(first.text[n.start : n.end], n.tag, n.role) for n in first.numbers] == [
        ("7.00", "DebtInstrumentInterestRateStatedPercentage", "quantitative"),
        ("1,250", "DebtInstrumentFaceAmount", "quantitative"),
        ("15", MATURITY, "nominal"),
        ("2024", MATURITY, "nominal"),
    ]
    assert second.numbers == (TaggedNumber(8, 9, "NumberOfReportableSegments"),)
    assert {MATURITY} == NOMINAL_TAGS


def test_limit_is_of_each_kind_and_the_seed_draws(tmp_path: Path) -> None:
    many = [
        {**record, "tokens": [*record["tokens"][:-1], f"word{i}"]} for record in (SEGMENTS, NOTES) for i in range(20)
    ]
    path = write_lines(tmp_path / "f.jsonl", *many)
    few, more, every = (finer_sentences(path, limit=limit) for limit in (3, 5, None))
    assert sorted(len(sentence.numbers) for sentence in few) == [1] * 3 + [4] * 3
    assert len(more) == 10 and len(every) == 40
    assert set(few) < set(more) and set(more) < set(every)
    assert few == finer_sentences(path, limit=3) != finer_sentences(path, limit=3, seed=1)


def test_the_zip_and_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "finer139.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("finer139/train.jsonl", json.dumps(SEGMENTS))
        file.writestr("finer139/test.jsonl", json.dumps(NOTES) + "\n\n" + json.dumps(SEGMENTS))
    assert sorted(len(sentence.numbers) for sentence in finer_sentences(archive)) == [1, 4]
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("finer139/train.jsonl", json.dumps(SEGMENTS))
    refused(lambda: finer_sentences(tmp_path / "other.zip"), "no test.jsonl, only finer139/train.jsonl")

    asked: list[Any] = []
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, **k: asked.append((a, k)) or str(archive))
    assert len(Finer(limit=1).questions(seed=0)) == 2
    assert asked == [(("nlpaueb/finer-139", "finer139.zip"), {"repo_type": "dataset"})]


def test_no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    refused(lambda: Finer().questions(seed=0), "nlpaueb/finer-139", "give its zip or a JSON-lines file")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (["a"], "expected an object"),
        ({"tokens": ["a"]}, "no 'ner_tags'"),
        ({"tokens": "a", "ner_tags": ["O"]}, "'tokens' must be a list of texts"),
        ({"tokens": ["8"], "ner_tags": [42]}, "the tags' names such as 'B-DebtInstrumentMaturityDate'"),
        ({"tokens": ["8", "9"], "ner_tags": ["O"]}, "2 tokens, but 1 tags"),
        ({"tokens": ["8"], "ner_tags": [MATURITY]}, "is no tag"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, record: Any, message: str) -> None:
    path = write_lines(tmp_path / "f.jsonl", SEGMENTS, record)
    assert refused(lambda: finer_sentences(path), message).startswith(f"{path}, line 2: ")


def test_bad_files(tmp_path: Path) -> None:
    untagged = write_lines(tmp_path / "f.jsonl", PLAIN, WORDS)
    refused(lambda: finer_sentences(untagged), "holds no sentence with a tagged number")
    refused(lambda: finer_sentences(tmp_path / "none.jsonl"), "does not exist")
    (tmp_path / "bad.zip").write_bytes(b"no zip")
    refused(lambda: finer_sentences(tmp_path / "bad.zip"), "can't be read as a zip")
    (tmp_path / "latin.jsonl").write_bytes(b'{"tokens": ["\xe9"]}')
    refused(lambda: finer_sentences(tmp_path / "latin.jsonl"), "not UTF-8")
