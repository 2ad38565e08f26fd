"""Task `language`: perplexity of word tokens, which shows what a method costs in plain language."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from pydantic import Field, FiniteFloat

from ani.data.diagnostic import diagnostic_sentences, sentence_limit
from ani.data.records import data_records
from ani.errors import InputError
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, Task
from ani.numbers import find_numbers
from ani.results.records import Integer
from ani.results.scores import ONE_MODEL, TaskRecord, by_seed, grouped
from ani.results.statistics import Estimate, resampled
from ani.results.tables import MISSING, Cell, Table, count

FEWEST_WORDS = 8
MOST_CHARACTERS = 1000
"""Limits of a plain text."""
HUB_SPLIT = "test"
HUB_RECORDS = 20_000
"""Maximum number of records read from the hub."""
BATCH_SIZE = 16
"""Number of texts per forward pass."""

TextKind = Literal["plain", "nominal"]
_KINDS: dict[TextKind, str] = {"plain": "Without numbers", "nominal": "Nominal numbers"}


class TextLoss(TaskRecord):
    """The loss on one text, a line of `language.jsonl`."""

    known_by = "kind", "text"

    kind: TextKind
    text: str
    tokens: Integer = Field(ge=1)
    """Number of word tokens, which are scored."""
    loss: FiniteFloat
    """Sum of their negative log-likelihoods, in nats."""


class LanguageText(NamedTuple):
    """A text to score: `plain` has no number, `nominal` only nominal ones."""

    kind: TextKind
    text: str


class Perplexity(NamedTuple):
    """Perplexity of one run on one kind of text, over its seeds."""

    value: Estimate
    """exp of the mean loss per word token."""
    difference: Estimate | None
    """Mean loss minus the baseline's, in nats per token; None for the baseline, or without one."""


class Language(Task):
    """Perplexity on texts without numbers and on sentences whose numbers are nominal: shows damage.

    A word token overlaps no number, isn't special, and is neither a text's first token nor the one right after a
    number. Some methods predict nothing sensible inside a number, and some show at its last token that it is complete.
    """

    name = "language"
    title = "Language"
    note = (
        "What training costs on ordinary text. Scored are word tokens: not numbers, nor the token right after one. "
        "Texts without numbers can only show what training did to the model; in sentences whose numbers are all "
        "names, injecting one can do harm as well. Means over training seeds; intervals are for other texts, not "
        "for other seeds."
    )
    unit = "texts"
    record = TextLoss
    together = 10 * BATCH_SIZE  # of which those of like length make a batch

    texts: str | None = None
    """JSONL file, or data set on the hub (the first 20,000 records of its split `test`), that should not occur in the
    training data; null: no plain texts."""
    field: str = "text"
    """Key of the text in each record."""
    count: int = Field(ge=1)
    """Number of texts without numbers, and of sentences; a larger count only appends to each kind."""

    def questions(self, seed: int) -> list[LanguageText]:
        """Return `count` plain texts of the user's, then `count` nominal sentences of the diagnostic set's test split.

        Plain texts are distinct and have no number, 8 words or more and at most 1,000 characters. Sentences go on for
        five words or more after their first number, where injecting it would do damage. Raises InputError if the source
        can't be read, a record lacks the text, or there are too few.
        """
        nominal = [LanguageText("nominal", text) for text in _nominal(self.count, seed)]
        if self.texts is None:
            return nominal
        read = data_records(self.texts, HUB_SPLIT, HUB_RECORDS, "a local JSONL file")
        found = (_text(record, self.field, where) for where, record in read)
        plain = list(dict.fromkeys(text for text in found if _is_plain(text)))
        if len(plain) < self.count:
            raise InputError(
                f"{self.texts} has {len(plain)} texts without numbers, of {FEWEST_WORDS} words or more and at most "
                f"{MOST_CHARACTERS:,} characters, under {self.field!r}; lower the count of {self.count}"
            )
        random.Random(f"language {seed}").shuffle(plain)
        return [*(LanguageText("plain", text) for text in plain[: self.count]), *nominal]

    def answer(self, engine: Engine, questions: Sequence[LanguageText]) -> Answers:
        """Score the word tokens of every text; a text without a word has no record. Raises InputError if a loss isn't
        finite."""
        import torch
        from torch.nn.functional import cross_entropy

        model, tokenizer = cast(Any, engine).model, engine.tokenizer
        special = frozenset(tokenizer.all_special_ids)  # padding is among them
        order = sorted(range(len(questions)), key=lambda index: len(questions[index].text))
        for first in range(0, len(order), BATCH_SIZE):
            batch = order[first : first + BATCH_SIZE]
            rows = [engine.method.pieces(questions[index].text) for index in batch]
            encoded = tokenizer(
                ["".join(piece for piece, _ in row) for row in rows],
                return_tensors="pt",
                padding=True,
                padding_side="right",
                return_offsets_mapping=True,
            )
            ids, mask = (encoded[name].to(model.device) for name in ("input_ids", "attention_mask"))
            with torch.inference_mode():
                logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            for row, (index, pieces) in enumerate(zip(batch, rows, strict=True)):
                words = _word_tokens(ids[row].tolist(), encoded["offset_mapping"][row].tolist(), pieces, special)
                if not words:
                    yield index, []
                    continue
                where = torch.tensor(words, device=ids.device)
                loss = cross_entropy(logits[row, where - 1].float(), ids[row, where], reduction="sum").item()
                kind, text = questions[index]
                if not math.isfinite(loss):
                    raise InputError(
                        f"the model's loss on the text {text!r} is {loss}; its weights or its dtype are unfit"
                    )
                yield index, [TextLoss(run=ONE_MODEL, kind=kind, text=text, tokens=len(words), loss=loss)]

    @classmethod
    def summary(cls, records: Sequence[TextLoss]) -> dict[str, Any]:
        (kinds,) = perplexities(records).values()
        keys = ("value", "low", "high", "cases")
        return {kind: {key: getattr(found.value, key) for key in keys} for kind, found in kinds.items()}

    @classmethod
    def tables(cls, records: Sequence[TextLoss], baseline: str | None = None) -> list[Table]:
        caption = "Perplexity of word tokens, with 95% bootstrap intervals over texts and training seeds"
        shown = {kind: name for kind, name in _KINDS.items() if any(record.kind == kind for record in records)}
        header = ["Run", *shown.values()]
        if baseline is not None:
            caption += f"; the mean loss minus that of {baseline}, in nats a token (less is better), on the same texts"
            header += [f"{name}: loss" for name in shown.values()]
        lines = []
        for run, kinds in perplexities(records, baseline).items():
            found = [kinds.get(kind) for kind in shown]
            cells = [Cell(run), *map(_perplexity, found)]
            if baseline is not None:
                cells += [_nats(None if one is None else one.difference) for one in found]
            lines.append(tuple(cells))
        return [Table(caption, tuple(header), tuple(lines), label_columns=1)]


