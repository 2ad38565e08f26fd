"""How often the gate opens, on any texts (paper, "Gating Behavior Analysis"); knows nothing about roles or answers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic import Field

from ani.errors import InputError
from ani.evaluation.backend import Backend
from ani.evaluation.benchmarks.data import BENCHMARKS, READERS
from ani.evaluation.task import Answers, GateTask
from ani.results.decisions import NumberDecision
from ani.results.files import Run
from ani.results.scores import ONE_MODEL, TaskRecord, grouped
from ani.results.sections import Bars, Figure, Section
from ani.results.statistics import Estimate, grouped_share, share_facts
from ani.results.tables import Cell, Table, percent
from ani.untrusted.text import bounded_lines, json_lines, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class GatedText(TaskRecord):
    """A text and the gate's decision about each of its numbers, a line of `gate-shares.jsonl`."""

    source: str
    group: str | None = None
    text: str | None = None
    numbers: tuple[NumberDecision, ...]


class GateText(NamedTuple):
    """A text, where it comes from, and the group of that source that it counts in, such as an MMLU subject."""

    text: str
    source: str
    group: str | None = None


class GateShare(NamedTuple):
    """How often α = 1; the paper doesn't say whether its "instances" are numbers or texts."""

    source: str
    group: str | None
    texts: int
    numbers: Estimate | None
    """Of all numbers, texts resampled as wholes."""
    texts_open: Estimate | None
    """Of the texts that hold a number: those with an open gate."""


class GateShares(GateTask):
    """The share of open gates in any texts; for models with a gate."""

    name = "gate-shares"
    title = "Open gates by text"
    note = (
        "How many of the numbers the gate lets through, by benchmark and subject, or in other texts; each text is "
        "read as a prompt by itself, or as a user's message."
    )
    unit = "texts"
    record = GatedText

    texts: list[str] = Field(min_length=1)
    """`gsm8k`, `math` or `mmlu`, also as `mmlu=PATH`; or text files (a line each) and JSONL files."""
    field: list[str] = Field(default=["text"])
    """Keys of a JSONL record's text: a string or a list of them; several are joined by line breaks."""
    group: str | None = None
    """Key of a JSONL record's group; lines have none."""
    limit: int | None = Field(default=None, ge=1)
    """Texts of each, drawn by the seed; null: all. A larger limit only appends."""

    def questions(self, seed: int) -> list[GateText]:
        """Raises InputError if a source can't be read or holds no text, or two have the same name."""
        found: dict[str, list[GateText]] = {}
        for entry in self.texts:
            name, _, place = entry.partition("=")
            if name in BENCHMARKS:
                read = _benchmark_texts(name, place or None, self.limit, seed)
            else:
                read = list(_texts(Path(entry), self.field, self.group))
                if not read:
                    raise InputError(f"{entry} holds no text")
                if self.limit is not None:
                    random.Random(f"gate shares {seed}").shuffle(read)
                    read = read[: self.limit]
            if read[0].source in found:
                raise InputError(
                    f"{entry}: there are texts called {read[0].source!r} already; give the file another name"
                )
            found[read[0].source] = read
        return [text for read in found.values() for text in read]

    def check(
        self, questions: Sequence[GateText], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
    ) -> None:
        """Raises InputError if a text is longer than the model can read."""
        longest = getattr(config.get_text_config(), "max_position_embeddings", None)
        for text, source, _ in questions:
            length = len(cast(Any, tokenizer)(text)["input_ids"])
            if longest is not None and length > longest:
                raise InputError(
                    f"the text {text[:40]!r}… of {source} has {length:,} tokens, but the model reads {longest:,}; "
                    "split it into shorter ones"
                )

    def answer(self, backend: Backend, questions: Sequence[GateText]) -> Answers:
        """A record for each text, also for those without a number."""
        for place, (text, source, group) in enumerate(questions):
            numbers = backend.decide(text, self.before)
            yield place, [GatedText(run=ONE_MODEL, source=source, group=group, text=text, numbers=numbers)]

    @classmethod
    def summary(cls, records: Sequence[GatedText]) -> list[dict[str, Any]]:
        return [
            {**row._asdict(), "numbers": share_facts(row.numbers), "texts_open": share_facts(row.texts_open)}
            for row in gate_shares(records)
        ]

    @classmethod
    def tables(cls, records: Sequence[GatedText], baseline: str | None = None) -> list[Table]:
        return [_table(gate_shares(records))]

    @classmethod
    def section(cls, records: Sequence[GatedText], run: Run) -> Section:
        rows = gate_shares(records)
        bars: dict[str, dict[str, Estimate]] = {}
        for row in rows:
            if row.numbers is not None:
                where, name = ("", row.source) if row.group is None else (row.source, row.group)
                bars.setdefault(where, {})[name] = row.numbers
        titles = {where: f"Numbers injected, {where}" if where else "Numbers injected" for where in bars}
        return (
            super()
            .section(records, run)
            ._replace(
                figures=tuple(
                    Figure(titles[where], Bars("Share of numbers injected", found)) for where, found in bars.items()
                ),
                tables=(_table([row for row in rows if row.group is None]),),
                folded=tuple(
                    _table(found)
                    for source in dict.fromkeys(row.source for row in rows)
                    if (found := [row for row in rows if row.source == source and row.group is not None])
                ),
            )
        )


def gate_shares(records: Iterable[GatedText]) -> list[GateShare]:
    """One entry a source, in order of appearance, and after it one for each of its groups, if it has two or more, from
    the greatest share of numbers to the least (paper, Figure "Interpretability Analysis")."""
    result = []
    for source, texts in grouped(records, lambda record: record.source).items():
        result.append(_gate_share(source, None, texts))
        groups = grouped(texts, lambda record: record.group)
        if len(groups) > 1:
            found = [_gate_share(source, group, of_group) for group, of_group in groups.items()]
            result += sorted(found, key=lambda row: 0.0 if row.numbers is None else row.numbers.value, reverse=True)
    return result


def _gate_share(source: str, group: str | None, texts: Sequence[GatedText]) -> GateShare:
    decisions = [(index, number.injected) for index, text in enumerate(texts) for number in text.numbers]
    numbered = [text for text in texts if text.numbers]
    return GateShare(
        source,
        group,
        len(texts),
        grouped_share([opened for _, opened in decisions], [index for index, _ in decisions]),
        grouped_share([any(number.injected for number in text.numbers) for text in numbered], range(len(numbered))),
    )


def _table(rows: Sequence[GateShare]) -> Table:
    return Table(
        "How often gates are open, with 95% intervals (texts resampled as wholes)",
        ("Source", "Group", "Texts", "Numbers injected", "Texts with an open gate, of those with a number"),
        tuple(
            (
                Cell(row.source),
                Cell("all" if row.group is None else row.group),
                Cell(str(row.texts)),
                percent(row.numbers),
                percent(row.texts_open),
            )
            for row in rows
        ),
        label_columns=2,
    )


def _benchmark_texts(name: str, data: str | None, limit: int | None, seed: int) -> list[GateText]:
    """A benchmark's questions: MATH and MMLU by subject, MMLU with the choices."""
    rows = READERS[cast(Any, name)](data, seed)["test"]
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    return [
        GateText("\n".join([row["question"], *row.get("choices", [])]), name, row.get("subject"))
        for row in cast(Iterable[dict[str, Any]], rows)
    ]


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
