"""What a method costs in plain language: the loss on word tokens; knows nothing about training or tables."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, cast

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.diagnostic import diagnostic_sentences, sentence_limit
from ani.data.sources import hub_records
from ani.errors import InputError
from ani.numbers import find_numbers, number_pieces
from ani.untrusted import json_lines

FEWEST_WORDS = 8
MOST_CHARACTERS = 1000
"""Of a plain text."""
HUB_SPLIT = "test"
HUB_RECORDS = 20_000
"""Read from the hub at most; a file is read whole."""

TextKind = Literal["plain", "nominal"]


class LanguageText(NamedTuple):
    """A text to score: `plain` holds no number, `nominal` only numbers that are names."""

    kind: TextKind
    text: str


class LanguageRecord(TypedDict):
    """The loss on one text, a line of `language.jsonl`."""

    kind: TextKind
    text: str
    tokens: int
    """Word tokens, those that were scored."""
    loss: float
    """Their negative log-likelihood in nats, summed."""


def language_texts(source: str, field: str, count: int, seed: int) -> list[LanguageText]:
    """`count` plain texts of the user's, then `count` nominal sentences of the diagnostic set's test split.

    Plain texts are distinct and hold no number, 8 words or more and at most 1,000 characters; the seed draws them.
    Nobody checks that they were held out of training. All nominal sentences go on for five words or more after their
    first number, where a number that was taken for a quantity would do its damage.

    Args:
        source: A JSONL file, or the name of a data set on the hub, of which the first 20,000 records of the split
            `test` are read.
        field: The records' key that holds the text.
        count: Of each kind.
        seed: The same one gives the same texts; a larger count only appends to each kind.

    Raises:
        InputError: The source can't be read, a record lacks the text, or there are fewer texts than `count`.
    """
    file = Path(source)
    if file.suffix == ".jsonl" or file.is_file():
        records = json_lines(file)
    else:
        records = iter(hub_records(source, HUB_SPLIT, HUB_RECORDS, instead="a local JSONL file"))
    plain = list(dict.fromkeys(text for where, record in records if _is_plain(text := _text(record, field, where))))
    if len(plain) < count:
        raise InputError(
            f"{source} holds {len(plain)} texts without numbers, of {FEWEST_WORDS} words or more and at most "
            f"{MOST_CHARACTERS:,} characters, under {field!r}; that is fewer than the count of {count}: lower it"
        )
    random.Random(f"language {seed}").shuffle(plain)
    return [
        *(LanguageText("plain", text) for text in plain[:count]),
        *(LanguageText("nominal", text) for text in _nominal(count, seed)),
    ]


def _text(record: Any, field: str, where: str) -> str:
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        raise InputError(f"{where}: no text under {field!r}; name the key that holds the text as field")
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


def evaluate_language(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[LanguageText],
    *,
    rewrite: Callable[[str], list[tuple[str, bool]]] = number_pieces,
    batch_size: int = 16,
    on_text: Callable[[int], None] | None = None,
) -> Iterator[LanguageRecord]:
    """Score the word tokens of every text, in the given order; a text without one is left out.

    A word token is one that overlaps no number, isn't special, and is neither a text's first token nor the one right
    after a number. Inside a number some methods predict nothing sensible, and at its last token some know that it has
    ended, because what they put there says so: the token that follows would be a gift to them.

    Args:
        model: In evaluation mode; a PeftModel will do. Its logits must have one position for each token given.
        tokenizer: Its tokenizer, a fast one (with offsets); any padding side.
        texts: Of one kind or more.
        rewrite: A text as the model reads it, in pieces; True for numbers.
        batch_size: Texts a forward pass, right-padded, of like length.
        on_text: Called with the number of texts done, after each batch.

    Raises:
        InputError: The model's loss on a text isn't finite.
    """
    special = frozenset(tokenizer.all_special_ids)  # padding is among them
    order = sorted(range(len(texts)), key=lambda index: len(texts[index].text))
    records: dict[int, LanguageRecord] = {}
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        rows = [rewrite(texts[index].text) for index in batch]
        encoded = tokenizer(
            ["".join(piece for piece, _ in row) for row in rows],
            return_tensors="pt",
            padding=True,
            padding_side="right",
            return_offsets_mapping=True,
        )
        ids = encoded["input_ids"].to(model.device)
        mask = encoded["attention_mask"].to(model.device)
        with torch.inference_mode():
            logits = cast(Any, model)(input_ids=ids, attention_mask=mask, use_cache=False).logits
        for row, (index, pieces) in enumerate(zip(batch, rows, strict=True)):
            words = _word_tokens(ids[row].tolist(), encoded["offset_mapping"][row].tolist(), pieces, special)
            if not words:
                continue
            where = torch.tensor(words, device=ids.device)
            loss = cross_entropy(logits[row, where - 1].float(), ids[row, where], reduction="sum").item()
            kind, text = texts[index]
            if not math.isfinite(loss):
                raise InputError(f"the model's loss on the text {text!r} is {loss}; its weights or its dtype are unfit")
            records[index] = {"kind": kind, "text": text, "tokens": len(words), "loss": loss}
        if on_text is not None:
            on_text(len(batch))
    yield from (records[index] for index in sorted(records))


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
