import hashlib
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import pytest
import yaml

from ani.evaluation.tasks import TASKS
from ani.evaluation.tasks.benchmarks import messages_of
from ani.evaluation.tasks.gsm8k import Gsm8k
from ani.evaluation.tasks.math import Math
from ani.evaluation.tasks.mmlu import MMLU_GROUPS, Mmlu
from tests.json_lines import write_lines
from tests.refusals import refused

PAPER = {
    "gsm8k": (
        "3834bc0d130f659cd08a94d0e138430ea0a8d219746936062ffedefec1412ff4",
        "236609d76319aaa92ef7241231f6c14b581889fc7fc02608b4e13dc6979ab693",
    ),
    "math": (
        "256faf7160178ef095a213d737a623600a9aa4a364feeb69b4512d3909d5d66c",
        "38e2ed1656da5c9076be034bed07a45bfeffe10fbe75d37554d465c8a96bac3e",
    ),
    "mmlu": (
        "c95b6ae8d64927003361b289396f53e80a34d9156a8f1cf95c9f7c380102e006",
        "543ab161bc0247b641f7e099ee1d3ff3b678015a8b7c9fca1f2e44e246e7114a",
    ),
}
"""SHA-256 of what the paper's templates (appendix, "Evaluation Templates") tell system and user, their LaTeX undone: no
commands, no line ends `\\\\`, and a place such as {Target Question} as it stands there."""
GSM8K = {"question": "How many?", "answer": "Many.\n#### 1,234"}
MATH = {"problem": "What is x?", "level": "Level 3", "type": "Algebra", "solution": r"It is $\boxed{\frac12}$."}
MMLU = {"subject": "marketing", "question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 2}
ROWS = {"gsm8k": GSM8K, "math": MATH, "mmlu": MMLU}


def write(path: Path, rows: list[Any]) -> str:
    return str(write_lines(path, *rows))


def load(name: str, data: str) -> Any:
    task: Any = TASKS[name].asked(data=data)
    return task.harness(seed=0)


def messages(name: str, doc: dict[str, Any], folder: Path) -> tuple[str, str]:
    """What a task tells the system and the user about a question."""
    system, user = messages_of(load(name, write(folder / f"{name}.jsonl", [ROWS[name]] * 6)), doc)
    assert (system["role"], user["role"]) == ("system", "user")
    return system["content"], user["content"]


def digests(*texts: str) -> tuple[str, ...]:
    return tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts)


@pytest.mark.parametrize(("name", "place"), [("gsm8k", "{Target Question}"), ("math", "{Target Problem}")])
def test_prompts_are_the_papers(name: str, place: str, tmp_path: Path) -> None:
    assert digests(*messages(name, {"question": place, "answer": "?"}, tmp_path)) == PAPER[name]


