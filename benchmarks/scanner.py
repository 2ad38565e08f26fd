"""Scanner: CPU time per token of finding the numbers in token ids."""

import sys
import time
from pathlib import Path
from random import Random

import _paired

from ani import NumberScanner

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.tokenizers import ALL


def main() -> None:
    """Print microseconds per prompt token."""
    random, sentence = Random(0), "The shop sold {} apples for ${:.2f} each and {:,} pears. "
    texts = [
        "".join(sentence.format(random.randrange(100), random.random() * 9, random.randrange(5000)) for _ in range(9))
        for _ in range(300)
    ]
    rows = _paired.table(f"Scanner, {len(texts)} documents: µs of CPU time per token of a text")
    for name in ("qwen", "llama3"):
        tokenizer = ALL[name]()
        scanner, ids = NumberScanner(tokenizer), tokenizer(texts, add_special_tokens=False)["input_ids"]
        for find in (scanner.scan, scanner.scan_running, scanner.scan_ended):
            found = []
            for _ in range(15):
                start = time.process_time()
                for row in ids:
                    find(row)
                found.append(1e6 * (time.process_time() - start) / sum(map(len, ids)))
            _paired.add(rows, f"{name}: {find.__name__}", found, "≤ 1")
    _paired.show(rows)


if __name__ == "__main__":
    main()
