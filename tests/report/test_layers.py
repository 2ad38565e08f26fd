"""The tables about layers: the probes' curve, and task accuracy by layer of injection."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ani.results.statistics import wilson_interval
from tests.report.test_page import CURVE, HELD_OUT, answer, build, probed, write

SOLVED = {4: 3, 9: 5, 14: 9, 19: 8, 24: 6}
"""Layer: problems out of ten."""


def compared(folder: Path, runs: Mapping[str, int | None], solved: Mapping[str, int]) -> None:
    """The files of a comparison of runs that inject at the given layers (None: without ANI)."""
    answers = [
        answer(run, 2, problem < solved[run], prompt=f"problem {problem}", operation="+-"[problem % 2])
        for run in runs
        for problem in range(10)
    ]
    write(folder, "arithmetic.jsonl", answers)
    named = [{"variant": run, "seed": 0} | ({} if layer is None else {"layer": layer}) for run, layer in runs.items()]
    (folder / "run.json").write_text(json.dumps({"runs": named}))


def layered(folder: Path, layers: Mapping[int, int] = SOLVED) -> None:
    runs: dict[str, int | None] = {"reference": None} | {f"layer-{layer}": layer for layer in layers}
    compared(folder, runs, {"reference": 1} | {f"layer-{layer}": solved for layer, solved in layers.items()})


def test_the_curve_and_the_choice(tmp_path: Path) -> None:
    probed(tmp_path, CURVE[::-1], argmax=24, reason="Layer 14 is the first of its stretch.")
    page = build(tmp_path)
    assert page.rows[0] == ["Layer", "Random split", "Held out", "Control", "Selectivity", "Mark"]
    rows = {row[0]: row[1:] for row in page.rows[1:]}
    assert rows["14"] == ["94.0% (92.0–95.0)", "90.0% (88.0–93.0)", "52.0%", "+40.0 (+37.0…+42.0)", "chosen"]
    assert [*rows] == ["0", "4", "9", "14", "19", "24"]  # in their order
    assert [row[-1] for row in rows.values()] == ["", "", "", "chosen", "best held out", "paper's rule"]
    assert "Layer 14 is the first of its stretch." in page.text
    (svg,) = page.charts.values()
    assert all(f">{name}</text>" in svg for name in ("Random split", "Held out", "Control", "layer"))
    assert "Selectivity" not in svg


def test_task_accuracy_and_the_probes(tmp_path: Path) -> None:
    probed(tmp_path, layer=14)
    layered(tmp_path)
    page = build(tmp_path)
    assert page.sections == ["arithmetic", "layers", "layer-sensitivity"]
    # Both operations together, unlike the table of accuracies.
    low, high = wilson_interval(9, 10)
    assert ["14", "layer-14", f"90.0% {100 * low:.1f}–{100 * high:.1f} n = 10", "90.0% 88.0–93.0"] in page.rows
    found = np.corrcoef([HELD_OUT[layer] for layer in SOLVED], [*SOLVED.values()])[0, 1]
    assert f"Pearson's r = {found:+.2f} (95%" in page.text


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    """Equal accuracies have no correlation; too few layers, or runs that share one and so differ in more, no table."""
    probed(tmp_path)
    layered(tmp_path, dict.fromkeys(SOLVED, 0))
    assert "no correlation" in build(tmp_path).text
    layered(tmp_path, {4: 2, 9: 3, 15: 4})
    assert "layer-sensitivity" not in build(tmp_path).sections
    layered(tmp_path, {4: 2, 9: 3, 14: 4, 15: 4})
    page = build(tmp_path)
    assert "layer-sensitivity" in page.sections and "Layer 15 was not probed." in page.text
    runs: dict[str, int | None] = {"a": 4, "b": 9, "c": 14, "c too": 14}
    compared(tmp_path, runs, dict.fromkeys(runs, 5))
    assert "layer-sensitivity" not in build(tmp_path).sections
