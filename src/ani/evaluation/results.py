"""Result files: JSON lines, one record an example, whole or not at all; knows nothing about what is in them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ani.errors import InputError
from ani.files import replacing_file
from ani.untrusted import json_lines


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Write records as they come; the file appears under its name when the last one is there. Returns them all."""
    written: list[Mapping[str, Any]] = []
    with replacing_file(path) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            written.append(record)
    return written


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read a file that `write_records` wrote; raises InputError naming the line that is damaged."""
    records: list[dict[str, Any]] = []
    for where, record in json_lines(path):
        if not isinstance(record, dict):
            raise InputError(f"{where}: expected an object, found {type(record).__name__}; delete the file")
        records.append(record)
    return records


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, whole or not at all."""
    with replacing_file(path) as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
