"""What a training run left, for tests that compare runs; knows nothing about what they test."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ani.results.files import TRAINING_LOG
from ani.training.checkpoints import ADAPTER


def log_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / TRAINING_LOG).read_text().splitlines()]


def weights_of(adapter: Path) -> dict[str, torch.Tensor]:
    return {
        f"{file.name}:{name}": tensor
        for file in sorted(adapter.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same_run(run: Path, reference: Path) -> None:
    """The same loss curve and the same weights; only the speed may differ."""
    lines, expected = log_of(run), log_of(reference)
    assert [line["step"] for line in lines] == [line["step"] for line in expected]
    for line, other in zip(lines, expected, strict=True):
        assert line.keys() == other.keys()
        for key in line.keys() - {"tokens_per_second"}:
            assert line[key] == pytest.approx(other[key], abs=1e-6, rel=1e-6), (line["step"], key)
    weights, others = weights_of(run / ADAPTER), weights_of(reference / ADAPTER)
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], atol=1e-6, rtol=1e-6, msg=name)


def interrupt_at(step: int) -> Callable[[dict[str, Any]], None]:
    def on_log(line: dict[str, Any]) -> None:
        if line["step"] >= step:
            raise KeyboardInterrupt

    return on_log
