"""The pages and the README: what they name exists, and what they show is accepted."""

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import ani
from ani.cli import app
from ani.comparison import Comparison, evaluation_tasks, variant_recipes
from ani.data.labelled import read_labelled
from ani.data.sources import read_jsonl
from ani.injection.config import REMOVED_SETTINGS
from ani.settings import load_settings
from ani.training.recipe import Recipe

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS: Any = typer.main.get_command(app)

_spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "_build.py")
assert _spec is not None and _spec.loader is not None
build: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def shown_commands(page: Path) -> Iterator[list[str]]:
    """The words after `ani` of each command."""
    for block in blocks(page, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if match := re.match(r"\$ (?:ani|python docs/examples/\w+\.py) (.*)", line):
                yield shlex.split(match[1], comments=True)
    for code in re.findall(r"`ani ([^`\n]+(?:\n[^`\n]+)?)`", page.read_text()):
        yield code.split()


def options(command: str) -> set[str]:
    return {option for parameter in COMMANDS.commands[command].params for option in parameter.opts} | {"--help"}


found = {words[0] for page in PAGES for words in shown_commands(page)}
assert {"compare", "diff", "eval", "inspect", "merge", "probe", "serve", "train"} <= found  # something is looked at


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_exist(page: Path) -> None:
    for command, *words in shown_commands(page):
        assert command in COMMANDS.commands, f"ani {command}"
        named = {word for word in words if word.startswith("--")}
        if command != "serve":  # whose other options are vLLM's
            assert named <= options(command), (command, named - options(command))
    known = set().union(*map(options, COMMANDS.commands))
    assert set(re.findall(r"`(--[a-z-]+)(?: [A-Za-z0-9_=.]+)?`", page.read_text())) <= known
    for block in blocks(page, "console"):
        for comment in re.findall(r"^\$ ani .*?#(.*)$", block, re.MULTILINE):
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", comment)) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_of_the_package_exist(page: Path) -> None:
    for name in re.findall(r"(?<![\w.-])ani\.(\w+)\(", "".join(blocks(page, "python"))):
        assert hasattr(ani, name), name
    for path in re.findall(r"(?<![\w/])((?:recipes|docs|tests|benchmarks|src)/[\w./-]+\.\w+)", page.read_text()):
        assert (ROOT / path).is_file(), path


def test_links_of_the_readme_lead_somewhere() -> None:
    """Those of the pages are checked where the site is built."""
    text = (ROOT / "README.md").read_text()
    places = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[\w-]+\]: (\S+)$", text, re.MULTILINE)
    for place in places:
        path, _, anchor = place.partition("#")
        if not path.startswith("http") and path:
            assert (ROOT / path).exists(), place
        if anchor and path.endswith(".md"):
            heads = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads], place
    defined = set(re.findall(r"^\[([\w-]+)\]: ", text, re.MULTILINE))
    assert set(re.findall(r"\]\[([\w-]+)\]", text)) == defined


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_recipes_are_valid(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "yaml"):
        if "--8<--" in block:
            continue
        file = tmp_path / "recipe.yaml"
        file.write_text(block if "output" in yaml.safe_load(block) else f"output: runs/x\n{block}")
        loaded = load_settings(file, Comparison if "variants" in yaml.safe_load(block) else Recipe)
        if isinstance(loaded, Comparison):
            evaluation_tasks(loaded, str(file))


@pytest.mark.parametrize(("page", "read"), [("train", read_jsonl), ("layers", read_labelled)])
def test_examples_of_data_can_be_read(page: str, read: Any, tmp_path: Path) -> None:
    for block in blocks(ROOT / "docs" / f"{page}.md", "json"):
        (tmp_path / "data.jsonl").write_text(block)
        assert len(read(tmp_path / "data.jsonl")) == len(block.splitlines())


def test_every_key_of_a_recipe_has_a_meaning() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    for name in re.findall(r"^<!-- fields: (.*) -->$", page, re.MULTILINE):
        rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", build.fields_table(name), re.MULTILINE)
        assert rows and {key for key, meaning in rows if not meaning} <= {"kind", "name"}, name


def test_the_reference_is_complete() -> None:
    api = (ROOT / "docs" / "api.md").read_text()
    assert set(re.findall(r"^::: ani\.(\w+)$", api, re.MULTILINE)) == set(ani.__all__)
    sections = build.command_sections()
    for name, command in COMMANDS.commands.items():
        section = sections.split(f"## ani {name}\n")[1].split("\n## ani")[0]
        for parameter in command.params:
            argument = parameter.param_type_name == "argument"
            assert f"| `{parameter.name.upper() if argument else parameter.opts[0]}` |" in section


def test_a_table_tells_types_limits_and_defaults() -> None:
    table = build.fields_table("ani.training.recipe.HubData").splitlines()
    assert table[2:] == [
        "| key | value | default | meaning |",
        "| --- | --- | --- | --- |",
        "| `kind` | `hub` | *required* |  |",
        "| `name` | text | *required* | On the hub. |",
        '| `split` | text | `"train"` | Its part. |',
        "| `limit` | whole number ≥ 1 or `null` | `null` | The first so many examples; null: all. |",
        "",
        "</div>",
    ]


def test_the_shipped_config_is_what_the_page_says() -> None:
    """docs/files.md shows it, and says which keys are not the module's."""
    config = json.loads((ROOT / "src/ani/assets/smollm2-adapter/ani_config.json").read_text())
    page = (ROOT / "docs" / "files.md").read_text()
    own = {"format_version", "method", "weights_sha256", "lora_sha256", "base"}
    assert set(config) - own <= set(ani.AniConfig.model_fields) | set(REMOVED_SETTINGS)
    assert all(f"| `{key}` |" in page for key in own)


def test_every_deviation_from_the_paper_is_what_the_page_says() -> None:
    """docs/paper.md's rows of keys: our default, and what `ani-literal` has."""
    recipes = ROOT / "src/ani/recipes/paper"
    ours = Recipe(output="x", ani={"layer": 24}, data=[{"kind": "diagnostic", "count": 1}])
    literal = variant_recipes(recipes / "main-results.yaml")["ani-literal"]
    rows = re.findall(
        r"^\| `(\w+)\.(\w+)` \| `(.+?)` \| `(.+?)` \|", (ROOT / "docs/paper.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 6
    for section, key, paper, default in rows:
        assert getattr(getattr(literal, section), key) == yaml.safe_load(paper), key
        assert getattr(getattr(ours, section), key) == yaml.safe_load(default), key
    told = {(section, key) for section, key, *_ in rows}
    for section in ("ani", "training", "lora"):
        for key, value in getattr(literal, section):
            assert (section, key) in told | {("ani", "layer")} or value == getattr(getattr(ours, section), key), key
