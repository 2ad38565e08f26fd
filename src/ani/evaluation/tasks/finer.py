"""Does the gate bypass FiNER-139's nominal tags (paper, "Gating Accuracy")? Knows nothing about how it learnt to.

The set (Loukas et al. 2022, CC BY-SA 4.0), sentences of financial reports whose numbers carry XBRL tags, is a zip of
JSON-lines files on the hub, `train.jsonl`, `validation.jsonl` and `test.jsonl`. A record has `tokens` and, for each of
them, the name of a tag in `ner_tags`: `O`, or `B-` and `I-` before one of 139 names.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from ani.data.diagnostic import Role
from ani.data.sources import hub_errors
from ani.errors import InputError
from ani.evaluation.backend import Backend, RewrittenNumbers
from ani.evaluation.task import Answers, GateTask, Measured
from ani.evaluation.tasks.gating import GateDecision
from ani.numbers import find_numbers
from ani.results.scores import ONE_MODEL, grouped
from ani.results.statistics import Estimate, grouped_share
from ani.results.tables import Cell, Table
from ani.untrusted.text import json_lines, zipped_json_lines

HUB_NAME = "nlpaueb/finer-139"
HUB_FILE = "finer139.zip"
SPLIT = "test"

NOMINAL_TAGS = frozenset({"DebtInstrumentMaturityDate"})
"""Tags whose numbers are names, by the rules of `ani.data.diagnostic`: positions in a calendar are, whatever counts or
measures isn't.

The maturity date is the one that the paper names; it says "e.g.", but lists no other. All the other 138 tags are
amounts, prices, rates, counts of shares, claims, segments or properties, areas, and durations (terms, vesting periods,
useful lives). Two of them are arguable: `DebtInstrumentInterestRateStatedPercentage` ("the 7.00 % Senior Notes") and
`PreferredStockDividendRatePercentage` often stand in the name of a security, yet they are the rate that it pays. Every
record keeps its tag, so that another list can be tried on the same file.
"""


class TaggedDecision(GateDecision):
    """The gate's decision about one tagged number, a line of `finer.jsonl`."""

    text: str
    """The sentence."""
    tag: str
    rewritten: bool = False
    """Whether the tokenizer changes the numbers of the sentence, which is then left out: `injected` says nothing."""


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


