from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ani
from ani.compare.plan import variant_recipes
from ani.data.collator import IGNORED, NumberCollator, tokenize
from ani.data.records import Example
from ani.injection.forward import InjectionLayer
from ani.injection.loss import auxiliary_loss
from ani.injection.model_parts import ani_module
from ani.roles import Role
from ani.settings import save_settings
from ani.training.recipe import load_recipe
from ani.training.run import with_adapter
from tests.refusals import refused
from tests.tiny import tiny, tokenizer_of

MINIMAL: dict[str, Any] = {"output": "out", "ani": {"layer": 24}, "data": [{"kind": "arithmetic", "count": 10}]}
RECIPES = sorted((Path(ani.__file__).parent / "recipes").rglob("*.yaml"))
SHIPPED = [path for path in RECIPES if "variants" not in yaml.safe_load(path.read_text())]  # those are comparisons
assert SHIPPED
SMALL = Path(ani.__file__).parent / "recipes" / "small"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(**changes: Any) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
        return path

    return write


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_recipes_are_valid_and_survive_saving(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    save_settings(recipe, tmp_path / "copy.yaml")
    assert load_recipe(tmp_path / "copy.yaml") == recipe


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("training.learning_rte=1", "'training.learning_rte'…'learning_rate'"),
        ("data.0.digit=[2]", "'data.0.digit'…'digits'"),
        ("training.learning_rate=-1e-4", "recipe.yaml…training.learning_rate…-1e-4"),
        ("training.learning_rate=.nan", "training.learning_rate…nan"),
        ("ani.policy=runing", "ani.policy…'runing'"),
        ("lora=5", "lora…5"),
        ("data.0.operations=[power]", "data.0.operations.0…'power'"),
        ("data.0.kind=arithmetics", "data.0…arithmetics"),
        ("dtype=float8", "dtype…'float8'"),
        ("training.steps", "'training.steps'…key=value"),
        ("training.steps=[1", "'training.steps=[1'…YAML"),
        ("data.1.count=3", "'data.1.count=3'…'1'"),
        ("data.-1=3", "'data.-1=3'…'-1'"),
        ("output.steps=3", "'output.steps=3'…'output'"),
        ("method=telepathy", "'telepathy'"),
        ("method=sft lora=null", "'sft'…lora"),
        ("method=static ani=null", "'ani'…'static'"),
        ("method=xval ani.layer=24", "'xval'…ani.layer=0…24"),
        ("method=static ani.gate=learned", "'static'…ani.gate='open'…'learned'"),
        ("method=fone ani.encoders=[magnitude]", "ani.encoders=['fourier']…['magnitude']"),
        ("method=sft ani.layer=4", "'ani.layer=4'…'sft'"),
        ("ani.policy=running ani.scope=all", "scope='all'"),
        ("ani.gate=supervised ani.role_weight=0", "role_weight"),
        ("ani.layer=4 ani.gate_layers=[2,1]", "gate_layers"),
        ("ani.layer=4 ani.gate_context=[1,4]", "gate_context"),
        ("ani.gate=open ani.gate_context=[1]", "gate='open'…gate_context"),
        ("ani.combine=substitute ani.gate=open ani.policy=terminal", "combine='substitute'…layer"),
        ("variants={}", "ani compare"),
    ],
)
def test_wrong_settings_are_named(write: Write, overrides: str, named: str) -> None:
    refused(lambda: load_recipe(write(), overrides.split(" ")), named)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    for missing in ("output", "ani", "data"):
        path.write_text(yaml.safe_dump({key: value for key, value in MINIMAL.items() if key != missing}))
        refused(lambda: load_recipe(path), repr(missing))


def test_overrides(write: Write) -> None:
    data = [{"kind": "arithmetic", "count": 10}, {"kind": "jsonl", "path": "a.jsonl"}]
    training = ["training.steps=100", "training.learning_rate=1e-4", "training.module_learning_rate=3.0E-3"]
    sources = ["data.0.digits=[3, 5]", "data.1.path=b=c.jsonl", "data.1.limit=7"]
    recipe = load_recipe(write(data=data), [*training, *sources, "ani.encoders=[bits, fourier]", "output=1e5"])
    rates = (recipe.training.steps, recipe.training.learning_rate, recipe.training.module_learning_rate)
    assert rates == (100, 1e-4, 3e-3)
    sums = {"kind": "arithmetic", "count": 10, "digits": [3, 5], "operations": ["addition"]}
    assert [source.model_dump() for source in recipe.data] == [sums, {"kind": "jsonl", "path": "b=c.jsonl", "limit": 7}]
    assert recipe.ani.encoders == ("bits", "fourier")
    assert recipe.output == "1e5"
    recipe = load_recipe(write(), ["data.0={kind: diagnostic, count: 3}"])  # a whole item can be replaced
    assert [source.model_dump() for source in recipe.data] == [{"kind": "diagnostic", "count": 3}]


