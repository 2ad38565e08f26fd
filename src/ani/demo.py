"""`ani demo`: train on the embedded model, evaluate before and after, report; knows nothing about the command line.

Every stage leaves its result file when it is done and is skipped where that exists, so an interrupted demo goes on.
"""

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.arithmetic import arithmetic_problems
from ani.data.diagnostic import diagnostic_sentences
from ani.errors import InputError
from ani.evaluation.arithmetic import PAPER_DIGITS, evaluate_arithmetic
from ani.evaluation.gating import evaluate_gating, inspection_record
from ani.evaluation.results import read_records, write_json, write_records
from ani.files import alone
from ani.injection.adapter import load_adapter
from ani.injection.attach import ani_module
from ani.models import load_model, load_tokenizer
from ani.probing.run import LAYERS, SELECTION
from ani.progress import counting, training_lines
from ani.provenance import provenance
from ani.report import accuracy_table, build_report, gating_table
from ani.training.checkpoints import ADAPTER, LOG_FILE
from ani.training.recipe import Recipe, load_recipe, save_recipe
from ani.training.run import PROBE, RECIPE_FILE, train

RECIPE = Path(__file__).parent / "recipes" / "demo.yaml"
PROBLEMS_A_LENGTH = 100
SENTENCES = 200
INSPECTED = (
    "Room 505 has a capacity of 10.",
    "Employee 2048 earns $5,000 a month and gets a 10% bonus.",
    "Bus 42 arrives in 7 minutes at platform 3.",
    "Flight 815 carried 324 passengers over 9,650 km.",
    "Article 12 of the 1998 law sets a fine of 250 euros.",
    "Calculate 345 + 678 =",
)


def run_demo(output: str | Path | None, console: Console, overrides: Sequence[str] = ()) -> Path:
    """Carry out the demo: probe, train, evaluate, report; under 20 minutes on two cores.

    Args:
        output: Directory for everything it makes; the recipe's own if None.
        console: Where progress and tables go.
        overrides: Changes to the recipe, `key=value`.

    Returns:
        The report, one HTML file.

    Raises:
        InputError: If `output` holds the demo of another recipe, or another process is at it.
    """
    recipe = load_recipe(RECIPE, overrides)
    folder = Path(output if output is not None else recipe.output)
    with alone(folder):
        return _demo(recipe, folder, console)


def _demo(recipe: Recipe, folder: Path, console: Console) -> Path:
    training = recipe.model_copy(update={"output": str(folder / "training")})
    tokenizer = load_tokenizer(recipe.model)
    _claim(training)

    console.rule("1/4 The model as it is")
    load_base = functools.partial(load_model, recipe.model, dtype=recipe.dtype)
    before = _arithmetic(folder, "before", load_base, tokenizer, recipe.seed, console)

    console.rule("2/4 The layer, and training")
    if not (folder / "training" / ADAPTER).is_dir():
        train(training, resume=True, on_log=training_lines(console), console=console)
    for file in (LOG_FILE, f"{PROBE}/{LAYERS}", f"{PROBE}/{SELECTION}"):  # no probe where an override names a layer
        if (folder / "training" / file).is_file():
            shutil.copy(folder / "training" / file, folder)

    console.rule("3/4 The model with ANI")
    model = load_model(recipe.model, dtype=recipe.dtype)
    load_adapter(model, tokenizer, folder / "training" / ADAPTER)
    after = _arithmetic(folder, "after", lambda: model, tokenizer, recipe.seed, console)
    write_records(folder / "arithmetic.jsonl", [*before, *after])
    console.print(accuracy_table([*before, *after]))

    console.rule("4/4 What the gate decides")
    sentences = diagnostic_sentences(SENTENCES, split="test", seed=recipe.seed)
    with counting(console, "held-out sentences", SENTENCES) as count:
        gating = write_records(folder / "gating.jsonl", evaluate_gating(model, tokenizer, sentences, count))
    console.print(gating_table(gating))
    write_records(folder / "inspected.jsonl", (inspection_record(model, tokenizer, text) for text in INSPECTED))
    config = ani_module(model).config
    write_json(
        folder / "run.json",
        {
            "title": "ANI demo",
            "model": recipe.model,
            "layer": config.layer,
            "policy": config.policy,
            "adapter": str(folder / "training" / ADAPTER),
            "settings": training.model_dump(mode="json"),
            **provenance(),
        },
    )
    return build_report(folder)


def _claim(training: Recipe) -> None:
    """Write the recipe before anything else is made, so that nothing of another recipe's demo is ever reused."""
    recipe_file = Path(training.output) / RECIPE_FILE
    if not recipe_file.is_file():
        save_recipe(training, recipe_file)
    elif load_recipe(recipe_file).model_copy(update={"output": training.output}) != training:
        raise InputError(
            f"{Path(training.output).parent} holds a demo with other settings; remove it, or give another --out"
        )


def _arithmetic(
    folder: Path,
    run: str,
    load: Callable[[], PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    console: Console,
) -> list[Mapping[str, Any]]:
    file = folder / f"arithmetic-{run}.jsonl"
    if file.is_file():
        console.print(f"{file} is there already", markup=False, soft_wrap=True)
        return list(read_records(file))
    problems = arithmetic_problems(PROBLEMS_A_LENGTH * len(PAPER_DIGITS), digits=PAPER_DIGITS, split="test", seed=seed)
    with counting(console, f"additions, {run}", len(problems)) as count:
        return write_records(file, evaluate_arithmetic(load(), tokenizer, problems, run=run, on_batch=count))
