"""Tiny random models of four families, each with a real tokenizer of its family."""

import copy
from functools import cache
from typing import Any, cast

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ani import AniConfig, InputError, attach
from ani.injection.model_parts import ani_module, last_decision
from ani.models import load_model, load_tokenizer
from tests import tokenizers
from tests.properties import deep

FAMILIES = ["qwen3", "llama", "mistral", "gemma"]
LAYERS = 4
MIXED_TEXT = (
    "Room 505 holds 10 people, 3.5 kg of $1,234 and -7 of 2020-11; bus 12 left at 8:15 with 40 of 66 seats, "
    "7% of 90417 and 0.25 + 18 = 18.25. Version 2.0.1 of COVID-19 costs 99 and 100."
)
"""A text on whose numbers a randomised gate decides both ways."""

_TOKENIZERS = {
    "qwen3": tokenizers.qwen,
    "llama": tokenizers.llama3,
    "mistral": tokenizers.mistral,
    "gemma": tokenizers.gemma_like,
}
_MADE: dict[str, PreTrainedModel] = {}


def tokenizer_of(family: str, words: int = 50_000) -> PreTrainedTokenizerBase:
    """A family's tokenizer; of 100,000 words and more it has `words`, and all in `make stress` alone."""
    whole = _TOKENIZERS[family]()
    return whole if deep() or len(whole) < 100_000 else tokenizers.shortened(whole, words)


def tiny(family: str, *, tokenizer: PreTrainedTokenizerBase | None = None, **overrides: Any) -> PreTrainedModel:
    """A fresh model of a family: float32, eval mode, the same weights at every call."""
    tokenizer = tokenizer or tokenizer_of(family)
    special = (len(tokenizer), tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    key = f"{family} {special} {sorted(overrides.items())}"
    if key not in _MADE:  # a copy takes a tenth of the time
        _MADE[key] = _made(family, tokenizer, overrides)
    return copy.deepcopy(_MADE[key])


def _made(family: str, tokenizer: PreTrainedTokenizerBase, overrides: dict[str, Any]) -> PreTrainedModel:
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        # Large enough that a hidden state depends on the whole context and greedy choices are clear.
        "initializer_range": 0.3,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        **overrides,
    }
    model: PreTrainedModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        match family:
            case "qwen3":
                model = Qwen3ForCausalLM(Qwen3Config(**settings))
            case "llama":
                model = LlamaForCausalLM(LlamaConfig(**settings))
            case "mistral":
                model = MistralForCausalLM(MistralConfig(**{"sliding_window": None, **settings}))
            case "gemma":
                kinds = ["sliding_attention", "full_attention"] * (settings["num_hidden_layers"] // 2)
                local = {"sliding_window": 8, "layer_types": kinds, "query_pre_attn_scalar": 8}
                model = Gemma3ForCausalLM(Gemma3TextConfig(**{**local, **settings}))
            case _:
                raise ValueError(family)
    return model.eval()


def pair(
    family: str, tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A fresh tiny model (or a copy of SmolLM2, family `smollm2`) and its tokenizer (or the one given)."""
    if family == "smollm2":
        model, tokenizer = smollm2()
        return copy.deepcopy(model), tokenizer
    tokenizer = tokenizer or tokenizer_of(family)
    return tiny(family, tokenizer=tokenizer), tokenizer


def first_smollm2() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A copy of SmolLM2's first 12 layers, for what holds at any depth; in `make stress` of all 30."""
    model, tokenizer = pair("smollm2")
    if not deep():
        model.config.num_hidden_layers = 12
        del cast(Any, model).model.layers[12:]
    return model, tokenizer


@cache
def smollm2() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The embedded default model; one object a session, so leave it as you found it."""
    try:
        return load_model("smollm2", dtype="float32", device="cpu"), load_tokenizer("smollm2")
    except InputError as error:
        pytest.skip(str(error))


def randomise(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, text: str = MIXED_TEXT) -> None:
    """Give the attached module weights as if trained: it changes logits, with some gates of the text open and some
    closed."""
    module = ani_module(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        module.projection.weight.normal_(std=0.5, generator=generator)
        if module.gate is None:
            return
        module.gate.inner.weight.normal_(std=module.gate.inner.in_features**-0.5, generator=generator)
        module.gate.inner.bias.zero_()
        module.gate.outer.weight.normal_(std=2.0, generator=generator)
        module.gate.outer.bias.zero_()
        model(input_ids=tokenizer(text, return_tensors="pt")["input_ids"].to(model.device))
        decision = last_decision(model)
        assert decision is not None
        # The threshold goes into the widest gap between the middle decisions: far from every one of them.
        logits = decision.injection.logits.sort().values
        middle = logits[len(logits) // 3 : 2 * len(logits) // 3 + 1]
        gap = int(middle.diff().argmax())
        module.gate.outer.bias.fill_(-float(middle[gap : gap + 2].mean()))


def attached(
    family: str, tokenizer: PreTrainedTokenizerBase | None = None, **config: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A tiny model with a randomised ANI module (layer 2, policy `terminal` unless `config` says otherwise), and its
    tokenizer."""
    model, tokenizer = pair(family, tokenizer)
    attach(model, tokenizer, AniConfig(**{"layer": 2, "policy": "terminal", "gate_hidden_size": 16, **config}))
    randomise(model, tokenizer)
    return model, tokenizer


def encode(tokenizer: PreTrainedTokenizerBase, text: str = MIXED_TEXT) -> torch.Tensor:
    """A text's token ids, as a batch of one row."""
    return torch.as_tensor(tokenizer(text, return_tensors="pt")["input_ids"])


@torch.no_grad()
def logits_of(model: torch.nn.Module, input_ids: torch.Tensor, **given: Any) -> torch.Tensor:
    return torch.as_tensor(model(input_ids=input_ids, **given).logits)
