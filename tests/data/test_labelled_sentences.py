from pathlib import Path
from typing import Any

import pytest

from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences
from ani.data.labelled_sentences import LABELLED_FILE, read_labelled, write_labelled
from ani.roles import RoleName
from tests.json_lines import write_lines
from tests.refusals import refused

TEXT = "Room 505 seats 10"
MIXED = ["nominal", "quantitative"]


@pytest.mark.parametrize(
    ("record", "roles", "domain", "template"),
    [
        ({"roles": MIXED}, ("nominal", "quantitative"), "rooms", TEXT),
        ({"roles": "nominal"}, ("nominal", "nominal"), "rooms", TEXT),
        ({"roles": "quantitative", "domain": "halls"}, ("quantitative", "quantitative"), "halls", TEXT),
        ({"roles": MIXED, "template": "Room N seats Q", "unused": 1}, tuple(MIXED), "rooms", "Room N seats Q"),
    ],
)
def test_every_form_of_a_record(
    tmp_path: Path, record: dict[str, Any], roles: tuple[RoleName, ...], domain: str, template: str
) -> None:
    path = write_lines(tmp_path / "rooms.jsonl", {"text": TEXT, **record})
    assert read_labelled(path) == [DiagnosticSentence(TEXT, roles, domain, template)]


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\n", '"', "\\", "\U0001f600"])
def test_written_sentences_come_back(tmp_path: Path, separator: str) -> None:
    ours = diagnostic_sentences(300, split="train")
    odd = DiagnosticSentence(f"a{separator}12", ("nominal",), "née", f"a{separator}12")
    path = tmp_path / "set" / "sentences.jsonl"
    write_labelled(path, [*ours, odd])
    assert read_labelled(path) == [*ours, odd]
    assert len(path.read_bytes().split(b"\n")) == 302


def test_a_directory_means_its_file(tmp_path: Path) -> None:
    write_lines(tmp_path / LABELLED_FILE, {"text": TEXT, "roles": MIXED})
    assert read_labelled(tmp_path) == read_labelled(tmp_path / LABELLED_FILE)
    (tmp_path / LABELLED_FILE).unlink()
    refused(lambda: read_labelled(tmp_path), LABELLED_FILE)


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ([TEXT], "list"),
        ({"roles": MIXED}, "'text'"),
        ({"text": TEXT}, "'roles'"),
        ({"text": 5, "roles": MIXED}, "'text'"),
        ({"text": TEXT, "roles": MIXED, "domain": None}, "'domain'"),
        ({"text": TEXT, "roles": MIXED, "template": ["x"]}, "'template'"),
        ({"text": TEXT, "roles": ["nominal", "ordinal"]}, "'roles'"),
        ({"text": TEXT, "roles": ["nominal", None]}, "'roles'"),
        ({"text": TEXT, "roles": ["nominal"]}, "1 numbers"),
        ({"text": "No number", "roles": "nominal"}, "number"),
    ],
)
def test_a_malformed_record_names_file_and_line(tmp_path: Path, record: Any, named: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": TEXT, "roles": MIXED}, record)
    refused(lambda: read_labelled(path), f"{path}, line 2: ", named)


@pytest.mark.parametrize("content", [None, " \n\n", "{"])
def test_a_file_without_sentences_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "a.jsonl").write_text(content)
    refused(lambda: read_labelled(tmp_path / "a.jsonl"), "a.jsonl")
