import json
from collections.abc import Callable
from pathlib import Path

from ani.data.labelled import read_labelled
from tests import test_cli

run = test_cli.run


def maths(path: Path) -> Path:
    path.write_text("".join(json.dumps({"question": f"{i} + 1?", "answer": "Quite."}) + "\n" for i in range(12)))
    return path


def test_build(run: Callable[..., test_cli.Done], tmp_path: Path) -> None:
    source, out = maths(tmp_path / "maths.jsonl"), tmp_path / "[a] set"
    done = run("diagnostic", out, "--quantitative", source, "--nominal", "diagnostic", "--count", "10", "--seed", "4")
    assert done.code == 0, done
    assert "texts: 20 in" in done.out
    assert str(out) in done.out
    assert len(read_labelled(out)) == 20
    assert "seed 4" in (out / "README.md").read_text(encoding="utf-8")


def test_help(run: Callable[..., test_cli.Done]) -> None:
    done = run("diagnostic", "--help")
    assert done.code == 0
    assert "diagnostic" in done.out
    assert done.err == ""


def test_too_few_texts_are_refused(run: Callable[..., test_cli.Done], tmp_path: Path) -> None:
    source = maths(tmp_path / "maths.jsonl")
    done = run("diagnostic", "set", "--quantitative", source, "--nominal", "diagnostic", "--count", "13")
    test_cli.assert_refused(done, "gives 12 quantitative texts, 13 are wanted", "at most 12")
    assert not Path("set").exists()


def test_a_count_of_nothing_is_refused(run: Callable[..., test_cli.Done]) -> None:
    test_cli.assert_refused(run("diagnostic", "set", "--count", "0"), "--count")
