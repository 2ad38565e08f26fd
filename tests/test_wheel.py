"""The wheel holds all that is needed: what a user without a checkout runs."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files alone, as pip installs them."""
    folder = tmp_path_factory.mktemp("wheel")
    run("-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", "dist", str(ROOT), folder=folder)
    (wheel,) = (folder / "dist").glob("ani-*.whl")
    run("-m", "pip", "install", "-qq", "--no-deps", "--target", "installed", str(wheel), folder=folder)
    with zipfile.ZipFile(wheel) as opened:
        assert {name.split("/")[0].partition("-")[0] for name in opened.namelist()} == {"ani"}
    return folder / "installed"


def test_commands_and_data(installed: Path, tmp_path: Path) -> None:
    def python(*command: str) -> str:
        return run(*command, folder=tmp_path, PYTHONPATH=str(installed))

    assert "which numbers of a text the gate injects" in python("-m", "ani.cli", "inspect", "--help")
    shutil.copytree(ROOT / "tests" / "stored" / "eval", tmp_path / "eval")
    python("-m", "ani.cli", "report", "eval")
    assert (tmp_path / "eval" / "report.html").stat().st_size > 10_000
    shown = python(
        "-c",
        """
import pathlib
import ani
from ani.data.calculation_sentences import calculation_sentences
from ani.data.contrastive import contrastive_sentences
from ani.data.diagnostic import diagnostic_sentences
from ani.training.recipe import load_recipe
folder = pathlib.Path(ani.__file__).parent
recipe = load_recipe(folder / "recipes" / "demo.yaml")
print(folder.parent, recipe.model, *sorted(path.name for path in (folder / "assets").iterdir()))
print(*(len(draw(3, split="train")) for draw in (calculation_sentences, contrastive_sentences, diagnostic_sentences)))
""",
    )
    assert shown.splitlines() == [f"{installed} smollm2 smollm2-adapter smollm2-calculator", "3 3 3"]
