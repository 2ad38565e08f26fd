"""Runs every benchmark (`gpu` only where there is a CUDA card), or those named, and prints one table of all ratios that
have an aim. Fails if a benchmark does."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import _paired
import torch

HERE = Path(__file__).parent


def main() -> None:
    """Run each in a process of its own, so that none inherits another's memory or threads."""
    scripts = sorted(path.stem for path in HERE.glob("[!_]*.py") if path.name != Path(__file__).name)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", choices=[*scripts, []], metavar="SCRIPT", help=", ".join(scripts))
    chosen = parser.parse_args().scripts or [name for name in scripts if name != "gpu" or torch.cuda.is_available()]
    rows = _paired.table("All ratios that have an aim")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.touch()
        for name in chosen:
            print(f"== {name}", flush=True)
            command = [sys.executable, str(HERE / f"{name}.py")]
            if subprocess.run(command, env={**os.environ, _paired.ROWS: str(file)}, check=False).returncode:
                failed.append(name)
        for line in file.read_text(encoding="utf-8").splitlines():
            title, measure, *numbers, aim, met = json.loads(line)
            if aim:
                rows.add_row(f"{title}: {measure}", *numbers, aim, met)
    _paired.show(rows)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
