"""Our diagnostic set: sentences whose numbers have a known role, nominal or quantitative.

Labels
    A number is nominal where it names or places a thing, so that another name would do: a room, an order, a
    version, a jersey; a page, chapter, level, channel or line; a year, a day of the month or another position
    in a calendar. It is quantitative where it counts or measures: an age, a duration (also in years), a score,
    a price, a rate, a reading; what is counted stays a quantity ("45 pages").
Hard cases
    The same preposition in both roles ("went to 60", "fell to 60"; "by 1900 most families", "by 1900 votes");
    only the words after the number decide ("Take 12 from the station" or "from the fare fund"), which a causal
    model at the number has not read; a number at the beginning of the sentence ("12 passed the ball"); a number
    that is used for the thing itself ("the guests in 12", "the 340 stops behind the market"); a year beside a
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
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache, lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

from ani.data.split import Split, check_split, read_templates
from ani.errors import InputError
from ani.numbers import find_numbers
from ani.roles import RoleName

T = TypeVar("T")

ENDLESS = sys.maxsize
"""Capacity of an item that `rounds` may use any number of times."""

SENTENCES_PER_TEMPLATE = 200
"""No template gives more sentences than this, so that none dominates a large set."""
SLOT = re.compile(r"\{(?:([NQ]):)?([0-9.]+)-([0-9.]+)(,?)\}")
"""Pattern of a slot; the header of `diagnostic_templates.yaml` describes it."""

_ROLES: dict[str, RoleName] = {"N": "nominal", "Q": "quantitative"}
_TEST_ONE_IN = 3  # a third of all values is for test sentences, the rest for training sentences


class DiagnosticSentence(NamedTuple):
    """A sentence and the role of each of its numbers."""

    text: str
    roles: tuple[RoleName, ...]
    """Role of each number of `ani.numbers.find_numbers(text)`, in order."""
    domain: str
    """Subject of the sentence, such as "rooms" or "finance"."""
    template: str
    """Template of the sentence, with its slots."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Characters `[start, end)` of each number; a sign belongs to its number."""
        return tuple((number.start, number.end) for number in find_numbers(self.text))


def diagnostic_sentences(count: int, *, split: Split, seed: int = 0) -> list[DiagnosticSentence]:
    """Return `count` distinct labelled sentences (our own set; the paper's is in its appendix, "Diagnostic Dataset
    Construction").

    The same carrier words surround numbers of both roles, and both roles draw from the same range of lengths, so that
    neither the neighbouring word nor the number alone gives the role away (the module's docstring has figures). The
    splits share no template and no number value, and some domains occur in `test` only. About half of the numbers are
    nominal. Every template is used once before any is used twice. The same arguments give the same sentences on every
    machine, and a larger count only appends to them. Raises InputError for an unknown split, or a count that is
    negative or too large.
    """
    check_split(split)
    maximum = sentence_limit(split)
    if not 0 <= count <= maximum:
        raise InputError(f"count is {count}, but the {split} split gives from 0 to {maximum} sentences")

    rng = random.Random(f"{split} {seed}")  # seeding by a string does not depend on the hash seed

    def number(slot: re.Match[str]) -> str:
        return draw(read_slot(slot), split, rng)

    sentences: dict[str, DiagnosticSentence] = {}
    for domain, template in islice(rounds(_capacities(split), rng), count):
        while (text := SLOT.sub(number, template)) in sentences:
            continue
        roles = tuple(_ROLES[slot[1]] for slot in SLOT.finditer(template))
        sentences[text] = DiagnosticSentence(text, roles, domain, template)
    return list(sentences.values())


def sentence_limit(split: Split) -> int:
    """Number of sentences that `diagnostic_sentences` can give of a split."""
    return sum(_capacities(split).values())


@cache
def _capacities(split: Split) -> dict[tuple[str, str], int]:
    """Number of sentences by domain and template: at most `SENTENCES_PER_TEMPLATE`, and half of those that the template
    could make, so that drawing a new one stays quick."""
    capacities = {}
    for domain, text in read_split("diagnostic_templates.yaml", split):
        possible = 1
        for slot in map(read_slot, SLOT.finditer(text)):
            steps = range(slot.low, min(slot.high, slot.low + 3_999) + 1)  # more than are ever needed
            possible *= sum(_split_of(step, slot.places) == split for step in steps)
        capacities[domain, text] = min(SENTENCES_PER_TEMPLATE, math.ceil(possible / 2))
    return capacities


def read_split(file: str, split: Split) -> list[tuple[str, str]]:
    """Domain and text of a split's templates, from a YAML file of this package with domain → split → texts."""
    return [(domain, text) for domain, splits in read_templates(file).items() for text in splits.get(split, [])]


def rounds(capacities: Mapping[T, int], rng: random.Random) -> Iterator[T]:
    """All items once in a drawn order, then again, round after round, those whose capacity is left."""
    for used in range(max(capacities.values())):
        left = [item for item, capacity in capacities.items() if capacity > used]
        yield from rng.sample(left, len(left))


class Slot(NamedTuple):
    """Place for a number in a template; `low` and `high` count steps of 10^-places."""

    low: int
    high: int
    places: int
    separators: bool


def read_slot(match: re.Match[str]) -> Slot:
    """The slot of a match of `SLOT`."""
    _, low, high, comma = match.groups()
    places = len(low.partition(".")[2])
    return Slot(int(low.replace(".", "")), int(high.replace(".", "")), places, bool(comma))


@lru_cache(maxsize=1 << 16)
def _split_of(steps: int, places: int) -> Split:
    return value_split(Decimal(steps).scaleb(-places))


def value_split(value: Decimal) -> Split:
    """Split of sentences with this number, not negative; 5 and 5.0 are one value."""
    digest = hashlib.blake2s(format(value.normalize(), "f").encode(), digest_size=4).digest()
    return "test" if int.from_bytes(digest, "big") % _TEST_ONE_IN == 0 else "train"


def draw(slot: Slot, split: Split, rng: random.Random) -> str:
    """Draws a number of the split; first its length, because a uniform value would be long nearly always."""
    while True:
        length = rng.randint(len(str(slot.low)), len(str(slot.high)))
        steps = rng.randint(max(slot.low, 10 ** (length - 1)), min(slot.high, 10**length - 1))
        if _split_of(steps, slot.places) == split:
            break
    whole, fraction = divmod(steps, 10**slot.places)
    text = f"{whole:,}" if slot.separators else str(whole)
    return f"{text}.{fraction:0{slot.places}d}" if slot.places else text
