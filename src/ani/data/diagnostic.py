"""The diagnostic set: sentences whose numbers carry a known role, nominal or quantitative.

Knows nothing about tokens, models, probes or the gate that are trained and tested on it.

Labels
    A number is nominal where it names or places a thing, so that another name would do: a room, an order, a
    version, a jersey; a page, chapter, level, channel or line; a year, a day of the month or another position
    in a calendar. It is quantitative where it counts or measures: an age, a duration (also in years), a score,
    a price, a rate, a reading; what is counted stays a quantity ("45 pages").
Hard cases
    The same preposition in both roles ("went to 60", "fell to 60"; "by 1900 most families", "by 1900 votes");
    only the words after the number tell ("Take 12 from the station" or "from the fare fund"), which a causal
    model at the number has not read; a number at the beginning of the sentence ("12 passed the ball"); a number
    that stands for the thing itself ("the guests in 12", "the 340 stops behind the market"); a year beside a
    count ("the 1950 flood", "the 40 survivors"); decimals that are names (rules, versions, classes of books)
    and long plain integers that are quantities.
What words give away
    Logistic regression on the bag of the three words before a number, trained on 4,000 `train` sentences, is
    right on 81% of the numbers of 4,000 `test` sentences, and on the word after it 68%; on the number's own
    characters 51%. Nouns and verbs do not carry over (52%); it is function words that do, such as "some" and
    "only", and that a sentence with both roles mostly has the nominal one first. Read a probe's accuracy beside
    81%, not beside 50%.
"""

import hashlib
import math
import random
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache, lru_cache
from importlib import resources
from typing import Literal, NamedTuple, TypeVar, get_args

import yaml

from ani.errors import InputError
from ani.numbers import find_numbers

Role = Literal["nominal", "quantitative"]
Split = Literal["train", "test"]
T = TypeVar("T")

SENTENCES_PER_TEMPLATE = 200
"""No template gives more sentences than this, so that none dominates a large set."""

_ROLES: dict[str, Role] = {"N": "nominal", "Q": "quantitative"}
_SLOT = re.compile(r"\{([NQ]):(\d+)(?:\.(\d+))?-(\d+)(?:\.(\d+))?(,?)\}", re.ASCII)
_TEST_ONE_IN = 3  # this share of all values stands in test sentences, the rest in training sentences


class DiagnosticSentence(NamedTuple):
    """A sentence and the role of each of its numbers."""

    text: str
    roles: tuple[Role, ...]
    """One for each number of `ani.numbers.find_numbers(text)`, in order."""
    spans: tuple[tuple[int, int], ...]
    """The characters `[start, end)` of each number; a sign belongs to its number."""
    domain: str
    """What the sentence is about, such as "rooms" or "finance"."""
    template: str
    """The template that it was made from, with its slots."""


def diagnostic_sentences(count: int, *, split: Split, seed: int = 0) -> list[DiagnosticSentence]:
    """Return `count` distinct labelled sentences (our own set; the paper's is in its appendix,
    "Diagnostic Dataset Construction").

    The same carrier words surround numbers of both roles, and both roles draw from the same range of
    lengths, so that neither the neighbouring word nor the number alone tells the role well (the module's
    docstring has figures). The splits share no template and no number value, and some domains occur in
    `test` only. About half of the numbers are nominal. Every template is used once before any is used
    twice. The same arguments give the same sentences on every machine, and a larger count only appends
    to them.

    Raises:
        InputError: unknown split, or a count that is negative or above what the split can give.
    """
    if split not in get_args(Split):
        raise InputError(f"split must be one of {', '.join(get_args(Split))}, not {split!r}")
    remaining = dict(_capacities(split))
    maximum = sentence_limit(split)
    if not 0 <= count <= maximum:
        raise InputError(f"count is {count}, but the {split} split gives from 0 to {maximum} sentences")

    rng = random.Random(f"{split} {seed}")  # seeding by a string does not depend on the hash seed
    texts: set[str] = set()
    sentences: list[DiagnosticSentence] = []
    while len(sentences) < count:
        templates = [template for template, left in remaining.items() if left]
        for template in rng.sample(templates, len(templates))[: count - len(sentences)]:
            text = next(text for text in _renderings(template, split, rng) if text not in texts)
            texts.add(text)
            sentences.append(_label(text, template))
            remaining[template] -= 1
    return sentences


def sentence_limit(split: Split) -> int:
    """How many sentences `diagnostic_sentences` can give of a split."""
    return sum(_capacities(split).values())


class Slot(NamedTuple):
    """A place for a number; `low` and `high` count steps of 10^-places."""

    role: Role
    low: int
    high: int
    places: int
    separators: bool


class _Template(NamedTuple):
    domain: str
    text: str
    carriers: tuple[str, ...]  # the words around the slots, one more than there are slots
    slots: tuple[Slot, ...]


