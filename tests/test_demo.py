"""`ani demo` in small: the comparison that it is, started from the command line."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from ani.compare import plan, runs
from tests import test_cli
from tests.json_lines import read_lines as read

run = test_cli.run
DEMO = yaml.safe_load(plan.DEMO.read_text())
RESULTS = {f"{name}.jsonl" for name in ("arithmetic", "language", "gates", "layers")}
RESULTS |= {"run.json", "runs", "comparison.md", "comparison.yaml", "report.html", "selection.json"}
SETTINGS = ["ani.gate_hidden_size=8", "lora.r=2", "dtype=float32", "data.0.count=8", "data.1.count=8"]
SETTINGS += ["data.2.limit=8", "ani.gate_layers=[]"]
SETTINGS += ["training.batch_size=4", "training.steps=4", "training.log_every=1", "training.save_every=2"]

RunDemo = Callable[..., test_cli.Done]


@pytest.fixture
def run_demo(
    run: Callable[..., test_cli.Done], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunDemo:
    """Runs the demo in `tmp_path/demo`, with fewer problems and sentences."""
    fewer = {
        "arithmetic": {"count": 2},
        "gates": {**DEMO["evaluation"]["gates"], "limit": 12},
        "language": {"count": 6},
    }
    recipe, small = plan.DEMO.parent / DEMO["recipe"], tmp_path / "demo-comparison.yaml"
    small.write_text(yaml.safe_dump({**DEMO, "recipe": str(recipe), "evaluation": {**DEMO["evaluation"], **fewer}}))
    monkeypatch.setattr(plan, "DEMO", small)
    monkeypatch.setattr("ani.calculator.demo.show_chats", lambda console: None)
    # A process of its own for each run would import all anew; tests/compare has such.
    monkeypatch.setattr(runs, "in_own_processes", lambda arguments: runs.in_this_process)
    return partial(run, "demo", f"model={tiny_model}", *SETTINGS, "--out", tmp_path / "demo")


def test_the_demo_finds_its_layer_and_leaves_every_result_and_a_report(
    run_demo: RunDemo, tiny_model: Path, tmp_path: Path
) -> None:
    folder, printed = tmp_path / "demo", run_demo("ani.layer=auto", "probe.sentences=240", code=0).out
    assert str(folder / "report.html") in printed and "step    4/4" in printed
    assert printed.count("layers probed") == 1
    (probe,) = {path.name for path in folder.iterdir()} - RESULTS
    assert probe.startswith("probe-")
    selection = json.loads((folder / "selection.json").read_text())
    assert "".join(selection["reason"].split()) in "".join(printed.split())
    answers = read(folder / "arithmetic.jsonl")
    names = ("reference", "sft", "ani")
    by_run = [[record["prompt"] for record in answers if record["run"] == name] for name in names]
    assert len(by_run[0]) == len(answers) / 3 == 12 and by_run[0] == by_run[1] == by_run[2]
    for name in ("sft", "ani"):
        log = read(folder / "runs" / name / "seed-0" / "training" / "training_log.jsonl")
        assert [line["step"] for line in log] == [1, 2, 3, 4]
    gates = read(folder / "gates.jsonl")
    assert len({record["text"] for record in gates if record["source"] == "diagnostic"}) == 12
    facts = json.loads((folder / "run.json").read_text())
    ani = next(run for run in facts["runs"] if run["variant"] == "ani")
    assert (facts["model"], ani["layer"], ani["policy"]) == (str(tiny_model), selection["layer"], "after")
    assert "training.steps=4" in yaml.safe_load((folder / "comparison.yaml").read_text())["overrides"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Comparison demo" in page and "compared to sft" in page


def test_a_bad_recipe_leaves_nothing(run_demo: RunDemo, tmp_path: Path) -> None:
    test_cli.assert_refused(run_demo("training.stepps=1"), "did you mean 'steps'")
    assert not (tmp_path / "demo").exists()
