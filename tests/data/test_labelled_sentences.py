from pathlib import Path
from typing import Any

import pytest

from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences
from ani.data.labelled_sentences import LABELLED_FILE, read_labelled, write_labelled
from tests.json_lines import write_lines
from tests.refusals import refused

TEXT = "Room 505 seats 10"
MIXED = ["nominal", "quantitative"]


def test_written_sentences_come_back(tmp_path: Path) -> None:
    ours, text = diagnostic_sentences(300, split="train"), 'a\u2028\u0085\n"\\\U0001f600 12'
    odd = DiagnosticSentence(text, ("nominal",), "née", text)
    path = tmp_path / "set" / LABELLED_FILE
    refused(lambda: read_labelled(path.parent), str(path.parent))
    write_labelled(path, [*ours, odd])
    assert read_labelled(path) == read_labelled(path.parent) == [*ours, odd]
    assert len(path.read_bytes().split(b"\n")) == 302


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ([TEXT], "list"),
        ({"text": TEXT}, "'roles'"),
        ({"text": 5, "roles": MIXED}, "'text'"),
        ({"text": TEXT, "roles": ["nominal", None]}, "'roles'"),
        ({"text": TEXT, "roles": ["nominal"]}, "1 numbers"),
        ({"text": "No number", "roles": "nominal"}, "number"),
    ],
)
def test_a_malformed_record_names_file_and_line(tmp_path: Path, record: Any, named: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": TEXT, "roles": MIXED}, record)
    refused(lambda: read_labelled(path), f"{path}, line 2: ", named)
