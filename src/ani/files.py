"""Files that are there whole or not at all; knows nothing about what is in them."""

import os
import shutil
import tempfile
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


@contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """Give an empty directory to write into; on success it takes the place of `path`, on failure nothing changes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield work
        work.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.replace(path, old / path.name)
            try:
                os.replace(work, path)
            except BaseException:
                os.replace(old / path.name, path)
                raise
            finally:
                shutil.rmtree(old)
        else:
            os.replace(work, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
