"""Task `gates`: how often the gate opens for the numbers of texts and, where roles are known, how often rightly.

The paper's "Gating Behavior Analysis" counts open gates, its "Gating Accuracy" FiNER-139's nominal tags.

FiNER-139 (Loukas et al. 2022, CC BY-SA 4.0), sentences of financial reports whose numbers have XBRL tags, is a zip of
JSON-lines files on the hub. A record has `tokens` and, for each of them, the name of a tag in `ner_tags`: `O`, or `B-`
and `I-` before one of 139 names.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

from pydantic import Field, ValidationError

from ani.data.diagnostic import diagnostic_sentences
from ani.data.records import OURS, checked_roles, hub_errors, labelled_numbers
from ani.errors import InputError, first_problem, one_line
from ani.evaluation.engines import Engine, RewrittenNumbers, check_numbers
from ani.evaluation.task import Answers, Task
from ani.evaluation.tasks.benchmarks import Benchmark
from ani.evaluation.tasks.gsm8k import Gsm8k
from ani.evaluation.tasks.math import Math
from ani.evaluation.tasks.mmlu import Mmlu
from ani.injection.decisions import NumberDecision
from ani.numbers import find_numbers
from ani.results.records import Record
from ani.results.scores import ONE_MODEL, TaskRecord, by_seed, grouped
from ani.results.statistics import Estimate, area_under_roc, grouped_share, mean_of_two, share_facts
from ani.results.tables import MISSING, Cell, Table, percent
from ani.revisions import hub_name, pinned
from ani.roles import RoleName
from ani.text_files import json_lines, read_text, zipped_json_lines

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

FINER_NAME = "nlpaueb/finer-139"
FINER_FILE = "finer139.zip"
FINER_SPLIT = "test"
SENTENCES = 100
"""Number of sentences of `diagnostic` without a limit."""

NOMINAL_TAGS = frozenset({"DebtInstrumentMaturityDate"})
"""FiNER's tags of nominal numbers, by the rules of `ani.data.diagnostic`: positions in a calendar, as the paper's
example. The other 138 are amounts, prices, rates, counts and durations. Arguable are
`DebtInstrumentInterestRateStatedPercentage` ("the 7.00 % Senior Notes") and `PreferredStockDividendRatePercentage`,
rates that often occur in a security's name."""
READERS: dict[str, type[Benchmark]] = {"gsm8k": Gsm8k, "math": Math, "mmlu": Mmlu}
"""The benchmarks whose questions can be read as texts."""
ROLES: tuple[RoleName, ...] = ("quantitative", "nominal")
BINS = 10
"""Number of bins in the histogram of α."""
MEASURES = {
    "numbers": "Numbers injected",
    "texts_open": "Texts with an open gate, of those with a number",
    "nominal": "Nominal numbers left alone",
    "quantitative": "Quantitative numbers injected",
    "balanced_accuracy": "Balanced accuracy",
    "precision": "Nominal ones among the numbers left alone",
}
"""Shares by key. We read the paper's "75.8% precision in bypassing these nominal identifiers" as `nominal`, which a
gate that is always closed has in full. `precision` depends on how many texts of each kind were read."""


PUBLISHED = {("math", "numbers"): "48%", ("mmlu", "numbers"): "24%", ("finer", "nominal"): "75.8%"}
"""The paper's values for Qwen3-8B, by source and measure: Figure 6 (a) and "Gating Accuracy"."""


class DecidedText(TaskRecord):
    """A text and the gate's decision about each of its numbers, in their order; a line of `gates.jsonl`."""

    known_by = "source", "text"

    source: str = ""
    """Source of the text, such as `mmlu`."""
    group: str | None = None
    """Group within the source, such as a subject."""
    text: str
    numbers: tuple[NumberDecision, ...]
    rewritten: bool = False
    """True if the tokenizer changes the numbers of the text; their roles are then unknown, and `numbers` is empty."""


class Label(NamedTuple):
    """Role of a number, by the data."""

    role: RoleName
    tag: str | None = None
    """FiNER's tag without `B-` or `I-`."""


class GateText(NamedTuple):
    """A text, its source, and the group of that source that it counts in, such as an MMLU subject."""

    text: str
    source: str
    group: str | None = None
    labels: tuple[Label | None, ...] | None = None
    """One for each number of `ani.numbers.find_numbers(text)`; None: no role is known."""


