"""recipes/paper against the paper: what each row trains, on what, and beside which published values it is shown."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from ani.data.openmath_magpie import build_openmath_magpie
from ani.training.recipe import load_recipe
from ani.training.run import paper_layer
from tests.paper import facts, project
from tests.tiny import attached

comparisons = pytest.mark.parametrize("name", sorted(facts.PUBLISHED))
VARIANTS = [(name, variant) for name, rows in facts.ROWS.items() for variant in rows]
variants = pytest.mark.parametrize(("name", "variant"), VARIANTS)


def differing(found: Any, expected: dict[str, Any]) -> dict[str, Any]:
    """The keys whose values aren't those expected, with what was found."""
    values = {key: getattr(found, key) for key in expected}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return {key: value for key, value in values.items() if value != expected[key]}


def test_every_comparison_is_one_of_the_papers() -> None:
    assert {file.stem for file in project.RECIPES.glob("*.yaml")} == {*facts.PUBLISHED, "train", "reference"}


def test_the_reference_is_asked_in_eight_ways() -> None:
    comparison = project.comparison("reference")
    assert comparison.published == {"reference": {"math": facts.PUBLISHED["main-results"]["reference"]["math"]}}
    assert (comparison.variants, comparison.models) == ({}, {"base": "Qwen/Qwen3-8B-Base"}) and comparison.reference
    assert comparison.evaluation["math"] == {"limit": 500, "cut": 512}  # each by two rules


@comparisons
def test_rows_and_published_values_are_the_papers(name: str) -> None:
    comparison = project.comparison(name)
    assert comparison.published == facts.PUBLISHED[name]
    assert {variant: recipe.method for variant, recipe in project.rows(name).items()} == facts.ROWS[name]
    assert comparison.reference
    assert facts.BASELINES.get(name, comparison.baseline) == comparison.baseline


@comparisons
def test_the_papers_benchmarks_are_asked_whole(name: str) -> None:
    asked = {task: settings or {} for task, settings in project.comparison(name).evaluation.items()}
    assert facts.ASKED[name] <= asked.keys()
    for task in ("math", "gsm8k", "mmlu"):
        assert asked.get(task, {}) == {}, "no limit, no other data, no shorter answers"
    assert asked["arithmetic"]["count"] == facts.PROBLEMS
    beyond_the_digits = name != "n-digit"
    assert asked["arithmetic"].get("digits", list(facts.DIGITS)) == list(facts.DIGITS[: -1 if beyond_the_digits else 6])


@variants
def test_a_row_learns_as_the_paper_says(name: str, variant: str) -> None:
    recipe = project.rows(name)[variant]
    assert recipe.model == facts.MODELS[name]
    assert recipe.quantization == facts.QUANTIZATION
    assert recipe.lora is not None
    assert differing(recipe.lora, facts.LORA) == {}
    assert differing(recipe.training, {**facts.TRAINING, "number_loss": facts.NUMBER_LOSS.get(variant, 0.0)}) == {}
    sources = [source.model_dump() for source in recipe.data]
    assert sources[0]["kind"] == "jsonl" and Path(sources[0]["path"]).name == "train.jsonl" and not sources[0]["limit"]
    others = [(source["kind"], source["count"]) for source in sources[1:]]
    assert others == ([("arithmetic", facts.UNSAID["sums that Table 2 learns from"])] if name == "n-digit" else [])
    if others:
        assert (tuple(sources[1]["digits"]), sources[1]["operations"]) == (facts.DIGITS, ["addition"])


@variants
def test_a_row_has_the_papers_module(name: str, variant: str) -> None:
    recipe = project.rows(name)[variant]
    expected = facts.METHODS[recipe.method]
    if expected is None:
        assert recipe.ani is None
        return
    assert recipe.ani is not None
    layer = int(variant.removeprefix("layer-")) if name == "layer-sensitivity" else "paper"
    expected = {**facts.MODULE, "layer": layer, **expected}
    if name == "n-digit":
        expected["integer_digits"] = facts.DEVIATIONS["Table 2's integer digits"][1]
    if variant == "ani-literal":
        expected |= facts.LITERAL
        assert recipe.training.module_learning_rate == recipe.training.learning_rate
    assert differing(recipe.ani, expected) == {}


def test_the_training_recipe_is_ani_on_qwen3_8b() -> None:
    recipe = load_recipe(project.RECIPES / "train.yaml")
    assert (recipe.model, recipe.method) == ("Qwen/Qwen3-8B", "ani")
    assert recipe.ani is not None
    assert differing(recipe.ani, {**facts.MODULE, **facts.ANI, "layer": "paper"}) == {}


@pytest.mark.parametrize("name", facts.METHODS)
def test_a_method_fixes_what_the_paper_says(name: str) -> None:
    expected, found = facts.METHODS[name], project.method_settings(name)
    if expected is None or name == "ani":  # its settings are the recipe's
        assert found == expected or found == {}
        return
    assert found is not None
    assert {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()} == expected


@pytest.mark.parametrize("model", facts.LAYERS)
def test_the_layer_of_a_model_is_the_papers(model: str) -> None:
    family, shape = facts.SHAPES[model]
    assert paper_layer(model, AutoConfig.for_model(family, **shape)) == facts.LAYERS[model]


def test_probes_choose_among_all_layers_on_the_papers_set() -> None:
    comparison = project.comparison("layer-sensitivity")
    recipe = project.rows("layer-sensitivity")["layer-24"]
    assert comparison.probe
    assert recipe.probe.data == str(Path(recipe.data[0].model_dump()["path"]).parent)


def test_the_optimizer_is_adamw_at_a_constant_rate() -> None:
    model, _ = attached("qwen3")
    optimizer = project.optimizer(project.rows("main-results")["ani-literal"], model)
    assert type(optimizer) is torch.optim.AdamW
    assert {group["lr"] for group in optimizer.param_groups} == {5e-5}


def chat(question: str, answer: str, *more: str) -> str:
    turns = [("human", question), ("gpt", answer), *zip(("human", "gpt"), more, strict=False)]
    return json.dumps({"conversations": [{"from": who, "value": text} for who, text in turns]})


def test_the_diagnostic_set_is_the_papers(tmp_path: Path) -> None:
    given = inspect.signature(build_openmath_magpie).parameters
    defaults = [given[name].default for name in ("quantitative", "nominal", "count")]
    assert defaults == [*facts.DIAGNOSTIC_SOURCES, facts.DIAGNOSTIC_TEXTS]
    maths, chats = tmp_path / "openmath.jsonl", tmp_path / "magpie.jsonl"
    maths.write_text(json.dumps({"problem": "What is 3 + 4?", "generated_solution": "It is 3 + 4 = 7."}))
    dropped = [chat(f"What about {term} in room 7?", "It is in room 8.") for term in facts.EXCLUDED_TERMS]
    later = chat("Who lives in room 7?", "Ann.", "And her favourite algebra?", "None.")
    chats.write_text("\n".join([*dropped, later, chat("Who lives in room 9?", "Bob lives in room 9.")]))
    training = project.built_set(tmp_path / "set", maths, chats, count=1).splitlines()
    assert [json.loads(line)["roles"] for line in training] == ["quantitative", "nominal"]
    assert "room 9" in training[1]
    assert not any(term in "".join(training) for term in facts.EXCLUDED_TERMS)


def test_the_figures_are_on_the_page_that_reproduces_them() -> None:
    page = (project.DOCS / "reproduce.md").read_text(encoding="utf-8")
    assert [value for value in facts.FIGURES if value not in page] == []
