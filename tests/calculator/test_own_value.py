"""docs/examples/own_value.py: the file and the page's code run as the page says."""

import re
import runpy
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import pytest

from ani.calculator.reader import VALUES
from ani.calculator.reader.pending import PendingReader

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-value.md").read_text()
FILE = ROOT / "docs" / "examples" / "own_value.py"


@pytest.fixture(autouse=True)
def _price() -> Iterator[None]:
    with patch.dict(VALUES):
        runpy.run_path(str(FILE))
        yield


def test_the_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (promised,) = re.findall(r"^# A value in (\d+) lines$", PAGE, re.MULTILINE)
    assert len(FILE.read_text().splitlines()) <= int(promised)
    exec(code, {})
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == shown.splitlines()


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("What does the lamp cost?", Fraction("24.9")),
        ("What does the sofa cost?", None),
        ("What does the lamp cost? Or is it free?", Fraction("24.9")),  # of the first question
        ("The chair costs", Fraction("89.5")),
        ("What is the lamp", None),
    ],
)
def test_what_it_knows(text: str, price: Fraction | None) -> None:
    (pending,) = PendingReader().feed([text])
    assert (pending and (pending.name, pending.value.rational)) == (price and ("price", price))
