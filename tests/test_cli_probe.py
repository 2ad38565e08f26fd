import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ani.data.diagnostic import diagnostic_sentences
from ani.data.labelled_sentences import write_labelled
from ani.probing.run import HELD_OUT, RANDOM_SPLIT
from ani.results.records import LAYERS, SELECTION
from tests import test_cli
from tests.json_lines import read_lines, write_lines

run = test_cli.run
Run = Callable[..., test_cli.Done]

QUICK = ["--sentences", "240", "--out", "out"]


def test_table_and_reason(run: Run, tiny_model: Path) -> None:
    done = run("probe", "--model", tiny_model, *QUICK)
    assert done.code == 0, done
    chosen = json.loads(Path("out", SELECTION).read_text())
    assert " GiB free\n" in done.out
    assert "".join(chosen["reason"].split()) in "".join(done.out.split())
    for point in read_lines(Path("out", LAYERS)):
        assert f"{point['held_out']:.1%}" in done.out
    assert {path.name for path in Path("out").iterdir()} == {LAYERS, RANDOM_SPLIT, HELD_OUT, SELECTION, "run.json"}


def test_json_is_the_selection(run: Run, tiny_model: Path) -> None:
    done = run("probe", "--model", tiny_model, *QUICK, "--layers", "0, 2", "--seed", "3", "--policy", "after", "--json")
    assert done.code == 0, done
    chosen = json.loads(done.out)
    assert chosen == json.loads(Path("out", SELECTION).read_text())
    assert chosen["layer"] in (0, 2)
    assert (chosen["policy"], chosen["seed"]) == ("after", 3)
    assert [point["layer"] for point in read_lines(Path("out", LAYERS))] == [0, 2]


def test_another_file_to_test_on(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    asked = diagnostic_sentences(120, split="test")
    write_labelled(tmp_path / "known.jsonl", diagnostic_sentences(240, split="train"))
    write_labelled(tmp_path / "asked.jsonl", asked)
    settings = ["--data", tmp_path / "known.jsonl", "--held-out", tmp_path / "asked.jsonl", "--layers", "1", "--json"]
    done = run("probe", "--model", tiny_model, "--out", "out", *settings)
    assert done.code == 0, done
    templates = {record["template"] for record in read_lines(Path("out", HELD_OUT))}
    assert templates and templates <= {sentence.template for sentence in asked}


@pytest.mark.parametrize(
    ("option", "value", "parts"),
    [
        ("--layers", "0,4", ["layer 4 is outside the model: its layers are 0 to 3"]),
        ("--layers", "1,1", ["[1, 1]", "none twice"]),
        ("--layers", "1,two", ["--layers must be numbers such as 4,9,14, not '1,two'"]),
        ("--layers", "", ["--layers must be numbers"]),
        ("--layers", "3", ["no probed layer can be injected at"]),
        ("--sentences", "1", ["every number of the sentences is nominal: a probe needs both roles"]),
        ("--sentences", "30", ["needs 30 of each; give more sentences"]),
        ("--sentences", "0", ["--sentences"]),
        ("--sentences", "10000000", ["count is"]),
        ("--policy", "behind", ["--policy", "'behind'"]),
        ("--data", "gone.jsonl", ["gone.jsonl"]),
        ("--held-out", "gone.jsonl", ["gone.jsonl"]),
        ("--model", "no/such-model", ["no/such-model"]),
        ("--out", "file", ["output file is a file; name a directory"]),
    ],
)
def test_bad_input(run: Run, tiny_model: Path, option: str, value: str, parts: list[str]) -> None:
    Path("file").touch()
    test_cli.assert_refused(run("probe", "--model", tiny_model, *QUICK, option, value), *parts)
    assert list(Path().iterdir()) == [Path("file")]


@pytest.mark.parametrize(
    ("records", "parts"),
    [
        ([], ["data.jsonl"]),
        ([{"text": "Ten of them", "roles": "nominal"}], ["line 1", "no number"]),
        ([{"text": "Room 5", "roles": "nominal"}, {"text": "Room 5", "roles": "name"}], ["line 2"]),
        ([{"text": f"Room {i}", "roles": "nominal"} for i in range(99)], ["is nominal: a probe needs both roles"]),
    ],
)
def test_bad_files(run: Run, tiny_model: Path, tmp_path: Path, records: list[Any], parts: list[str]) -> None:
    path = write_lines(tmp_path / "data.jsonl", *records)
    test_cli.assert_refused(run("probe", "--model", tiny_model, "--out", "out", "--data", path), *parts)
    assert not Path("out").exists()
