"""Builds the paper's labelled texts: OpenMath texts, whose numbers are quantities, and Magpie chats, whose are names.

The paper describes it in the appendix "Diagnostic Dataset Construction". A text is a question with its answer, the
first turn of a conversation with its reply, or a record's plain text. The paper leaves these points open:

- Every number has the role of its source, so a date in a maths problem is a quantity.
- A conversation is left out if any of its turns contains a term of `excluded_terms.yaml`: a whole word in any case,
  perhaps with a plural s or digits after it (`python3`); hyphens and underscores end words.
- Numbers that count the items of a list at the beginning of a line are removed on both sides: a chat may contain few
  others, and a probe would learn the line break instead of the role.
- GSM8K's answers are used too, because they contain the operands; its calculator annotations (`<<48/2=24>>`) and the
  line `#### 24`, which other texts do not have, are removed.
- Long texts are cut after a sentence or a line. A question occurs once, whatever its answers: else nearly the same text
  would be in both parts of a split.
- Under `terminal` the gate sees the numbers of questions alone (`scope: prompt`), and chats have theirs in the answers.
  So texts without a number in the question are replaced until the questions of each role contain enough numbers.
"""

import importlib.metadata
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from ani.data import MAGPIE, OPENMATH
from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences, sentence_limit
from ani.data.labelled_sentences import LABELLED_FILE, write_labelled
from ani.data.records import hub_errors, record_examples, text_of
from ani.data.split import read_templates
from ani.errors import InputError, one_line
from ani.files import check_replaceable, replacing_directory
from ani.numbers import find_numbers
from ani.revisions import hub_name, pinned
from ani.roles import RoleName
from ani.text_files import json_lines

DIAGNOSTIC = "diagnostic"
"""Name of a nominal source: our own training sentences with nominal numbers only."""
CARD_FILE = "README.md"
TRAINING_FILE = "train.jsonl"
MOST_CHARACTERS = 2_000
"""Length at which a text is cut."""
SHUFFLE_BUFFER = 10_000
"""Number of records in memory, from which the next one is drawn."""

TERMS: dict[str, str] = read_templates("excluded_terms.yaml")
"""Terms about maths or programs, which keep a text out of the nominal side."""

_TERMS = "|".join(map(re.escape, ", ".join(TERMS.values()).split(", ")))
# A letter or digit may not touch a term. \b finds no boundary between the + of C++ and a blank.
_TERM = re.compile(rf"(?<![^\W_])(?:{_TERMS})(?:s|[0-9]+)?(?![^\W_])", re.IGNORECASE)
_LIST_MARK = re.compile(r"^([ \t*_#>]*)[0-9]{1,2}[.)][ \t]+", re.MULTILINE)
_GSM8K_MARK = re.compile(r"<<[^<>\n]*>>|^####.*$", re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?](?=\s)|(?=\n)")
_QUESTION_AND_ANSWER = (("problem", "generated_solution"), ("problem", "solution"), ("question", "answer"))
_SPEAKERS = {"human": "user", "gpt": "assistant"}
_UNSEEN = "no number in the question"
_REASONS = ("maths or programming term", "duplicate", "too long", "no number", _UNSEEN)


def build_openmath_magpie(
    out: str | Path,
    *,
    quantitative: str = OPENMATH,
    nominal: str = MAGPIE,
    count: int = 10_000,
    numbers: int | None = None,
    seed: int = 0,
    on_kept: Callable[[int], None] = lambda amount: None,
) -> None:
    """Write the directory `out`: `LABELLED_FILE` with `count` texts of each role by turns, `TRAINING_FILE` with the
    same texts as training examples (chats with whole answers; not of a source that has texts only), and a card. The
    same arguments write the same bytes.

    Args:
        out: A new directory, or one that this function wrote, which is replaced.
        quantitative: A dataset on the hub (`NAME` or `NAME@REVISION`; its `train` split), a JSON-lines or parquet
            file, or a directory of those (the files named `train…` if there are any). Known records are those of
            OpenMathInstruct-2, GSM8K, MATH and Magpie, `messages`, `prompt` with `completion`, and `text`.
        nominal: The same, or `DIAGNOSTIC`.
        count: Number of texts of each role.
        numbers: Least number of numbers in the questions of each role, which the gate sees under every policy; at most
            `count`, None: `count`. 0: texts alone are counted, as in the paper.
        seed: Seed of the order in which the sources are read, as a stream, until there are enough texts and numbers.
        on_kept: Called with 1 for every text kept.

    Raises:
        InputError: A source can't be read, a record is of no known kind, a source gives too few texts or numbers, or
            `out` is something else.
    """
    out, numbers = Path(out), count if numbers is None else numbers
    if count < 1 or not 0 <= numbers <= count:
        raise InputError(f"a set needs at least 1 text of each role, and 0 to count={count} numbers, not {numbers}")
    check_replaceable(out, "set of labelled texts", (out / LABELLED_FILE).is_file())
    if quantitative == DIAGNOSTIC:
        raise InputError(f"{DIAGNOSTIC} gives nominal numbers only; name another quantitative source")

    sides = [_Side(pinned(quantitative, "dataset"), "quantitative"), _Side(pinned(nominal, "dataset"), "nominal")]
    seen: set[str] = set()
    for side in sides:
        _fill(side, _entries(side.source, seed), count, numbers, seen, on_kept)
    with replacing_directory(out) as work:
        kept = [text for pair in zip(*(side.kept for side in sides), strict=True) for text in pair]
        write_labelled(work / LABELLED_FILE, (text.sentence for text in kept))
        lines = (json.dumps(text.example, ensure_ascii=False) + "\n" for text in kept if text.example is not None)
        (work / TRAINING_FILE).write_text("".join(lines), encoding="utf-8", newline="\n")
        (work / CARD_FILE).write_text(_card(sides, seed), encoding="utf-8", newline="\n")


