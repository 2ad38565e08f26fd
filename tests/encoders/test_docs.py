"""The encoder that docs/encoders.md shows does what the page says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import ani
from ani.encoders import ENCODERS
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


def test_its_encoder_injects_saves_and_loads(registered: None, tmp_path: Path) -> None:
    model, tokenizer = attached("gemma", **CHOICE)
    ids = encode(tokenizer, MIXED_TEXT)
    ani.save_adapter(model, tmp_path / "adapter")
    loaded = ani.load_adapter(pair("gemma")[0], tokenizer, tmp_path / "adapter")
    assert torch.equal(logits_of(loaded, ids), logits_of(model, ids))
    assert not torch.equal(logits_of(loaded, ids), logits_of(pair("gemma")[0], ids))
