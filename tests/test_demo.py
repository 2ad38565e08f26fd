import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ani import InputError, demo
from ani.evaluation.results import read_records
from ani.training.checkpoints import ADAPTER

RESULTS = {
    "arithmetic-after.jsonl",
    "arithmetic-before.jsonl",
    "arithmetic.jsonl",
    "gating.jsonl",
    "inspected.jsonl",
    "report.html",
    "run.json",
    "training",
    "training_log.jsonl",
}
SETTINGS = [
    "ani.layer=1",
    "ani.gate_hidden_size=8",
    "lora.r=2",
    "dtype=float32",
    "data.0.count=8",
    "data.1.count=8",
    "training.batch_size=4",
    "training.steps=4",
    "training.log_every=1",
    "training.save_every=2",
]

RunDemo = Callable[..., Path]


@pytest.fixture
def run_demo(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDemo:
    """The demo in small, in `tmp_path/demo`."""
    monkeypatch.setattr(demo, "PROBLEMS_A_LENGTH", 2)
    monkeypatch.setattr(demo, "SENTENCES", 12)

    def run(*overrides: str, console: Console | None = None) -> Path:
        settings = [f"model={tiny_model}", *SETTINGS, *overrides]
        return demo.run_demo(tmp_path / "demo", console or Console(file=StringIO()), settings)

    return run


def test_the_demo_leaves_every_result_and_a_report(run_demo: RunDemo, tmp_path: Path, tiny_model: Path) -> None:
    printed = StringIO()
    report = run_demo(console=Console(file=printed, width=100))
    folder = tmp_path / "demo"
    assert report == folder / "report.html"
    assert {path.name for path in folder.iterdir()} == RESULTS
    before, after = (read_records(folder / f"arithmetic-{run}.jsonl") for run in ("before", "after"))
    assert read_records(folder / "arithmetic.jsonl") == [*before, *after]
    assert [record["prompt"] for record in before] == [record["prompt"] for record in after]
    assert len(before) == 12
    assert {record["run"] for record in before} == {"before"}
    assert {record["run"] for record in after} == {"after"}
    assert [line["step"] for line in read_records(folder / "training_log.jsonl")] == [1, 2, 3, 4]
    assert len({record["text"] for record in read_records(folder / "gating.jsonl")}) == 12
    assert [record["text"] for record in read_records(folder / "inspected.jsonl")] == list(demo.INSPECTED)
    run = json.loads((folder / "run.json").read_text())
    assert (run["model"], run["layer"], run["policy"]) == (str(tiny_model), 1, "terminal")
    assert run["settings"]["training"]["steps"] == 4
    page = report.read_text(encoding="utf-8")
    assert "ANI demo" in page
    assert demo.INSPECTED[0].split("505")[0] in page
    assert "step    4/4" in printed.getvalue()


def test_the_demo_finds_its_layer(run_demo: RunDemo, tmp_path: Path) -> None:
    printed = StringIO()
    report = run_demo("ani.layer=auto", "probe.sentences=240", console=Console(file=printed, width=400))
    selection = json.loads((tmp_path / "demo" / "selection.json").read_text())
    assert {path.name for path in (tmp_path / "demo").iterdir()} == RESULTS | {"layers.jsonl", "selection.json"}
    assert json.loads((tmp_path / "demo" / "run.json").read_text())["layer"] == selection["layer"]
    assert "".join(selection["reason"].split()) in "".join(printed.getvalue().split())
    assert "Which layer" in report.read_text(encoding="utf-8")


def test_a_second_run_reuses_what_is_there(run_demo: RunDemo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_demo()
    folder = tmp_path / "demo"
    kept = [folder / "arithmetic-before.jsonl", folder / "arithmetic-after.jsonl", folder / "training" / ADAPTER]
    times = [path.stat().st_mtime_ns for path in kept]
    report = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr(demo, "train", never)
    monkeypatch.setattr(demo, "evaluate_arithmetic", never)
    run_demo()
    assert [path.stat().st_mtime_ns for path in kept] == times
    assert len((folder / "report.html").read_bytes()) == pytest.approx(len(report), rel=0.01)


@pytest.mark.parametrize("finished", [True, False])
def test_another_recipe_in_the_same_folder_is_refused(
    run_demo: RunDemo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    if finished:
        run_demo()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(demo, "train", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                run_demo()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("*")}
    with pytest.raises(InputError, match="holds a demo with other settings") as caught:
        run_demo("seed=1")
    assert str(tmp_path / "demo") in str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("*")} == before


def _interrupted(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


def _stop_at_step_3(console: Console) -> Callable[[dict[str, Any]], None]:
    def on_log(line: dict[str, Any]) -> None:
        if line["step"] == 3:
            raise KeyboardInterrupt

    return on_log


@pytest.mark.parametrize(
    ("stage", "replacement", "there"),
    [
        ("evaluate_arithmetic", _interrupted, set()),
        ("training_lines", _stop_at_step_3, {"arithmetic-before.jsonl"}),
        ("load_adapter", _interrupted, {"arithmetic-before.jsonl", "training_log.jsonl"}),
        ("evaluate_gating", _interrupted, RESULTS - {"gating.jsonl", "inspected.jsonl", "run.json", "report.html"}),
        ("build_report", _interrupted, RESULTS - {"report.html"}),
    ],
)
def test_an_interrupted_demo_goes_on(
    run_demo: RunDemo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, replacement: Any, there: set[str]
) -> None:
    folder = tmp_path / "demo"
    with monkeypatch.context() as patch:
        patch.setattr(demo, stage, replacement)
        with pytest.raises(KeyboardInterrupt):
            run_demo()
    assert {path.name for path in folder.iterdir()} == there | {"training"}
    results = {path: path.stat().st_mtime_ns for path in folder.glob("arithmetic-*.jsonl")}
    run_demo()
    assert {path.name for path in folder.iterdir()} == RESULTS
    assert {path: path.stat().st_mtime_ns for path in results} == results
    assert [line["step"] for line in read_records(folder / "training_log.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize("wrong", ["training.stepps=1", "model=gone/model"])
def test_a_bad_recipe_leaves_nothing(run_demo: RunDemo, tmp_path: Path, wrong: str) -> None:
    with pytest.raises(InputError):
        run_demo(wrong)
    assert not (tmp_path / "demo").exists()
