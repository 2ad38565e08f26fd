from pathlib import Path
from typing import Any

import lm_eval
import pytest
import yaml

from ani.evaluation.tasks.mmlu import MMLU_GROUPS, Mmlu
from tests.json_lines import write_lines
from tests.refusals import refused

ROW = {"subject": "marketing", "question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 2}


def test_examples(tmp_path: Path) -> None:
    subjects = {"anatomy": "anatomy", "law": "professional_law"}
    rows = [{**ROW, "subject": subjects[name], "question": f"{name} {i}"} for i in range(7) for name in subjects]
    file = str(write_lines(tmp_path / "test.jsonl", *rows))
    held_out = list(Mmlu.read(file)["test"])
    assert sorted(row["id"] for row in held_out) == [10, 11, 12, 13]
    for row in held_out:
        name = row["question"].split()[0]
        assert [shot["question"] for shot in row["shots"]] == [f"{name} {i}" for i in range(5)]
        assert row["shots_from"] == "test, held out"
        assert row["group"] == {"anatomy": "STEM", "law": "humanities"}[name]
    write_lines(tmp_path / "dev.jsonl", *({**row, "question": f"dev {row['question']}"} for row in rows))
    with_dev = list(Mmlu.read(str(tmp_path))["test"])
    assert len(with_dev) == 14 and {row["shots_from"] for row in with_dev} == {"dev"}
    assert all(shot["question"].startswith("dev") for row in with_dev for shot in row["shots"])


def test_groups_are_those_of_the_harness() -> None:
    folder = Path(str(lm_eval.__file__)).parent / "tasks" / "mmlu" / "default"
    theirs: dict[str, set[str]] = {}
    for file in folder.glob("mmlu_*.yaml"):
        task = yaml.load(file.read_text("utf-8"), yaml.BaseLoader)
        theirs.setdefault(task["tag"].removeprefix("mmlu_").removesuffix("_tasks"), set()).add(task["dataset_name"])
    assert theirs == {group.lower().replace(" ", "_"): set(names.split()) for group, names in MMLU_GROUPS.items()}


@pytest.mark.parametrize(("key", "value"), [("choices", ["a"]), ("answer", 4), ("subject", "magic")])
def test_bad_rows_are_named(key: str, value: Any, tmp_path: Path) -> None:
    file = str(write_lines(tmp_path / "test.jsonl", ROW, {**ROW, key: value}))
    refused(lambda: Mmlu.read(file), file, "line 2", f"'{key}'")
    refused(lambda: Mmlu.read(str(write_lines(tmp_path / "few.jsonl", ROW))), "few.jsonl", "'marketing'", "5")
