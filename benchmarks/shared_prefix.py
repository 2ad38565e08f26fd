"""GSM8K's evaluation with its 8-shot prefix computed once, over one that computes it for every question."""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import _paired

from ani.evaluation import engines
from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks.benchmarks import Gsm8k
from ani.models import load_model, load_tokenizer


def main() -> None:
    """Print the ratio of throughputs on questions of our own, with the embedded model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    answerer = TransformersEngine(load_model("smollm2"), load_tokenizer("smollm2"), batch_size=arguments.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test.jsonl"
        rows = [
            {
                "question": f"Ann has {i} pens and buys {i + 3} more. How many has she now?",
                "answer": f"#### {2 * i + 3}",
            }
            for i in range(arguments.questions)
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = Gsm8k(data=str(file), max_new_tokens=arguments.new_tokens)
        questions = task.questions(seed=0)

    def evaluating(shortest: int) -> Callable[[], object]:
        def evaluate() -> None:
            engines.SHORTEST_PREFIX = shortest
            list(task.answer(answerer, questions))

        return evaluate

    # Throughput is the inverse of time: time without sharing over time with it.
    found = _paired.ratios(evaluating(10**6), evaluating(64), arguments.repeats, warmup=1)
    rows_shown = _paired.table(
        f"GSM8K, SmolLM2-135M, {arguments.questions} questions of up to {arguments.new_tokens} new tokens, "
        f"batch {arguments.batch_size}: throughput shared / recomputed prefix"
    )
    _paired.add(rows_shown, "Gsm8k.answer", found, "> 1")
    _paired.show(rows_shown)


if __name__ == "__main__":
    main()