class _Entry(NamedTuple):
    text: str
    question: str
    """Text by which duplicates are recognised."""
    everything: str
    """Text in which terms are looked for: the whole record."""
    answer: str | None = None
    """Completion in training; None: the source has no questions."""
    template: str | None = None


class _Text(NamedTuple):
    """A text that is kept."""

    sentence: DiagnosticSentence
    example: dict[str, Any] | None
    """The text's training record; None: the text has no answer."""
    in_question: int
    """Number of numbers in the question."""
    in_answer: int
    """Number of numbers in the answer."""


@dataclass
class _Side:
    """The texts of one role, and counts of the dropped ones."""

    source: str
    role: RoleName
    kept: list[_Text] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """Name of the source, without the folders of this machine."""
        path = Path(self.source)
        return path.resolve().name if path.exists() else self.source


def _fill(
    side: _Side,
    entries: Iterable[_Entry],
    count: int,
    numbers: int,
    seen: set[str],
    on_kept: Callable[[int], None],
) -> None:
    """Keep the first `count` usable entries; replace those without a number in the question, the first ones first, by
    later ones that have some, until the questions contain `numbers`. `seen` contains the questions that were kept, of
    both sides."""
    found, unseen = 0, iter(range(count))
    for entry in entries:
        question = " ".join(entry.question.casefold().split())
        text = _cut(_LIST_MARK.sub(r"\1", entry.text).strip())
        if side.role == "nominal" and _TERM.search(entry.everything):
            side.dropped["maths or programming term"] += 1
        elif question in seen:
            side.dropped["duplicate"] += 1
        elif text is None:
            side.dropped["too long"] += 1
        elif not (in_text := find_numbers(text)):
            side.dropped["no number"] += 1
        elif not (in_question := len(find_numbers(entry.question))) and len(side.kept) == count:
            side.dropped[_UNSEEN] += 1
        else:
            seen.add(question)
            sentence = DiagnosticSentence(text, (side.role,) * len(in_text), side.name, entry.template or text)
            messages = [{"role": "user", "content": entry.question}, {"role": "assistant", "content": entry.answer}]
            example = {"messages": messages, "roles": side.role} if entry.answer is not None else None
            new = _Text(sentence, example, in_question, len(find_numbers(entry.answer or "")))
            if len(side.kept) < count:
                side.kept.append(new)
                on_kept(1)
            else:
                side.kept[next(place for place in unseen if not side.kept[place].in_question)] = new
                side.dropped[_UNSEEN] += 1
            found += in_question
            if len(side.kept) == count and found >= numbers:
                return
    dropped = ", ".join(f"{side.dropped[reason]} {reason}" for reason in _REASONS if side.dropped[reason])
    given, amount, unit = f"{len(side.kept)} {side.role} texts", count, "texts"
    if len(side.kept) == count:
        given, amount, unit = f"{found} numbers in the questions of {given}", numbers, "numbers"
    most = found if unit == "numbers" else len(side.kept)
    raise InputError(
        f"{side.source} gives {given}, {amount} are wanted (dropped: {dropped or 'none'}); name another source or ask "
        f"for at most {most} {unit}"
    )


def _cut(text: str) -> str | None:
    """The text up to the last end of a sentence or line within `MOST_CHARACTERS`; None if there is none."""
    if len(text) <= MOST_CHARACTERS:
        return text
    ends = [end.end() for end in _SENTENCE_END.finditer(text, 0, MOST_CHARACTERS + 1)]
    return text[: ends[-1]].rstrip() if ends else None


def _entries(source: str, seed: int) -> Iterator[_Entry]:
    if source == DIAGNOSTIC:
        for sentence in diagnostic_sentences(sentence_limit("train"), split="train", seed=seed):
            if set(sentence.roles) == {"nominal"}:
                yield _Entry(sentence.text, sentence.text, sentence.text, template=sentence.template)
        return
    path = Path(source)
    if path.exists():
        records = _shuffled(_local_records(path), random.Random(seed))
    elif path.is_absolute() or source.startswith(".") or path.suffix in (".jsonl", ".parquet"):
        raise InputError(f"data file {path} does not exist")
    else:
        records = _hub_records(source, seed)
    for where, record in records:
        yield _entry(record, where)


