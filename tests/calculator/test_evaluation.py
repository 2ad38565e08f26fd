"""The command line: `ani eval --calculator` and `ani calculator`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ani.calculator.calculator import Calculator, processor
from ani.calculator.reader.calculations import number_after
from ani.calculator.tasks.calculations import Calculations
from ani.errors import InputError
from ani.evaluation.engines import TransformersEngine
from tests import test_cli
from tests.answers import answers_of
from tests.tiny import pair

run = test_cli.run


def test_an_open_gate_writes_every_value() -> None:
    """Unless a model without sense opens it with TeX until there is no room left."""
    model, tokenizer = pair("llama")
    engine = TransformersEngine(model, tokenizer, processors=[Calculator.load("open", model, tokenizer)])
    task = Calculations(count=12, digits=[2, 3], operands=[2])
    questions = task.questions(seed=0)
    assert sum(record.correct for record in answers_of(task, engine, questions)) >= 8
    with engine.base():
        assert not any(number_after(each) for each in engine.texts([each.prompt for each in questions], 4))


def test_results_name_the_calculator(run: Callable[..., test_cli.Done], tiny_model: Path, tmp_path: Path) -> None:
    command = ["eval", "--model", tiny_model, "--tasks", "calculations", "--limit", "4", "--out", tmp_path / "out"]
    done = run(*command, "--calculator", "open", "--json")
    assert done.code == 0, done
    assert json.loads(done.out)["calculations"]["all"]["all"]["share"] >= 0.5
    assert json.loads((tmp_path / "out" / "run.json").read_text())["processors"] == ["calculator open"]
    assert run(*command).code == 2  # the folder has results of another decoding


def test_a_calculator_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone"):
        processor(str(tmp_path / "gone"))
    assert processor("smollm2-calculator").name.startswith("calculator smollm2-calculator (")


@pytest.mark.parametrize(
    ("text", "code", "facts"),
    [
        ("What is 3 + 4?", 0, {"value": "7", "fraction": "7", "exact": True}),
        ("What is 2 / 3?", 0, {"value": "0.66666666666666666667", "fraction": "2/3", "exact": False}),
        ("Name a bird.", 1, None),
    ],
)
def test_ask(text: str, code: int, facts: object, run: Callable[..., test_cli.Done]) -> None:
    assert json.loads(run("calculator", "ask", text, "--json", code=code).out) == facts
    assert (facts is None) == ("no value" in run("calculator", "ask", text, code=code).out)


def test_inspect_shows_the_pending_value(run: Callable[..., test_cli.Done], tiny_model: Path) -> None:
    command = ["calculator", "inspect", "What is 3 + 4?", "--model", tiny_model, "--calculator", "open"]
    found = json.loads(run(*command, "--json", code=0).out)
    assert found and {(each["value"], each["opened"]) for each in found} == {("7", True)}
    assert "open" in run(*command, code=0).out
