"""The contrastive set: minimal pairs, one sentence with its number once a name and once a quantity.

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
from functools import cache
from itertools import islice
from typing import NamedTuple, get_args

from ani.data.diagnostic import SLOT, DiagnosticSentence, Slot, count_values, draw, read_slot, read_split, rounds
from ani.data.split import Split, check_split
from ani.errors import InputError
from ani.roles import RoleName

PAIRS_PER_FRAME = 150
"""No frame gives more pairs than this, so that none dominates a large set."""

_CHOICE = re.compile(r"\[(.+)\|(.+)\]")
_WORDINGS: dict[RoleName, str] = {"nominal": r"\1", "quantitative": r"\2"}


class _Source(NamedTuple):
    """A frame, and the split that its values are of."""

    domain: str
    frame: str
    slot: Slot
    values: Split


def contrastive_sentences(count: int, *, split: Split | None = None, seed: int = 0) -> list[DiagnosticSentence]:
    """Return `count` distinct sentences, pair after pair: the name first, then the same number as a quantity.

    The splits share no frame and no number value, and some domains occur in `test` only. Every frame is used once
    before any is used twice. A sentence's `template` is its frame, with both readings. The same arguments give the same
    sentences on every machine, and a larger count only appends to them. Raises InputError for an unknown split, or a
    count that is negative or above what there is.

    `split` None: all frames, each with values of both splits in turn, for probes, which hold out domains and values by
    themselves.
    """
    if split is not None:
        check_split(split)
    capacities = _capacities(split)
    maximum = 2 * sum(capacities.values())
    if not 0 <= count <= maximum:
        what = "the set" if split is None else f"the {split} split"
        raise InputError(f"count is {count}, but {what} gives from 0 to {maximum} sentences")

    rng = random.Random(f"contrastive {split} {seed}")
    pairs: dict[tuple[str, str], str] = {}
    for domain, frame, slot, values in islice(rounds(capacities, rng), (count + 1) // 2):
        while (pair := (frame, draw(slot, values, rng))) in pairs:
            continue
        pairs[pair] = domain
    sentences = (
        DiagnosticSentence(SLOT.sub(number, _CHOICE.sub(wording, frame)), (role,), domain, frame)
        for (frame, number), domain in pairs.items()
        for role, wording in _WORDINGS.items()
    )
    return list(islice(sentences, count))


@cache
def _capacities(split: Split | None) -> dict[_Source, int]:
    """How many pairs each source may give: half of those that it could make, so that drawing a new one stays quick."""
    splits: tuple[Split, ...] = get_args(Split) if split is None else (split,)
    sources = [
        _Source(domain, frame, read_slot(slot), values)
        for part in splits
        for domain, frame in read_split("contrastive_pairs.yaml", part)
        for slot in SLOT.finditer(frame)
        for values in splits
    ]
    return {source: min(PAIRS_PER_FRAME, (count_values(source.slot, source.values) + 1) // 2) for source in sources}
