"""vLLM serves a merged checkpoint of any family as transformers runs it, and refuses states that are not the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from ani.models import auto_class
from tests import tiny as tiny_models
from tests.fixtures import need_libnuma
from tests.properties import deep

pytest.importorskip("vllm")
need_libnuma()


from ani.serving import vllm as models  # noqa: E402
from ani.serving.plugin import SWITCH  # noqa: E402
from tests.serving.test_vllm import (  # noqa: E402, F401
    assert_same,
    closed_gates,
    cut_in_a_number,
    engine,
    greedy,
    prompts,
    quiet_vllm,
    saved_and_merged,
    served,
)

WINDOW = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
# By transformers' model_type. Starting an engine takes seconds: `make stress` has all.
FAMILIES: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.5},
    "gpt_oss": {**EXPERTS, **WINDOW},
    "qwen2": {},
    "qwen3_moe": EXPERTS,
    "gemma3_text": {**WINDOW, "query_pre_attn_scalar": 32},
    "phi3": {},
    "olmo2": {},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 2.0},
    "llama4_text": {**EXPERTS, "intermediate_size_mlp": 64, "num_experts_per_tok": 1, "attention_chunk_size": 64},
    "gpt2": {},
    "gpt_neox": {"num_key_value_heads": 2},
}
# Image-text models whose code in vLLM needs no torchvision; the second has none in vLLM. Text is their only input here.
IMAGE_TEXT: dict[str, dict[str, Any]] = {
    "smolvlm": {
        "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1},
        "image_token_id": 5,
    },
    "emu3": {
        "vq_config": {"base_channels": 32, "channel_multiplier": [1], "codebook_size": 8, "num_res_blocks": 1},
        "vocabulary_map": {"<image>": 5},
    },
}
IN_TEST = "gpt_oss", "smolvlm"


def merged(folder: Path, family: str, gate_layers: tuple[int, ...] = (), **own: Any) -> tuple[Path, Any, Any]:
    """The merged checkpoint of a tiny random model with `own` settings, transformers' model of it, and its
    tokenizer."""
    tokenizer = tiny_models.tokenizer_of("llama")
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,  # vLLM's attention on a CPU has kernels for heads of 32 and more
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        **FAMILIES.get(family, own),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if family in IMAGE_TEXT:
            settings = {"text_config": settings, "pad_token_id": tokenizer.pad_token_id, **IMAGE_TEXT[family]}
        config = AutoConfig.for_model(family, **settings)
        model = auto_class(config).from_config(config).float().eval()
    path, model = saved_and_merged(folder, model, tokenizer, layer=2, policy="after", gate_layers=gate_layers)
    return path, model, tokenizer


@pytest.mark.parametrize("family", [*FAMILIES, *IMAGE_TEXT] if deep() else IN_TEST)
def test_tokens_and_log_probabilities_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    path, model, tokenizer = merged(tmp_path, family, gate_layers=(1,))
    rows = [tokenizer(text)["input_ids"] for text in prompts(12, 8)]
    expected, closed = greedy(model, rows), greedy(closed_gates(model), rows)
    assert sum(a != b for (a, _), (b, _) in zip(expected, closed, strict=True)) > 2  # it matters
    only: dict[str, Any] = {"language_model_only": True} if family in IMAGE_TEXT else {}
    llm = engine(path, rows, chunk=cut_in_a_number(tokenizer, rows[0]), num_gpu_blocks_override=64, **only)
    try:
        assert_same(served(llm, rows)[0], expected)
        again, cached = served(llm, rows)
        assert cached > 0
        assert_same(again, expected)
        assert_same(served(llm, rows, **{SWITCH: "closed"})[0], closed)
    finally:
        llm.llm_engine.engine_core.shutdown()


def test_a_wrong_layer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, _ = merged(tmp_path, "llama")
    layers = models.decoder_layers
    monkeypatch.setattr(models, "decoder_layers", lambda *args: [*layers(*args)][::-1])
    with pytest.raises(ValueError, match="hidden states of layer 2"):
        engine(path, [[0]], num_gpu_blocks_override=64)


if deep():

    def test_a_stale_residual_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # vLLM's own layers of this family return the finished state, and a stale residual.
        path, _, _ = merged(tmp_path, "cohere2", sliding_window=16, layer_types=["full_attention"] * 3)
        monkeypatch.setattr(models, "supports_eagle3", lambda model: True)
        with pytest.raises(ValueError, match="hidden states of layer 2"):
            engine(path, [[0]], num_gpu_blocks_override=64)
