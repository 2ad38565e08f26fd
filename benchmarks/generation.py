"""Generation: throughput of a model with ANI over the same model without it, every gate open."""

from collections.abc import Callable
from typing import Any

import _paired
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import ani
from ani.data.arithmetic import arithmetic_problems
from ani.injection.model_parts import ani_module
from ani.models import DTypeName, load_model, load_tokenizer


def attached(name: str, dtype: DTypeName, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> PreTrainedModel:
    """A model with a module that changes every number a little, every gate open."""
    model = load_model(name, dtype=dtype)
    ani.attach(model, tokenizer, ani.AniConfig(**settings))
    module = ani_module(model)
    torch.manual_seed(0)
    torch.nn.init.normal_(module.projection.weight, std=0.01)
    if module.gate is not None:
        torch.nn.init.constant_(module.gate.outer.bias, 10.0)
    return model


def sums(count: int, problems: int) -> list[str]:
    """Texts of so many sums each, with their results."""
    drawn = [arithmetic_problems(problems, digits=(3, 6), split="test", seed=seed) for seed in range(count)]
    return [" ".join(f"{each.prompt} {each.answer}." for each in row) for row in drawn]


def main() -> None:
    """Print the ratios for two policies, with long prompts and with long answers."""
    parser = _paired.parser(__doc__, repeats=9)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    name, dtype = arguments.model, arguments.dtype
    tokenizer, base = load_tokenizer(name), load_model(name, dtype=dtype)

    def generating(model: PreTrainedModel, problems: int, new: int) -> Callable[[], object]:
        texts = sums(arguments.batch_size, problems)
        inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left").to(model.device)
        options = {"do_sample": False, "min_new_tokens": new, "max_new_tokens": new, "pad_token_id": 0}
        return lambda: model.generate(**inputs, **options)

    rows = _paired.table(f"Generation, {name}, {base.dtype}, batch {arguments.batch_size}: throughput ANI / base")
    for policy in ("terminal", "after"):
        model = attached(name, dtype, tokenizer, layer=10, policy=policy)
        for what, problems, new in (("long prompts", 12, 4), ("long answers", 2, 48)):
            # The ratio of throughputs is the inverse ratio of times.
            pair = (generating(base, problems, new), generating(model, problems, new))
            _paired.add(rows, f"{policy}, {what}", _paired.ratios(*pair, arguments.repeats), "≥ 0.98")
    _paired.show(rows)


if __name__ == "__main__":
    main()
