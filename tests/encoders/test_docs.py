"""The encoder that docs/encoders.md shows does what the page says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import ani
from ani.encoders import ENCODERS, build_encoder
from tests.tiny import MIXED_TEXT, attached, encode, logits_of, pair

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


def test_its_encoder_injects_saves_and_loads(registered: None, tmp_path: Path) -> None:
    model, tokenizer = attached("gemma", **CHOICE)
    ids = encode(tokenizer, MIXED_TEXT)
    ani.save_adapter(model, tmp_path / "adapter")
    loaded = ani.load_adapter(pair("gemma")[0], tokenizer, tmp_path / "adapter")
    assert torch.equal(logits_of(loaded, ids), logits_of(model, ids))
    assert not torch.equal(logits_of(loaded, ids), logits_of(pair("gemma")[0], ids))
