"""Reads text files and JSON lines; raises InputError with the file and line of what can't be read."""

import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ani.errors import InputError, one_line


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark; raises InputError if it can't be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except (OSError, ValueError) as error:  # a ValueError: NUL in the path
        raise InputError(f"{one_line(path)} can't be read: {getattr(error, 'strerror', None) or error}") from error


def parse_json(text: str, where: str) -> Any:
    """A JSON value; raises InputError, which names the text `where`, if there is none."""
    try:
        return from_json(text)
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error})") from error


def json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Each line's place ("file, line 3") and its JSON value, read one by one; blank lines are skipped. Raises
    InputError if the file is missing or not UTF-8, or a line is not JSON."""
    path = Path(path)
    try:
        if not path.is_file():
            raise InputError(f"data file {path} {'is a directory' if path.is_dir() else 'does not exist'}; name a file")
        file = path.open(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"data file {one_line(path)} can't be read: {error.strerror}") from error
    with file:
        yield from _json_values(file, str(path))


def zipped_json_lines(path: str | Path, member: str) -> Iterator[tuple[str, Any]]:
    """`json_lines` of the file named `member` in any folder of a zip; nothing is unpacked to disk. Raises
    InputError if there is no such file, or it can't be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if Path(name).name == member), None)
            if name is None:
                raise InputError(f"{path} contains no {member}, only {one_line(', '.join(archive.namelist()[:10]))}")
            with archive.open(name) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as lines:
                yield from _json_values(lines, f"{path}/{one_line(name)}")
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise InputError(f"{path} can't be read as a zip: {one_line(error)}") from error


def _json_values(lines: Iterable[str], name: str) -> Iterator[tuple[str, Any]]:
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{name}, line {number}"
                yield where, parse_json(line, where)
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from error
