import copy
import json
import zipfile
from pathlib import Path
from typing import Any, cast

import huggingface_hub
import pytest
import torch
from tokenizers import normalizers

import ani
from ani.chat import rendered
from ani.evaluation.engines import TransformersEngine, check_numbers
from ani.evaluation.tasks.gates import NOMINAL_TAGS, Gates, GateText, Label, gate_shares, read_texts
from ani.injection.model_parts import last_decision
from ani.models import load_model, load_tokenizer
from tests import tiny
from tests.answers import answers_of
from tests.json_lines import write_lines
from tests.refusals import refused

ROWS = Path(__file__).parents[2] / "rows"
"""Rows of our own in the form of the data sets."""
TEXT = "Room 505 holds 1,234 people"
LABELLED = GateText(TEXT, "diagnostic", "rooms", (Label("nominal"), Label("quantitative")))
MATURITY = "DebtInstrumentMaturityDate"


def read(*texts: object, seed: int = 0, **settings: Any) -> list[GateText]:
    return Gates(texts=[*map(str, texts)], **settings).questions(seed)


@pytest.fixture(scope="module")
def attached(tiny_model: Path, tiny_adapter: Path) -> TransformersEngine:
    tokenizer = load_tokenizer(str(tiny_model))
    return TransformersEngine(
        ani.load_adapter(load_model(str(tiny_model), dtype="float32"), tokenizer, tiny_adapter), tokenizer
    )


@pytest.mark.parametrize(("family", "policy"), [("gemma", "terminal"), ("gemma", "running"), ("qwen3", "after")])
def test_a_batch_decides_as_each_text_by_itself(family: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny.attached(family, policy=policy)
    texts = [
        "No number",
        tiny.MIXED_TEXT,
        "5",
        TEXT,
        "",
        *(each.text for each in Gates(limit=9).questions(seed=0)),
        TEXT,
    ]
    passes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda *given: passes.append(given[-1]["input_ids"].shape), with_kwargs=True)
    alone = [ani.inspect(model, tokenizer, text) for text in texts]
    assert len(passes) == len(texts) - 2  # none without a number
    passes.clear()
    engine = TransformersEngine(model, tokenizer, batch_size=4)
    for found, text, expected in zip(engine.decide(texts), texts, alone, strict=True):
        assert [each.model_copy(update={"alpha": None}) for each in found] == [
            each.model_copy(update={"alpha": None}) for each in expected
        ], text
        assert [each.alpha for each in found] == pytest.approx([each.alpha for each in expected], abs=1e-5)
    assert max(rows for rows, _ in passes) == 4 and len(passes) == 4


def test_texts_may_be_a_users_messages(attached: TransformersEngine) -> None:
    before = [{"role": "user", "content": "Room 7?"}, {"role": "assistant", "content": "8"}]
    for messages in ([], before):
        chat = rendered(attached.tokenizer, [*messages, {"role": "user", "content": TEXT}])
        first = chat.rindex(TEXT)
        whole = ani.inspect(cast(Any, attached.model), attached.tokenizer, chat, around=("", ""))
        expected = [(each.start - first, each.alpha) for each in whole if first <= each.start < first + len(TEXT)]
        (found,) = attached.decide([TEXT], messages)
        assert [(each.start, each.alpha) for each in found] == expected and len(expected) == 2
        assert [found] != attached.decide([TEXT])
    for labelled in (LABELLED, LABELLED._replace(labels=None)):
        (record,) = answers_of(Gates(chat=True), attached, [labelled])
        alphas = [number.alpha for number in record.numbers]
        assert alphas == [number.alpha for number in attached.decide([TEXT], [])[0]]
        assert alphas != [number.alpha for number in attached.decide([TEXT])[0]]


