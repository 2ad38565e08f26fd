"""The contrastive set: minimal pairs, one sentence with its number once a name and once a quantity.

Knows nothing about the models and probes that are asked about it.

"The visitor asked which room was free, and the tired porter answered 214" and "The visitor asked how many rooms were
free, and the tired porter answered 214": what stands right before the number, what follows it and the number itself are
the same in both, so neither the neighbouring words nor the value tell the role, only what was read before. A model
can know at the number: nothing after it decides. Labels follow the rules of `ani.data.diagnostic`.

Words further back do tell: logistic regression on the bag of all words before the number, trained on 4,000 `train`
sentences, is right on 78% of 4,000 `test` sentences (76% in the domains that `train` lacks), by "how many", "which" or
units. Read a probe's held-out accuracy beside that: a layer that only mixes words by attention reaches it too.
"""

import random
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import NamedTuple, get_args

from ani.data.diagnostic import DiagnosticSentence, Role, Slot, Split, count_values, draw, parse_splits
from ani.errors import InputError
from ani.numbers import find_numbers

PAIRS_PER_FRAME = 150
"""No frame gives more pairs than this, so that none dominates a large set."""
SHARED_WORDS = 5
"""Words right before the number that both readings share, at least."""

_FRAME = re.compile(r"([^][{}|]*)\[([^][{}|]+)\|([^][{}|]+)\]([^][{}|]+)\{(\d+)-(\d+)(,?)\}([^][{}|]*)", re.ASCII)
_ROLES: tuple[Role, Role] = ("nominal", "quantitative")


class _Frame(NamedTuple):
    domain: str
    text: str
    readings: tuple[str, str]  # all that stands before the number, as a name and as a quantity
    slot: Slot
    end: str


_Source = tuple[_Frame, Split]  # and which split the values are of


def contrastive_sentences(count: int, *, split: Split | None = None, seed: int = 0) -> list[DiagnosticSentence]:
    """Return `count` distinct sentences, pair after pair: the name first, then the same number as a quantity.

    The splits share no frame and no number value, and some domains occur in `test` only. Every frame is used once
    before any is used twice. A sentence's `template` is its frame, with both readings.

    Args:
        count: Sentences; an odd one leaves the last quantity out.
        split: None: all frames, each with values of both splits in turn, for probes, which hold out domains and values
            by themselves.
        seed: The same one gives the same sentences on every machine, and a larger count only appends to them.

    Raises:
        InputError: Unknown split, or a count that is negative or above what there is.
    """
    if split is not None and split not in get_args(Split):
        raise InputError(f"split must be one of {', '.join(get_args(Split))}, not {split!r}")
    remaining = dict(_capacities(split))
    maximum = 2 * sum(remaining.values())
    if not 0 <= count <= maximum:
        what = "the set" if split is None else f"the {split} split"
        raise InputError(f"count is {count}, but {what} gives from 0 to {maximum} sentences")

    rng = random.Random(f"contrastive {split} {seed}")
    used: dict[_Source, set[str]] = {source: set() for source in remaining}
    sentences: list[DiagnosticSentence] = []
    while len(sentences) < count:
        sources = [source for source, left in remaining.items() if left]
        for source in rng.sample(sources, len(sources))[: (count - len(sentences) + 1) // 2]:
            frame, values = source
            number = next(number for number in _draws(frame.slot, values, rng) if number not in used[source])
            used[source].add(number)
            remaining[source] -= 1
            sentences += _pair(frame, number)
    return sentences[:count]


@cache
def _capacities(split: Split | None) -> dict[_Source, int]:
    """How many pairs each source may give: half of those that it could make, so that drawing a new one stays quick."""
    document = resources.files("ani.data").joinpath("contrastive_pairs.yaml").read_text("utf-8")
    frames = _parse_frames(document)
    splits: tuple[Split, ...] = get_args(Split)
    if split is None:
        sources = [(frame, values) for group in frames.values() for frame in group for values in splits]
    else:
        sources = [(frame, split) for frame in frames[split]]
    return {
        (frame, values): min(PAIRS_PER_FRAME, (count_values(frame.slot, values) + 1) // 2) for frame, values in sources
    }


def _parse_frames(document: str) -> dict[Split, list[_Frame]]:
    """Read and check the YAML of frames, whose header states its syntax."""
    return parse_splits(document, "frame", _parse_frame)


def _parse_frame(domain: str, text: str) -> _Frame:
    where = f"domain {domain!r}, frame {text!r}"
    match = _FRAME.fullmatch(text)
    if match is None:
        raise ValueError(f"{where}: write one [name|quantity] and, after it, one {{LOW-HIGH}}")
    start, name, quantity, shared, low, high, comma, end = match.groups()
    if re.search(r"\d", start + name + quantity + shared + end):
        raise ValueError(f"{where}: a digit stands outside the slot")
    if len(shared.split()) < SHARED_WORDS:
        raise ValueError(f"{where}: {SHARED_WORDS} words or more must stand between the choice and the number")
    if not 0 < int(low) < int(high):
        raise ValueError(f"{where}: the slot needs 0 < LOW < HIGH")
    slot = Slot("nominal", int(low), int(high), 0, bool(comma))
    return _Frame(domain, text, (start + name + shared, start + quantity + shared), slot, end)


def _draws(slot: Slot, split: Split, rng: random.Random) -> Iterator[str]:
    while True:
        yield draw(slot, split, rng)


def _pair(frame: _Frame, number: str) -> Iterator[DiagnosticSentence]:
    for role, reading in zip(_ROLES, frame.readings, strict=True):
        text = f"{reading}{number}{frame.end}"
        spans = tuple((found.start, found.end) for found in find_numbers(text))
        assert spans == ((len(reading), len(reading) + len(number)),), f"{text!r} does not hold its number alone"
        yield DiagnosticSentence(text, (role,), spans, frame.domain, frame.text)
