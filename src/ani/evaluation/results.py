"""Result files: JSON lines, one record an example, whole or not at all; knows nothing about what is in them."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ani.errors import InputError


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Write records as they come; the file appears under its name when the last one is there. Returns them all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    written: list[Mapping[str, Any]] = []
    with temporary.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            written.append(record)
    os.replace(temporary, path)
    return written


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read a file that `write_records` wrote; raises InputError naming the line that is damaged."""
    records: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not valid JSON ({error})") from error
    return records


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)
