"""Does the gate bypass FiNER-139's nominal tags (paper, "Gating Accuracy")? Knows nothing about how it learnt to."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypedDict

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.diagnostic import Role
from ani.data.finer import FinerSentence
from ani.evaluation.gating import decided_alpha, decisions
from ani.numbers import find_numbers


class FinerRecord(TypedDict):
    """The gate's decision about one tagged number, a line of `finer.jsonl`."""

    text: str
    start: int
    end: int
    value: str
    tag: str
    role: Role
    alpha: float | None
    """σ(z); None where the overflow rule left the number alone."""
    injected: bool


def evaluate_finer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[FinerSentence],
    on_sentence: Callable[[int], None] | None = None,
) -> Iterator[FinerRecord]:
    """Inspect every sentence as a prompt; a record for each of its tagged numbers. Raises InputError as `decisions`."""
    for sentence in sentences:
        found = decisions(model, tokenizer, sentence.text)
        places = find_numbers(sentence.text)
        by_start = {place.start: decision for place, decision in zip(places, found, strict=True)}
        for number in sentence.numbers:
            decision = by_start[number.start]
            yield {
                "text": sentence.text,
                "start": number.start,
                "end": number.end,
                "value": str(decision.value),
                "tag": number.tag,
                "role": number.role,
                "alpha": decided_alpha(decision),
                "injected": decision.injected,
            }
        if on_sentence is not None:
            on_sentence(1)