@pytest.mark.parametrize("policy", ["terminal", "after"])
def test_a_record_for_every_text_with_the_roles_that_are_known(attached: TransformersEngine, policy: str) -> None:
    if policy == "after":
        attached = TransformersEngine(*tiny.attached("llama", policy=policy))
    task = Gates(limit=25)
    texts = [*task.questions(seed=0), GateText(TEXT, "own"), GateText("No number", "own")]
    records = answers_of(task, attached, texts)
    assert len(texts) == len(records) == 27
    for record, (text, source, group, labels) in zip(records, texts, strict=True):
        assert (record.text, record.source, record.group, record.rewritten) == (text, source, group, False)
        ids = attached.tokenizer(text)["input_ids"] + [attached.tokenizer.eos_token_id] * (policy == "after")
        with torch.no_grad():
            attached.model(input_ids=torch.tensor([ids]))
        decision = last_decision(attached.model)
        alphas = [] if decision is None else decision.injection.logits.sigmoid().tolist()
        assert [number.alpha for number in record.numbers] == pytest.approx(alphas, abs=1e-5)
        assert [number.injected for number in record.numbers] == [alpha > 0.5 for alpha in alphas]
        roles = [None] * len(alphas) if labels is None else [label.role for label in labels if label]
        assert [number.role for number in record.numbers] == roles
    assert {number.injected for record in records for number in record.numbers} == {True, False}
    (sentence, empty) = records[-2:]
    assert [(number.text, number.value) for number in sentence.numbers] == [("505", 505), ("1,234", 1234)]
    assert empty.numbers == () and {record.source for record in records[:-2]} == {"diagnostic"}


def test_a_text_whose_numbers_the_tokenizer_changes_is_left_out_and_counted(attached: TransformersEngine) -> None:
    changing = TransformersEngine(attached.model, copy.deepcopy(attached.tokenizer), batch_size=1)
    text = "It is 10² m, or 5"
    assert [decision.value for decision in changing.decide([text])[0]] == [10, 5]
    changing.tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    refused(lambda: check_numbers(text, changing.decide([text])[0]), "['10', '5']", "['102', '5']")
    rewritten = GateText(text, "diagnostic", "areas", (Label("nominal"), None))
    alone, records = (answers_of(Gates(), changing, asked) for asked in ([LABELLED], [rewritten, LABELLED]))
    assert records[1:] == alone and (records[0].rewritten, records[0].numbers) == (True, ())
    of_others, whole = gate_shares(alone)[0], gate_shares(records)[0]
    assert whole._replace(left_out=0) == of_others and whole.left_out == 1
    (table,) = Gates.tables(records)
    assert [row[1].text for row in table.rows[:2]] == ["1", "1"]