class Finer(GateTask, Measured):
    """FiNER-139; for models with a gate."""

    name = "finer"
    title = "FiNER-139"
    note = (
        "Numbers of financial reports under XBRL tags. A gate that is always closed would leave every nominal one "
        "alone: read the first two measures together."
    )
    caption = "FiNER-139, with 95% intervals (sentences resampled as wholes)"
    unit = "sentences"
    record = TaggedDecision
    gates_numbers = True

    data: str = HUB_NAME
    """The set's name on the hub, its zip, or a JSON-lines file in its format."""
    limit: int | None = Field(default=None, ge=1)
    """Sentences with a nominal number at most, and as many at most without, as maturity dates are rare; null: all. A
    larger limit only adds some."""

    def questions(self, seed: int) -> list[FinerSentence]:
        """The sentences that hold a tagged number in digits, in an order that the seed draws.

        Raises:
            InputError: The source can't be read, a record is malformed (the file and line are named), or no sentence
                holds a tagged number.
        """
        read = (_sentence(record, where) for where, record in _records(self.data))
        sentences = [sentence for sentence in read if sentence.numbers]
        if not sentences:
            raise InputError(f"{self.data} holds no sentence with a tagged number; check the file")
        random.Random(f"finer {seed}").shuffle(sentences)
        if self.limit is None:
            return sentences
        counts = {True: 0, False: 0}
        chosen = []
        for sentence in sentences:
            nominal = any(number.role == "nominal" for number in sentence.numbers)
            counts[nominal] += 1
            if counts[nominal] <= self.limit:
                chosen.append(sentence)
        return chosen

    def answer(self, backend: Backend, questions: Sequence[FinerSentence]) -> Answers:
        """A record for each tagged number. Raises InputError as `Backend.decide_roles`."""
        for place, (text, numbers) in enumerate(questions):
            try:
                decided = zip(find_numbers(text), backend.decide_roles(text, self.before), strict=True)
                by_start = {number.start: found for number, found in decided}
            except RewrittenNumbers:
                by_start = {}
            records = []
            for number in numbers:
                facts: dict[str, Any] = {"injected": False, "rewritten": True}
                if by_start:
                    facts = by_start[number.start].model_dump(mode="json", include={"value", "alpha", "injected"})
                facts |= number._asdict()
                records.append(TaggedDecision(run=ONE_MODEL, text=text, role=number.role, **facts))
            yield place, records

    def facts(self, questions: Sequence[FinerSentence]) -> Mapping[str, Any]:
        return {**super().facts(questions), "sentences": len(questions)}

    @classmethod
    def measures(cls, records: Sequence[TaggedDecision]) -> dict[str, tuple[str, Estimate | None]]:
        """Measure: what it is called, and its share, sentences resampled as wholes.

        We read the paper's "75.8% precision in bypassing these nominal identifiers" as the first, which a gate that is
        always closed would have all of, so it wants reading beside the second. The third is precision in the word's
        usual sense; it depends on how many sentences of each kind were read.
        """

        def share(chosen: Callable[[TaggedDecision], bool], right: Callable[[TaggedDecision], bool]) -> Estimate | None:
            listed = [record for record in records if chosen(record) and not record.rewritten]
            return grouped_share([right(record) for record in listed], [record.text for record in listed])

        nominal, shut = (lambda r: r.role == "nominal"), (lambda r: not r.injected)
        return {
            "nominal_bypassed": ("Numbers under a nominal tag left alone", share(nominal, shut)),
            "quantitative_injected": (
                "Other tagged numbers injected",
                share(lambda r: r.role == "quantitative", lambda r: r.injected),
            ),
            "precision": ("Nominal ones among the numbers left alone", share(shut, nominal)),
        }

    @classmethod
    def summary(cls, records: Sequence[TaggedDecision]) -> dict[str, Any]:
        return {**super().summary(records), "sentences_left_out": _left_out(records)}

    @classmethod
    def tables(cls, records: Sequence[TaggedDecision], baseline: str | None = None) -> list[Table]:
        (table,) = super().tables(records, baseline)
        if _left_out(records):
            counts = [_left_out(of_run) for of_run in grouped(records, lambda record: record.run).values()]
            row = tuple(map(Cell, ("Sentences left out, as the tokenizer changes their numbers", *map(str, counts))))
            table = table._replace(rows=(*table.rows, row))
        return [table]


def _left_out(records: Sequence[TaggedDecision]) -> int:
    return len({record.text for record in records if record.rewritten})


def _records(source: str) -> Iterator[tuple[str, Any]]:
    if source == HUB_NAME:
        from huggingface_hub import hf_hub_download

        # Not by `datasets`: the set's loading script is of the kind that it no longer runs.
        with hub_errors(source, SPLIT, "its zip or a JSON-lines file in its format"):
            source = hf_hub_download(source, HUB_FILE, repo_type="dataset")
    is_zip = Path(source).suffix == ".zip"
    yield from zipped_json_lines(source, f"{SPLIT}.jsonl") if is_zip else json_lines(source)


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
    found = find_numbers(text) if set(tags) != {"O"} else []
    position, numbers = 0, []
    for token, tag in zip(tokens, tags, strict=True):
        end = position + len(token)
        if tag != "O":
            if tag[:2] not in ("B-", "I-"):
                raise InputError(f"{where}: {tag!r:.80} is no tag; write 'O', or 'B-' or 'I-' and a name")
            numbers += [TaggedNumber(*number[1:], tag[2:]) for number in found if position <= number.start < end]
        position = end + 1
    return FinerSentence(text, tuple(numbers))
