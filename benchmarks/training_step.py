"""Training step: LoRA with ANI over the same LoRA step without it, on the embedded model.

Collating the batch is part of the step, because ANI finds and encodes the numbers there.
"""

import argparse
from collections.abc import Callable

import _paired
import torch
from peft import LoraConfig, get_peft_model

import ani
from ani.data.collator import NumberCollator, tokenize
from ani.data.sources import ArithmeticSource, DiagnosticSource
from ani.injection.model_parts import number_locator
from ani.models import load_model, load_tokenizer


def main() -> None:
    """Print the ratio of step times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16, help="half of it additions, half sentences")
    arguments = parser.parse_args()
    tokenizer, half = load_tokenizer("smollm2"), arguments.batch_size // 2
    examples = ArithmeticSource(kind="arithmetic", count=half, digits=[4, 8, 12]).examples(0)
    examples += DiagnosticSource(kind="diagnostic", count=half).examples(0)

    def stepper(with_ani: bool) -> Callable[[], object]:
        base, locator = load_model("smollm2").requires_grad_(False), None
        torch.manual_seed(0)
        model = get_peft_model(base, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
        if with_ani:
            ani.attach(model, tokenizer, ani.AniConfig(layer=10))
            locator = number_locator(model)
        collate = NumberCollator(tokenizer, locator)
        batch = [tokenize(example, tokenizer, locator, 64) for example in examples]
        optimizer = torch.optim.AdamW([p for p in model.train().parameters() if p.requires_grad], lr=1e-5)

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
