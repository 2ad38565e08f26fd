"""The pages and the README: every name exists, every command is accepted, and quick commands print what is shown."""

import importlib.util
import json
import re
import runpy
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import typer.main
import yaml
from accelerate.commands.launch import launch_command_parser
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM

import ani
import ani.cli
from ani.compare.plan import Comparison, evaluation_tasks, variant_recipes
from ani.data.labelled_sentences import read_labelled
from ani.data.records import read_examples
from ani.data.sources import SOURCES
from ani.errors import how_to_install
from ani.evaluation.tasks import TASKS, evaluated_tasks
from ani.injection.methods import METHODS
from ani.injection.model_parts import ani_module
from ani.injection.saved import _LATER
from ani.settings import load_settings
from ani.terminal import chosen
from ani.training.recipe import Recipe, load_recipe
from tests.fixtures import save_tiny_llama
from tests.tiny import pair, randomise
from tests.tokenizers import gemma_like

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS: Any = typer.main.get_command(ani.cli.app)

_spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "_build.py")
assert _spec is not None and _spec.loader is not None
build: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


class Shown(NamedTuple):
    """A command of a console block, split as a shell does, and its output in the block."""

    words: list[str]
    printed: str

    @property
    def quick(self) -> bool:
        """Whether it needs neither the hub nor training nor vLLM, and seconds."""
        program, command, *_ = self.words
        return program == "ani" and command in {"diff", "inspect", "report"}


def shown_commands(page: Path) -> Iterator[Shown]:
    for block in blocks(page, "console"):
        if "$ git checkout" in block:
            continue  # an older commit's commands
        for text in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            words, printed = _split(*text.splitlines())
            while "&&" in words:
                yield Shown(words[: words.index("&&")], "")
                del words[: words.index("&&") + 1]
            yield Shown(words, printed)


def _split(command: str, *lines: str) -> tuple[list[str], str]:
    """The command's words, whose quotes may close on a later line, and the lines that follow."""
    try:
        return shlex.split(command, comments=True), "\n".join(lines)
    except ValueError:
        return _split(f"{command}\n{lines[0]}", *lines[1:])


def recipe(named: str) -> Path:
    """The recipe; a user's own (my-….yaml) means any."""
    if named.startswith("my"):
        return ROOT / "recipes" / ("demo-comparison.yaml" if "comparison" in named else "demo.yaml")
    return ROOT / named


def assert_accepted(command: str, *words: str) -> None:
    """`ani command words`: the arguments are right, and so are tasks, and keys of a recipe that is there."""
    made: Any = COMMANDS.commands[command]
    if command == "calculator":
        made, *words = made.commands[words[0]], *words[1:]
    given = made.make_context(f"ani {command}", list(words)).params
    if command == "eval":
        chosen("task", given["tasks"], evaluated_tasks())
    elif command == "compare":
        variant_recipes(recipe(str(given["recipe"])), given["overrides"] or ())
    elif command == "train" and given["recipe"] is not None:
        load_recipe(recipe(str(given["recipe"])), given["overrides"] or ())


def options(command: str) -> set[str]:
    commands = [COMMANDS.commands[command], *getattr(COMMANDS.commands[command], "commands", {}).values()]
    return {option for each in commands for parameter in each.params for option in parameter.opts} | {"--help"}


ALL_SHOWN = [shown for page in PAGES for shown in shown_commands(page)]
assert {"compare", "diff", "eval", "inspect", "merge", "probe", "serve", "train"} <= {
    shown.words[1] for shown in ALL_SHOWN if shown.words[0] == "ani"
}
INLINE = {page: re.findall(r"`ani ([^`\n]+(?:\n[^`\n]+)?)`", page.read_text()) for page in PAGES}
COMMENTS = {page: re.findall(r"^\$ ani .*?#(.*)$", "".join(blocks(page, "console")), re.MULTILINE) for page in PAGES}
INSTALLED = {page: re.findall(r"(pip install \S*\[([\w,]+)\]['\"]?)", page.read_text()) for page in PAGES}
for found in (INLINE, COMMENTS, INSTALLED):  # there is something to look at
    assert sum(map(len, found.values())) > 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_accepted(page: Path) -> None:
    for words, _ in shown_commands(page):
        assert "…" not in words and not any(".." in re.split("[/=]", word) for word in words), "not a complete command"
        match words:
            case ["ani", *rest]:
                assert_accepted(*rest)
            case ["sbatch", script, *_]:
                assert (ROOT / script).is_file(), script  # tests/docs/test_cluster.py runs it
            case ["accelerate" | "torchrun" as launcher, *rest]:
                if launcher == "accelerate":
                    parsed = launch_command_parser().parse_args(rest[1:])
                    assert parsed.use_fsdp != parsed.use_deepspeed
                if "-m" in rest:
                    assert_accepted(*rest[rest.index("-m") + 2 :])
            case ["python", "-c", code]:
                compile(code, "-c", "exec")
            case ["python", script, *rest]:
                assert (ROOT / script).exists(), script
                if script.startswith("docs/examples/"):
                    with patch.dict(METHODS), patch.dict(TASKS):
                        runpy.run_path(str(ROOT / script))
                        assert_accepted(*rest)
            case ["make", target]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
            case [program, *_]:
                assert program in {".", "apt-get", "curl", "git", "hf", "pip", "tail"}, f"nothing checks {program}"
    for code in INLINE[page]:
        command, *words = code.split()
        assert {word for word in words if word.startswith("--")} <= options(command), code
    known = set().union(*map(options, COMMANDS.commands))
    assert set(re.findall(r"`(--[a-z-]+)(?: [A-Za-z0-9_=.]+)?`", page.read_text())) <= known
    for comment in COMMENTS[page]:
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", comment)) <= known


