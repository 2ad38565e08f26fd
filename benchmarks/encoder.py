"""Encoder: time and worst feature error against the published way, cos(x·2π/T) in float64.

Knows nothing about models; both start from the same texts and end with the same float32 tensor.
"""

import argparse
import time
from collections.abc import Callable
from decimal import Decimal
from random import Random

import _paired
import mpmath
import torch

from ani.encoders.fourier import FourierNumberEncoder

INTEGER_DIGITS, FRACTION_DIGITS = 10, 6
PERIODS = torch.tensor([10.0**i for i in range(1 - FRACTION_DIGITS, INTEGER_DIGITS + 1)], dtype=torch.float64)


def published(texts: list[str]) -> torch.Tensor:
    """FoNE's formula computed straightforwardly; unlike its published code, masks nothing."""
    x = torch.tensor([float(text) for text in texts], dtype=torch.float64)
    angles = x[:, None] * (2 * torch.pi / PERIODS)
    return torch.stack((angles.cos(), angles.sin()), dim=-1).flatten(1).float()


def exact(texts: list[str]) -> torch.Tensor:
    """The same features by 50-digit arithmetic."""
    with mpmath.workdps(50):
        rows = [
            [
                float(wave(2 * mpmath.pi * mpmath.mpf(text) / mpmath.mpf(10) ** i))
                for i in range(1 - FRACTION_DIGITS, INTEGER_DIGITS + 1)
                for wave in (mpmath.cos, mpmath.sin)
            ]
            for text in texts
        ]
    return torch.tensor(rows, dtype=torch.float64)


def seconds(function: Callable[[list[str]], torch.Tensor], texts: list[str]) -> float:
    """CPU time of one call: unlike wall time, it does not count what other processes take."""
    start = time.process_time()
    function(texts)
    return time.process_time() - start


def main() -> None:
    """Prints ratios of times (ours to published, taken in turns) and the worst errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--checked", type=int, default=2000, help="numbers compared with the exact features")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # idle threads that spin would be counted as work

    random = Random(0)
    encode = FourierNumberEncoder(INTEGER_DIGITS, FRACTION_DIGITS, sign="phase").encode
    texts = [
        f"{random.randrange(10**INTEGER_DIGITS)}.{random.randrange(10**FRACTION_DIGITS):06d}" for _ in range(10_000)
    ]
    rows = _paired.table("Fourier features, random 10+6-digit numbers")
    for count in (1, 100, 1000, 10_000):
        batch = texts[:count]
        calls = max(1, 500 // count)  # short calls are timed in groups, above the clock's resolution
        ratios = []
        for repeat in range(arguments.repeats + 3):
            ours = sum(seconds(encode, batch) for _ in range(calls))
            theirs = sum(seconds(published, batch) for _ in range(calls))
            if repeat >= 3:  # the first ones warm caches and threads
                ratios.append(ours / theirs)
        measure = f"CPU time ours / published, {count:,} number{'s' * (count > 1)}"
        _paired.add(rows, measure, ratios, "≤ 1.00" if count == 10_000 else "")

    checked = texts[: arguments.checked]
    reference = exact(checked)
    ours_error = (encode(checked) - reference).abs().max().item()
    theirs_error = (published(checked) - reference).abs()
    _paired.add(rows, "worst feature error, ours", [ours_error], "≤ 1e-7")
    _paired.add(rows, "worst feature error, published", [theirs_error.max().item()])
    for column, period in enumerate(PERIODS.tolist()[:3]):
        error = theirs_error[:, 2 * column : 2 * column + 2].max().item()
        _paired.add(rows, f"  at period {Decimal(str(period)).normalize():e}", [error])
    _paired.show(rows)


if __name__ == "__main__":
    main()
