"""The shipped adapter is what its card says: made by the recipe that it names, and as often right."""

import re
from math import sqrt
from pathlib import Path

import ani
from ani.injection.adapter import Adapter
from ani.training.recipe import load_recipe
from tests.paper import project
from tests.tiny import pair

PACKAGE = Path(ani.__file__).parent
ADAPTER = PACKAGE / "assets" / "smollm2-adapter"
CARD = (ADAPTER / "README.md").read_text(encoding="utf-8")
MEASURED = {"embedding_scale", "hidden_size", "value_size", "model_type", "num_hidden_layers"}
"""Keys that training measures."""


def test_it_is_made_by_the_recipe_that_its_card_names() -> None:
    recipe, saved = load_recipe(PACKAGE / "recipes" / "smollm2-adapter.yaml"), Adapter.read(ADAPTER).settings
    assert saved.module is not None and recipe.ani is not None and recipe.lora is None
    config, wanted = saved.module.model_dump(), recipe.ani.model_dump()
    assert {key: config[key] for key in wanted.keys() - MEASURED} == {
        key: wanted[key] for key in wanted.keys() - MEASURED
    }
    assert "smollm2-adapter.yaml" in CARD


def test_its_gate_is_as_often_right_as_its_card_says() -> None:
    """Held-out sentences, by the card's rates; three standard errors of so many numbers."""
    model, tokenizer = pair("smollm2")
    ani.load_adapter(model, tokenizer, "smollm2-adapter")
    records = project.records("gates", {"limit": 60}, model, tokenizer)
    numbers = [number for record in records for number in record.numbers]
    for role, row in (("nominal", "names left alone"), ("quantitative", "quantities injected")):
        stated = re.search(rf"\| {row} .*?\| ([0-9.]+)% ", CARD)
        assert stated is not None
        rate, own = float(stated[1]) / 100, [number.injected for number in numbers if number.role == role]
        right = sum(injected is (role == "quantitative") for injected in own) / len(own)
        assert len(own) > 25 and abs(right - rate) < 3 * sqrt(rate * (1 - rate) / len(own)), (role, right, len(own))
