"""How often the gate opens, on any texts (paper, "Gating Behavior Analysis"); knows nothing about roles or answers."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.errors import InputError
from ani.evaluation.gating import inspection_record
from ani.evaluation.tasks.data import READERS, BenchmarkName
from ani.untrusted import bounded_lines, json_lines, one_line


class GateText(NamedTuple):
    """A text, where it comes from, and the group of that source that it counts in, such as an MMLU subject."""

    text: str
    source: str
    group: str | None = None


class GateShareRecord(TypedDict):
    """A text and the gate's decision about each of its numbers, a line of `gate-shares.jsonl`."""

    source: str
    group: str | None
    text: str
    numbers: list[dict[str, Any]]
    """As in `ani.evaluation.gating.inspection_record`."""


def benchmark_texts(
    name: BenchmarkName, data: str | None = None, *, limit: int | None = None, seed: int = 0
) -> list[GateText]:
    """The questions of a benchmark, as `ani.evaluation.tasks.data` reads them: MATH and MMLU by subject, MMLU with the
    choices.

    Args:
        name: `gsm8k`, `math` or `mmlu`.
        data: A hub name, a JSONL file or a directory of them; None: the set on the hub.
        limit: Draw so many at random (a larger limit only appends to them); None for all.
        seed: Of the draw.

    Raises:
        InputError: The data can't be read.
    """
    rows = READERS[name](data, seed)["test"]
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    return [
        GateText("\n".join([row["question"], *row.get("choices", [])]), name, row.get("subject"))
        for row in cast(Iterable[dict[str, Any]], rows)
    ]


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
        group: Key of a record's group; lines have none.
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
            text = "\n".join(part for field in fields for part in _parts(record, field, where))
            yield GateText(text, path.stem, None if group is None else "\n".join(_parts(record, group, where)))
        return
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for line in bounded_lines(lines, str(path)):
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


def check_lengths(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Iterable[GateText]) -> None:
    """Raises InputError if a text is longer than the model can read."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for text, source, _ in texts:
        length = len(tokenizer(text)["input_ids"])
        if longest is not None and length > longest:
            raise InputError(
                f"the text {text[:40]!r}… of {source} has {length:,} tokens, but the model reads {longest:,}; "
                "split it into shorter ones"
            )


def gate_shares(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[GateText],
    on_text: Callable[[int], None] | None = None,
) -> Iterator[GateShareRecord]:
    """Inspect every text (`check_lengths`) as a prompt; a record for each, also for those without a number."""
    for text, source, group in texts:
        record = inspection_record(model, tokenizer, text)
        yield {"source": source, "group": group, "text": text, "numbers": record["numbers"]}
        if on_text is not None:
            on_text(1)
