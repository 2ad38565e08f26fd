"""The contrastive set: minimal pairs, held-out splits, and that nothing around the number gives its role away."""

import re
from collections import Counter, defaultdict
from decimal import Decimal
from importlib import resources
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from ani.data.contrastive import PAIRS_PER_FRAME, contrastive_sentences
from ani.data.diagnostic import DiagnosticSentence, value_split
from ani.data.split import Split
from ani.numbers import find_numbers
from tests.properties import examples
from tests.refusals import refused

DOCUMENT = resources.files("ani.data").joinpath("contrastive_pairs.yaml").read_text("utf-8")
DOMAINS: dict[str, dict[str, list[str]]] = yaml.safe_load(DOCUMENT)
SPLITS: tuple[Split, ...] = ("train", "test")
SHARED_WORDS = 5  # right before the number, at least
COUNT = 2000  # every frame several times


Sentences = dict[Split | None, list[DiagnosticSentence]]


@pytest.fixture(scope="module")
def sentences() -> Sentences:
    return {split: contrastive_sentences(COUNT, split=split) for split in (*SPLITS, None)}


def number(sentence: DiagnosticSentence) -> str:
    ((start, end),) = sentence.spans
    return sentence.text[start:end]


def value(sentence: DiagnosticSentence) -> Decimal:
    return Decimal(number(sentence).replace(",", ""))


def test_the_set_is_as_large_as_it_is_said_to_be() -> None:
    frames = [frame for splits in DOMAINS.values() for texts in splits.values() for frame in texts]
    assert len(DOMAINS) >= 20
    assert len(frames) >= 300
    assert sum("train" not in splits for splits in DOMAINS.values()) >= 4
    assert len({sentence.text for sentence in contrastive_sentences(20_000, split="train")}) == 20_000


@pytest.mark.parametrize("split", [*SPLITS, None])
def test_a_pair_differs_only_before_the_shared_words(sentences: Sentences, split: Split | None) -> None:
    for name, quantity in zip(sentences[split][::2], sentences[split][1::2], strict=True):
        assert (name.roles, quantity.roles) == (("nominal",), ("quantitative",))
        assert number(name) == number(quantity)
        assert name.template == quantity.template
        assert name.text != quantity.text
        before, after = zip(
            *((s.text[: s.spans[0][0]].split(), s.text[s.spans[0][1] :]) for s in (name, quantity)), strict=True
        )
        assert before[0][-SHARED_WORDS + 1 :] == before[1][-SHARED_WORDS + 1 :]
        assert after[0] == after[1]
        # Independent of the module: the frame with one wording and the number is the sentence.
        for sentence, wording in ((name, r"\1"), (quantity, r"\2")):
            text = re.sub(r"\[([^|]*)\|([^]]*)\]", wording, sentence.template)
            assert re.sub(r"\{[^}]*\}", number(sentence), text) == sentence.text
            assert [(n.start, n.end) for n in find_numbers(sentence.text)] == list(sentence.spans)


def test_splits_share_no_frame_and_no_value(sentences: Sentences) -> None:
    train, test = sentences["train"], sentences["test"]
    assert not {s.template for s in train} & {s.template for s in test}
    assert not {value(s) for s in train} & {value(s) for s in test}
    assert {s.domain for s in test} - {s.domain for s in train} == {d for d, s in DOMAINS.items() if "train" not in s}
    assert {s.template for s in train} == {f for s in DOMAINS.values() for f in s.get("train", [])}


def test_without_a_split_every_frame_has_values_of_both(sentences: Sentences) -> None:
    splits_of_frame = defaultdict(set)
    for sentence in sentences[None]:
        splits_of_frame[sentence.template].add(value_split(value(sentence)))
    assert len(splits_of_frame) == len({f for s in DOMAINS.values() for texts in s.values() for f in texts})
    assert all(splits == set(SPLITS) for splits in splits_of_frame.values())


def test_no_frame_dominates(sentences: Sentences) -> None:
    for split in SPLITS:
        counts = Counter(sentence.template for sentence in sentences[split])
        assert max(counts.values()) - min(counts.values()) <= 2
    counts = Counter(sentence.template for sentence in contrastive_sentences(38_000, split="train"))
    # Without the limit, frames with slots up to 99999 would give far more.
    assert 1.9 * PAIRS_PER_FRAME < max(counts.values()) <= 2 * PAIRS_PER_FRAME


@pytest.mark.parametrize("feature", ["three words before", "rest of the sentence", "number"])
def test_what_stands_at_the_number_tells_nothing(sentences: Sentences, feature: str) -> None:
    def look(sentence: DiagnosticSentence) -> str:
        ((start, end),) = sentence.spans
        return {
            "three words before": " ".join(sentence.text[:start].split()[-3:]),
            "rest of the sentence": sentence.text[end:],
            "number": " ".join(sentence.text[start:end]),
        }[feature]

    words = CountVectorizer(token_pattern=r"\S+")
    probe = LogisticRegression(max_iter=1000)
    probe.fit(words.fit_transform(map(look, sentences["train"])), [s.roles[0] for s in sentences["train"]])
    # Exactly: the two sentences of a pair look the same, so one of them is taken for the other.
    accuracy = probe.score(words.transform(map(look, sentences["test"])), [s.roles[0] for s in sentences["test"]])
    assert accuracy == 0.5


def test_how_much_the_words_further_back_tell() -> None:
    """Far from chance, as the module's docstring says; a change of the frames must not raise it unnoticed."""
    train, test = (contrastive_sentences(4000, split=split) for split in SPLITS)
    words = CountVectorizer(token_pattern=r"\S+")
    before = words.fit_transform(s.text[: s.spans[0][0]] for s in train)
    probe = LogisticRegression(max_iter=2000).fit(before, [s.roles[0] for s in train])
    right = probe.predict(words.transform(s.text[: s.spans[0][0]] for s in test)) == [s.roles[0] for s in test]
    unknown = np.array(["train" not in DOMAINS[s.domain] for s in test])
    assert round(100 * right.mean()) == 78
    assert round(100 * right[unknown].mean()) == 76


@examples(20)
@given(st.integers(0, 2**32), st.integers(0, 300), st.sampled_from([*SPLITS, None]))
def test_the_seed_decides_and_a_larger_count_appends(seed: int, count: int, split: Split | None) -> None:
    few = contrastive_sentences(count, split=split, seed=seed)
    more = contrastive_sentences(count + 7, split=split, seed=seed)
    assert len(few) == count
    assert few == more[:count]


@pytest.mark.parametrize(
    ("count", "split", "message"),
    [
        (-1, "test", "count is -1, but the test split gives from 0 to"),
        (10**6, "test", "count is 1000000, but the test split gives from 0 to"),
        (1, "dev", "split must be one of train, test, not 'dev'"),
    ],
)
def test_what_cannot_be_had_is_refused(count: int, split: Any, message: str) -> None:
    refused(lambda: contrastive_sentences(count, split=split), message)


def test_every_frame_is_as_the_files_header_says() -> None:
    frames = [text for splits in DOMAINS.values() for texts in splits.values() for text in texts]
    assert {split for splits in DOMAINS.values() for split in splits} == set(SPLITS)
    assert len(set(frames)) == len(frames)
    for frame in frames:
        words = r"[^][{}|\d]"
        match = re.fullmatch(rf"{words}*\[{words}+\|{words}+\]({words}+)\{{([0-9]+)-([0-9]+),?\}}{words}*", frame)
        assert match, frame
        assert len(match[1].split()) >= SHARED_WORDS, frame
        assert 0 < int(match[2]) < int(match[3]), frame