def _hub_records(name: str, seed: int) -> Iterator[tuple[str, Any]]:
    from datasets import load_dataset

    with hub_errors(name, "train", "a local JSONL or parquet file"):
        repository = hub_name(name)
        dataset = load_dataset(repository.name, split="train", streaming=True, **repository.options)
        for i, record in enumerate(dataset.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER)):
            yield f"{name}, record {i} as shuffled", record


def _local_records(path: Path) -> Iterator[tuple[str, Any]]:
    files = sorted(path.rglob("*.*")) if path.is_dir() else [path]
    known = [file for file in files if file.suffix in (".jsonl", ".parquet")]
    if not known:
        raise InputError(f"{path} is no .jsonl or .parquet file, nor a directory that contains one")
    # Other splits next to a train split are for evaluation.
    for file in [file for file in known if file.name.startswith("train")] or known:
        yield from json_lines(file) if file.suffix == ".jsonl" else _parquet_rows(file)


def _parquet_rows(file: Path) -> Iterator[tuple[str, Any]]:
    from datasets import load_dataset

    try:
        for i, row in enumerate(load_dataset("parquet", data_files=str(file), split="train", streaming=True)):
            yield f"{file}, row {i}", row
    except Exception as error:  # Arrow and `datasets` have errors of their own, of many kinds
        raise InputError(f"{file} can't be read as parquet: {one_line(error, 200)}") from error


def _shuffled(records: Iterable[tuple[str, Any]], rng: random.Random) -> Iterator[tuple[str, Any]]:
    buffer: list[tuple[str, Any]] = []
    for record in records:
        if len(buffer) < SHUFFLE_BUFFER:
            buffer.append(record)
            continue
        place = rng.randrange(SHUFFLE_BUFFER)
        yield buffer[place]
        buffer[place] = record
    rng.shuffle(buffer)
    yield from buffer


def _entry(record: Any, where: str) -> _Entry:
    """Read a record by its fields."""
    fields: set[Any] = set()
    if isinstance(record, dict):
        record = {key: value for key, value in record.items() if key != "roles"}  # numbers have the source's role
        fields = {*record}
    for keys in _QUESTION_AND_ANSWER:
        if fields >= set(keys):
            question, answer = (text_of(record, key, where) for key in keys)
            answer = _GSM8K_MARK.sub("", answer)
            text = f"{question}\n\n{answer}"
            return _Entry(text, question, text, answer)
    if "conversations" in fields:
        record = {"messages": _messages(record["conversations"], where)}
    elif "text" in fields and not ("messages" in fields or fields >= {"prompt", "completion"}):
        text = text_of(record, "text", where)
        return _Entry(text, text, text)
    first = next(record_examples(record, where))
    if isinstance(first.prompt, str):
        text = first.prompt + first.completion
        return _Entry(text, first.prompt, text, first.completion)
    # The first reply; terms are looked for in the rest of the conversation too.
    turns = [message["content"] for message in record.get("messages", first.prompt)]
    question = first.prompt[-1]["content"]
    return _Entry(
        f"{question}\n\n{first.completion}", question, "\n".join([*turns, first.completion]), first.completion
    )


def _messages(turns: Any, where: str) -> list[dict[str, Any]]:
    """Chat messages from turns in ShareGPT's form, which Magpie uses."""
    try:
        return [{"role": _SPEAKERS.get(turn["from"], turn["from"]), "content": turn["value"]} for turn in turns]
    except (TypeError, KeyError) as error:
        raise InputError(f"{where}: every turn of 'conversations' needs a text 'from' and a text 'value'") from error


def _card(sides: list[_Side], seed: int) -> str:
    """The data card, Markdown."""
    count = len(sides[0].kept)
    sources, seen = [], []
    for side in sides:
        numbers = sum(len(text.sentence.roles) for text in side.kept)
        sources.append((side.role, side.name, f"{count + side.dropped.total():,}", f"{count:,}", f"{numbers:,}"))
        question, answer = (sum(column) for column in zip(*(text[2:] for text in side.kept), strict=True))
        seen.append((side.role, f"{question:,}", f"{question + answer:,}"))
    dropped = [(reason, *(f"{side.dropped[reason]:,}" for side in sides)) for reason in _REASONS]
    return (
        (resources.files("ani.data") / "diagnostic_card.md")
        .read_text("utf-8")
        .format(
            count=count,
            file=LABELLED_FILE,
            version=importlib.metadata.version("ani"),
            seed=seed,
            max_characters=MOST_CHARACTERS,
            sources=_rows(sources),
            seen=_rows(seen),
            dropped=_rows(dropped),
            **TERMS,
        )
    )


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
