"""Does the gate tell names from quantities? Knows nothing about how it learnt to."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.diagnostic import DiagnosticSentence
from ani.errors import InputError
from ani.injection.inspection import NumberDecision, inspect
from ani.numbers import find_numbers


class GatingRecord(TypedDict):
    """The gate's decision about one number of a labelled sentence, a line of `gating.jsonl`."""

    text: str
    start: int
    end: int
    value: str
    role: str
    alpha: float | None
    """σ(z); None where the overflow rule left the number alone."""
    injected: bool
    domain: str


def evaluate_gating(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[DiagnosticSentence],
    on_sentence: Callable[[int], None] | None = None,
) -> Iterator[GatingRecord]:
    """Inspect every sentence as a prompt; a record for each of its numbers. Raises InputError as `decisions`."""
    for sentence in sentences:
        for decision, role in zip(decisions(model, tokenizer, sentence.text), sentence.roles, strict=True):
            yield {
                "text": sentence.text,
                "start": decision.start,
                "end": decision.end,
                "value": str(decision.value),
                "role": role,
                "alpha": decided_alpha(decision),
                "injected": decision.injected,
                "domain": sentence.domain,
            }
        if on_sentence is not None:
            on_sentence(1)


def decisions(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> list[NumberDecision]:
    """The gate's decision about each of `find_numbers(text)`, in order.

    Raises:
        InputError: The tokenizer changes the text (as by Unicode's NFKC, "10²" to "102"), so that the model reads other
            numbers than the labelled ones.
    """
    found, written = inspect(model, tokenizer, text), find_numbers(text)
    if [decision.value for decision in found] != [number.value for number in written]:
        raise InputError(
            f"the tokenizer turns the numbers {[number.text for number in written]} of the text {text!r:.80} into "
            f"{[decision.text for decision in found]}, so their roles aren't known; use one that keeps the text"
        )
    return found


def decided_alpha(decision: NumberDecision) -> float | None:
    """σ(z), or None (JSON has no NaN) where the overflow rule left the number alone."""
    return None if math.isnan(decision.alpha) else decision.alpha


def inspection_record(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> dict[str, Any]:
    """A text and the gate's decision about each of its numbers, a line of `inspected.jsonl`."""
    return {
        "text": text,
        "numbers": [
            {
                "text": decision.text,
                "value": str(decision.value),
                "start": decision.start,
                "end": decision.end,
                "alpha": decided_alpha(decision),
                "injected": decision.injected,
            }
            for decision in inspect(model, tokenizer, text)
        ],
    }
