"""Generation throughput: the embedded model with ANI over the same model without it, every gate open."""

import argparse
from collections.abc import Callable

import _paired
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import ani
from ani.data.arithmetic import arithmetic_problems
from ani.injection.model_parts import ani_module
from ani.models import load_model, load_tokenizer


def attached(tokenizer: PreTrainedTokenizerBase, policy: str) -> PreTrainedModel:
    """The embedded model with a module that changes every number a little."""
    model = load_model("smollm2")
    ani.attach(model, tokenizer, ani.AniConfig(layer=10, policy=policy))
    module = ani_module(model)
    torch.manual_seed(0)
    torch.nn.init.normal_(module.projection.weight, std=0.01)
    torch.nn.init.constant_(module.gate.outer.bias, 10.0)
    return model


def main() -> None:
    """Print the ratio of throughputs for both policies, prompt-heavy and generation-heavy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer("smollm2")
    base = load_model("smollm2")

    def generating(model: PreTrainedModel, problems: int, new_tokens: int) -> Callable[[], object]:
        texts = [
            " ".join(
                f"{p.prompt} {p.answer}." for p in arithmetic_problems(problems, digits=(3, 6), split="test", seed=row)
            )
            for row in range(arguments.batch_size)
        ]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")

        def generate() -> None:
            with torch.inference_mode():
                model.generate(
                    **inputs, do_sample=False, min_new_tokens=new_tokens, max_new_tokens=new_tokens, pad_token_id=0
                )

        return generate

    rows = _paired.table(f"Generation, SmolLM2-135M, batch {arguments.batch_size}: throughput ANI / base")
    for policy in ("terminal", "running"):
        model = attached(tokenizer, policy)
        for what, problems, new_tokens in (("prompt-heavy", 12, 4), ("generation-heavy", 2, 48)):
            # Throughput is the inverse of time: time of the base over time of ANI.
            found = _paired.ratios(
                generating(base, problems, new_tokens), generating(model, problems, new_tokens), arguments.repeats
            )
            _paired.add(rows, f"{policy}, {what}", found, "≥ 0.98")
    _paired.show(rows)


if __name__ == "__main__":
    main()
