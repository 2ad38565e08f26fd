"""Does a trained model read what is injected? Asks it sums with other features than their numbers'.

    python benchmarks/_feature_use.py ADAPTER [--count 40]

`exact`: as trained. `lower digits`: at every digit token of a number the digits below are others, so that a fraction
(policy `placewise`) says nothing about carries. `others'`: every number's features are those of another number of the
same batch. `off`: nothing is injected. A model that reads the features answers fewer sums where they are wrong.
"""

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

import ani
from ani.injection import locate
from ani.injection.attach import ani_module
from ani.models import load_model, load_tokenizer
from ani.results.statistics import share
from ani.tasks.answering import Answerer
from ani.tasks.arithmetic import Arithmetic

DIGITS = (4, 8, 12)


@contextmanager
def lower_digits() -> Iterator[None]:
    """Other digits below the place of every digit token."""
    exact = locate.in_units_of_place

    def changed(number: str, end: int) -> str:
        draw = random.Random(f"{number} {end}")
        return exact(number[:end] + "".join(draw.choice("0123456789") for _ in number[end:]), end)

    locate.in_units_of_place = changed
    try:
        yield
    finally:
        locate.in_units_of_place = exact


@contextmanager
def features(model: torch.nn.Module, change: str) -> Iterator[None]:
    """Those of other numbers, or none."""

    def others(_: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden_states, encoded = arguments
        order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(0))
        return hidden_states, encoded[order] if change == "others'" else torch.zeros_like(encoded)

    hook = ani_module(model).register_forward_pre_hook(others)
    try:
        yield
    finally:
        hook.remove()


def main() -> None:
    """Print a line for each change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("adapter")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--count", type=int, default=40, help="sums of each length")
    options = parser.parse_args()
    tokenizer, model = load_tokenizer(options.model), load_model(options.model)
    ani.load_adapter(model, tokenizer, options.adapter)
    task = Arithmetic.model_validate({"count": options.count, "digits": DIGITS})
    problems = task.questions(seed=0)
    changes: dict[str, Any] = {
        "exact": nullcontext(),
        "others'": features(model, "others'"),
        "off": features(model, "off"),
    }
    if ani_module(model).config.policy == "placewise":
        changes["lower digits"] = lower_digits()
    print(f"{'features':<14}" + "".join(f"{d:>4} digits" for d in DIGITS) + "    all, with 95% interval")
    for name, change in changes.items():
        with change:
            answers = list(task.run(Answerer(model, tokenizer), problems, lambda _: None))
        right = Counter(answer.digits for answer in answers if answer.correct)
        found = share(answer.correct for answer in answers)
        lengths = "".join(f"{right[d] / options.count:>11.1%}" for d in DIGITS)
        print(f"{name:<14}{lengths}    {found.value:.1%} ({100 * found.low:.1f}–{100 * found.high:.1f})", flush=True)


if __name__ == "__main__":
    main()
