"""Gates beside simple rules, which read no gate: how often each leaves names alone and injects quantities.

    python benchmarks/gate_baselines.py [--model smollm2 --adapter smollm2-adapter --layer 14 --texts finer=PATH]

The rules: the number's own digits (a year, seven digits or more, a leading zero: a name); logistic regression on the
bag of the three words before the number, or on both sides; and on one layer's hidden state at the number's last token.
They learn from our training sentences and our labelled sentences, and are tested on held-out sentences, natural texts,
the queries of tool routing, and the texts that are named.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ani
from ani.data.diagnostic import diagnostic_sentences
from ani.data.sources import LabelledSource
from ani.evaluation.engines import RewrittenNumbers, TransformersEngine, check_numbers
from ani.evaluation.model_spec import adapted_model
from ani.evaluation.tasks.gates import DecidedText, Gates, GateText, Label, read_texts
from ani.evaluation.tasks.routing import routing_queries
from ani.injection.decisions import NumberDecision
from ani.models import load_model, load_tokenizer
from ani.numbers import Number, find_numbers
from ani.results.tables import Fitted

WORDS = 3
"""Number of words that the rules read on each side of a number."""
BATCH = 32
"""Texts per forward pass."""


def quantity_by_digits(text: str) -> bool:
    """Decides by the number's characters alone: years, leading zeros and long numbers are names."""
    year = re.fullmatch("1[0-9]{3}|20[0-9]{2}|2100", text)
    return not (year or re.fullmatch("0[0-9]+|[0-9]{7,}", text))


def neighbours(text: str, number: Number, after: bool) -> str:
    """The words next to a number, each marked as before or after it."""
    before = re.findall(r"[^\W\d_]+", text[: number.start].lower())[-WORDS:]
    later = re.findall(r"[^\W\d_]+", text[number.end :].lower())[:WORDS] if after else []
    return " ".join([*(f"b_{word}" for word in before), *(f"a_{word}" for word in later)])


def known(texts: Sequence[GateText]) -> Iterator[tuple[GateText, Number, int, Label]]:
    """Text, number, its index in the text, and its label, of each number whose role is known."""
    for text in texts:
        for index, (number, label) in enumerate(zip(find_numbers(text.text), text.labels or (), strict=True)):
            if label is not None:
                yield text, number, index, label


def states_of(model: Any, tokenizer: Any, texts: Sequence[GateText], layer: int) -> dict[tuple[str, int], np.ndarray]:
    """The hidden state of a layer at the last token of each number, by text and index."""
    scanner, found = ani.NumberScanner(tokenizer), {}
    rows = sorted({each.text: tokenizer(each.text)["input_ids"] for each in texts}.items(), key=lambda row: len(row[1]))
    for first in range(0, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        inputs = tokenizer.pad({"input_ids": [ids for _, ids in batch]}, padding_side="right", return_tensors="pt")
        with torch.inference_mode():
            states = model(**inputs, output_hidden_states=True, logits_to_keep=1).hidden_states[layer].float()
        for row, (text, ids) in enumerate(batch):
            numbers = scanner.scan(ids)
            if [number.value for number in numbers] == [number.value for number in find_numbers(text)]:
                for index, number in enumerate(numbers):
                    found[text, index] = states[row, number.last_token].numpy()
    return found


def records(run: str, texts: Sequence[GateText], quantities: dict[tuple[str, int], bool]) -> list[DecidedText]:
    """The decisions of a rule, as the task `gates` records them; a text with a number without one is left out."""
    made = []
    for text in texts:
        numbers = list(enumerate(zip(find_numbers(text.text), text.labels or (), strict=True)))
        if all((text.text, index) in quantities for index, _ in numbers):
            decided = tuple(
                NumberDecision(
                    **number._asdict(),
                    value=number.value,
                    role=label.role if label else None,
                    injected=bool(quantities[text.text, index]),
                )
                for index, (number, label) in numbers
            )
            made.append(DecidedText(run=run, source=text.source, text=text.text, numbers=decided))
    return made


def training_texts(count: int) -> list[GateText]:
    """Training sentences of our templates, and our labelled sentences."""
    labelled = LabelledSource(kind="labelled", natural=False, limit=count).examples(0)
    made = [(each.text, each.roles) for each in diagnostic_sentences(count, split="train")]
    made += [(str(example.prompt), example.roles or ()) for example in labelled]
    return [
        GateText(text, "training", None, tuple(Label(role) if role else None for role in roles)) for text, roles in made
    ]


def main() -> None:
    """Fit the rules, and print a table per source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--adapter", default="smollm2-adapter")
    parser.add_argument("--layer", type=int, default=14)
    parser.add_argument("--texts", action="append", default=[], help="further texts with roles, such as finer=PATH")
    parser.add_argument("--limit", type=int, default=400, help="texts per source")
    parser.add_argument("--sentences", type=int, default=1700, help="training sentences of each kind")
    given = parser.parse_args()
    sources = ("diagnostic", "natural", *given.texts)
    tested = [text for source in sources for text in read_texts(source, ["text"], None, given.limit, 0)]
    tested += [GateText(q.text, "routing", None, tuple(Label(n.role) for n in q.numbers)) for q in routing_queries()]
    learnt = training_texts(given.sentences)
    roles = [label.role == "quantitative" for *_, label in known(learnt)]
    every = [(text, number, index) for text in tested for index, number in enumerate(find_numbers(text.text))]

    made = records("digits", tested, {(t.text, i): quantity_by_digits(n.text) for t, n, i in every})
    balanced: dict[str, Any] = {"max_iter": 2000, "class_weight": "balanced"}
    for name, after in (("words before", False), ("words on both sides", True)):
        bag = make_pipeline(CountVectorizer(token_pattern=r"\S+"), LogisticRegression(**balanced))
        bag.fit([neighbours(text.text, number, after) for text, number, *_ in known(learnt)], roles)
        answers = bag.predict([neighbours(t.text, n, after) for t, n, _ in every])
        made += records(name, tested, {(t.text, i): answer for (t, _, i), answer in zip(every, answers, strict=True)})

    model, tokenizer = load_model(given.model), load_tokenizer(given.model)
    states = states_of(model, tokenizer, [*learnt, *tested], given.layer)
    fitted = [(states[t.text, i], label.role) for t, _, i, label in known(learnt) if (t.text, i) in states]
    # Of the strength that probes choose: a wide state needs a strong penalty.
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1 / len(fitted[0][0]), **balanced))
    probe.fit(np.stack([state for state, _ in fitted]), [role == "quantitative" for _, role in fitted])
    found = {(t.text, i): probe.predict(states[t.text, i][None])[0] for t, _, i in every if (t.text, i) in states}
    made += records(f"layer {given.layer}", tested, found)

    engine = TransformersEngine(*adapted_model(given.model, given.adapter))
    for text, decided in zip(tested, engine.decide([text.text for text in tested]), strict=True):
        try:
            check_numbers(text.text, decided)
        except RewrittenNumbers:
            continue
        numbers = zip(decided, text.labels or (), strict=True)
        labelled = tuple(each.model_copy(update={"role": label.role if label else None}) for each, label in numbers)
        made.append(DecidedText(run=given.adapter, source=text.source, text=text.text, numbers=labelled))
    for source in dict.fromkeys(text.source for text in tested):
        for table in Gates.tables([each for each in made if each.source == source]):
            Console(width=160).print(Fitted(table))


if __name__ == "__main__":
    main()
