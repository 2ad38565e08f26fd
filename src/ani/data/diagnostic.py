"""The diagnostic set: sentences whose numbers carry a known role, nominal or quantitative.

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
"""A capacity for `rounds`."""

SENTENCES_PER_TEMPLATE = 200
"""No template gives more sentences than this, so that none dominates a large set."""
SLOT = re.compile(r"\{(?:([NQ]):)?([0-9.]+)-([0-9.]+)(,?)\}")
"""A slot as the header of `diagnostic_templates.yaml` states it; those of `contrastive_pairs.yaml` have no role."""

_ROLES: dict[str, RoleName] = {"N": "nominal", "Q": "quantitative"}
_TEST_ONE_IN = 3  # this share of all values stands in test sentences, the rest in training sentences


class DiagnosticSentence(NamedTuple):
    """A sentence and the role of each of its numbers."""

    text: str
    roles: tuple[RoleName, ...]
    """One for each number of `ani.numbers.find_numbers(text)`, in order."""
    domain: str
    """What the sentence is about, such as "rooms" or "finance"."""
    template: str
    """The template that it was made from, with its slots."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The characters `[start, end)` of each number; a sign belongs to its number."""
        return tuple((number.start, number.end) for number in find_numbers(self.text))


def diagnostic_sentences(count: int, *, split: Split, seed: int = 0) -> list[DiagnosticSentence]:
    """Return `count` distinct labelled sentences (our own set; the paper's is in its appendix, "Diagnostic Dataset
    Construction").

    The same carrier words surround numbers of both roles, and both roles draw from the same range of lengths, so that
    neither the neighbouring word nor the number alone tells the role well (the module's docstring has figures). The
    splits share no template and no number value, and some domains occur in `test` only. About half of the numbers are
    nominal. Every template is used once before any is used twice. The same arguments give the same sentences on every
    machine, and a larger count only appends to them. Raises InputError for an unknown split, or a count that is
    negative or above what the split can give.
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
    """How many sentences `diagnostic_sentences` can give of a split."""
    return sum(_capacities(split).values())


@cache
def _capacities(split: Split) -> dict[tuple[str, str], int]:
    """How many sentences each template of the split (beside its domain) may give: half of those that it could make,
    so that drawing a new one stays quick, and at most `SENTENCES_PER_TEMPLATE`."""
    capacities = {}
    for domain, text in read_split("diagnostic_templates.yaml", split):
        possible = math.prod(count_values(read_slot(slot), split) for slot in SLOT.finditer(text))
        capacities[domain, text] = min(SENTENCES_PER_TEMPLATE, math.ceil(possible / 2))
    return capacities


def read_split(file: str, split: Split) -> list[tuple[str, str]]:
    """Domain and text of the templates of a split, from a file of ours with domain → split → texts."""
    return [(domain, text) for domain, splits in read_templates(file).items() for text in splits.get(split, [])]


def rounds(capacities: Mapping[T, int], rng: random.Random) -> Iterator[T]:
    """Everything once in a drawn order, then again, round after round, what may still be used."""
    for used in range(max(capacities.values())):
        left = [item for item, capacity in capacities.items() if capacity > used]
        yield from rng.sample(left, len(left))


class Slot(NamedTuple):
    """A place for a number; `low` and `high` count steps of 10^-places."""

    low: int
    high: int
    places: int
    separators: bool


def read_slot(match: re.Match[str]) -> Slot:
    """What a match of `SLOT` says."""
    _, low, high, comma = match.groups()
    places = len(low.partition(".")[2])
    return Slot(int(low.replace(".", "")), int(high.replace(".", "")), places, bool(comma))


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