def test_a_number_that_is_left_alone_has_no_alpha_and_a_model_without_ani_is_refused(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    model = load_model(str(tiny_model), dtype="float32")
    ani.attach(model, tokenizer, ani.AniConfig(layer=1, policy="terminal", integer_digits=3, overflow="skip"))
    ((small, large),) = TransformersEngine(model, tokenizer).decide([TEXT])
    assert small.alpha == 0.5
    assert (large.alpha, large.injected) == (None, False)
    engine = TransformersEngine(ani.detach(model), tokenizer)
    for text in (LABELLED, GateText(TEXT, "notes")):
        refused(lambda text=text: answers_of(Gates(), engine, [text]), "no ANI module")


def test_records_with_fields_and_groups(tmp_path: Path) -> None:
    records = [{"question": f"Q{i}?", "choices": ["x", str(i)], "subject": f"s{i % 2}"} for i in range(20)]
    path = write_lines(tmp_path / "mmlu.jsonl", *records)
    by: dict[str, Any] = {"field": ["question", "choices"], "group": "subject"}
    texts = read(path, **by)
    assert texts[:2] == [GateText("Q0?\nx\n0", "mmlu", "s0"), GateText("Q1?\nx\n1", "mmlu", "s1")] and len(texts) == 20
    assert read(path, field=["question"])[3] == GateText("Q3?", "mmlu")
    few = read(path, limit=5, **by)
    assert set(few) < set(texts) and few != texts[:5]
    assert read(path, limit=9, **by)[:5] == few != read(path, limit=5, seed=1, **by)
    refused(lambda: read(path), "line 1: no text under 'text'; it has 'question', 'choices', 'subject'")


def test_lines_of_a_text_file_and_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("\ufeffRoom 505\n\n  It holds 10\u2028people. \nEnd", encoding="utf-8")
    assert [text.text for text in read(path)] == ["Room 505", "  It holds 10\u2028people. ", "End"]
    assert {text[1:] for text in read(path)} == {("notes", None, None)}
    refused(lambda: read(path, write_lines(tmp_path / "notes.jsonl", {"text": "3"})), "'notes'")
    for content in (b"\n\n", b"caf\xe9 12"):
        path.write_bytes(content)
        refused(lambda: read(path), "notes.txt")


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


def finer(source: Path, **settings: Any) -> list[GateText]:
    return read(f"finer={source}", **settings)


def test_tagged_numbers_and_their_roles(tmp_path: Path) -> None:
    found = finer(write_lines(tmp_path / "f.jsonl", PLAIN, NOTES, WORDS, SEGMENTS))
    first, second = sorted(found, key=lambda text: -len(text.text))
    assert first == GateText(
        SENTENCE,
        "finer",
        None,
        (
            Label("quantitative", "DebtInstrumentInterestRateStatedPercentage"),
            Label("quantitative", "DebtInstrumentFaceAmount"),
            Label("nominal", MATURITY),
            Label("nominal", MATURITY),
            None,
        ),
    )
    assert second.labels == (Label("quantitative", "NumberOfReportableSegments"),)
    assert {MATURITY} == NOMINAL_TAGS


def test_limit_is_of_each_kind_and_the_seed_draws(tmp_path: Path) -> None:
    many = [
        {**record, "tokens": [*record["tokens"][:-1], f"word{i}"]} for record in (SEGMENTS, NOTES) for i in range(20)
    ]
    path = write_lines(tmp_path / "f.jsonl", *many)
    few, more, every = (finer(path, limit=limit) for limit in (3, 5, None))
    assert sorted(len(sentence.labels or ()) for sentence in few) == [2] * 3 + [6] * 3  # and the word's
    assert len(more) == 10 and len(every) == 40
    assert set(few) < set(more) and set(more) < set(every)
    assert few == finer(path, limit=3) != finer(path, limit=3, seed=1)


def test_the_zip_and_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "finer139.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("finer139/train.jsonl", json.dumps(SEGMENTS))
        file.writestr("finer139/test.jsonl", json.dumps(NOTES) + "\n\n" + json.dumps(SEGMENTS))
    assert sorted(len(sentence.labels or ()) for sentence in finer(archive)) == [1, 5]
    asked: list[Any] = []
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, **k: asked.append((a, k)) or str(archive))
    assert len(read("finer", limit=1)) == 2
    assert asked == [(("nlpaueb/finer-139", "finer139.zip"), {"repo_type": "dataset"})]


def test_records_of_ones_own_may_have_roles(tmp_path: Path) -> None:
    of_one = {"text": "Gate 7 holds 30 of 40", "roles": ["nominal", None, "quantitative"], "from": "log"}
    path = write_lines(tmp_path / "own.jsonl", of_one, {"text": "Room 5", "roles": "nominal", "from": "door"})
    (gate, room) = read_texts(str(path), ["text"], "from", None, 0)
    assert gate == GateText(of_one["text"], "own", "log", (Label("nominal"), None, Label("quantitative")))
    assert room == GateText("Room 5", "own", "door", (Label("nominal"),))
    wrong = write_lines(tmp_path / "wrong.jsonl", {"text": "Room 5", "roles": ["nominal", "nominal"]})
    refused(lambda: read_texts(str(wrong), ["text"], None, None, 0), f"{wrong}, line 1: 'roles' names 2 numbers")


def test_bad_files_of_finer_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for record, named in (
        (["a"], "'tokens'"),
        ({"tokens": ["8"], "ner_tags": [42]}, "ner_tags.0"),
        ({"tokens": ["8", "9"], "ner_tags": ["O"]}, "2"),
        ({"tokens": ["8"], "ner_tags": [MATURITY]}, "ner_tags.0"),
    ):
        path = write_lines(tmp_path / "f.jsonl", SEGMENTS, record)
        refused(lambda path=path: finer(path), f"{path}, line 2", named)
    (tmp_path / "bad.zip").write_bytes(b"no zip")
    for path in (write_lines(tmp_path / "f.jsonl", PLAIN, WORDS), tmp_path / "bad.zip"):
        refused(lambda path=path: finer(path), path.name)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    refused(lambda: read("finer"), "nlpaueb/finer-139")
