"""Scanner: time to find the numbers in token ids, against the fast tokenizer's time for the same text.

Knows nothing about models. Text is GSM8K's questions and answers where they are found, else made up.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import _paired
from transformers import PreTrainedTokenizerBase

from ani.numbers import NumberScanner

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.tokenizers import ALL  # noqa: E402 (the real tokenizers of the tests)

GSM8K = ROOT / "../shared/data/gsm8k/train.jsonl"


def documents(count: int) -> list[str]:
    """GSM8K's questions and answers, or sentences with as many numbers."""
    if GSM8K.is_file():
        rows = [json.loads(line) for line in GSM8K.read_text().splitlines()[:count]]
        return [f"{row['question']}\n{row['answer']}" for row in rows]
    random = Random(0)
    sentence = "The shop sold {} apples for ${:.2f} each and {:,} pears. "
    return [
        "".join(sentence.format(random.randrange(100), random.random() * 9, random.randrange(5000)) for _ in range(9))
        for _ in range(count)
    ]


def seconds(work: Callable[[], object]) -> float:
    """CPU time of one call: unlike wall time, it does not count what other processes take."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Prints the ratios, each taken in turns with the tokenizer's time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tokenizers", nargs="+", default=["qwen", "llama3"], choices=list(ALL))
    arguments = parser.parse_args()
    texts = documents(arguments.documents)
    rows = _paired.table(f"Scanner / tokenizer, {len(texts)} documents, CPU time")
    for name in arguments.tokenizers:
        for measure, values in ratios(ALL[name](), texts, arguments.repeats).items():
            _paired.add(rows, f"{name}: {measure}", values, "" if "step" in measure else "≤ 0.05")
    _paired.show(rows)


def ratios(tokenizer: PreTrainedTokenizerBase, texts: list[str], repeats: int) -> dict[str, list[float]]:
    """Ratios of times, ours to the tokenizer's for the same texts, for each measure and repeat."""
    scanner = NumberScanner(tokenizer)
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    measures: dict[str, Callable[[], object]] = {
        "scan, a text": lambda: [scanner.scan(row) for row in rows],
        "scan_running, a text": lambda: [scanner.scan_running(row) for row in rows],
        "scan_ended, a text": lambda: [scanner.scan_ended(row) for row in rows],
        "scan_running, a decode step / tokenizing a text": lambda: [
            scanner.scan_running(row, len(row) - 1) for row in rows
        ],
        "scan_ended, a decode step / tokenizing a text": lambda: [
            scanner.scan_ended(row, len(row) - 1) for row in rows
        ],
    }
    found: dict[str, list[float]] = {measure: [] for measure in measures}
    for _ in range(repeats):
        peer = seconds(lambda: [tokenizer(text, add_special_tokens=False) for text in texts])
        for measure, work in measures.items():
            found[measure].append(seconds(work) / peer)
    return found


if __name__ == "__main__":
    main()
