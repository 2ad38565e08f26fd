"""How long the command line takes to answer, beside Python alone and beside the imports of torch and transformers.

    python benchmarks/startup.py [--pairs 5]

Each side is a process of its own, on the shipped model and its results.
"""

import argparse
import subprocess
import sys
from functools import partial
from tempfile import TemporaryDirectory

import _paired

COMMANDS = {
    "ani --help": (["--help"], "≤ 0.5"),
    "ani train --help": (["train", "--help"], "≤ 0.5"),
    "ani train --dry-rum (no such option)": (["train", "--dry-rum"], "≤ 0.5"),
    "ani report FOLDER": (["report", "eval"], "≤ 0.5"),
    "ani inspect TEXT": (["inspect", "Room 505 holds 10"], ""),
}
"""Arguments, and the aim beside the imports."""
LOADING = "from ani.models import *; load_model('smollm2'), load_tokenizer('smollm2')"


def run(*arguments: str, folder: str) -> None:
    """One process of this Python, to its end."""
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == (2 if "--dry-rum" in arguments else 0), done.stderr


def main() -> None:
    """Print the ratios of wall times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    rows = _paired.table("Startup, wall time")
    with TemporaryDirectory() as folder:
        asked = ("--adapter", "smollm2-adapter", "--tasks", "arithmetic,gates", "--limit", "2", "--out", "eval")
        run("-m", "ani.cli", "eval", *asked, folder=folder)
        for name, (arguments, aim) in COMMANDS.items():
            ours = partial(run, "-m", "ani.cli", *arguments, folder=folder)
            peers = {"python -c pass": ("pass", ""), "import torch, transformers": ("import torch, transformers", aim)}
            if "inspect" in arguments:
                peers["loading the model alone"] = (LOADING, "≤ 1.5")
            for peer, (program, wanted) in peers.items():
                theirs = partial(run, "-c", program, folder=folder)
                _paired.add(rows, f"{name} / {peer}", _paired.ratios(ours, theirs, pairs, warmup=0), wanted)
    _paired.show(rows)


if __name__ == "__main__":
    main()
