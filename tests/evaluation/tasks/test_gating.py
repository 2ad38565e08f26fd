import copy
from pathlib import Path
from typing import Any, cast

import pytest
from tokenizers import normalizers

import ani
from ani.chat import rendered
from ani.evaluation.backend import TransformersBackend
from ani.evaluation.tasks.gating import Gating
from ani.evaluation.tasks.inspected import Inspected
from ani.models import load_model, load_tokenizer
from tests import tiny
from tests.answers import answers_of
from tests.refusals import refused

TEXT = "Room 505 holds 1,234 people"


@pytest.fixture(scope="module")
def attached(tiny_model: Path, tiny_adapter: Path) -> TransformersBackend:
    tokenizer = load_tokenizer(str(tiny_model))
    return TransformersBackend(
        ani.load_adapter(load_model(str(tiny_model), dtype="float32"), tokenizer, tiny_adapter), tokenizer
    )


@pytest.mark.parametrize("policy", ["terminal", "after"])
def test_the_decision_is_the_one_where_the_policy_injects(policy: str) -> None:
    answerer = TransformersBackend(*tiny.attached("qwen3", policy=policy))

    def alpha(text: str) -> float | None:
        return answerer.decide_roles(text)[0].alpha

    assert alpha("Room 505 holds ten") == pytest.approx(alpha("Room 505 holds"), abs=1e-5)
    # Only `after` has read a token behind the number, the end of the text included.
    same = [alpha("Room 505 holds") == pytest.approx(alpha(text), abs=1e-5) for text in ("Room 505 people", "Room 505")]
    assert same == [policy == "terminal"] * 2


def test_texts_may_be_a_users_messages(attached: TransformersBackend) -> None:
    before = [{"role": "user", "content": "Room 7?"}, {"role": "assistant", "content": "8"}]
    for messages in ([], before):
        chat = rendered(attached.tokenizer, [*messages, {"role": "user", "content": TEXT}])
        first = chat.rindex(TEXT)
        whole = ani.inspect(cast(Any, attached.model), attached.tokenizer, chat, around=("", ""))
        expected = [(each.start - first, each.alpha) for each in whole if first <= each.start < first + len(TEXT)]
        found = attached.decide_roles(TEXT, messages)
        assert [(each.start, each.alpha) for each in found] == expected and len(expected) == 2
        assert found != attached.decide_roles(TEXT)
    task = Gating(count=25, chat=True)
    sentences = task.questions(seed=0)
    alphas = [record.alpha for record in answers_of(task, attached, sentences)]
    assert alphas == [number.alpha for each in sentences for number in attached.decide_roles(each.text, [])]
    assert alphas != [number.alpha for each in sentences for number in attached.decide_roles(each.text)]


@pytest.mark.parametrize("policy", ["terminal", "after"])
def test_a_record_for_every_number_with_its_role(attached: TransformersBackend, policy: str) -> None:
    if policy == "after":
        attached = TransformersBackend(*tiny.attached("llama", policy=policy))
    task = Gating(count=25)
    sentences = task.questions(seed=0)
    records = answers_of(task, attached, sentences)
    assert len(sentences) == 25
    expected = [(s, span, role) for s in sentences for span, role in zip(s.spans, s.roles, strict=True)]
    assert len(records) == len(expected)
    for record, (sentence, (start, end), role) in zip(records, expected, strict=True):
        assert (record.text, record.start, record.end) == (sentence.text, start, end)
        assert (record.role, record.domain) == (role, sentence.domain)
        assert record.alpha is not None and 0 <= record.alpha <= 1
        assert record.injected is (record.alpha > 0.5)
    assert {record.injected for record in records} == {True, False}


def test_what_is_inspected_is_what_inspect_says(attached: TransformersBackend) -> None:
    task = Inspected(texts=[TEXT, "No number"])
    record, empty = answers_of(task, attached, task.questions(seed=0))
    assert record.text == TEXT
    assert [(number.text, number.value) for number in record.numbers] == [("505", 505), ("1,234", 1234)]
    for number, decision in zip(record.numbers, ani.inspect(attached.model, attached.tokenizer, TEXT), strict=True):
        assert TEXT[number.start : number.end] == number.text == decision.text
        assert (number.alpha, number.injected) == (decision.alpha, decision.injected)
    assert (empty.text, empty.numbers) == ("No number", ())
    assert Inspected.summary([record])[0]["numbers"][1]["value"] == "1234"


def test_a_tokenizer_that_changes_numbers_is_refused(attached: TransformersBackend) -> None:
    changing = TransformersBackend(attached.model, copy.deepcopy(attached.tokenizer))
    assert [decision.value for decision in changing.decide_roles("It is 10² m, or 5")] == [10, 5]
    changing.tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    assert [decision.value for decision in changing.decide_roles("It is 10 m")] == [10]
    turned = "turns the numbers ['10', '5'] … into ['102', '5']"
    refused(lambda: changing.decide_roles("It is 10² m, or 5"), turned)


def test_a_number_that_is_left_alone_has_no_alpha_and_a_model_without_ani_is_refused(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    model = load_model(str(tiny_model), dtype="float32")
    ani.attach(model, tokenizer, ani.AniConfig(layer=1, policy="terminal", integer_digits=3, overflow="skip"))
    small, large = TransformersBackend(model, tokenizer).decide(TEXT)
    assert small.alpha == 0.5
    assert (large.alpha, large.injected) == (None, False)
    answerer = TransformersBackend(ani.detach(model), tokenizer)
    refused(lambda: answers_of(Gating(), answerer, Gating(count=1).questions(0)), "no ANI module")
