"""Reads the texts of the task `gates`, some with the roles of their numbers.

FiNER-139 (Loukas et al. 2022, CC BY-SA 4.0), sentences of financial reports whose numbers carry XBRL tags, is a zip of
JSON-lines files on the hub, `train.jsonl`, `validation.jsonl` and `test.jsonl`. A record has `tokens` and, for each of
them, the name of a tag in `ner_tags`: `O`, or `B-` and `I-` before one of 139 names.
"""

import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast

from ani.data.diagnostic import diagnostic_sentences
from ani.data.records import OURS, checked_roles, hub_errors, labelled_numbers
from ani.errors import InputError, one_line
from ani.evaluation.benchmarks.data import READERS
from ani.numbers import find_numbers
from ani.roles import RoleName
from ani.text_files import json_lines, zipped_json_lines

FINER_NAME = "nlpaueb/finer-139"
FINER_FILE = "finer139.zip"
FINER_SPLIT = "test"
LABELLED = ("diagnostic", "natural", "finer")
"""Sources that know the roles of numbers."""
SENTENCES = 100
"""Of `diagnostic` without a limit."""

NOMINAL_TAGS = frozenset({"DebtInstrumentMaturityDate"})
"""FiNER's tags whose numbers are nominal, by the rules of `ani.data.diagnostic`: positions in a calendar are, whatever
counts or measures isn't.

The maturity date is the one that the paper names; it says "e.g.", but lists no other. All the other 138 tags are
amounts, prices, rates, counts of shares, claims, segments or properties, areas, and durations (terms, vesting periods,
useful lives). Two of them are arguable: `DebtInstrumentInterestRateStatedPercentage` ("the 7.00 % Senior Notes") and
`PreferredStockDividendRatePercentage` often stand in the name of a security, yet they are the rate that it pays. Every
record keeps its tags, so that another list can be tried on the same file.
"""


class Label(NamedTuple):
    """What the data says about a number."""

    role: RoleName
    tag: str | None = None
    """FiNER's, without `B-` or `I-`."""


class GateText(NamedTuple):
    """A text, where it comes from, and the group of that source that it counts in, such as an MMLU subject."""

    text: str
    source: str
    group: str | None = None
    labels: tuple[Label | None, ...] | None = None
    """One for each number of `ani.numbers.find_numbers(text)`; None: no role is known."""


def read_texts(entry: str, fields: Sequence[str], group: str | None, limit: int | None, seed: int) -> list[GateText]:
    """The texts of one entry of `Gates.texts`, at most `limit` of them, drawn by the seed; a larger limit only appends.

    Raises:
        InputError: The source can't be read, a record is malformed (the file and line are named), or there is no text.
    """
    name, _, place = entry.partition("=")
    if name == "diagnostic":
        sentences = diagnostic_sentences(limit or SENTENCES, split="test", seed=seed)
        return [GateText(each.text, name, each.domain, tuple(map(Label, each.roles))) for each in sentences]
    if name == "natural":
        records = [record for _, record in labelled_numbers() if record["source"] != OURS]
        random.Random(f"gate shares {seed}").shuffle(records)
        return [_natural(record) for record in records[:limit]]
    if name == "finer":
        return _finer_sentences(place or FINER_NAME, limit, seed)
    if name in READERS:
        rows = READERS[name](place or None, seed)["test"]
        asked = rows.select(range(len(rows) if limit is None else min(limit, len(rows))))
        # MATH and MMLU by subject, MMLU with the choices.
        return [
            GateText("\n".join([row["question"], *row.get("choices", [])]), name, row.get("subject"))
            for row in cast(Iterable[dict[str, Any]], asked)
        ]
    read = list(_file_texts(Path(entry), fields, group))
    if not read:
        raise InputError(f"{entry} holds no text")
    if limit is not None:
        random.Random(f"gate shares {seed}").shuffle(read)
    return read[:limit]


def _natural(record: dict[str, Any]) -> GateText:
    """Text of a record of `labelled_numbers`; the roles are those of the prompt's numbers."""
    text = record["prompt"] + record["completion"]
    roles = [*record["roles"], *[None] * len(find_numbers(text))][: len(find_numbers(text))]
    labels = tuple(Label(role) if role else None for role in roles)
    return GateText(text, "natural", record["source"].split("/")[0], labels)


def _file_texts(path: Path, fields: Sequence[str], group: str | None) -> Iterator[GateText]:
    if path.suffix == ".jsonl":
        for where, record in json_lines(path):
            text = "\n".join(part for field in fields for part in _parts(record, field, where))
            named = None if group is None else "\n".join(_parts(record, group, where))
            labels = None
            if "roles" in record:
                roles = checked_roles(record["roles"], text, where, partial=True)
                labels = tuple(Label(role) if role else None for role in roles)
            yield GateText(text, path.stem, named, labels)
        return
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for line in lines:
                if line.strip():
                    yield GateText(line.rstrip("\n"), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read as UTF-8 text: {one_line(error)}") from error


def _parts(record: Any, field: str, where: str) -> list[str]:
    value = record.get(field) if isinstance(record, dict) else None
    parts: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) for part in parts):
        known = f"; it has {one_line(', '.join(map(repr, record)))}" if isinstance(record, dict) else ""
        raise InputError(f"{where}: no text under {field!r}{known}")
    return parts


# --- FiNER-139 --------------------------------------------------------------------------------------------------------


def _finer_sentences(source: str, limit: int | None, seed: int) -> list[GateText]:
    """The sentences that hold a tagged number in digits; at most `limit` with a nominal number, and as many without, as
    maturity dates are rare."""
    path = source
    if source == FINER_NAME:
        from huggingface_hub import hf_hub_download

        # Not by `datasets`: the set's loading script is of the kind that it no longer runs.
        with hub_errors(source, FINER_SPLIT, "its zip or a JSON-lines file in its format"):
            path = hf_hub_download(source, FINER_FILE, repo_type="dataset")
    records = zipped_json_lines(path, f"{FINER_SPLIT}.jsonl") if Path(path).suffix == ".zip" else json_lines(path)
    read = (_finer_sentence(record, where) for where, record in records)
    sentences = [sentence for sentence in read if any(sentence.labels or ())]
    if not sentences:
        raise InputError(f"{source} holds no sentence with a tagged number; check the file")
    random.Random(f"finer {seed}").shuffle(sentences)
    kinds: dict[bool, list[GateText]] = {True: [], False: []}
    for sentence in sentences:
        kinds[any(label and label.role == "nominal" for label in sentence.labels or ())].append(sentence)
    chosen = {sentence for kind in kinds.values() for sentence in kind[:limit]}
    return [sentence for sentence in sentences if sentence in chosen]


def _finer_sentence(record: Any, where: str) -> GateText:
    """The tokens, joined by single spaces: `$ 100 million of the 7.00 % Senior Notes`."""
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
    if wrong := [tag for tag in tags if tag != "O" and tag[:2] not in ("B-", "I-")]:
        raise InputError(f"{where}: {wrong[0]!r:.80} is no tag; write 'O', or 'B-' or 'I-' and a name")
    text, ends = " ".join(tokens), list(accumulate(len(token) + 1 for token in tokens))
    found = find_numbers(text) if set(tags) != {"O"} else []
    names = [tags[bisect_right(ends, number.start)][2:] for number in found]
    labels = (Label("nominal" if name in NOMINAL_TAGS else "quantitative", name) if name else None for name in names)
    return GateText(text, "finer", labels=tuple(labels))
