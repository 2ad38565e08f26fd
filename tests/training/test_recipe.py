from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import ani
from ani import InputError
from ani.settings import save_settings
from ani.training.recipe import load_recipe
from tests.refusals import refused

MINIMAL: dict[str, Any] = {"output": "out", "ani": {"layer": 24}, "data": [{"kind": "arithmetic", "count": 10}]}
RECIPES = sorted((Path(ani.__file__).parent / "recipes").rglob("*.yaml"))
SHIPPED = [path for path in RECIPES if "variants" not in yaml.safe_load(path.read_text())]  # those are comparisons
assert SHIPPED


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(**changes: Any) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
        return path

    return write


def test_defaults_are_the_papers_but_for_the_policy(write: Write) -> None:
    recipe = load_recipe(write())
    assert recipe.quantization == "nf4"
    assert recipe.lora is not None
    assert (recipe.lora.r, recipe.lora.alpha) == (64, 128)
    training = recipe.training
    assert (training.learning_rate, training.batch_size, training.gradient_accumulation) == (5e-5, 1, 32)
    assert (training.max_length, training.gradient_checkpointing) == (4096, True)
    assert (recipe.ani.penalty, recipe.ani.integer_digits, recipe.ani.fraction_digits) == (0.1, 10, 6)
    assert (recipe.ani.policy, recipe.ani.gate_dropout, recipe.ani.role_weight) == ("after", 0.1, 0)
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_recipes_are_valid_and_survive_saving(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    save_settings(recipe, tmp_path / "copy.yaml")
    assert load_recipe(tmp_path / "copy.yaml") == recipe


@pytest.mark.parametrize(
    ("override", "wrong", "right"),
    [
        ("sead=1", "sead", "seed"),
        ("training.step=1", "training.step", "steps"),
        ("training.learning_rte=1", "training.learning_rte", "learning_rate"),
        ("ani.layers=3", "ani.layers", "layer"),
        ("lora.dropot=0.1", "lora.dropot", "dropout"),
        ("data.0.digit=[2]", "data.0.digit", "digits"),
    ],
)
def test_unknown_keys_name_the_nearest(write: Write, override: str, wrong: str, right: str | None) -> None:
    nearest = "did you mean" if right is None else f"did you mean {right!r}?"
    refused(lambda: load_recipe(write(), [override]), f"unknown key {wrong!r}", nearest)


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("training.steps=many", "training.steps", "'many'"),
        ("training.learning_rate=-1e-4", "training.learning_rate", "-1e-4"),
        ("training.learning_rate=.nan", "training.learning_rate", "nan"),
        ("ani.layer=-1", "ani.layer", "-1"),
        ("ani.policy=runing", "ani.policy", "'runing'"),
        ("lora=5", "lora", "5"),
        ("data.0.operations=[power]", "data.0.operations.0", "'power'"),
        ("data.0.count=null", "data.0.count", "None"),
        ("data.0.kind=arithmetics", "data.0", "arithmetics"),
        ("data=[]", "data", "[]"),
        ("dtype=float8", "dtype", "'float8'"),
    ],
)
def test_wrong_values_name_key_and_value(write: Write, override: str, key: str, value: str) -> None:
    refused(lambda: load_recipe(write(), [override]), f"recipe.yaml: {key}:", value)


@pytest.mark.parametrize("key", ["output", "ani", "data"])
def test_missing_keys_are_named(write: Write, tmp_path: Path, key: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in MINIMAL.items() if k != key}))
    refused(lambda: load_recipe(path), f"key '{key}' is missing")


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