class GateShare(NamedTuple):
    """Measures of one run's gate in one source, or in a group of its texts."""

    source: str
    group: str | None
    """None: all groups."""
    run: str
    texts: int
    left_out: int
    """Number of further texts, whose numbers the tokenizer changes."""
    measures: dict[str, Estimate | None]
    """Shares over all seeds, by the keys of `MEASURES`; those of roles are None where no role is known."""
    auc: float | None
    """P(α of a quantitative number > α of a nominal one) + P(equal)/2, the mean over seeds. None where a role or an α
    is missing."""


class Gates(Task):
    """The gate's decisions about the numbers of any texts; for models with a gate."""

    name = "gates"
    title = "Gates"
    note = (
        "How many of the numbers the gate lets through. Where roles are known, a quantitative number should open the "
        "gate and a nominal one leave it closed; a gate that is always closed would leave every nominal one alone. 95% "
        "intervals: texts resampled as wholes, and training seeds where there are several; the two roles taken as "
        "independent. n counts the numbers of all seeds."
    )
    unit = "texts"
    record = DecidedText
    needs_gate = True
    together = 200

    texts: list[str] = Field(default=["diagnostic"], min_length=1)
    """`diagnostic` (held-out sentences), `natural` (labelled numbers of natural texts) and `finer` (FiNER-139), whose
    numbers have roles; `gsm8k`, `math` or `mmlu`; `finer` and these also as `mmlu=PATH`; or text files (a line each)
    and JSONL files, perhaps with `roles`."""
    field: list[str] = Field(default=["text"])
    """Keys of a JSONL record's text: a string or a list of them; several are joined by line breaks."""
    group: str | None = None
    """Key of a JSONL record's group; lines have none."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of texts per source, drawn by the seed; of `finer` as many with a nominal number, and as many
    without. null: all, and 100 of `diagnostic`. A larger limit only appends."""
    chat: bool = False
    """True: each text is a user's message in the model's chat template; false: a prompt by itself."""

    def questions(self, seed: int) -> list[GateText]:
        """Raises InputError if a source can't be read or contains no text, or two have the same name."""
        found: dict[str, list[GateText]] = {}
        for entry in self.texts:
            read = read_texts(entry, self.field, self.group, self.limit, seed)
            if (name := read[0].source) in found:
                raise InputError(f"{entry}: there are texts called {name!r} already; give the file another name")
            found[name] = read
        return [text for read in found.values() for text in read]

    def check(
        self, questions: Sequence[GateText], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
    ) -> None:
        """Raises InputError if a text is longer than the model can read."""
        longest = getattr(config.get_text_config(), "max_position_embeddings", None)
        for each in questions:
            length = len(cast(Any, tokenizer)(each.text)["input_ids"])
            if longest is not None and length > longest:
                raise InputError(
                    f"the text {each.text[:40]!r}… of {each.source} has {length:,} tokens, but the model reads "
                    f"{longest:,}; split it into shorter ones"
                )

    def answer(self, engine: Engine, questions: Sequence[GateText]) -> Answers:
        """A record for each text, also for those without a number."""
        every = engine.decide([question.text for question in questions], [] if self.chat else None)
        for place, ((text, source, group, labels), decided) in enumerate(zip(questions, every, strict=True)):
            record = DecidedText(run=ONE_MODEL, source=source, group=group, text=text, numbers=())
            try:
                if labels is not None:
                    check_numbers(text, decided)
                known = zip(decided, labels or [None] * len(decided), strict=True)
                numbers = tuple(number.model_copy(update=label._asdict() if label else {}) for number, label in known)
                yield place, [record.model_copy(update={"numbers": numbers})]
            except RewrittenNumbers:
                yield place, [record.model_copy(update={"rewritten": True})]

    @classmethod
    def summary(cls, records: Sequence[DecidedText]) -> list[dict[str, Any]]:
        return [
            {**row._asdict(), "measures": {key: share_facts(found) for key, found in row.measures.items()}}
            for row in gate_shares(records)
        ]

    @classmethod
    def tables(cls, records: Sequence[DecidedText], baseline: str | None = None) -> list[Table]:
        return [_table([row for row in gate_shares(records) if row.group is None])]

    @classmethod
    def details(cls, records: Sequence[DecidedText], baseline: str | None = None) -> list[Table]:
        rows, found = gate_shares(records), []
        for source in dict.fromkeys(row.source for row in rows):
            if groups := [row for row in rows if row.source == source and row.group is not None]:
                found.append(_table(groups))
        return [*_histogram(records), *found]


