"""How often the gate opens, on any texts (paper, "Gating Behavior Analysis"); knows nothing about roles or answers."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.sources import json_lines
from ani.errors import InputError
from ani.evaluation.gating import inspection_record
from ani.evaluation.statistics import Share, grouped_share

BENCHMARK_FIELDS: Mapping[str, tuple[tuple[str, ...], str | None]] = {
    "gsm8k": (("question",), None),
    "math": (("problem",), "type"),
    "mmlu": (("question", "choices"), "subject"),
}
"""Where a benchmark's records have the text of a question, and the group that it is shown by."""


class GateText(NamedTuple):
    """A text, and the group that it counts in."""

    text: str
    group: str


class GateShareRecord(TypedDict):
    """A text and the gate's decision about each of its numbers, a line of `gate-shares.jsonl`."""

    group: str
    text: str
    numbers: list[dict[str, Any]]
    """As in `ani.evaluation.gating.inspection_record`."""


class GateShare(TypedDict):
    """How often α = 1; the paper doesn't say whether its "instances" are numbers or texts."""

    texts: int
    numbers: Share
    """Of all numbers, texts resampled as wholes."""
    texts_open: Share
    """Of the texts that hold a number: those with an open gate."""


def gate_texts(
    source: str | Path,
    fields: Sequence[str] = ("text",),
    group: str | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
) -> list[GateText]:
    """The texts of a JSON-lines file (`.jsonl`), or the lines of any other text file that aren't blank.

    Args:
        source: The file.
        fields: Keys of a record's text: a string or a list of them; several are joined by line breaks.
        group: Key of a record's group; without one, and for lines, the file's name without its suffix.
        limit: Draw so many texts at random (a larger limit only appends to them); None for all, in order.
        seed: Of the draw.

    Raises:
        InputError: The file can't be read or holds no text, or a record lacks a field (the line is named).
    """
    texts = list(_texts(Path(source), fields, group))
    if not texts:
        raise InputError(f"{source} holds no text")
    if limit is not None:
        random.Random(f"gate shares {seed}").shuffle(texts)
    return texts[:limit]


def _texts(path: Path, fields: Sequence[str], group: str | None) -> Iterator[GateText]:
    if path.suffix == ".jsonl":
        for where, record in json_lines(path):
            name = path.stem if group is None else "\n".join(_parts(record, group, where))
            yield GateText("\n".join(part for field in fields for part in _parts(record, field, where)), name)
        return
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for line in lines:
                if line.strip():
                    yield GateText(line.rstrip("\n"), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read as UTF-8 text: {error}") from error


def _parts(record: Any, field: str, where: str) -> list[str]:
    value = record.get(field) if isinstance(record, dict) else None
    parts: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) for part in parts):
        known = f"; it has {', '.join(map(repr, record))}" if isinstance(record, dict) else ""
        raise InputError(f"{where}: no text under {field!r}{known}")
    return parts


def gate_shares(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[GateText],
    on_text: Callable[[int], None] | None = None,
) -> Iterator[GateShareRecord]:
    """Inspect every text as a prompt; a record for each, also for those without a number.

    Raises:
        InputError: A text is longer than the model can read.
    """
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for text, group in texts:
        length = len(tokenizer(text)["input_ids"])
        if longest is not None and length > longest:
            raise InputError(
                f"the text {text[:40]!r}… of group {group!r} has {length:,} tokens, but the model reads {longest:,}; "
                "split it into shorter ones"
            )
        record = inspection_record(model, tokenizer, text)
        yield {"group": group, "text": text, "numbers": record["numbers"]}
        if on_text is not None:
            on_text(1)


class GateShareSummary(TypedDict):
    """The shares of all texts, and of each group, in the order of their first texts."""

    all: GateShare
    groups: dict[str, GateShare]


def gate_share_summary(records: Iterable[GateShareRecord]) -> GateShareSummary:
    """Shares with 95% intervals."""
    records = list(records)
    grouped: dict[str, list[GateShareRecord]] = {}
    for record in records:
        grouped.setdefault(record["group"], []).append(record)
    return {"all": _share(records), "groups": {group: _share(chosen) for group, chosen in grouped.items()}}


def _share(records: Sequence[GateShareRecord]) -> GateShare:
    decisions = [(i, bool(number["injected"])) for i, record in enumerate(records) for number in record["numbers"]]
    numbered = [record for record in records if record["numbers"]]
    return {
        "texts": len(records),
        "numbers": grouped_share([opened for _, opened in decisions], [i for i, _ in decisions]),
        "texts_open": grouped_share(
            [any(number["injected"] for number in record["numbers"]) for record in numbered], range(len(numbered))
        ),
    }
