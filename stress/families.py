"""Attaches ANI to every decoder of the installed transformers, and writes the table of families, docs/families.md.

    python stress/families.py [FAMILY ...] [--out runs/families]

Each family is a tiny random model, without downloads; tests/families has the models and the checks. What the base model
itself fails is measured first, and not compared. Each result is a file in the folder `--out`; those that are there
already are not computed again. Without names of families the page is written. Exits with 1 if a family is wrong, or has
a worse result than on the page.
"""

import argparse
import json
import os
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers

from tests.families.checks import RESULTS, Result, examine
from tests.families.models import all_families
from tests.families.page import PAGE, published

SECONDS = 120


def in_a_fork(family: str, file: Path) -> None:
    """Write a family's result, whatever its code does to this process."""
    part = file.with_suffix(".part")
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            part.write_text(json.dumps(examine(family)._asdict()))
            part.rename(file)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if not file.exists():
        found = Result(family, all_families()[family], "wrong", f"the process ended with status {status}")
        file.write_text(json.dumps(found._asdict()))


def page(results: Sequence[Result]) -> str:
    """The page of all families: its text as it is, with new counts and a new table."""
    text, line, _ = PAGE.read_text().partition("| --- | --- | --- | --- |\n")
    whole = sum(each.result == "parity" and not each.reason for each in results)
    text = re.sub(r"transformers [0-9.]+:", f"transformers {transformers.__version__}:", text)
    text = re.sub(r"\([0-9]+ families pass all\)", f"({whole} families pass all)", text)
    for name in RESULTS:
        text = re.sub(rf"\*\*[0-9]+ {name}\*\*", f"**{sum(each.result == name for each in results)} {name}**", text)
    rows = (
        f"| {each.family} | {each.class_name} | {each.result} | {each.reason.replace('|', '&#124;')} |\n"
        for each in results
    )
    return text + line + "".join(rows)


def main() -> None:
    """Examine the families that the command names, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*")
    parser.add_argument("--out", type=Path, default=PAGE.parents[1] / "runs" / f"families-{transformers.__version__}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    arguments.out.mkdir(parents=True, exist_ok=True)
    before, found, failed = published(), [], 0
    for family in arguments.families or all_families():
        file = arguments.out / f"{family}.json"
        if not file.exists():
            in_a_fork(family, file)
        found.append(result := Result(**json.loads(file.read_text())))
        was = before.get(family, "base")
        if result.result == "wrong" or RESULTS.index(result.result) < RESULTS.index(was):
            failed += 1
            print(f"{family} ({result.class_name}): {result.result}, was {was}: {result.reason}", flush=True)
    if not arguments.families:
        PAGE.write_text(page(found))
    print(f"{len(found)} families: {dict(Counter(each.result for each in found))}; {failed} wrong or worse")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
