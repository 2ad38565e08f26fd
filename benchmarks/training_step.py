"""Training step: LoRA with ANI over the same LoRA step without it, on the embedded model.

Collating the batch is part of the step, since that is where ANI finds and encodes the numbers.
"""

import argparse
from collections.abc import Callable

import _paired
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import ani
from ani.data.arithmetic import arithmetic_problems
from ani.data.collator import NumberCollator, TokenizedExample, tokenize
from ani.data.diagnostic import diagnostic_sentences
from ani.data.sources import problem_example, sentence_examples
from ani.injection.model_parts import number_locator
from ani.models import load_model, load_tokenizer


def build(with_ani: bool) -> tuple[nn.Module, NumberCollator]:
    """A LoRA model of rank 16 in training mode, and its collator."""
    tokenizer = load_tokenizer("smollm2")
    base = load_model("smollm2")
    base.requires_grad_(False)
    torch.manual_seed(0)
    model: nn.Module = get_peft_model(base, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    locator = None
    if with_ani:
        ani.attach(model, tokenizer, ani.AniConfig(layer=10))
        locator = number_locator(model)
    return model.train(), NumberCollator(tokenizer, locator)


def examples(count: int) -> list[TokenizedExample]:
    """Additions and sentences, half and half, as in the demo."""
    tokenizer = load_tokenizer("smollm2")
    model = load_model("smollm2")
    ani.attach(model, tokenizer, ani.AniConfig(layer=10))
    locator = number_locator(model)
    additions = map(problem_example, arithmetic_problems(count // 2, digits=(4, 8, 12), split="train"))
    sentences = list(sentence_examples(diagnostic_sentences(2 * count, split="train")))[: count // 2]
    return [tokenize(example, tokenizer, locator, 64) for example in (*additions, *sentences)]


def main() -> None:
    """Print the ratio of step times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16)
    arguments = parser.parse_args()
    batch = examples(arguments.batch_size)

    def stepper(with_ani: bool) -> Callable[[], object]:
        model, collate = build(with_ani)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)

        def step() -> None:
            model(**collate(batch)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    rows = _paired.table(f"Training step, SmolLM2-135M, LoRA r 16, batch {arguments.batch_size}")
    _paired.add(rows, "step time ANI / SFT", _paired.ratios(stepper(True), stepper(False), arguments.repeats), "≤ 1.02")
    _paired.show(rows)


if __name__ == "__main__":
    main()
