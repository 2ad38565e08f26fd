"""docs/examples/own_methods.py: the file runs as the page says, from training to an answer."""

import json
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani import load_adapter
from ani.compare.plan import variant_recipes
from ani.injection.methods import METHODS
from ani.models import load_model, load_tokenizer
from ani.training.examples import load_examples
from ani.training.recipe import load_recipe
from tests.docs.test_own_task import started
from tests.refusals import refused

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
FILE = EXAMPLES / "own_methods.py"


@pytest.fixture
def registered() -> Iterator[None]:
    with patch.dict(METHODS):
        runpy.run_path(str(FILE))
        yield


@pytest.fixture
def run(registered: None) -> Callable[..., int]:
    """Run the file as a command line; returns its exit code."""
    return partial(started, FILE)


with patch.dict(METHODS):
    runpy.run_path(str(FILE))
    REVERSED = METHODS["reversed"]


def test_it_reverses_digits_and_is_as_short_as_the_page_says() -> None:
    assert len(FILE.read_text().splitlines()) <= 45
    assert REVERSED.write("Calculate 47 + 1,085 =") == "Calculate 74 + 1,580 ="
    assert [piece for piece in REVERSED.pieces("a 12") if piece[0]] == [("a ", False), ("21", True)]


@given(st.text(st.sampled_from("0123456789,.-+eE ax\n٣²")))
def test_reading_undoes_writing(text: str) -> None:
    assert REVERSED.read(REVERSED.write(text)) == text


def test_it_trains_and_answers(
    run: Callable[..., int], tiny_recipe: Callable[..., Path], tiny_model: Path, tmp_path: Path
) -> None:
    recipe = tiny_recipe(lora={"r": 4, "alpha": 8, "dropout": 0.0})
    output, answers = tmp_path / "run", tmp_path / "eval"
    assert run("train", recipe, "method=reversed", "training.steps=2") == 0
    assert json.loads((output / "adapter" / "ani_config.json").read_text())["method"] == "reversed"
    assert run("eval", "--model", tiny_model, "--adapter", output / "adapter", "--limit", 1, "--out", answers) == 0
    record = json.loads((answers / "arithmetic.jsonl").read_text().splitlines()[0])
    assert len(record["prompt"].split()) == 5  # the question as it is, not as the method writes it


def test_its_module_trains_and_is_refused_without_the_file(
    run: Callable[..., int], tiny_recipe: Callable[..., Path], tiny_model: Path, tmp_path: Path
) -> None:
    assert run("train", tiny_recipe(), "method=early", "training.steps=2") == 0
    adapter = tmp_path / "run" / "adapter"
    config = json.loads((adapter / "ani_config.json").read_text())
    assert (config["method"], config["module"]["layer"], config["module"]["policy"]) == ("early", 2, "digitwise")
    load_adapter(load_model(str(tiny_model)), load_tokenizer(str(tiny_model)), adapter)
    METHODS.pop("early")
    load = partial(load_adapter, load_model(str(tiny_model)), load_tokenizer(str(tiny_model)), adapter)
    refused(load, "'early'")
    refused(lambda: load_recipe(tiny_recipe(), ["method=early"]), "method", "'early'")


def test_its_recipes_and_comparison_are_valid(registered: None) -> None:
    recipes = variant_recipes(EXAMPLES / "own_methods.yaml")
    assert recipes["reversed"].ani is None
    early = recipes["early"].ani
    assert early is not None and (early.layer, early.encoders, early.gate) == (2, ("magnitude",), "open")
    assert load_examples(recipes["reversed"])[0].prompt == REVERSED.write(str(load_examples(recipes["sft"])[0].prompt))
