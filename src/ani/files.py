"""Files that are there whole or not at all; knows nothing about what is in them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def replacing_file(path: Path) -> Iterator[TextIO]:
    """Give a UTF-8 text file to write; on success it takes the place of `path`, on failure nothing changes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