def test_a_method_replaces_only_earlier_settings(write: Write) -> None:
    """A method overrides the recipe file and the settings that a comparison gives to all variants, but no later one."""
    inherited = ["ani.layer=2", "ani.encoders=[magnitude]"]
    assert load_recipe(write(), ["method=xval"]).ani.layer == 0
    assert load_recipe(write(), inherited, ["method=fone"]).ani.encoders == ("fourier",)
    assert load_recipe(write(), ["method=fone", "ani.layer=0"]).ani.layer == 0
    assert load_recipe(write(), ["method=fone", "ani=null"]).ani.layer == 0  # which the method knows
    later = load_recipe(write(), [*inherited, "ani.combine=replace"], ["method=ani"])
    assert (later.ani.layer, later.ani.encoders, later.ani.combine) == (2, ("magnitude",), "replace")
    assert load_recipe(write(), ["method=xval"], ["method=static"]).ani.layer == 24  # the file's again
    for lists in ([["method=xval"], ["ani.layer=2"]], [["ani.layer=2"], ["method=xval", "ani.layer=2"]]):
        refused(lambda lists=lists: load_recipe(write(), *lists), "'xval'", "ani.layer=0", "2")
    refused(lambda: load_recipe(write(method="xval")), "'xval'", "ani.layer=0", "24")
    assert load_recipe(write(), ["method=sft", "ani=null"], ["seed=1"]).ani is None
    assert load_recipe(write(method="sft")).ani is None  # only what is said beside the file contradicts it
    for file, lists in ({}, [["method=sft"], ["ani.layer=2"]]), ({"method": "sft"}, [["ani.layer=2"]]):
        refused(lambda file=file, lists=lists: load_recipe(write(**file), *lists), "'ani.layer=2'", "'sft'")


ABLATIONS = variant_recipes(SMALL / "ablations.yaml")


@cache
def trained_facts(name: str) -> dict[str, Any]:
    """Return what training by a row of `ablations.yaml` really uses: read from the attached module, its loss and a
    collated example, not from the recipe."""
    recipe = ABLATIONS[name].model_copy(update={"lora": None})
    torch.manual_seed(0)
    model, tokenizer = tiny("llama", num_hidden_layers=30), tokenizer_of("llama")
    module = ani_module(with_adapter(model, tokenizer, recipe)).train()
    (layer,) = [i for i, each in enumerate(model.model.layers) if isinstance(each, InjectionLayer)]
    hidden = torch.randn(2, 32) * 50
    injection = module(hidden, torch.ones(2, module.projection.in_features))
    half_open = injection._replace(alpha=torch.full((2,), 0.5))

    def loss(size: float) -> float:
        sized = half_open._replace(embeddings=torch.full_like(injection.embeddings, size))
        return auxiliary_loss(module, sized, torch.full((2,), Role.UNKNOWN)).item()

    collator = NumberCollator(tokenizer, None, recipe.training.loss_on == "all")
    (labels,) = collator([tokenize(Example("Room 5 is", " up"), tokenizer, None, 64)])["labels"]
    return {
        "layer": layer,
        "loss of a half open gate": round(loss(1.0), 6),
        "share of it while e is small": round(loss(0.01) / loss(1.0), 6) if loss(1.0) else 0.1,
        "dropout": module.gate.dropout.p,
        "width": len(module.gate.inner.weight),
        "features": module.projection.in_features,
        "RMS that the gate reads": round(module.gate.norm(hidden).square().mean().sqrt().item(), -1),
        "W_P is zero": not bool(module.projection.weight.any()),
        "the prompt is learnt": bool(labels[1] != IGNORED),
    }


@pytest.mark.parametrize("name", [name for name in ABLATIONS if name != "ani"])
def test_an_ablation_changes_the_module_or_the_loss_as_its_row_says(name: str) -> None:
    before, found = trained_facts("ani"), trained_facts(name)
    assert {key: (before[key], found[key]) for key in before if before[key] != found[key]} == {
        "lambda-0": {"loss of a half open gate": (0.025, 0.0)},
        "lambda-1": {"loss of a half open gate": (0.025, 0.25)},
        "ramp-0": {"share of it while e is small": (0.1, 1.0)},
        "dropout-0": {"dropout": (0.1, 0.0)},
        "dropout-0.5": {"dropout": (0.1, 0.5)},
        "width-16": {"width": (128, 16)},
        "width-1024": {"width": (128, 1024)},
        "fraction-0": {"features": (2 * 19, 2 * 13)},
        "fraction-12": {"features": (2 * 19, 2 * 25)},
        "no-gate-norm": {"RMS that the gate reads": (0, 50)},
        "random-start": {"W_P is zero": (True, False)},
        "loss-on-all": {"the prompt is learnt": (False, True)},
        **{f"layer-{layer}": {"layer": (14, layer)} for layer in (4, 9, 19, 24)},
    }[name]
