"""Rehearses the paper's recipes twice: at full size on fake tensors, and in miniature.

    python stress/rehearsal [--full-size | --packing]

At full size: a training step and an answer of train.yaml; with --full-size of every variant of every recipe, and
nothing else; with --packing of short examples, packed and not, and nothing else. In miniature: every command of
docs/reproduce.md with small models and data (`miniature.py`). docs/reproduce.md lists what only a card can show.
"""

import os
import tempfile

if __name__ == "__main__":  # not in the processes that it starts
    os.environ |= {"HF_HOME": tempfile.mkdtemp(prefix="ani-rehearsal-"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    os.environ |= {"TORCH_COMPILE_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

import argparse
import shutil
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from full_size import Rehearsal, left_on_the_cpu, rehearse

from ani.compare.plan import variant_recipes
from ani.training.recipe import Recipe, load_recipe

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "paper"
PEAKS = {"train": 15.6}
"""GiB that docs/reproduce.md names."""
SIZES = {
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
}
"""Published numbers of parameters."""


def rehearse_all(every: bool) -> None:
    """Rehearse train.yaml at full size, or every variant of every recipe, and print a table in Markdown. Raises
    RuntimeError for a fault, or for a peak or size that is not the documented one."""
    recipes = {"train": {"": load_recipe(RECIPES / "train.yaml")}}
    if every:
        names = [path.stem for path in sorted(RECIPES.glob("*.yaml")) if path.stem not in ("train", "reference")]
        recipes |= {name: variant_recipes(RECIPES / f"{name}.yaml") for name in names}
    print("| recipe | model | variants | seconds each | GiB at most | tokens a pass | operations a token |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with ThreadPoolExecutor(2) as pool:  # each waits for a process of its own
        planted = pool.submit(rehearse, recipes["train"][""], left_on_the_cpu)
        pending = {
            name: [pool.submit(rehearse, each) for each in variants.values()] for name, variants in recipes.items()
        }
        for name, variants in recipes.items():
            found = [each.result() for each in pending[name]]
            for (variant, recipe), each in zip(variants.items(), found, strict=True):
                _check(f"{name} {variant}", recipe, each)
            peak = max(each.peak for each in found) / 2**30
            if name in PEAKS and abs(peak - PEAKS[name]) > 0.1:
                raise RuntimeError(f"{name}: {peak:.2f} GiB at most, where the documentation says {PEAKS[name]}")
            recipe, seconds = next(iter(variants.values())), statistics.mean(each.seconds for each in found)
            tokens = recipe.training.batch_size * recipe.training.max_length
            operations = max(each.flops for each in found) / tokens
            row = [name, recipe.model, len(found), f"{seconds:.0f}", f"{peak:.1f}", f"{tokens:,}", f"{operations:.1e}"]
            print(f"| {' | '.join(map(str, row))} |", flush=True)
        if (fault := planted.result().fault) is None or not fault.startswith("forward, ani.gate.inner: "):
            raise RuntimeError(f"a planted fault was not found: {fault}")


def rehearse_packing() -> None:
    """Print the operations of the step of Qwen3-8B's recipe on examples of 400 tokens, in a row each and packed."""
    recipe = load_recipe(RECIPES / "train.yaml")
    print("| examples a row | tokens a pass | operations a token | GiB |")
    print("| --- | --- | --- | --- |")
    for count in (1, recipe.training.max_length // 400):
        found = rehearse(recipe, texts=[400] * count)
        _check("packing", recipe, found)
        print(
            f"| {count} | {400 * count:,} | {found.flops / (400 * count):.3e} | {found.peak / 2**30:.1f} |", flush=True
        )


def _check(name: str, recipe: Recipe, found: Rehearsal) -> None:
    if found.fault is not None:
        raise RuntimeError(f"{name}: {found.fault}")
    if found.parameters["base"] != SIZES[recipe.model]:
        raise RuntimeError(f"{name}: {recipe.model} has {found.parameters['base']:,} parameters")


def main() -> None:
    """Rehearse at full size, then in miniature."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full-size", action="store_true", help="only at full size, every variant")
    parser.add_argument("--packing", action="store_true", help="only packed rows")
    given = parser.parse_args()
    try:
        if given.packing:
            rehearse_packing()
            return
        rehearse_all(given.full_size)
        if not given.full_size:
            import miniature

            miniature.main()
    finally:
        shutil.rmtree(os.environ["HF_HOME"])


if __name__ == "__main__":
    main()
