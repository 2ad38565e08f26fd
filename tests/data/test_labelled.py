from pathlib import Path
from typing import Any

import pytest

from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences
from ani.data.labelled import LABELLED_FILE, read_labelled, write_labelled
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


def test_a_directory_stands_for_its_file(tmp_path: Path) -> None:
    write_lines(tmp_path / LABELLED_FILE, {"text": TEXT, "roles": MIXED})
    assert read_labelled(tmp_path) == read_labelled(tmp_path / LABELLED_FILE)
    (tmp_path / LABELLED_FILE).unlink()
    refused(lambda: read_labelled(tmp_path), f"{LABELLED_FILE} does not exist")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": TEXT, "roles": MIXED})
    before = path.read_bytes()

    def broken() -> Any:
        yield from diagnostic_sentences(1, split="train")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_labelled(path, broken())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([TEXT], "expected an object, found list"),
        ({"roles": MIXED}, "no 'text'"),
        ({"text": TEXT}, "no 'roles'"),
        ({"text": 5, "roles": MIXED}, "'text' must be a text, not int"),
        ({"text": TEXT, "roles": MIXED, "domain": None}, "'domain' must be a text, not NoneType"),
        ({"text": TEXT, "roles": MIXED, "template": ["x"]}, "'template' must be a text, not list"),
        ({"text": TEXT, "roles": "ordinal"}, "'roles' must be 'nominal' or 'quantitative'"),
        ({"text": TEXT, "roles": ["nominal", "ordinal"]}, "'roles' must be"),
        ({"text": TEXT, "roles": None}, "'roles' must be"),
        ({"text": TEXT, "roles": ["nominal"]}, "'roles' names 1 numbers, the text holds 2"),
        ({"text": TEXT, "roles": []}, "'roles' names 0 numbers, the text holds 2"),
        ({"text": "No number", "roles": "nominal"}, "holds no number"),
        ({"text": "No number", "roles": []}, "holds no number"),
    ],
)
def test_a_malformed_record_names_file_and_line(tmp_path: Path, record: Any, message: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": TEXT, "roles": MIXED}, record)
    refused(lambda: read_labelled(path), f"{path}, line 2: ", message)


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    refused(lambda: read_labelled(tmp_path / "gone.jsonl"), "gone.jsonl does not exist")
    (tmp_path / "a.jsonl").write_text(" \n\n")
    refused(lambda: read_labelled(tmp_path / "a.jsonl"), "a.jsonl holds no labelled sentences")
    (tmp_path / "a.jsonl").write_text("{")
    refused(lambda: read_labelled(tmp_path / "a.jsonl"), "a.jsonl, line 1: not valid JSON")
