"""Training step of a model: LoRA with ANI over the same step without it; with --texts packed rows over a row
per example.

Collating the batch is part of the step, because ANI finds and encodes the numbers there.
"""

import math
import time
from collections.abc import Callable
from random import Random
from typing import Any

import _paired
import torch
from accelerate.utils import send_to_device
from peft import LoraConfig, get_peft_model

import ani
from ani.data.collator import NumberCollator, TokenizedExample, tokenize
from ani.data.sources import ArithmeticSource, DiagnosticSource
from ani.injection.model_parts import base_model, number_locator
from ani.models import load_model, load_tokenizer
from ani.roles import Role
from ani.training.packing import COLUMNS, PASSES, TOKENS, Packing, StepCollator
from ani.training.trainer import learnt_logits, training_autocast

LORA: dict[str, Any] = {"r": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def main() -> None:
    """Print the ratio of step times."""
    parser = _paired.parser(__doc__, repeats=15)
    parser.add_argument("--batch-size", type=int, default=16, help="half of it additions, half sentences")
    parser.add_argument("--texts", type=int, help="examples of a step, some 400 tokens long, a pass each or packed")
    parser.add_argument("--max-length", type=int, default=2048, help="tokens of a packed row")
    arguments = parser.parse_args()
    if arguments.texts:
        return packed(arguments)
    name, half = arguments.model, arguments.batch_size // 2
    tokenizer = load_tokenizer(name)
    examples = ArithmeticSource(kind="arithmetic", count=half, digits=[4, 8, 12]).examples(0)
    examples += DiagnosticSource(kind="diagnostic", count=half).examples(0)

    def stepper(with_ani: bool) -> Callable[[], object]:
        base, locator = load_model(name, dtype=arguments.dtype).requires_grad_(False), None
        torch.manual_seed(0)
        model = get_peft_model(base, LoraConfig(**LORA))
        if with_ani:
            ani.attach(model, tokenizer, ani.AniConfig(layer=10))
            locator = number_locator(model)
        collate = NumberCollator(tokenizer, locator)
        batch = [tokenize(example, tokenizer, locator, 64) for example in examples]
        optimizer = torch.optim.AdamW([p for p in model.train().parameters() if p.requires_grad], lr=1e-5)

        def step() -> None:
            model(**send_to_device(collate(batch), base.device)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    rows = _paired.table(f"Training step, {name}, {arguments.dtype}, LoRA r 16, batch {arguments.batch_size}")
    _paired.add(rows, "step time ANI / SFT", _paired.ratios(stepper(True), stepper(False), arguments.repeats), "≤ 1.02")
    _paired.show(rows)


def packed(arguments: Any) -> None:
    """Print the tokens per second of a step of long texts, and the ratio of step times, packed / a row per text."""
    tokenizer, random, count = load_tokenizer(arguments.model), Random(0), arguments.texts
    base = load_model(arguments.model, dtype=arguments.dtype, attention="auto").requires_grad_(False)
    model = get_peft_model(base, LoraConfig(**LORA))
    ani.attach(model, tokenizer, ani.AniConfig(layer=10))
    model.train().gradient_checkpointing_enable()
    model.config.use_cache = False
    sums = tokenizer(" ".join(f"{i} + {3 * i} = {4 * i}." for i in range(1000, 2000)))["input_ids"]
    lengths = [min(round(random.lognormvariate(math.log(400) - 0.125, 0.5)), 2048) for _ in range(count)]
    texts = [TokenizedExample(sums[:length], length // 2, [Role.UNKNOWN] * length) for length in lengths]
    speeds: dict[str, list[float]] = {}

    def stepper(name: str, packing: Packing | None) -> Callable[[], object]:
        collate = StepCollator(NumberCollator(tokenizer, number_locator(model)), 1, packing)

        def step() -> None:
            began = time.perf_counter()
            for batch in send_to_device(collate(texts)[PASSES], base.device):
                learnt = learnt_logits(base_model(model), batch["labels"], batch.pop(COLUMNS))
                del batch[TOKENS]
                with training_autocast(base_model(model)):
                    loss = model(**batch, **learnt).loss
                loss.backward()
            model.zero_grad()
            speeds.setdefault(name, []).append(sum(lengths) / (time.perf_counter() - began))

        return step

    steps = stepper("packed", Packing(arguments.max_length, 1)), stepper("a row per text", None)
    rows = _paired.table(f"Training step, {arguments.model}, {count} texts of {sum(lengths) / count:.0f} tokens")
    found = _paired.ratios(*steps, arguments.repeats, warmup=1)
    _paired.add(rows, f"step time packed (rows of {arguments.max_length:,}) / a row per text", found)
    for name, speed in speeds.items():
        _paired.add(rows, f"tokens per second, {name}", speed[1:])
    _paired.show(rows)


if __name__ == "__main__":
    main()
