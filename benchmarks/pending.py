"""Pending values: the time to read a token, mean and maximum, in the texts of `stress/fuzz.py`.

A token that takes more than half a millisecond is read 19 more times, and the shortest time counts, so that other
processes don't.
"""

import argparse
import gc
import random
import sys
import time
from pathlib import Path

from ani.calculator.reader.digits import pending_digits
from ani.calculator.reader.pending import PendingReader

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "stress")]

from fuzz import pending_cases  # noqa: E402 (found through the path set above)

LONGEST = 3000
"""Characters of a text that are read."""


def cost(reader: PendingReader, piece: str) -> float:
    """Seconds to read a token and to compute the digits that a module reads there; the reader advances."""
    pending_digits.cache_clear()
    start = time.perf_counter()
    (found,) = reader.feed([piece])
    if found:
        found.next(3)
    return time.perf_counter() - start


def main() -> None:
    """Print the costs, and the text of the dearest token."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, draw = random.Random(f"pending {arguments.seed}"), pending_cases(Path())
    costs, dearest = [], (0.0, "")
    gc.disable()
    for _ in range(arguments.texts):
        text = draw(rng)[0].decode("utf-8", "surrogatepass")[:LONGEST]
        size, reader = rng.choice([1, 3, 6]), PendingReader()
        for begin in range(0, len(text), size):
            before, piece = reader.copy(), text[begin : begin + size]
            seconds = cost(reader, piece)
            if seconds > 5e-4:
                seconds = min(seconds, *(cost(before.copy(), piece) for _ in range(19)))
            costs.append(seconds)
            dearest = max(dearest, (seconds, text[: begin + size]))
    above = sum(seconds > 1e-3 for seconds in costs)
    print(f"{arguments.texts:,} texts, {len(costs):,} tokens of 1, 3 or 6 characters")
    print(f"mean {1e6 * sum(costs) / len(costs):.1f} µs, most {1e3 * dearest[0]:.2f} ms, {above} above a millisecond")
    print(f"the dearest token ends {dearest[1][-200:]!r}")


if __name__ == "__main__":
    main()
