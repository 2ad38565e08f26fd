from collections.abc import Callable
from pathlib import Path

from ani.data.labelled_sentences import read_labelled
from tests import test_cli
from tests.json_lines import write_lines

run = test_cli.run


def maths(path: Path) -> Path:
    return write_lines(path, *({"question": f"{i} + 1?", "answer": "Quite."} for i in range(12)))


def test_build(run: Callable[..., test_cli.Done], tmp_path: Path) -> None:
    source, out = maths(tmp_path / "maths.jsonl"), tmp_path / "[a] set"
    done = run(
        "paper-set",
        out,
        "--quantitative",
        source,
        "--nominal",
        "diagnostic",
        "--count",
        "10",
        "--seed",
        "4",
        "--numbers",
        "5",
    )
    assert done.code == 0, done
    assert "texts: 20 in" in done.out
    assert str(out) in done.out
    assert len(read_labelled(out)) == 20
    assert "seed 4" in (out / "README.md").read_text(encoding="utf-8")


def test_too_few_texts_and_a_count_of_nothing_are_refused(run: Callable[..., test_cli.Done], tmp_path: Path) -> None:
    source = maths(tmp_path / "maths.jsonl")
    done = run("paper-set", "set", "--quantitative", source, "--nominal", "diagnostic", "--count", "13")
    test_cli.assert_refused(done, "gives 12 quantitative texts, 13 are wanted", "at most 12")
    test_cli.assert_refused(run("paper-set", "set", "--count", "0"), "--count")
    assert not Path("set").exists()
