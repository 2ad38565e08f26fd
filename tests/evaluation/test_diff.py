"""Two result folders in pairs, against `paired_difference` on scores written by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ani.evaluation.diff import compare_folders
from ani.results.records import write_json
from ani.results.statistics import paired_difference
from tests.json_lines import read_lines, write_lines
from tests.refusals import refused

Records = dict[str, list[dict[str, Any]]]
OURS = np.array([1.0, 1, 0, 1, 1, 0, 1, 1])
BASE = np.array([1.0, 0, 0, 0, 1, 1, 0, 1])
"""Which of eight questions were solved; the same for all tasks."""
EVERY = list(range(8))
PARTS = {
    "addition": {"all": EVERY, "2": [0, 1, 2, 3], "4": [4, 5, 6, 7]},
    "gsm8k": {"all": EVERY},
    # The fifth question has no level.
    "math": {"all": EVERY, "levels 1–3": [0, 1, 2], "levels 4–5": [3, 5, 6, 7], "Algebra": EVERY[::2]}
    | {"Geometry": EVERY[1::2]},
    "mmlu": {"all": EVERY, "STEM": [0, 1, 4, 5], "other": [2, 3, 6, 7], "anatomy": [0, 4], "astronomy": [1, 5]}
    | {"marketing": [2, 3, 6, 7]},
}
"""Task or operation: part: its questions."""


def compared(run: Path, baseline: Path) -> dict[str, Any]:
    """By operation or benchmark."""
    found = compare_folders(run, baseline)[1]
    return {**found.pop("arithmetic"), **found}


def records(scores: Any) -> Records:
    made: Records = {"arithmetic.jsonl": [], "gsm8k.jsonl": [], "math.jsonl": [], "mmlu.jsonl": []}
    for i, correct in enumerate(map(bool, scores)):
        answer = {"id": i, "correct": correct, "prediction": "A", "prompt_hash": f"hash {i}"}
        level, subject = [1, 2, 3, 4, None, 5, 4, 5][i], ["Algebra", "Geometry"][i % 2]
        field = ["anatomy", "astronomy", "marketing", "marketing"][i % 4]
        problem = {"run": "model", "operation": "+", "digits": 2 if i < 4 else 4, "prompt": f"{i} + 1 ="}
        problem |= {"answer": "1", "output": "1"}
        made["arithmetic.jsonl"].append({**problem, "prediction": "1", "correct": correct})
        made["gsm8k.jsonl"].append({**answer, "task": "gsm8k"})
        made["math.jsonl"].append({**answer, "task": "math", "level": level, "subject": subject})
        group = "other" if field == "marketing" else "STEM"
        made["mmlu.jsonl"].append({**answer, "task": "mmlu", "subject": field, "group": group})
    return made


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Results of both runs; the second answered in another order."""
    reverse = {name: found[::-1] for name, found in records(BASE).items()}
    return save(tmp_path / "ours", records(OURS)), save(tmp_path / "base", reverse)


def save(folder: Path, files: Records) -> Path:
    folder.mkdir()
    for name, lines in files.items():
        write_lines(folder / name, *lines)
    return folder


def change(folder: Path, name: str, alter: Callable[[list[dict[str, Any]]], Any]) -> None:
    lines = read_lines(folder / name)
    alter(lines)
    write_lines(folder / name, *lines)


def test_every_part_is_a_paired_bootstrap(folders: tuple[Path, Path]) -> None:
    results = compared(*folders)
    for parts in results.values():
        del parts["changed"]
    found = {
        task: {part: paired_difference(OURS[asked], BASE[asked]) for part, asked in parts.items()}
        for task, parts in PARTS.items()
    }
    assert json.loads(json.dumps(results)) == {
        task: {part: {"value": d.value, "low": d.low, "high": d.high, "p": d.p} for part, d in parts.items()}
        for task, parts in found.items()
    }
    assert results["math"]["levels 4–5"]["value"] == 0.25  # three of four against two
    assert results["mmlu"]["anatomy"]["p"] == 1


def test_problems_fixed_and_broken_are_counted(folders: tuple[Path, Path]) -> None:
    # The second, fourth and seventh problem are fixed, the sixth is broken: 2 · (1 + 4) of 16 equally likely outcomes
    # are as far from two and two. At the interval's ends 3 and more, or 3 and fewer, of 4 have a probability of 2.5%.
    for task, parts in compared(*folders).items():
        changed = parts["changed"]
        assert (changed["fixed"], changed["broken"], changed["value"]) == (3, 1, 0.75), task
        assert changed["p"] == pytest.approx(10 / 16)
        low, high = changed["low"], changed["high"]
        assert 4 * low**3 * (1 - low) + low**4 == pytest.approx(0.025) == 1 - high**4
    back = compared(*folders[::-1])["gsm8k"]["changed"]
    assert (back["fixed"], back["broken"], back["p"]) == (1, 3, pytest.approx(10 / 16))


@pytest.mark.parametrize(
    ("name", "alter", "named"),
    [
        ("math.jsonl", lambda lines: lines.pop(), "MATH…ours…base…1"),
        ("mmlu.jsonl", lambda lines: lines[0].update(prompt_hash="x"), "MMLU…2"),
        ("arithmetic.jsonl", lambda lines: lines[0].pop("prompt"), "ours/arithmetic.jsonl, line 1: … 'prompt'"),
        ("mmlu.jsonl", lambda lines: lines[0].update(run="b"), "ours/mmlu.jsonl"),
    ],
)
def test_what_has_no_pairs_is_refused(
    folders: tuple[Path, Path], name: str, alter: Callable[[Any], Any], named: str
) -> None:
    change(folders[0], name, alter)
    refused(lambda: compare_folders(*folders), named)


def test_answers_of_other_lengths_are_refused(folders: tuple[Path, Path]) -> None:
    def settle(folder: Path, limit: int) -> None:
        write_json(folder / "run.json", {"settings": {"gsm8k": {"generation": {"max_gen_toks": limit}}}})

    ours, base = folders
    settle(ours, 512)
    compare_folders(*folders)  # nothing is known of the other one
    settle(base, 512)
    compare_folders(*folders)
    settle(base, 256)
    refused(lambda: compare_folders(*folders), "gsm8k", "512", "256", "--max-new-tokens")