def gate_shares(records: Iterable[DecidedText]) -> list[GateShare]:
    """Return an entry per source and run, in order of appearance. After those of a source with two groups or more,
    return one per group and run, by falling share of numbers (paper, Figure "Interpretability Analysis"). Raises
    InputError if the seeds of a run were given different texts."""
    result = []
    for source, of_source in grouped(records, lambda record: record.source).items():
        for run, of_run in grouped(of_source, lambda record: record.run).items():
            result.append(_gate_share(source, None, run, of_run))
        groups = grouped(of_source, lambda record: record.group and (record.group, record.run))
        if len({group for group, _ in groups}) > 1:
            found = [_gate_share(source, group, run, of_group) for (group, run), of_group in groups.items()]
            result += sorted(found, key=lambda row: n.value if (n := row.measures["numbers"]) else 0.0, reverse=True)
    return result


def _gate_share(source: str, group: str | None, run: str, records: Sequence[DecidedText]) -> GateShare:
    read = [record for record in records if not record.rewritten]
    numbers = [(record.text, record.seed, number) for record in read for number in record.numbers]
    nominal, quantitative = ([each for each in numbers if each[2].role == role] for role in ("nominal", "quantitative"))
    measures = {
        "numbers": grouped_share((text, seed, n.injected) for text, seed, n in numbers),
        "texts_open": grouped_share((r.text, r.seed, any(n.injected for n in r.numbers)) for r in read if r.numbers),
        "nominal": (closed := grouped_share((text, seed, not n.injected) for text, seed, n in nominal)),
        "quantitative": (opened := grouped_share((text, seed, n.injected) for text, seed, n in quantitative)),
        "balanced_accuracy": mean_of_two(closed, opened) if closed and opened else None,
        "precision": grouped_share((t, s, n.role == "nominal") for t, s, n in numbers if n.role and not n.injected),
    }
    seeds = by_seed(run, records)
    aucs = [auc for auc in map(_auc, seeds) if auc is not None]
    mean = sum(aucs) / len(aucs) if len(aucs) == len(seeds) else None
    texts, every = len(read) // len(seeds), len(records) // len(seeds)
    return GateShare(source, group, run, texts, every - texts, measures, mean)


def _auc(records: Sequence[DecidedText]) -> float | None:
    numbers = [number for record in records for number in record.numbers]
    quantitative, nominal = ([n.alpha for n in numbers if n.role == role] for role in ROLES)
    known = quantitative and nominal and None not in (*quantitative, *nominal)
    return area_under_roc(cast(Any, quantitative), cast(Any, nominal)) if known else None


def _name(what: str | None, run: str) -> str:
    return f"{what}" if run == ONE_MODEL else f"{what}, {run}"


def _histogram(records: Sequence[DecidedText]) -> list[Table]:
    """Return the distribution of α by role; no table where no role or no α is known."""
    rows = []
    for (source, run), texts in grouped(records, lambda record: (record.source, record.run)).items():
        for role in ROLES:
            alphas = [n.alpha for text in texts for n in text.numbers if n.role == role and n.alpha is not None]
            counts = Counter(min(int(alpha * BINS), BINS - 1) for alpha in alphas)
            shares = [counts[place] / len(alphas) for place in range(BINS)] if alphas else []
            if alphas:
                name = Cell(f"{role}, {_name(source, run)}")
                rows.append((name, *(Cell(f"{share:.1%}", estimate=share) for share in shares)))
    bins = (f"{place / BINS:g}–{(place + 1) / BINS:g}" for place in range(BINS))
    caption = "α by role: shares of the role's numbers"
    return [Table(caption, ("Role", *bins), tuple(rows), 1, "histogram")] if rows else []


def _table(rows: Sequence[GateShare]) -> Table:
    """Return a row per measure and a column per source and run; for groups, a row per group and run. A measure without
    a value is left out."""
    columns = {
        "Texts": [Cell(str(row.texts)) for row in rows],
        "Texts left out, as the tokenizer changes their numbers": [Cell(str(row.left_out)) for row in rows],
        **{title: [_measured(row, key) for row in rows] for key, title in MEASURES.items()},
        "AUC of α": [Cell(MISSING if row.auc is None else f"{row.auc:.3f}") for row in rows],
    }
    shown = {title: cells for title, cells in columns.items() if {each.text for each in cells} - {MISSING, "0"}}
    caption = "How often gates are open, with 95% intervals (texts resampled as wholes, and training seeds)"
    if all(row.group is None for row in rows):
        names = (_name(row.source, row.run) for row in rows)
        return Table(caption, ("Measure", *names), tuple((Cell(title), *of) for title, of in shown.items()), 1, "bars")
    groups = [Cell(_name(row.group, row.run)) for row in rows]
    return Table(
        f"{caption}: {rows[0].source}", ("Group", *shown), tuple(zip(groups, *shown.values(), strict=True)), 1, "bars"
    )