def _parse_templates(document: str) -> dict[Split, list[_Template]]:
    """Read and check the YAML of templates, whose header states its syntax."""
    return parse_splits(document, "template", _parse_template)


def parse_splits(document: str, what: str, parse: Callable[[str, str], T]) -> dict[Split, list[T]]:
    """Read YAML of the form domain → split → texts.

    Args:
        document: The YAML.
        what: A text is called so in errors.
        parse: Makes an entry of a domain and a text.

    Raises:
        ValueError: a split is unknown, or a text occurs twice.
    """
    found: dict[Split, list[T]] = {split: [] for split in get_args(Split)}
    seen: set[str] = set()
    for domain, splits in yaml.safe_load(document).items():
        for split, texts in splits.items():
            if split not in found:
                raise ValueError(f"domain {domain!r}: {split!r} is no split, write train or test")
            for text in texts:
                if text in seen:
                    raise ValueError(f"domain {domain!r}, {what} {text!r}: it occurs twice, remove one")
                seen.add(text)
                found[split].append(parse(domain, text))
    return found


def _parse_template(domain: str, text: str) -> _Template:
    where = f"domain {domain!r}, template {text!r}"
    carriers: list[str] = []
    slots: list[Slot] = []
    position = 0
    for match in _SLOT.finditer(text):
        role, low, low_fraction, high, high_fraction, comma = match.groups(default="")
        if len(low_fraction) != len(high_fraction):
            raise ValueError(f"{where}: {match[0]} needs the same number of decimals at both ends")
        slot = Slot(_ROLES[role], int(low + low_fraction), int(high + high_fraction), len(low_fraction), bool(comma))
        if not 0 < slot.low <= slot.high:
            raise ValueError(f"{where}: {match[0]} needs 0 < LOW <= HIGH; write a sign before the slot")
        carriers.append(text[position : match.start()])
        slots.append(slot)
        position = match.end()
    carriers.append(text[position:])
    for carrier in carriers:
        if stray := re.search(r"[{}]|\d+", carrier):
            raise ValueError(f"{where}: unknown slot or bare number at {carrier[stray.start() :]!r}")
    if not 1 <= len(slots) <= 3:
        raise ValueError(f"{where}: it has {len(slots)} slots, write one to three")
    return _Template(domain, text, tuple(carriers), tuple(slots))


@cache
def _capacities(split: Split) -> dict[_Template, int]:
    """How many sentences each template of the split may give: half of those that it could make, so that
    drawing a new one stays quick, and at most `SENTENCES_PER_TEMPLATE`."""
    document = resources.files("ani.data").joinpath("diagnostic_templates.yaml").read_text("utf-8")
    return {
        template: min(
            SENTENCES_PER_TEMPLATE,
            math.ceil(math.prod(count_values(slot, split) for slot in template.slots) / 2),
        )
        for template in _parse_templates(document)[split]
    }


def count_values(slot: Slot, split: Split) -> int:
    """How many values of the split a slot can take, counted as far as its first 4,000: more than is ever needed."""
    steps = range(slot.low, min(slot.high, slot.low + 3_999) + 1)
    return sum(_split_of(step, slot.places) == split for step in steps)


@lru_cache(maxsize=1 << 16)
def _split_of(steps: int, places: int) -> Split:
    return value_split(Decimal(steps).scaleb(-places))


def value_split(value: Decimal) -> Split:
    """The split in which a number of this value, not negative, may stand; 5 and 5.0 are one value."""
    digest = hashlib.blake2s(format(value.normalize(), "f").encode(), digest_size=4).digest()
    return "test" if int.from_bytes(digest, "big") % _TEST_ONE_IN == 0 else "train"


def _renderings(template: _Template, split: Split, rng: random.Random) -> Iterator[str]:
    """Endlessly many sentences of a template, with repetitions."""
    while True:
        numbers = (draw(slot, split, rng) for slot in template.slots)
        first, *rest = template.carriers
        yield first + "".join(number + carrier for number, carrier in zip(numbers, rest, strict=True))


def draw(slot: Slot, split: Split, rng: random.Random) -> str:
    """A number of the split; its length is drawn first, as a uniform value would be long nearly always."""
    while True:
        length = rng.randint(len(str(slot.low)), len(str(slot.high)))
        steps = rng.randint(max(slot.low, 10 ** (length - 1)), min(slot.high, 10**length - 1))
        if _split_of(steps, slot.places) == split:
            break
    whole, fraction = divmod(steps, 10**slot.places)
    text = f"{whole:,}" if slot.separators else str(whole)
    return f"{text}.{fraction:0{slot.places}d}" if slot.places else text


def _label(text: str, template: _Template) -> DiagnosticSentence:
    spans = tuple((number.start, number.end) for number in find_numbers(text))
    roles = tuple(slot.role for slot in template.slots)
    assert len(spans) == len(roles), f"{text!r} of {template.text!r} does not hold one number a slot"
    return DiagnosticSentence(text, roles, spans, template.domain, template.text)
