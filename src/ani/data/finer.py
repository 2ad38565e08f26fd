"""FiNER-139: sentences of financial reports whose numbers carry XBRL tags; knows nothing about models.

The set (Loukas et al. 2022, CC BY-SA 4.0) is a zip of JSON-lines files on the hub, `train.jsonl`, `validation.jsonl`
and `test.jsonl`. A record has `tokens` and, for each of them, the name of a tag in `ner_tags`: `O`, or `B-` and `I-`
before one of 139 names.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import hf_hub_download

from ani.data.diagnostic import Role
from ani.data.sources import hub_errors
from ani.errors import InputError
from ani.numbers import find_numbers
from ani.untrusted.text import json_lines, zipped_json_lines

HUB_NAME = "nlpaueb/finer-139"
HUB_FILE = "finer139.zip"

NOMINAL_TAGS = frozenset({"DebtInstrumentMaturityDate"})
"""Tags whose numbers are names, by the rules of `ani.data.diagnostic`: positions in a calendar are, whatever counts or
measures isn't.

The maturity date is the one that the paper names; it says "e.g.", but lists no other. All the other 138 tags are
amounts, prices, rates, counts of shares, claims, segments or properties, areas, and durations (terms, vesting periods,
useful lives). Two of them are arguable: `DebtInstrumentInterestRateStatedPercentage` ("the 7.00 % Senior Notes") and
`PreferredStockDividendRatePercentage` often stand in the name of a security, yet they are the rate that it pays. Every
record keeps its tag, so that another list can be tried on the same file.
"""


class TaggedNumber(NamedTuple):
    """A number of a tagged token."""

    start: int
    """First character in the sentence."""
    end: int
    """One after the last character."""
    tag: str
    """Without `B-` or `I-`."""

    @property
    def role(self) -> Role:
        """Nominal under `NOMINAL_TAGS`."""
        return "nominal" if self.tag in NOMINAL_TAGS else "quantitative"


class FinerSentence(NamedTuple):
    """A sentence that holds a tagged number."""

    text: str
    """The tokens, joined by single spaces: `$ 100 million of the 7.00 % Senior Notes`."""
    numbers: tuple[TaggedNumber, ...]
    """The tagged ones, in order; nobody says what the others are."""


def finer_sentences(
    source: str | Path = HUB_NAME, *, split: str = "test", limit: int | None = None, seed: int = 0
) -> list[FinerSentence]:
    """The sentences that hold a tagged number in digits, in an order that the seed draws.

    Args:
        source: The set's name on the hub, its zip, or a JSON-lines file in its format.
        split: Of the hub's set or the zip.
        limit: Sentences with a nominal number at most, and as many at most without, as maturity dates are rare; None
            for all. A larger limit only adds some.
        seed: Draws the sentences.

    Raises:
        InputError: The source can't be read, a record is malformed (the file and line are named), or no sentence holds
            a tagged number.
    """
    sentences = [
        sentence for where, record in _records(str(source), split) if (sentence := _sentence(record, where)).numbers
    ]
    if not sentences:
        raise InputError(f"{source} holds no sentence with a tagged number; check the file")
    random.Random(f"finer {seed}").shuffle(sentences)
    if limit is None:
        return sentences
    counts = {True: 0, False: 0}
    chosen = []
    for sentence in sentences:
        nominal = any(number.role == "nominal" for number in sentence.numbers)
        counts[nominal] += 1
        if counts[nominal] <= limit:
            chosen.append(sentence)
    return chosen


def _records(source: str, split: str) -> Iterator[tuple[str, Any]]:
    if source == HUB_NAME:
        # Not by `datasets`: the set's loading script is of the kind that it no longer runs.
        with hub_errors(source, split, "its zip or a JSON-lines file in its format"):
            source = hf_hub_download(source, HUB_FILE, repo_type="dataset")
    yield from zipped_json_lines(source, f"{split}.jsonl") if Path(source).suffix == ".zip" else json_lines(source)


def _sentence(record: Any, where: str) -> FinerSentence:
    if not isinstance(record, dict):
        raise InputError(f"{where}: expected an object, found {type(record).__name__}")
    for key in ("tokens", "ner_tags"):
        if key not in record:
            raise InputError(f"{where}: no {key!r}; a record of FiNER-139 has 'tokens' and 'ner_tags'")
        if not isinstance(record[key], list) or not all(isinstance(entry, str) for entry in record[key]):
            raise InputError(
                f"{where}: {key!r} must be a list of texts"
                + (", the tags' names such as 'B-DebtInstrumentMaturityDate'" if key == "ner_tags" else "")
            )
    tokens, tags = record["tokens"], record["ner_tags"]
    if len(tokens) != len(tags):
        raise InputError(f"{where}: {len(tokens)} tokens, but {len(tags)} tags")
    text = " ".join(tokens)
    position = 0
    spans: list[tuple[int, int, str]] = []
    for token, tag in zip(tokens, tags, strict=True):
        if tag != "O":
            if tag[:2] not in ("B-", "I-"):
                raise InputError(f"{where}: {tag!r:.80} is no tag; write 'O', or 'B-' or 'I-' and a name")
            spans.append((position, position + len(token), tag[2:]))
        position += len(token) + 1
    found = find_numbers(text) if spans else []
    return FinerSentence(
        text,
        tuple(
            TaggedNumber(number.start, number.end, tag)
            for start, end, tag in spans
            for number in found
            if start <= number.start < end
        ),
    )