def _measured(row: GateShare, key: str) -> Cell:
    cell, paper = percent(row.measures[key]), None if row.group else PUBLISHED.get((row.source, key))
    return cell if paper is None or cell.text == MISSING else cell._replace(details=(*cell.details, f"paper: {paper}"))


# --- texts


def read_texts(entry: str, fields: Sequence[str], group: str | None, limit: int | None, seed: int) -> list[GateText]:
    """Return the texts of one entry of `Gates.texts`, as `Gates` says; raises InputError if the source can't be read, a
    record is malformed, or there is no text."""
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
        rows = READERS[name].read(place or None, seed)["test"]
        asked = rows.select(range(len(rows) if limit is None else min(limit, len(rows))))
        # MATH and MMLU by subject, MMLU with the choices.
        return [
            GateText("\n".join([row["question"], *row.get("choices", [])]), name, row.get("subject"))
            for row in cast(Iterable[dict[str, Any]], asked)
        ]
    read = list(_file_texts(Path(entry), fields, group))
    if not read:
        raise InputError(f"{entry} contains no text")
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
    yield from (GateText(line, path.stem) for line in read_text(path).split("\n") if line.strip())


def _parts(record: Any, field: str, where: str) -> list[str]:
    value = record.get(field) if isinstance(record, dict) else None
    parts: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) for part in parts):
        known = f"; it has {one_line(', '.join(map(repr, record)))}" if isinstance(record, dict) else ""
        raise InputError(f"{where}: no text under {field!r}{known}")
    return parts


# --- FiNER-139 --------------------------------------------------------------------------------------------------------


def _finer_sentences(source: str, limit: int | None, seed: int) -> list[GateText]:
    """Return the sentences with a tagged number in digits: at most `limit` with a nominal number, and as many
    without."""
    path = source
    if hub_name(source).name == FINER_NAME:
        from huggingface_hub import hf_hub_download

        # Not by `datasets`: the set's loading script is of the kind that it no longer runs.
        with hub_errors(source, FINER_SPLIT, "its zip or a JSON-lines file in its format"):
            found = hub_name(pinned(source, "dataset"))
            path = hf_hub_download(found.name, FINER_FILE, repo_type="dataset", **found.options)
    records = zipped_json_lines(path, f"{FINER_SPLIT}.jsonl") if Path(path).suffix == ".zip" else json_lines(path)
    read = (_finer_sentence(record, where) for where, record in records)
    sentences = [sentence for sentence in read if any(sentence.labels or ())]
    if not sentences:
        raise InputError(f"{source} contains no sentence with a tagged number; check the file")
    random.Random(f"finer {seed}").shuffle(sentences)
    kinds: dict[bool, list[GateText]] = {True: [], False: []}
    for sentence in sentences:
        kinds[any(label and label.role == "nominal" for label in sentence.labels or ())].append(sentence)
    chosen = {sentence for kind in kinds.values() for sentence in kind[:limit]}
    return [sentence for sentence in sentences if sentence in chosen]


class _Tagged(Record):
    tokens: list[str]
    ner_tags: list[Annotated[str, Field(pattern="^(O$|B-|I-)")]]


def _finer_sentence(value: Any, where: str) -> GateText:
    """Join the tokens by single spaces: `$ 100 million of the 7.00 % Senior Notes`."""
    try:
        record = _Tagged.model_validate(value)
    except ValidationError as error:
        known = "a record of FiNER-139 has 'tokens' and 'ner_tags' such as 'B-DebtInstrumentMaturityDate'"
        raise InputError(f"{where}: {first_problem(error)}; {known}") from error
    tokens, tags = record.tokens, record.ner_tags
    if len(tokens) != len(tags):
        raise InputError(f"{where}: {len(tokens)} tokens, but {len(tags)} tags")
    text, ends = " ".join(tokens), list(accumulate(len(token) + 1 for token in tokens))
    found = find_numbers(text) if set(tags) != {"O"} else []
    names = [tags[bisect_right(ends, number.start)][2:] for number in found]
    labels = (Label("nominal" if name in NOMINAL_TAGS else "quantitative", name) if name else None for name in names)
    return GateText(text, "finer", labels=tuple(labels))
