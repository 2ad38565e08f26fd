"""The method and the calculator are separate packages: nothing in the core depends on the calculator."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
MAY_NAME_IT = {"ani/cli.py", "ani/__init__.pyi"}
MODULES = {
    ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): file
    for file in SOURCE.rglob("*.py")
}


def test_the_core_does_not_name_the_calculator() -> None:
    files = [file for kind in ("*.py", "*.pyi") for file in (SOURCE / "ani").rglob(kind)]
    naming = {
        str(file.relative_to(SOURCE))
        for file in files
        if not file.is_relative_to(SOURCE / "ani" / "calculator")
        and re.search(r"\bani[./]calculator|from \.calculator|import calculator\b", file.read_text("utf-8"))
    }
    assert naming <= MAY_NAME_IT


def imports(module: str) -> Iterator[str]:
    """The modules of this project that a module imports while it is loaded."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]

    def of(nodes: list[ast.stmt]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom):
                outer = package.rsplit(".", node.level - 1)[0] if node.level else ""
                source = ".".join(filter(None, (outer, node.module)))
                yield from (full if (full := f"{source}.{name.name}") in MODULES else source for name in node.names)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from of([*node.body, *node.orelse])
            elif isinstance(node, ast.Try):
                yield from of([*node.body, *node.orelse, *node.finalbody, *(s for h in node.handlers for s in h.body)])

    return (name for name in of(ast.parse(MODULES[module].read_text("utf-8")).body) if name in MODULES)


def test_no_import_is_circular() -> None:
    graph = {module: {*imports(module)} - {module} for module in MODULES}
    assert sum(map(len, graph.values())) > 300  # imports are found
    [*TopologicalSorter(graph).static_order()]  # raises CycleError, which names the modules of a circle


@pytest.fixture(scope="module")
def without_calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree without the calculator and its tests."""
    copy = tmp_path_factory.mktemp("core") / "ani"
    left_out = shutil.ignore_patterns("calculator", "smollm2-calculator", "__pycache__", ".*", "site", "runs", "docs")
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
    return copy


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_core_runs_without_the_calculator(without_calculator: Path, tiny_adapter: Path) -> None:
    code = f"""
import importlib.util, ani
from ani.cli import app
assert importlib.util.find_spec("ani.calculator") is None and ani.attach
for command in ("demo --help", "eval --tasks gates,arithmetic --limit 2 --out out --adapter {tiny_adapter}"):
    app(command.split(), standalone_mode=False)
"""
    done = python(without_calculator, "-c", code)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert (without_calculator / "out" / "gates.jsonl").stat().st_size


if os.environ.get("ANI_STRESS"):  # minutes; `make stress` sets it

    def test_the_injection_tests_pass_without_the_calculator(without_calculator: Path) -> None:
        done = python(without_calculator, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/injection")
        assert done.returncode == 0, done.stdout
