"""Encoder: CPU time and worst feature error against the published way, cos(x·2π/T) in float64.

Both start from the same texts and end with the same float32 tensor.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import _paired
import mpmath
import torch

from ani import FourierNumberEncoder

INTEGER_DIGITS, FRACTION_DIGITS = 10, 6
PERIODS = torch.tensor([10.0**i for i in range(1 - FRACTION_DIGITS, INTEGER_DIGITS + 1)], dtype=torch.float64)


def published(texts: Sequence[str]) -> torch.Tensor:
    """FoNE's formula as it is written; unlike its published code it masks nothing."""
    x = torch.tensor([float(text) for text in texts], dtype=torch.float64)
    angles = x[:, None] * (2 * torch.pi / PERIODS)
    return torch.stack((angles.cos(), angles.sin()), dim=-1).flatten(1).float()


def repeat(encode: Callable[[Sequence[str]], torch.Tensor], texts: Sequence[str], calls: int) -> None:
    """Encode texts several times."""
    for _ in range(calls):
        encode(texts)


def exact(texts: list[str]) -> torch.Tensor:
    """The same features by arithmetic with 50 digits."""
    with mpmath.workdps(50):
        angles = [[2 * mpmath.pi * mpmath.mpf(text) / mpmath.mpf(str(T)) for T in PERIODS.tolist()] for text in texts]
        waves = [[float(wave(angle)) for angle in row for wave in (mpmath.cos, mpmath.sin)] for row in angles]
    return torch.tensor(waves, dtype=torch.float64)


def main() -> None:
    """Print ratios of times (ours to published, in turns) and the worst errors."""
    torch.set_num_threads(1)  # idle threads that spin would be counted as work
    random = Random(0)
    encode = FourierNumberEncoder(INTEGER_DIGITS, FRACTION_DIGITS, sign="phase").encode
    numbers = [(random.randrange(10**INTEGER_DIGITS), random.randrange(10**FRACTION_DIGITS)) for _ in range(10_000)]
    texts = [f"{whole}.{fraction:06d}" for whole, fraction in numbers]
    rows = _paired.table("Fourier features, random 10+6-digit numbers")
    for count in (1, 100, 1000, 10_000):
        batch, calls = texts[:count], max(1, 500 // count)  # short calls are timed in groups
        pair = (partial(repeat, way, batch, calls) for way in (encode, published))
        found = _paired.ratios(*pair, 31, 3, time.process_time)
        _paired.add(rows, f"CPU time ours / published, {count:,} numbers", found, "≤ 1.00" if count == 10_000 else "")
    checked = texts[:2000]
    reference = exact(checked)
    _paired.add(rows, "worst feature error, ours", [float((encode(checked) - reference).abs().max())], "≤ 1e-7")
    _paired.add(rows, "worst feature error, published", [float((published(checked) - reference).abs().max())])
    _paired.show(rows)


if __name__ == "__main__":
    main()
