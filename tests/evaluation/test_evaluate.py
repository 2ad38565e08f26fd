"""What every task owes, and the folder that `evaluate` fills."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ani.evaluation.evaluate import LoadedTask, answer, evaluate, read_results
from ani.evaluation.tasks import TASKS, task_class
from ani.evaluation.tasks.gates import DecidedText, Gates
from ani.injection.methods import METHODS
from tests.refusals import refused


def test_tasks_check_their_settings() -> None:
    for name, task in TASKS.items():
        assert task.name == name and task.unit.isalpha() and task.together >= 1
        with pytest.raises(ValueError, match="colour"):
            task.model_validate({"colour": "red"})
    for name, limit, key in (("gates", 0, "limit"), ("gates", 2**40, ""), ("arithmetic", -1, "problems.0.count")):
        refused(lambda name=name, limit=limit: TASKS[name].asked(limit=limit), name, key)
    # Options of other tasks are left out.
    assert Gates.asked(limit=3, data=None, operations=["addition"], max_new_tokens=4) == Gates(limit=3)
    refused(lambda: task_class("gsm8"), "gsm8", "gsm8k")


def decision(number: int) -> DecidedText:
    return DecidedText(text=str(number), numbers=())


class Counting(Gates):
    """Knows its answers; gives the last question first, and two records of the first."""

    def questions(self, seed: int) -> list[Any]:
        return list(range(self.limit or 0))

    def check(self, *_: Any) -> None:
        """They are no texts."""

    def answer(self, engine: Any, questions: Any) -> Any:
        for place, number in reversed([*enumerate(questions)]):
            engine.asked.append(number)
            if len(engine.asked) == engine.stops_at:
                raise KeyboardInterrupt
            yield place, [decision(number)] * (1 + (number == 0))


class Counted:
    """A fake model that lists what it is asked."""

    method, tokenizer, config = METHODS["ani"], None, None

    def __init__(self, stops_at: int | None = None) -> None:
        self.stops_at = stops_at
        self.asked: list[int] = []


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., list[int]]:
    """Ask for five numbers; returns the questions that were asked."""

    def ask(fingerprint: str | None = "mine", stops_at: int | None = None, seed: int = 0, count: int = 5) -> list[int]:
        engine: Any = Counted(stops_at)
        task = Counting(limit=count)
        facts = {} if fingerprint is None else {"fingerprint": fingerprint}
        console = Console(quiet=True)
        asked = answer(
            [LoadedTask(task, task.questions(0))], lambda: engine, tmp_path, seed=seed, console=console, facts=facts
        )
        if stops_at is not None:
            with pytest.raises(KeyboardInterrupt):
                list(asked)
        else:
            ((done, records),) = asked
            assert done is task and records == [decision(0), *map(decision, range(count))]
            assert read_results(tmp_path) == {Gates: records}
            assert {path.name for path in tmp_path.iterdir()} == {"gates.jsonl", "run.json"}
        return engine.asked

    return ask


def test_a_killed_run_goes_on_and_asks_nothing_twice(ask: Callable[..., list[int]], tmp_path: Path) -> None:
    assert ask(stops_at=3) == [4, 3, 2]
    with (tmp_path / "gates.answers.jsonl").open("a") as torn:
        torn.write('[2, [{"run')
    assert not (tmp_path / "gates.jsonl").exists()
    assert ask(stops_at=2) == [2, 1]
    assert ask() == [1, 0]
    assert ask() == []


@pytest.mark.parametrize("changes", [{"fingerprint": "another"}, {"seed": 1}, {"count": 4}, {"fingerprint": None}])
def test_answers_of_another_model_or_to_other_questions_are_not_taken(
    ask: Callable[..., list[int]], changes: dict[str, Any]
) -> None:
    ask(stops_at=3)
    everything = [*reversed(range(changes.get("count", 5)))]
    assert ask(**changes) == everything
    assert ask(**changes) == (everything if None in changes.values() else [])  # an unknown model may be another one
    ask()
    assert ask(**changes) == everything


@pytest.mark.parametrize("changed", [{"model": "another"}, {"processors": ("calculator",)}])
def test_a_folder_of_another_models_results_is_refused(
    ask: Callable[..., list[int]], tmp_path: Path, changed: dict[str, Any]
) -> None:
    ask()
    before = (tmp_path / "gates.jsonl").read_bytes()
    engine: Any = Counted()
    run: Any = partial(evaluate, [Counting(limit=5)], engine, tmp_path, console=Console(quiet=True))
    refused(lambda: run(facts={"fingerprint": "mine", **changed}), str(tmp_path), "another output")
    assert engine.asked == [] and (tmp_path / "gates.jsonl").read_bytes() == before
