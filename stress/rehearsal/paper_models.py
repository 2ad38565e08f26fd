"""The shapes of the paper's models, and a training example that fills a row."""

from typing import Any

from ani.data.arithmetic import arithmetic_problems
from ani.data.collator import TokenizedExample
from ani.roles import Role

_KEYS: tuple[str, ...] = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
_KEYS += ("num_attention_heads", "intermediate_size", "tie_word_embeddings")
PUBLISHED: dict[str, dict[str, Any]] = {
    name: {**dict(zip(_KEYS, shape, strict=True)), "num_key_value_heads": 8, "head_dim": 128}
    for name, shape in {
        "Qwen/Qwen3-1.7B": ("qwen3", 2048, 28, 151_936, 16, 6144, True),
        "Qwen/Qwen3-4B": ("qwen3", 2560, 36, 151_936, 32, 9728, True),
        "Qwen/Qwen3-8B": ("qwen3", 4096, 36, 151_936, 32, 12_288, False),
        "Qwen/Qwen3-32B": ("qwen3", 5120, 64, 151_936, 64, 25_600, False),
        "meta-llama/Llama-3.1-8B": ("llama", 4096, 32, 128_256, 32, 14_336, False),
        "mistralai/Mistral-7B-v0.3": ("mistral", 4096, 32, 32_768, 32, 14_336, False),
    }.items()
}
"""The shapes of the paper's models, and of one more. Their -Base and -Instruct variants have the same."""
PUBLISHED["mistralai/Mistral-7B-v0.3"]["sliding_window"] = None  # transformers' default is that of v0.1


def full_row(tokenizer: Any, length: int, seed: int = 0) -> TokenizedExample:
    """Sums that fill `length` tokens; the first eighth is the prompt."""
    problems = arithmetic_problems(length // 4 + 1, digits=(3, 6), split="train", seed=seed)
    ids = tokenizer(" ".join(f"{problem.prompt} {problem.answer}." for problem in problems))["input_ids"][:length]
    return TokenizedExample(ids, length // 8, [Role.UNKNOWN] * length)