def perplexities(losses: Sequence[TextLoss], baseline: str | None = None) -> dict[str, dict[TextKind, Perplexity]]:
    """Return the perplexity by run and kind of text. Raises InputError if the seeds of a run were given different
    texts, or a run other texts than the baseline.

    Intervals are percentiles over 1,000 resamples of texts, each drawn with its loss and tokens under both runs, so
    differences are paired; and of training seeds (`ani.results.statistics.resampled`).
    """
    runs = grouped(losses, lambda record: record.run)
    found: dict[tuple[str, TextKind], dict[str, list[tuple[float, int]]]] = {}  # loss and tokens by text, seed by seed
    for run, of_run in runs.items():
        for record in chain.from_iterable(by_seed(run, of_run)):
            texts = found.setdefault((run, record.kind), {})
            texts.setdefault(record.text, []).append((record.loss, record.tokens))
    result: dict[str, dict[TextKind, Perplexity]] = {run: {} for run in runs}
    for (run, kind), texts in found.items():
        others = texts if baseline is None else found.get((baseline, kind), {})
        if texts.keys() != others.keys():
            raise InputError(f"{kind} texts: runs {run!r} and {baseline!r} were given different ones")
        own, other = (np.array([of[text] for text in others], dtype=float) for of in (texts, others))
        value = resampled([own], lambda sums: np.exp(sums[:, 0] / sums[:, 1]))
        gain = resampled([own, other], lambda a, b: a[:, 0] / a[:, 1] - b[:, 0] / b[:, 1])
        result[run][kind] = Perplexity(value, None if baseline in (None, run) else gain)
    return result


def _perplexity(found: Perplexity | None) -> Cell:
    if found is None:
        return Cell(MISSING)
    value, low, high = (f"{number:.2f}" if number < 10_000 else f"{number:.1e}" for number in found.value[:3])
    return Cell(value, (f"{low}–{high}", count(found.value)))


def _nats(found: Estimate | None) -> Cell:
    if found is None:
        return Cell(MISSING)
    value, low, high = (f"{number:+.3f}" for number in found[:3])
    return Cell(value, (f"{low}…{high}",))


def _text(record: Any, field: str, where: str) -> str:
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        raise InputError(f"{where}: no text under {field!r}; name its key as field")
    return cast(str, record[field])


def _is_plain(text: str) -> bool:
    return len(text) <= MOST_CHARACTERS and len(text.split()) >= FEWEST_WORDS and not find_numbers(text)


def _nominal(count: int, seed: int) -> list[str]:
    limit = sentence_limit("test")
    drawn = min(3 * count, limit)
    while True:
        sentences = diagnostic_sentences(drawn, split="test", seed=seed)
        nominal = [sentence.text for sentence in sentences if set(sentence.roles) == {"nominal"}]
        if len(nominal) >= count:
            return nominal[:count]
        if drawn == limit:
            raise InputError(f"there are {len(nominal)} nominal sentences, fewer than the count of {count}: lower it")
        drawn = min(2 * drawn, limit)


def _word_tokens(
    ids: Sequence[int], offsets: Sequence[Sequence[int]], pieces: Sequence[tuple[str, bool]], special: frozenset[int]
) -> list[int]:
    in_number = [number for piece, number in pieces for _ in piece]
    numeric = [any(in_number[start:end]) for start, end in offsets]
    return [
        token
        for token in range(1, len(ids))
        if ids[token] not in special and not numeric[token] and not numeric[token - 1]
    ]
