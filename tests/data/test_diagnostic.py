"""The diagnostic set: labels, splits, balance, and that neither number nor position gives the role away."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from decimal import Decimal
from importlib import resources

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ani.data.diagnostic import SENTENCES_PER_TEMPLATE, DiagnosticSentence, diagnostic_sentences, sentence_limit
from ani.data.split import Split
from tests.properties import examples
from tests.refusals import refused

DOCUMENT = resources.files("ani.data").joinpath("diagnostic_templates.yaml").read_text("utf-8")
DOMAINS: dict[str, dict[str, list[str]]] = yaml.safe_load(DOCUMENT)
SPLITS: tuple[Split, ...] = ("train", "test")
SLOT = re.compile(r"\{([NQ]):[^}]*\}")
COUNT = 3000  # every template several times

seeds = st.integers(-(2**63), 2**63)
splits = st.sampled_from(SPLITS)


Sentences = dict[Split, list[DiagnosticSentence]]


@pytest.fixture(scope="module")
def sentences() -> Sentences:
    return {split: diagnostic_sentences(COUNT, split=split) for split in SPLITS}


def values(sentences: list[DiagnosticSentence]) -> set[Decimal]:
    texts = (sentence.text[start:end] for sentence in sentences for start, end in sentence.spans)
    return {abs(Decimal(text.replace(",", ""))) for text in texts}


@pytest.mark.parametrize("split", SPLITS)
def test_numbers_of_the_text_are_the_slots_of_the_template(sentences: Sentences, split: Split) -> None:
    assert {sentence.template for sentence in sentences[split]} == {
        template for domain in DOMAINS.values() for template in domain.get(split, [])
    }
    for sentence in sentences[split]:
        (text, roles, domain, template), spans = sentence, sentence.spans
        assert template in DOMAINS[domain][split]
        # Independent of the module: read the numbers back with the template as a pattern.
        carriers = [re.escape(carrier) for carrier in SLOT.sub("\0", template).split("\0")]
        match = re.fullmatch(r"([0-9][0-9,.]*|[0-9])".join(carriers), text)
        assert match, (text, template)
        assert len(spans) == len(match.groups())
        for (start, end), group in zip(spans, range(1, len(spans) + 1), strict=True):
            signs = text[start : match.start(group)]
            assert (signs, end) in {("", match.end(group)), ("-", match.end(group))}, text
        assert [role[0].upper() for role in roles] == SLOT.findall(template)


@given(split=splits, seed=seeds, count=st.integers(0, 400), more=st.integers(0, 200))
@examples(20)
def test_a_larger_count_only_appends_and_nothing_repeats(split: Split, seed: int, count: int, more: int) -> None:
    few = diagnostic_sentences(count, split=split, seed=seed)
    many = diagnostic_sentences(count + more, split=split, seed=seed)
    assert len(few) == count
    assert many[:count] == few
    assert len({sentence.text for sentence in many}) == len(many)


@given(split=splits, seed=seeds)
@examples(20)
def test_roles_are_balanced(split: Split, seed: int) -> None:
    roles = Counter(role for s in diagnostic_sentences(400, split=split, seed=seed) for role in s.roles)
    assert 0.45 <= roles["nominal"] / roles.total() <= 0.55


def test_splits_share_no_template_and_no_value(sentences: Sentences) -> None:
    train, test = sentences["train"], sentences["test"]
    assert {s.template for s in train}.isdisjoint(s.template for s in test)
    assert values(train).isdisjoint(values(test) | values(diagnostic_sentences(COUNT, split="test", seed=1)))
    held_out = {s.domain for s in test} - {s.domain for s in train}
    assert 1 / 6 <= len(held_out) / len(DOMAINS) <= 1 / 4
    shared = {s.domain for s in test} & {s.domain for s in train}
    assert shared == DOMAINS.keys() - held_out


def test_maximum_is_named_and_reached() -> None:
    split: Split = "test"
    maximum = sentence_limit(split)
    assert maximum >= 20_000
    everything = diagnostic_sentences(maximum, split=split)
    assert all(len(s.spans) == len(s.roles) == len(SLOT.findall(s.template)) for s in everything)
    assert len({sentence.text for sentence in everything}) == maximum
    uses = Counter(sentence.template for sentence in everything)
    assert min(uses.values()) >= 5 and max(uses.values()) <= SENTENCES_PER_TEMPLATE
    for count in (-1, maximum + 1):
        refused(lambda count=count: diagnostic_sentences(count, split=split), str(count), str(maximum))
    refused(lambda: diagnostic_sentences(1, split="valid"), "'valid'")  # type: ignore[arg-type]


def capital_before(text: str, start: int, end: int) -> Hashable:
    words = text[:start].split()
    return bool(words) and words[-1][0].isupper()


@pytest.mark.parametrize(
    ("feature", "most"),
    [
        (lambda text, start, end: ("," in text[start:end], "." in text[start:end], end - start), 0.65),
        (lambda text, start, end: (end - start, text[start]), 0.65),
        (lambda text, start, end: (end - start, text[end - 1]), 0.65),
        (lambda text, start, end: (len(text[:start].split()), len(text[end:].split())), 0.70),
        (capital_before, 0.65),
        (lambda text, start, end: " ".join(text[:start].split()[-1:]), 0.70),
        (lambda text, start, end: text[end:].split()[0], 0.70),
    ],
    ids=["form", "leading digit", "trailing digit", "position", "capital before", "word before", "word after"],
)
def test_a_shortcut_does_not_tell_the_role(
    sentences: Sentences, feature: Callable[[str, int, int], Hashable], most: float
) -> None:
    """The best rule on one feature, the commonest role in training, fails on the held-out sentences."""

    def examples(split: Split) -> list[tuple[Hashable, str]]:
        return [
            (feature(sentence.text, *span), role)
            for sentence in sentences[split]
            for role, span in zip(sentence.roles, sentence.spans, strict=True)
        ]

    rule: dict[Hashable, Counter[str]] = defaultdict(Counter)
    for seen, role in examples("train"):
        rule[seen][role] += 1
    # A feature value that training does not have is a coin toss.
    scores = [
        float(rule[seen].most_common(1)[0][0] == role) if seen in rule else 0.5 for seen, role in examples("test")
    ]
    assert sum(scores) / len(scores) <= most