QUICK = {" ".join(word for word in shown.words if "runs/" not in word): shown for shown in ALL_SHOWN if shown.quick}


@pytest.mark.parametrize("shown", QUICK.values(), ids=list(QUICK))
def test_quick_commands_do_what_they_say(
    shown: Shown, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _, command, *words = shown.words
    if command in {"diff", "report"}:  # of results that are there
        for folder, stored in zip([word for word in words if "/" in word], ("first", "second"), strict=False):
            shutil.copytree(results / stored, folder)
    monkeypatch.setattr("sys.argv", ["ani", command, *(str(recipe(w)) if w.endswith(".yaml") else w for w in words)])
    with pytest.raises(SystemExit, match="0"):
        ani.cli.main()
    printed = capsys.readouterr().out
    assert printed
    if shown.printed:
        small = re.compile(r"(?<=0\.\d)\d\d")  # places of α that another processor may round otherwise
        assert small.sub("", printed).strip() == small.sub("", shown.printed).strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_install_lines_are_those_of_our_messages(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line, named in INSTALLED[page]:
        assert line in how_to_install(named) and set(named.split(",")) <= extras.keys(), line


def smaller(code: str, **changes: str) -> str:
    """Return code in which each text of `changes` is replaced; each must occur in the code."""
    for shown, small in changes.items():
        assert shown in code, shown
        code = code.replace(shown, small)
    return code


def test_the_readme_is_short_and_its_python_runs(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """README has 100 lines at most, and its Python runs: it trains a tiny model for two steps, and the calculator
    answers with the embedded model."""
    monkeypatch.chdir(tmp_path)
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 100
    (tmp_path / "my-data.jsonl").write_text('{"prompt": "Room 505 holds", "completion": " 10 people"}\n' * 4)
    code = "\n".join(blocks(readme, "python"))
    tiny = {"Qwen/Qwen3-0.6B": str(tiny_model), "layer=16": "layer=1"}
    exec(smaller(code, **tiny, **{"max_steps=200": "max_steps=2, report_to=[], use_cpu=True"}), {})
    printed = capsys.readouterr().out
    promised = re.findall(r"# … (\d+)", code)
    assert len(promised) == 2 and all(answer in printed for answer in promised), printed
    assert "value=Decimal('505')" in printed


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a tiny model, and two steps."""
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(ROOT / "docs" / "notebook.md", "python"))
    monkeypatch.setattr("ani.models.load_model", lambda name, dtype: pair("llama", gemma_like())[0])
    monkeypatch.setattr("ani.models.load_tokenizer", lambda name: gemma_like())
    cells: dict[str, Any] = {}
    exec(smaller(code, **{"layer=18": "layer=2", "max_steps=120": "max_steps=2"}), cells)
    assert "Calculate 48213 + 9954 =" in capsys.readouterr().out
    trained, fresh = (ani_module(cells[name]).projection.weight for name in ("model", "fresh"))
    assert trained.any() and torch.equal(trained, fresh)


TRAINERS = blocks(ROOT / "docs" / "train.md", "python")


@pytest.mark.parametrize("snippet", TRAINERS[1:], ids=range(1, len(TRAINERS)))
def test_the_page_s_trainers_train(
    snippet: str, tiny_model: Path, made_once: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of a tiny model of width 64, because bitsandbytes quantizes blocks of 64 weights."""
    monkeypatch.chdir(tmp_path)
    base = made_once("wide", lambda folder: save_tiny_llama(folder, gemma_like(), hidden_size=64))
    ani.attach(model := AutoModelForCausalLM.from_pretrained(base), gemma_like(), ani.AniConfig(layer=1))
    randomise(model, gemma_like())
    ani.save_adapter(model, "my-module")
    row = {"prompt": "12 + 34 =", "completion": " 46", "chosen": " 46", "rejected": " 5"}
    for name, keys in {"data": ("prompt", "completion"), "pairs": ("prompt", "chosen", "rejected")}.items():
        Path(f"my-{name}.jsonl").write_text((json.dumps({key: row[key] for key in keys}) + "\n") * 8)
    code = TRAINERS[0] + snippet
    for shown, small in {
        "Qwen/Qwen3-8B": str(base),
        "layer=24": "layer=1",
        "max_steps=200": "max_steps=2, use_cpu=True, report_to=[]",
        "beta=0.04": "beta=0.04, max_completion_length=8",
        "wanted in written": "len(written)",  # or no reward is above another
    }.items():
        assert shown in "".join(TRAINERS)
        code = code.replace(shown, small)
    AcceleratorState._reset_state(reset_partial_state=True)
    found: dict[str, Any] = {}
    exec(code, found)
    assert ani_module(found["model"]).projection.weight.any()
    for saved in (folder for folder in ("my-adapter", "adapters/sums", "adapters/prices") if Path(folder).exists()):
        ani.load_adapter(AutoModelForCausalLM.from_pretrained(base), gemma_like(), saved)


def test_names_of_the_package_exist() -> None:
    code = "".join(block for page in PAGES for block in blocks(page, "python"))
    text = "".join(page.read_text() for page in PAGES)
    names = set(re.findall(r"(?<![\w.-])ani\.(\w+)\(", code))
    assert {"attach", "inspect"} <= names and [name for name in names if not hasattr(ani, name)] == []
    paths = set(re.findall(r"(?<![\w/])((?:recipes|docs|tests|benchmarks|src)/[\w./-]+\.\w+)", text))
    assert paths and [path for path in paths if not (ROOT / path).is_file()] == []


def test_links_of_the_readme_lead_somewhere() -> None:
    """Those of the pages are checked where the site is built, but for the names that a section of the README brings."""
    text = (ROOT / "README.md").read_text()
    for place in re.findall(r"\]\(([^)\s#]+)", text) + re.findall(r"^\[[\w-]+\]: ([^\s#]+)", text, re.MULTILINE):
        assert place.startswith("http") or (ROOT / place).exists(), place
    defined = set(re.findall(r"^\[([\w-]+)\]: ", text, re.MULTILINE))
    assert set(re.findall(r"\]\[([\w-]+)\]", text)) == defined
    for page in PAGES[1:]:
        for name in re.findall(r'^--8<-- "README.md:(\w+)"$', page.read_text(), re.MULTILINE):
            (section,) = re.findall(rf"\[start:{name}\].*?\n(.*)\n.*?\[end:{name}\]", text, re.DOTALL)
            used = set(re.findall(r"\]\[([\w-]+)\]", section))
            assert used <= set(re.findall(r"^\[([\w-]+)\]: ", page.read_text(), re.MULTILINE)), page.name


RECIPES = [block for page in PAGES for block in blocks(page, "yaml") if "--8<--" not in block]
assert RECIPES


def test_recipes_are_valid(tmp_path: Path) -> None:
    for block in RECIPES:
        file = tmp_path / "recipe.yaml"
        file.write_text(block if "output" in yaml.safe_load(block) else f"output: runs/x\n{block}")
        loaded = load_settings(file, Comparison if "variants" in yaml.safe_load(block) else Recipe)
        if isinstance(loaded, Comparison):
            evaluation_tasks(loaded, str(file))


@pytest.mark.parametrize(("page", "read"), [("train", read_examples), ("layers", read_labelled)])
def test_examples_of_data_can_be_read(page: str, read: Any, tmp_path: Path) -> None:
    shown = blocks(ROOT / "docs" / f"{page}.md", "json")
    assert shown
    for block in shown:
        (tmp_path / "data.jsonl").write_text(block)
        assert len(read(tmp_path / "data.jsonl")) == len(block.splitlines())


def test_every_key_of_a_recipe_has_a_meaning() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    names = re.findall(r"^<!-- fields: (.*) -->$", page, re.MULTILINE)
    assert names
    for name in names:
        rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", build.fields_table(name), re.MULTILINE)
        assert rows and {key for key, meaning in rows if not meaning} <= {"kind", "name"}, name


def test_the_reference_is_complete() -> None:
    api = (ROOT / "docs" / "api.md").read_text()
    assert set(re.findall(r"^::: ani\.(\w+)$", api, re.MULTILINE)) == set(ani.__all__)
    sections = build.command_sections()
    commands = dict(COMMANDS.commands)
    group: Any = commands.pop("calculator")
    for name, command in {**commands, **{f"calculator {each.name}": each for each in group.commands.values()}}.items():
        section = sections.split(f"## ani {name}\n")[1].split("\n## ani")[0]
        for parameter in command.params:
            argument = parameter.param_type_name == "argument"
            shown = f"| `{parameter.name.upper() if argument else parameter.opts[0]}` |" in section
            assert shown != getattr(parameter, "hidden", False)


def test_every_source_has_a_table_and_a_description() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    shown = re.findall(r"^#### `kind: (\w+)`\n\n<!-- fields: ani\.data\.sources\.(\w+) -->$", page, re.MULTILINE)
    assert dict(shown) == {kind: source.__name__ for kind, source in SOURCES.items()}
    assert all(source.__doc__ for source in SOURCES.values())


def test_the_shipped_config_is_what_the_page_says() -> None:
    """docs/files.md lists the keys of the file; `AniConfig` those of the module."""
    config = json.loads((ROOT / "src/ani/assets/smollm2-adapter/ani_config.json").read_text())
    page = (ROOT / "docs" / "files.md").read_text()
    table = page[page.index("| `format_version`") :].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(config)
    assert set(config["module"]) | _LATER == set(ani.AniConfig.model_fields)


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
