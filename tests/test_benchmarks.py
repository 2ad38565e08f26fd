"""The code of benchmarks: the table of all ratios, and the GPU script with a tiny model on the CPU."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def as_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script finds its neighbours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as gpu.py would set it for good


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(BENCHMARKS / name), run_name="__main__")


def test_rows_say_whether_their_aims_are_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import _paired

    file = tmp_path / "rows.jsonl"
    monkeypatch.setenv(_paired.ROWS, str(file))
    table = _paired.table("title")
    for aim in ("≤ 1.02", "≥ 1.02", "< 1", "> 1", ""):
        _paired.add(table, "measure", [0.5, 1.0, 3.0], aim)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row[-1] for row in rows] == ["met", "missed", "missed", "missed", ""]
    assert rows[0][:5] == ["title", "measure", "1.000", "0.500–3.000", "3"]


def test_one_table_of_all_ratios(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "all.py", "encoder")
    every, _, with_aim = capfd.readouterr().out.rpartition("All ratios that have an aim")
    (error,) = [row for row in with_aim.splitlines() if "worst feature error, ours" in row]
    assert "≤ 1e-7" in error and " met" in error
    assert "worst feature error, published" in every and "worst feature error, published" not in with_aim


def test_gpu_script_with_a_tiny_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "gpu.py", "--tiny", "--steps", "1")
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "step time ANI / SFT" in line]
    assert 0.1 < float(re.findall(r"\d+\.\d+", row)[0]) < 10  # a ratio of times that were measured
