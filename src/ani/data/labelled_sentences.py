"""Reads and writes labelled sentences in a JSON-lines file.

A record is `{"text": …, "roles": …}`: `roles` is `"nominal"` or `"quantitative"` for every number of the text, or a
list with one of them for each. It may also have `domain` (default: the file's name without its suffix) and `template`
(default: the text), both texts.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from ani.data.diagnostic import DiagnosticSentence
from ani.data.records import checked_keys, checked_roles, text_of
from ani.errors import InputError
from ani.files import replacing_file
from ani.numbers import find_numbers
from ani.roles import RoleName
from ani.text_files import json_lines

LABELLED_FILE = "labelled.jsonl"
"""The file of labelled sentences in a directory that `ani paper-set` wrote."""


def read_labelled(path: str | Path) -> list[DiagnosticSentence]:
    """Read labelled sentences from a JSON-lines file, or from the `LABELLED_FILE` of a directory, in order. Raises
    InputError if the file is missing or empty, or a line is malformed (file and line are named)."""
    path = Path(path)
    if path.is_dir():
        path /= LABELLED_FILE
    sentences = [_sentence(record, where, path.stem) for where, record in json_lines(path)]
    if not sentences:
        raise InputError(f"data file {path} contains no labelled sentences")
    return sentences


def write_labelled(path: str | Path, sentences: Iterable[DiagnosticSentence]) -> None:
    """Write sentences so that `read_labelled` returns them unchanged."""
    with replacing_file(Path(path)) as file:
        for text, roles, domain, template in sentences:
            record = {"text": text, "roles": roles[0] if len(set(roles)) == 1 else roles, "domain": domain}
            if template != text:
                record["template"] = template
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _sentence(record: Any, where: str, domain: str) -> DiagnosticSentence:
    checked_keys(record, ("text", "roles"), where)
    record = {"domain": domain, "template": record["text"], **record}
    text, domain, template = (text_of(record, key, where) for key in ("text", "domain", "template"))
    if not find_numbers(text):
        raise InputError(f"{where}: the text contains no number to label; remove the line")
    roles = cast(tuple[RoleName, ...], checked_roles(record["roles"], text, where))
    return DiagnosticSentence(text, roles, domain, template)
