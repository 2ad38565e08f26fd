"""The results on the page of families."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "families.md"


def published() -> dict[str, str]:
    """The result of each family on the page."""
    text = PAGE.read_text() if PAGE.exists() else ""
    return dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| (parity|refused|base) \|", text, re.MULTILINE))
