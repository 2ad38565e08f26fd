"""What is imported when: help and refusals need no torch, public names come when they are used."""

import subprocess
import sys

import pytest

import ani

HEAVY = ("accelerate", "datasets", "matplotlib", "numpy", "peft", "scipy", "sklearn", "torch", "transformers", "vllm")

PRINT_IMPORTED = f"""
import sys
sys.argv = ["ani", *sys.argv[1:]]
from ani import cli
try:
    cli.main()
finally:
    print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command",
    ["--help", "inspect --help", "train --help", "serve --help", "train recipe.yaml --dry-rum", "trian"],
)
def test_a_command_line_that_only_talks_imports_little(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_IMPORTED, *command.split()], capture_output=True, text=True, timeout=300
    )
    imported = done.stderr.splitlines()[-1].split()
    assert imported == [], done
    assert done.returncode == (0 if "--help" in command else 2)


def test_every_public_name_is_there() -> None:
    assert len(set(ani.__all__)) == len(ani.__all__) >= 18
    for name in ani.__all__:
        assert getattr(ani, name).__doc__ and name in dir(ani)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ani.no_such_name  # type: ignore[attr-defined]