def test_the_mmlu_prompt_is_the_papers(tmp_path: Path) -> None:
    options = [f"{{Option {i}}}" for i in range(1, 5)]
    shots = [{"question": f"{{Few-shot Example {i}}}", "choices": options, "answer": i // 2} for i in range(1, 6)]
    doc = {"question": "{Target Question}", "choices": options, "subject": "{subject}", "shots": shots, "answer": 0}
    system, user = messages("mmlu", doc, tmp_path)
    first, *_, fifth, target = user.split("\n\n")
    assert digests(system, "\n\n".join([first, "...", fifth, target])) == PAPER["mmlu"]
    about, _ = messages("mmlu", {**doc, "subject": "high_school_physics"}, tmp_path)
    assert about.endswith("about high school physics.")


def test_the_harness_judges_as_we_do(tmp_path: Path) -> None:
    for name, right, wrong in (("gsm8k", "#### 1234", "#### 1235"), ("math", r"\boxed{0.5}", "0.5")):
        task = load(name, write(tmp_path / "test.jsonl", [ROWS[name]]))
        assert [task.process_results(task.eval_docs[0], [text]) for text in (right, wrong)] == [{"acc": 1}, {"acc": 0}]


def test_rows_of_files(tmp_path: Path) -> None:
    (row,) = Gsm8k.read(write(tmp_path / "test.jsonl", [GSM8K]))["test"]
    assert row == {"id": 0, "question": "How many?", "answer": "1234"}
    assert list(Gsm8k.read(str(tmp_path))["test"]) == [row]
    (row,) = Math.read(write(tmp_path / "math.jsonl", [MATH]))["test"]
    assert row == {"id": 0, "question": "What is x?", "answer": r"\frac12", "subject": "Algebra", "level": 3}
    (row,) = Math.read(write(tmp_path / "math.jsonl", [{**MATH, "level": "Level ?"}]))["test"]
    assert row["level"] is None


def test_the_seed_orders_the_questions(tmp_path: Path) -> None:
    file = write(tmp_path / "test.jsonl", [{**GSM8K, "question": f"Question {i}"} for i in range(30)])
    orders = [tuple(Gsm8k.read(file, seed=seed)["test"]["id"]) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert set(orders[0]) == set(range(30)) and orders[0] != tuple(range(30))


def test_examples_of_mmlu(tmp_path: Path) -> None:
    subjects = {"anatomy": "anatomy", "law": "professional_law"}
    rows = [{**MMLU, "subject": subjects[name], "question": f"{name} {i}"} for i in range(7) for name in subjects]
    file = write(tmp_path / "test.jsonl", rows)
    held_out = list(Mmlu.read(file)["test"])
    assert sorted(row["id"] for row in held_out) == [10, 11, 12, 13]
    for row in held_out:
        name = row["question"].split()[0]
        assert [shot["question"] for shot in row["shots"]] == [f"{name} {i}" for i in range(5)]
        assert row["shots_from"] == "test, held out"
        assert row["group"] == {"anatomy": "STEM", "law": "humanities"}[name]
    write(tmp_path / "dev.jsonl", [{**row, "question": f"dev {row['question']}"} for row in rows])
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
    assert sum(map(len, theirs.values())) == 57


def test_sets_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def load_dataset(name: str, *configuration: str, split: str, streaming: bool) -> list[Any]:
        asked.append((name, *configuration, split))
        return [MMLU] * 5 if "mmlu" in name else [MATH] if "math" in name else [GSM8K]

    known = {"cais/mmlu": ["abstract_algebra", "all", "auxiliary_train"], "some/math": ["algebra", "precalculus"]}
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda name: known.get(name, ["default"]))
    assert len(Gsm8k.read()["test"]) == 1
    assert len(Math.read()["test"]) == 7
    assert {row["shots_from"] for row in Mmlu.read()["test"]} == {"dev"}
    assert len(Gsm8k.read("some/gsm8k")["test"]) == 1
    assert asked[0] == ("openai/gsm8k", "main", "test") and asked[1][1:] == ("algebra", "test")
    assert asked[-3:] == [("cais/mmlu", "all", "test"), ("cais/mmlu", "all", "dev"), ("some/gsm8k", "test")]
    # Named, a set is read as by default; another one with the same configurations likewise.
    Mmlu.read("cais/mmlu")
    assert asked[-2:] == [("cais/mmlu", "all", "test"), ("cais/mmlu", "all", "dev")]
    Math.read("some/math")
    assert asked[-2:] == [("some/math", "algebra", "test"), ("some/math", "precalculus", "test")]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("gsm8k", {"question": "?"}, "line 2…'answer'"),
        ("gsm8k", [], "line 2…'question'"),
        ("gsm8k", {**GSM8K, "answer": "5"}, "line 2…'answer'…####"),
        ("math", {**MATH, "level": 3}, "line 2…'level'…3"),
        ("math", {**MATH, "solution": "5"}, r"line 2…'solution'…\boxed{}"),
        ("mmlu", {**MMLU, "choices": ["a"]}, "line 2…'choices'"),
        ("mmlu", {**MMLU, "answer": 4}, "line 2…'answer'…4"),
        ("mmlu", {**MMLU, "subject": "magic"}, "line 2…'subject'…'magic'"),
        ("mmlu", MMLU, "2…'marketing'…5"),
    ],
)
def test_bad_data_is_named(name: str, row: Any, message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "test.jsonl", [ROWS[name], row])
    assert refused(lambda: load(name, file), message).startswith(file)


def test_other_bad_input(tmp_path: Path) -> None:
    refused(lambda: load("gsm8k", str(tmp_path / "nothing.jsonl")), "nothing.jsonl")
    refused(lambda: load("mmlu", str(tmp_path)), "test.jsonl")
    refused(lambda: load("math", write(tmp_path / "test.jsonl", [])), "no question")
