"""docs/encoders.md: what it shows runs, and what it says of its encoder is so."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import ani
from ani.encoders import ENCODERS, build_encoder
from tests.invariants.test_injection import POLICIES, assert_parity, encode, generate, logits_of
from tests.tiny import MIXED_TEXT, attached, pair

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "encoders.md").read_text(), re.MULTILINE | re.DOTALL)
OURS = ["fourier", "magnitude", "bits"]
CHOICE: dict[str, Any] = {"encoders": ("fourier", "decade"), "integer_digits": 5, "fraction_digits": 1}


@pytest.fixture
def registered() -> Iterator[None]:
    with patch.dict(ENCODERS):
        for block in BLOCKS:
            exec(compile(block, "docs/encoders.md", "exec"), {"ani": ani, "__name__": "docs"})
        yield


def test_the_page_says_what_there_is(registered: None) -> None:
    assert list(ENCODERS) == [*OURS, "decade"]
    page = (ROOT / "docs" / "encoders.md").read_text()
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == set(OURS)
    for name in OURS[1:]:
        assert len((ROOT / "src" / "ani" / "encoders" / f"{name}.py").read_text().splitlines()) < 100


def test_its_encoder_marks_the_power_of_ten(registered: None) -> None:
    encoder = build_encoder(ani.AniConfig(layer=1, encoders=("decade",), integer_digits=3, fraction_digits=2))
    texts = ["0", "0.009", "0.01", "0.5", "1", "-9.99", "10", "505", "999.9", "1,000", "1e999"]
    features = encoder.encode(texts)
    assert features.dtype == torch.float32 and features.sum(dim=1).tolist() == [1.0] * len(texts)
    assert features.argmax(dim=1).tolist() == [0, 0, 1, 2, 3, 3, 4, 5, 5, 5, 5]
    assert [encoder.in_range(text) for text in texts[-3:]] == [True, False, False]
    assert encoder.encode([]).shape == (0, encoder.width)


@pytest.mark.parametrize("policy", POLICIES)
def test_its_encoder_generates_saves_and_loads(registered: None, policy: str, tmp_path: Path) -> None:
    model, tokenizer = attached("gemma", policy=policy, **CHOICE)
    ids = encode(tokenizer, MIXED_TEXT)
    assert_parity(model, ids, torch.ones_like(ids), generate(model, tokenizer, ids))
    ani.save_adapter(model, tmp_path / "adapter")
    loaded = ani.load_adapter(pair("gemma")[0], tokenizer, tmp_path / "adapter")
    assert torch.equal(logits_of(loaded, ids), logits_of(model, ids))
