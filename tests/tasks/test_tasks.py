"""What every task owes, and the folder that `ask` fills."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ani.results.files import write_records
from ani.tasks import TASKS, Posed, ask, clear_answers, presented, read_results, task_class
from ani.tasks.answering import Answerer
from ani.tasks.gating import GateDecision, Gating
from ani.tasks.routing import Routing
from tests.refusals import refused


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_a_name_a_unit_and_settings_that_are_checked(name: str) -> None:
    task = TASKS[name]
    assert task.name == name and task.unit.isalpha() and task.together >= 1
    with pytest.raises(ValueError, match="colour"):
        task.model_validate({"colour": "red"})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gating", {"limit": 0}, "the task gating: count: Input should be greater than or equal to 1"),
        ("finer", {"limit": 2**40}, "the task finer: limit is 1099511627776, but no integer may be above"),
        ("arithmetic", {"limit": -1}, "the task arithmetic: problems.0.count: Input should be greater"),
    ],
)
def test_options_that_do_not_fit_are_told(name: str, options: dict[str, Any], message: str) -> None:
    refused(lambda: TASKS[name].asked(**options), message)


def test_options_of_other_tasks_are_left_out_and_an_unknown_one_is_named() -> None:
    assert Gating.asked(limit=3, data=None, operations=["addition"], max_new_tokens=4) == Gating(count=3)
    assert Routing.asked(limit=None, data="x") == Routing()
    refused(lambda: task_class("gsm8"), "unknown task gsm8; did you mean gsm8k")


def decision(number: int) -> GateDecision:
    return GateDecision(value=str(number), role="nominal", injected=False)


class Counting(Gating):
    """Knows its answers."""

    def questions(self, seed: int) -> list[Any]:
        return list(range(self.count))

    def answer(self, answerer: Answerer, questions: Any, count: Any) -> Any:
        for number in questions:
            count(1)
            yield decision(number)


def test_records_are_in_the_folder_when_all_are_there(tmp_path: Path) -> None:
    done: list[tuple[Any, int, bool]] = []
    task = Counting(count=3)

    def note(which: Any, records: list[Any]) -> None:
        done.append((which, len(records), (tmp_path / "gating.jsonl").is_file()))

    answerer: Any = None
    ask([Posed(task, task.questions(0))], answerer, tmp_path, console=Console(quiet=True), done=note)
    assert done == [(Counting, 3, True)]
    assert read_results(tmp_path) == {Gating: [decision(0), decision(1), decision(2)]}


def test_what_was_kept_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = ["gsm8k.answers", "gsm8k.answers.1", "gsm8k.answers.12"]
    others = ["gsm8k.answers-of-mine", "gsm8k.jsonl", "math.answers", "math.answers.1"]
    for name in (*kept, *others):
        (tmp_path / name).touch()
    clear_answers(tmp_path, [TASKS["gsm8k"]()])
    assert sorted(file.name for file in tmp_path.iterdir()) == others


def test_tasks_that_share_a_section_are_shown_together(tmp_path: Path) -> None:
    gsm8k, mmlu, gating = (TASKS[name] for name in ("gsm8k", "mmlu", "gating"))

    def answer(task: str) -> Any:
        return gsm8k.record(task=task, id=0, prompt_hash="0", correct=True)  # type: ignore[call-arg]

    write_records(tmp_path / "gsm8k.jsonl", [answer("gsm8k")])
    write_records(tmp_path / "mmlu.jsonl", [answer("mmlu")])
    write_records(tmp_path / "gating.jsonl", [decision(1)])
    write_records(tmp_path / "finer.jsonl", [])
    found = read_results(tmp_path)
    assert set(found) == {gsm8k, mmlu, gating}
    assert presented(found) == [(gsm8k, [answer("gsm8k"), answer("mmlu")]), (gating, [decision(1)])]


def test_what_is_read_is_what_was_written(results: Path, tmp_path: Path) -> None:
    for task, records in read_results(results / "eval").items():
        write_records(tmp_path / "again.jsonl", records)
        assert (tmp_path / "again.jsonl").read_bytes() == (results / "eval" / f"{task.name}.jsonl").read_bytes()
