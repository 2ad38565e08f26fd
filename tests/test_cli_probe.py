import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ani.probing.run import HELD_OUT, RANDOM_SPLIT
from ani.results.records import LAYERS, SELECTION
from tests import test_cli
from tests.json_lines import read_lines

run = test_cli.run
Run = Callable[..., test_cli.Done]

QUICK = ["--sentences", "240", "--out", "out"]


def test_table_and_reason(run: Run, tiny_model: Path) -> None:
    done = run("probe", "--model", tiny_model, *QUICK, code=0)
    chosen = json.loads(Path("out", SELECTION).read_text())
    assert "".join(chosen["reason"].split()) in "".join(done.out.split())
    assert all(f"{point['held_out']:.1%}" in done.out for point in read_lines(Path("out", LAYERS)))
    assert {path.name for path in Path("out").iterdir()} == {LAYERS, RANDOM_SPLIT, HELD_OUT, SELECTION, "run.json"}


def test_json_is_the_selection(run: Run, tiny_model: Path) -> None:
    options = ("--layers", "0, 2", "--seed", "3", "--policy", "after", "--json")
    chosen = json.loads(run("probe", "--model", tiny_model, *QUICK, *options, code=0).out)
    assert chosen == json.loads(Path("out", SELECTION).read_text())
    assert chosen["layer"] in (0, 2) and (chosen["policy"], chosen["seed"]) == ("after", 3)
    assert [point["layer"] for point in read_lines(Path("out", LAYERS))] == [0, 2]


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--layers", "0,4", "4"),
        ("--layers", "1,1", "[1, 1]"),
        ("--layers", "1,two", "'1,two'"),
        ("--layers", "3", "layer"),
        ("--sentences", "1", "nominal"),
        ("--sentences", "30", "30"),
        ("--sentences", "0", "--sentences"),
        ("--policy", "behind", "'behind'"),
        ("--data", "gone.jsonl", "gone.jsonl"),
        ("--held-out", "gone.jsonl", "gone.jsonl"),
        ("--model", "no/such-model", "no/such-model"),
        ("--out", "file", "file"),
    ],
)
def test_bad_input(run: Run, tiny_model: Path, option: str, value: str, named: str) -> None:
    Path("file").touch()
    test_cli.assert_refused(run("probe", "--model", tiny_model, *QUICK, option, value), named)
    assert list(Path().iterdir()) == [Path("file")]
