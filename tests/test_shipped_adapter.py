"""The shipped adapter's config is its recipe's, so that its card names the recipe that makes it."""

from pathlib import Path

import ani
from ani.injection.adapter import Adapter
from ani.training.recipe import load_recipe

PACKAGE = Path(ani.__file__).parent
ADAPTER = PACKAGE / "assets" / "smollm2-adapter"
MEASURED = {"embedding_scale", "hidden_size", "value_size", "model_type", "num_hidden_layers"}
"""Keys that training measures."""


def test_it_is_made_by_the_recipe_that_its_card_names() -> None:
    recipe, saved = load_recipe(PACKAGE / "recipes" / "smollm2-adapter.yaml"), Adapter.read(ADAPTER).settings
    assert saved.module is not None and recipe.ani is not None and recipe.lora is None
    config, wanted = saved.module.model_dump(), recipe.ani.model_dump()
    assert {key: config[key] for key in wanted.keys() - MEASURED} == {
        key: wanted[key] for key in wanted.keys() - MEASURED
    }
    assert "smollm2-adapter.yaml" in (ADAPTER / "README.md").read_text()
