"""The adapter that ships with the package: small, made by a recipe of the repository, and able to tell roles apart."""

from pathlib import Path

import pytest

import ani
from ani import inspect, load_adapter
from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks.gates import Gates
from ani.injection.adapter import Adapter
from ani.training.recipe import load_recipe
from tests.answers import answers_of
from tests.tiny import pair

PACKAGE = Path(ani.__file__).parent
ADAPTER = PACKAGE / "assets" / "smollm2-adapter"


@pytest.mark.parametrize(("adapter", "recipe_file"), [(ADAPTER, "smollm2-adapter.yaml")])
def test_it_is_small_and_made_by_the_recipe(adapter: Path, recipe_file: str) -> None:
    assert sum(file.stat().st_size for file in adapter.iterdir()) <= 2 * 1024 * 1024
    recipe = load_recipe(PACKAGE / "recipes" / recipe_file)
    saved = Adapter.read(adapter)
    assert saved.config is not None and recipe.ani is not None
    assert saved.method == recipe.method == "ani"
    config = saved.config.model_dump()
    wanted = recipe.ani.model_dump()
    measured = {"embedding_scale", "hidden_size", "value_size", "model_type", "num_hidden_layers"}
    assert {key: config[key] for key in wanted.keys() - measured} == {
        key: value for key, value in wanted.items() if key not in measured
    }
    assert recipe.lora is None
    assert recipe_file in (adapter / "README.md").read_text()


def test_it_tells_names_from_quantities() -> None:
    model, tokenizer = pair("smollm2")
    load_adapter(model, tokenizer, ADAPTER)
    room, capacity = inspect(model, tokenizer, "Room 505 has a capacity of 10 people")
    assert (room.text, room.injected, capacity.text, capacity.injected) == ("505", False, "10", True)
    task = Gates(limit=40)
    records = answers_of(task, TransformersEngine(model, tokenizer), task.questions(seed=1))
    for role, opened in (("nominal", False), ("quantitative", True)):
        decisions = [each.injected for record in records for each in record.numbers if each.role == role]
        # Chance is a half; its card says what a larger sample measured.
        assert sum(decision == opened for decision in decisions) / len(decisions) > 0.8
