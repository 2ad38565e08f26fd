"""N-digit arithmetic by real generation (paper Table 2); knows nothing about training."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypedDict

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.arithmetic import ArithmeticProblem
from ani.evaluation.backends import VllmModel, greedy_texts
from ani.injection.methods import METHODS, Method
from ani.numbers import find_numbers

PAPER_DIGITS = (2, 4, 6, 8, 10, 12)
"""Digit lengths of the paper's Table 2; it poses 100 problems of each."""
BATCH_SIZE = 50
"""Problems that are answered together."""


class ArithmeticRecord(TypedDict):
    """One answered problem, a line of `arithmetic.jsonl`."""

    run: str
    operation: str
    digits: int
    prompt: str
    answer: str
    output: str
    prediction: str | None
    correct: bool


def evaluate_arithmetic(
    model: PreTrainedModel | VllmModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[ArithmeticProblem],
    *,
    run: str,
    method: Method = METHODS["ani"],
    batch_size: int = BATCH_SIZE,
    on_batch: Callable[[int], None] | None = None,
) -> Iterator[ArithmeticRecord]:
    """Answer every problem greedily and judge it: the first number of the output must equal the answer exactly.

    Args:
        model: In evaluation mode; a PeftModel will do.
        tokenizer: Its tokenizer; any padding side.
        problems: In any order; they are answered shortest first.
        run: Name written into every record.
        method: How texts are written for the model, and its answers read.
        batch_size: Problems that are answered together.
        on_batch: Called with the number of problems answered, after each batch.
    """
    ordered = sorted(problems, key=lambda problem: problem.digits)
    for first in range(0, len(ordered), batch_size):
        batch = ordered[first : first + batch_size]
        # Room for thousands separators: a model that writes them must not be cut short.
        answers = [method.write(f" {problem.answer:,}") for problem in batch]
        longest = max(len(ids) for ids in tokenizer(answers, add_special_tokens=False)["input_ids"])
        prompts = [method.write(problem.prompt) for problem in batch]
        outputs = greedy_texts(model, tokenizer, prompts, longest + 2)
        for problem, output in zip(batch, outputs, strict=True):
            yield _judge(problem, method.read(output), run)
        if on_batch is not None:
            on_batch(len(batch))


def exact_match_by_digits(records: Iterable[ArithmeticRecord]) -> dict[int, tuple[int, int]]:
    """(correct, asked) for every digit length."""
    counts: dict[int, tuple[int, int]] = {}
    for record in records:
        correct, asked = counts.get(record["digits"], (0, 0))
        counts[record["digits"]] = (correct + record["correct"], asked + 1)
    return counts


def _judge(problem: ArithmeticProblem, output: str, run: str) -> ArithmeticRecord:
    found = find_numbers(output)
    return {
        "run": run,
        "operation": problem.operation,
        "digits": problem.digits,
        "prompt": problem.prompt,
        "answer": str(problem.answer),
        "output": output,
        "prediction": str(found[0].value) if found else None,
        "correct": bool(found) and found[0].value == problem.answer,
    }