def test_null_switches_lora_off_and_a_later_key_on_again(write: Write) -> None:
    assert load_recipe(write(), ["lora=null"]).lora is None
    assert load_recipe(write(), ["training.steps=5", "training.steps=null"]).training.steps is None
    lora = load_recipe(write(), ["lora=null", "lora.r=8"]).lora
    assert lora is not None and lora.r == 8


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps", "must have the form key=value"),
        ("=3", "must have the form key=value"),
        ("training.steps=[1", "not valid YAML"),
        ("data.1.count=3", "'1' must be an index from 0 to 0"),
        ("data.one.count=3", "'one' must be an index from 0 to 0"),
        ("data.-1=3", "'-1' must be an index from 0 to 0"),
        ("output.steps=3", "'output' is a value, not a section"),
    ],
)
def test_malformed_overrides_are_quoted(write: Write, override: str, message: str) -> None:
    refused(lambda: load_recipe(write(), [override]), repr(override), message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model: [", "is not valid YAML"),
        (b"- model", "must be a mapping"),
        (b"", "must be a mapping"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"model: !!python/object:os.system {}", "is not valid YAML"),
        (b"[" * 5000, "is not valid YAML"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    refused(lambda: load_recipe(path), "broken.yaml", message)
    refused(lambda: load_recipe(tmp_path / "gone.yaml"), "recipe ", "gone.yaml does not exist")


def test_saving_is_all_or_nothing(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(write())
    path = tmp_path / "saved.yaml"
    save_settings(recipe, path)
    before = path.read_bytes()

    def fails(*args: Any, **kwargs: Any) -> None:
        args[1].write("half")
        raise OSError("disk full")

    monkeypatch.setattr(yaml, "safe_dump", fails)
    with pytest.raises(OSError, match="disk full"):
        save_settings(recipe.model_copy(update={"seed": 1}), path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["recipe.yaml", "saved.yaml"]


METHOD_SECTIONS = {
    "sft": None,
    "numerologic": None,
    "xval": {"layer": 0, "combine": "substitute", "gate": "open", "encoders": ("magnitude",)},
    "static": {"layer": 2, "combine": "replace", "gate": "open"},
    "digitwise": {"layer": 0, "policy": "digitwise", "gate": "open", "combine": "add"},
    "ani": {"layer": 2, "combine": "add", "gate": "learned"},
}


@pytest.mark.parametrize("method", METHOD_SECTIONS)
def test_a_method_fixes_its_settings(write: Write, tmp_path: Path, method: str) -> None:
    recipe = load_recipe(write(), ["ani.layer=2", "ani.penalty=0.5"], [f"method={method}"])
    if (wanted := METHOD_SECTIONS[method]) is None:
        assert recipe.ani is None
    else:
        assert {key: getattr(recipe.ani, key) for key in wanted} == wanted
        assert recipe.ani.penalty == 0.5
    save_settings(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method=telepathy"], "method: no method 'telepathy'; known are ani, sft"),
        (["method=sft", "lora=null"], "method 'sft' trains LoRA weights only"),
        (["ani=null"], "key 'ani' is missing: method 'ani' needs it"),
        (["method=static", "ani=null"], "key 'ani' is missing: method 'static' needs it"),
        (["method=[sft]"], "method: Input should be"),
        (["method=xval", "ani.layer=24"], "method 'xval' has ani.layer=0 of its own, not 24: leave ani.layer out"),
        (["ani={layer: 24}", "method=xval"], "method 'xval' has ani.layer=0 of its own, not 24: leave ani.layer out"),
        (
            ["method=static", "ani.gate=learned"],
            "'static' has ani.gate='open' of its own, not 'learned': leave ani.gate",
        ),
        (["method=fone", "ani.encoders=[magnitude]"], "ani.encoders=['fourier'] of its own, not ['magnitude']"),
        (["method=sft", "ani.layer=4"], "override 'ani.layer=4': method 'sft' has no module to set; leave it out"),
        (["ani={layer: 4}", "method=numerologic"], "method 'numerologic' has no module to set"),
        (["ani.policy=running", "ani.scope=all"], "scope='all'"),
        (["ani.gate=supervised", "ani.role_weight=0"], "role_weight must be above 0"),
        (["ani.layer=4", "ani.gate_layers=[2, 1]"], "gate_layers must ascend, each below the injection layer"),
        (["ani.layer=4", "ani.gate_context=[1, 4]"], "gate_context must ascend, each below the injection layer"),
        (["ani.gate=open", "ani.gate_context=[1]"], "gate='open' has no gate that could read gate_context"),
        (["method=sft", "ani.layr=5"], "unknown key 'ani.layr'; did you mean 'layer'"),
        (
            ["ani.combine=substitute", "ani.gate=open", "ani.policy=terminal"],
            "combine='substitute' takes tokens out of the input, so layer",
        ),
        (["variants={}"], "is a comparison of variants; carry it out with ani compare"),
    ],
)
def test_what_no_method_can_do(write: Write, overrides: list[str], message: str) -> None:
    refused(lambda: load_recipe(write(), overrides), message)


def test_a_method_replaces_what_was_said_before_it_alone(write: Write) -> None:
    """The file's layer, and what a comparison says for all its variants."""
    inherited = ["ani.layer=2", "ani.encoders=[magnitude]"]
    assert load_recipe(write(), ["method=xval"]).ani.layer == 0
    assert load_recipe(write(), inherited, ["method=fone"]).ani.encoders == ("fourier",)
    assert load_recipe(write(), ["method=fone", "ani.layer=0"]).ani.layer == 0
    assert load_recipe(write(), ["method=fone", "ani=null"]).ani.layer == 0  # which the method knows
    later = load_recipe(write(), [*inherited, "ani.combine=replace"], ["method=ani"])
    assert (later.ani.layer, later.ani.encoders, later.ani.combine) == (2, ("magnitude",), "replace")
    assert load_recipe(write(), ["method=xval"], ["method=static"]).ani.layer == 24  # the file's again
    for lists in ([["method=xval"], ["ani.layer=2"]], [["ani.layer=2"], ["method=xval", "ani.layer=2"]]):
        with pytest.raises(InputError, match=r"method 'xval' has ani\.layer=0 of its own, not 2"):
            load_recipe(write(), *lists)
    refused(lambda: load_recipe(write(method="xval")), "method 'xval' has ani.layer=0 of its own, not 24")
    assert load_recipe(write(), ["method=sft", "ani=null"], ["seed=1"]).ani is None
    assert load_recipe(write(method="sft")).ani is None  # only what is said beside the file contradicts it
    for file, lists in ({}, [["method=sft"], ["ani.layer=2"]]), ({"method": "sft"}, [["ani.layer=2"]]):
        with pytest.raises(InputError, match=r"override 'ani\.layer=2': method 'sft' has no module"):
            load_recipe(write(**file), *lists)
