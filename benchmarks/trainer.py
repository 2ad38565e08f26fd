"""Training: LoRA with ANI as `ani train` carries it out, over transformers' plain Trainer on the same examples.

Ours sorts rows of similar length into a batch and computes the head where there are labels only. The plain Trainer
draws rows at random and computes every logit. Both do one epoch, so a ratio of times is the inverse ratio of the
tokens a second; padding counts as none.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import _paired
import torch
from transformers import Trainer
from transformers.trainer_callback import PrinterCallback

from ani.data.collator import NumberCollator, tokenize
from ani.injection.model_parts import is_attached, number_locator
from ani.training.examples import Examples, load_examples
from ani.training.recipe import Recipe, load_recipe
from ani.training.run import prepare, training_arguments
from ani.training.trainer import AniTrainer

RECIPE = Path(__file__).parents[1] / "recipes" / "small" / "train.yaml"


def main() -> None:
    """Print the ratio of tokens a second, against the plain Trainer with ANI and without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=128, help="half of them additions, half diagnostic sentences")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        half = arguments.rows // 2
        data = f"data=[{{kind: arithmetic, count: {half}}}, {{kind: diagnostic, count: {half}}}]"
        overrides = [f"output={folder}/run", data, "training.steps=null", "training.epochs=1"]
        recipe, sft = (load_recipe(RECIPE, [*overrides, f"method={method}"]) for method in ("ani", "sft"))
        ani_run = trainer(recipe, plain=False)
        peers = {
            "the plain Trainer, LoRA with ANI": trainer(recipe, plain=True),
            "the plain Trainer, LoRA alone": trainer(sft, plain=True),
        }
        rows = _paired.table(f"Training on {arguments.rows} examples: tokens/s of ani train / a peer's")
        for name, run in peers.items():
            # The ratio of tokens/s is the inverse of that of times.
            _paired.add(rows, name, _paired.ratios(run, ani_run, arguments.repeats, warmup=0), "> 1.2")
    _paired.show(rows)


def trainer(recipe: Recipe, *, plain: bool) -> Callable[[], object]:
    """A function that trains for an epoch, from whatever weights the last call left."""
    model, tokenizer = prepare(recipe)
    locator = number_locator(model) if is_attached(model) else None
    rows = [tokenize(each, tokenizer, locator, recipe.training.max_length) for each in load_examples(recipe)]
    collator = NumberCollator(tokenizer, locator)
    settings = training_arguments(recipe)
    settings.save_strategy = "no"
    settings.logging_strategy = "no"
    common = {
        "model": model,
        "args": settings,
        "train_dataset": Examples(rows, collator.pad_id),
        "data_collator": collator,
        "processing_class": tokenizer,
    }
    made: Trainer
    made = Trainer(**common) if plain else AniTrainer(settings=recipe.training, **common)
    made.remove_callback(PrinterCallback)
    torch.manual_seed(recipe.seed)
    return made.train


if __name__ == "__main__":
    main()
