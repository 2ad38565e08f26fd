"""The adapter that ships with the package: small, made by a recipe of the repository, and able to tell roles apart."""

from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import ani
from ani import inspect, load_adapter
from ani.data.calculation_sentences import calculation_sentences
from ani.evaluation.backend import TransformersBackend
from ani.evaluation.tasks.calculations import Calculations
from ani.evaluation.tasks.gating import Gating
from ani.injection.adapter import _read_config
from ani.injection.attach import ani_module
from ani.training.recipe import load_recipe
from tests.answers import answers_of
from tests.tiny import pair

PACKAGE = Path(ani.__file__).parent
ADAPTER = PACKAGE / "assets" / "smollm2-adapter"
CALCULATOR = PACKAGE / "assets" / "smollm2-calculator"


@pytest.mark.parametrize(
    ("adapter", "recipe_file"), [(ADAPTER, "smollm2-adapter.yaml"), (CALCULATOR, "small/calculator.yaml")]
)
def test_it_is_small_and_made_by_the_recipe(adapter: Path, recipe_file: str) -> None:
    assert sum(file.stat().st_size for file in adapter.iterdir()) <= 2 * 1024 * 1024
    recipe = load_recipe(PACKAGE / "recipes" / recipe_file)
    saved = _read_config(adapter)
    assert saved.config is not None and recipe.ani is not None
    assert saved.method == recipe.method == "ani"
    config = saved.config.model_dump()
    wanted = recipe.ani.model_dump()
    measured = {"embedding_scale", "hidden_size", "model_type", "num_hidden_layers"}
    assert {key: config[key] for key in wanted.keys() - measured} == {
        key: value for key, value in wanted.items() if key not in measured
    }
    assert recipe.lora is None
    assert recipe_file in (adapter / "README.md").read_text()


def test_it_tells_names_from_quantities() -> None:
    model, tokenizer = pair("smollm2")
    load_adapter(model, tokenizer, ADAPTER)
    room, capacity = inspect(model, tokenizer, "Room 505 has a capacity of 10")
    assert (room.text, room.injected, capacity.text, capacity.injected) == ("505", False, "10", True)
    task = Gating(count=40)
    records = answers_of(task, TransformersBackend(model, tokenizer), task.questions(seed=1))
    for role, opened in (("nominal", False), ("quantitative", True)):
        decisions = [record.injected for record in records if record.role == role]
        # Chance is a half; its card says what a larger sample measured.
        assert sum(decision == opened for decision in decisions) / len(decisions) > 0.6


CALCULATIONS = {
    "Calculate 123456 * 654321 =": "80779853376",
    "The bill: 23.50 + 188.75 + 7 =": "219.25",
    "(17 + 25) * 12 - 4 =": "500",
}


def written(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    encoded = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(**encoded, max_new_tokens=20, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return str(tokenizer.decode(ids[0, encoded["input_ids"].shape[1] :]))


def test_the_calculator_calculates() -> None:
    """What no model of this size can: products, and what it was never trained on."""
    model, tokenizer = pair("smollm2")
    before = [written(model, tokenizer, prompt) for prompt in CALCULATIONS]
    assert not any(answer in text for answer, text in zip(CALCULATIONS.values(), before, strict=True))
    load_adapter(model, tokenizer, "smollm2-calculator")
    for prompt, answer in CALCULATIONS.items():
        assert written(model, tokenizer, prompt).split()[0].partition("<")[0] == answer, prompt
    task = Calculations(count=4, digits=[3], operands=[2])
    problems = task.questions(seed=0)[:4]
    for record in answers_of(task, TransformersBackend(model, tokenizer), problems):
        assert record.correct and record.followed, record


def test_the_calculator_tells_which_calculations_are_meant() -> None:
    """In sentences of templates that it was not trained on; its card says what a larger sample measured."""
    model, tokenizer = pair("smollm2")
    load_adapter(model, tokenizer, "smollm2-calculator")
    module = ani_module(model)
    sentences = calculation_sentences(48, split="test", seed=1)
    # As it ships, doubts open the gate; without the bias chance is a half.
    for config, meant, others in (
        (module.config, 0.9, 0.1),
        (module.config.model_copy(update={"gate_bias": 0.0}), 0.6, 0.6),
    ):
        module.config = config
        for role, opened, share in (("nominal", False, others), ("quantitative", True, meant)):
            prompts = [sentence.prompt for sentence in sentences if sentence.role == role]
            decisions = [inspect(model, tokenizer, prompt)[-1].injected for prompt in prompts]
            assert sum(decision == opened for decision in decisions) / len(decisions) > share
