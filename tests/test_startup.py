"""Imports at start-up: help and refusals need no torch; public names are imported when they are used."""

import subprocess
import sys
from pathlib import Path

import pytest

import ani

HEAVY = ("accelerate", "datasets", "peft", "scipy", "sklearn", "torch", "transformers", "vllm")

PRINT_IMPORTED = f"""
import sys
sys.argv = ["ani", *sys.argv[1:]]
from ani import cli
try:
    cli.main()
finally:
    print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["--help", "train recipe.yaml --dry-rum", "report none"])
def test_help_and_refusals_import_little(command: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", PRINT_IMPORTED, *command.split()]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    imported = done.stderr.splitlines()[-1].split()
    assert imported == [], done
    assert done.returncode == (0 if "--help" in command else 2)


def test_every_public_name_is_there() -> None:
    assert len(set(ani.__all__)) == len(ani.__all__) >= 18
    for name in ani.__all__:
        assert getattr(ani, name).__doc__ and name in dir(ani)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ani.no_such_name  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def merged(tiny_model: Path, tiny_adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("merged") / "tiny"
    ani.merge(tiny_adapter, path, model=str(tiny_model))
    return path


IMPORTS = ["ani, transformers", "transformers, ani", "transformers.models.auto.modeling_auto, ani"]


def test_transformers_knows_merged_checkpoints_whichever_is_imported_first(merged: Path) -> None:
    """Each order in a fork of one process that has imported what transformers imports."""
    program = f"""
import os, sys
import sklearn.metrics, torch._dynamo, torch.distributed.tensor
for imports in {IMPORTS}:
    if not os.fork():
        exec("import " + imports)
        from transformers import AutoModelForCausalLM
        registered = "ani.serving.checkpoint" in sys.modules
        model = AutoModelForCausalLM.from_pretrained({str(merged)!r})
        import ani.serving.plugin  # vLLM itself is imported when it calls the plugin
        print(registered, type(model).__name__, "vllm" in sys.modules, "peft" in sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["False AniLlamaForCausalLM False False"] * len(IMPORTS), done.stderr
