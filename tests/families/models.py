"""Every decoder of the installed transformers as a tiny random model, by rules for the names of config keys."""

import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from tests.tokenizers import gemma_like

IMAGES = ", images"
"""End of the name of a family's image-text model, if its causal model is another."""
LARGEST = 50_000_000
"""Maximum number of a tiny model's parameters."""

_WIDTH, _HEADS, _LAYERS = 64, 4, 4
_Rules = list[tuple[str, Any]]
_LANGUAGE: _Rules = [
    (r"hidden_size|(d|n|dim)_?(model|embe?d)|(emb|embed|hidden|model|word_embed_proj)_dim|dim|embedding_size", _WIDTH),
    (r"(num_|n_)?(hidden_|decoder_|encoder_)?layers?|num_blocks", _LAYERS),
    (r"(num_|n_|decoder_|encoder_)*(attention_)?heads?", _HEADS),
    (r"\w*(num_key_value|kv_n|num_kv)_heads|num_global_key_value_heads", 2),
    (r"(\w+_)?head_dim|kv_channels|d_kv|rotary_dim", _WIDTH // _HEADS),
    (r"(moe|expert)_\w*(intermediate|hidden)_size", 32),
    (r"\w*(intermediate_size|ffn_dim|n_inner|d_ff|ffn_hidden_size)(_mlp)?", 2 * _WIDTH),
    (r"(n|num|moe_num)_(routed_|local_)?experts", 4),
    (r"num_experts_per_tok(en)?|num_selected_experts|(moe_)?top_?k(_experts)?|moe_k", 2),
    (r"n_groups?|topk_groups?|n_shared_experts|num_shared_experts|first_k_dense_replace", 1),
    (r"[qo]_lora_rank", 32),
    (r"kv_lora_rank|laurel_rank|hidden_size_per_layer_input", 16),
    (r"linear_num_key_heads", 2),
    (r"linear_num_value_heads", 4),
    (r"\w*max_position_embeddings|n_positions|n_ctx|max_seq_len|context_length", 512),
    (r"\w*(dropout|pdrop)\w*", 0.0),
    (r"(mamba_)?(ssm_)?(d_)?state(_size)?|mamba_d_head", 16),
    (r"(mamba_n|n_mamba)_heads", 8),
    (r"\w*layer_period", 2),
    (r"\w*layer_offset", 1),
    (r"(mamba_)?(time_step|dt)_rank", 8),
    (r"(mamba_)?chunk_size|block_size", 16),
]
_VISION: _Rules = [
    (r"hidden_size|embed_dim|d_model", 32),
    (r"num_(hidden_|global_)?layers|depth", 2),
    (r"(num_|encoder_|decoder_)*(attention_|key_value_)?heads", 2),
    (r"(encoder_|decoder_)layers", 2),
    (r"head_dim", 16),
    (r"intermediate_size|mlp_dim", 64),
    (r"out_hidden_size|(text_)?projection_dim|output_dim|text_hidden_size|projector_output_dim", _WIDTH),
]
_HEAD = _WIDTH // _HEADS
_HYBRID = {"layer_types": ["linear_attention", "full_attention"] * 2}
_IMAGE_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_OWN: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8},
    "zamba": {"n_mamba_heads": 2, "layers_block_type": ["mamba", "hybrid"] * 2, "attention_hidden_size": 2 * _WIDTH},
    "zamba2": {
        **{"layers_block_type": ["mamba", "hybrid"] * 2, "use_mem_rope": True, "mamba_headdim": 16},
        **{"attention_hidden_size": 2 * _WIDTH, "attention_head_dim": 2 * _HEAD},
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "gemma3n_text": {
        **{"num_kv_shared_layers": 2, "intermediate_size": [128] * 4, "activation_sparsity_pattern": [0.0] * 4},
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "kimi_linear": _HYBRID,
    "granitemoehybrid": _HYBRID,
    "falcon_h1": {"mamba_d_ssm": 2 * _WIDTH, "mamba_d_head": 16},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 5, "vision_end_token_id": 6},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 5, "vision_end_token_id": 6},
    "bloom": {"n_layer": _LAYERS},
    "bamba": {"attn_layer_indices": [1, 3]},
    "glm4v_text": {"rope_parameters": _IMAGE_ROPE},
    "glm_ocr_text": {"rope_parameters": _IMAGE_ROPE},
    "qwen2_vl_text": {"rope_parameters": _IMAGE_ROPE},
    "qwen2_5_vl_text": {"rope_parameters": _IMAGE_ROPE},
    "qwen2_5_omni_text": {"rope_parameters": _IMAGE_ROPE},
    "blenderbot": {"encoder_layers": _LAYERS, "max_position_embeddings": 512},
    "big_bird": {"attention_type": "original_full"},
    "hunyuan_v1_dense": {"head_dim": _HEAD},
    "hunyuan_v1_moe": {"head_dim": _HEAD},
    "ministral": {"head_dim": _HEAD},
    "glm4v_moe_text": {"rope_parameters": {**_IMAGE_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "emu3": {"vocabulary_map": {"<image>": 4}},
    "rwkv": {"attention_hidden_size": _WIDTH},
    "xlnet": {"d_head": _HEAD},
    "xlstm": {"embedding_dim": _WIDTH, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "reformer": {"axial_pos_shape": [16, 32], "axial_pos_embds_dim": [_WIDTH // 2] * 2},
    "hunyuan_vl_text": {"head_dim": _HEAD, "rope_parameters": _IMAGE_ROPE},
    "nemotron": {"head_dim": _HEAD, "num_key_value_heads": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "longcat_flash": {"num_layers": _LAYERS, "zero_expert_num": 2, "qk_head_dim": 2 * _HEAD},
    "qwen4_exp_text": {
        **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": _HEAD},
        **{"indexer_budget": 512, "indexer_compress_ratio": 4},
    },
}
"""Settings of single families that no rule gives."""


def all_families() -> dict[str, str]:
    """The class name of each family's model, by the family's name."""
    found = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    for family, class_name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items():
        found[family if found.get(family, class_name) == class_name else family + IMAGES] = class_name
    return dict(sorted(found.items()))


def _shrunk(
    config_class: type[PreTrainedConfig], tokenizer: PreTrainedTokenizerBase, vision: bool = False
) -> dict[str, Any]:
    """Settings that make a family's config small."""
    default = config_class()
    rules, shrunk = _VISION if vision else _LANGUAGE, {}
    for name, value in vars(default).items():
        if isinstance(value, PreTrainedConfig):
            of_text = re.search("text|llm|decoder|language|thinker", name) is not None
            shrunk[name] = {**_shrunk(type(value), tokenizer, not of_text), "model_type": value.model_type}
        elif isinstance(value, list) and len(value) > _LAYERS and {*map(type, value)} == {str}:
            kinds = list(dict.fromkeys(value))  # of layers: each kind in turn
            shrunk[name] = [kinds[layer % len(kinds)] for layer in range(2 if vision else _LAYERS)]
        elif name == "rope_parameters" and "mrope_section" in (value or ()):
            half = int(_HEAD * value.get("partial_rotary_factor", 1)) // 2
            shrunk[name] = {**value, "mrope_section": [half // 4, half * 3 // 8, half - half // 4 - half * 3 // 8]}
        elif isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            small = next((small for pattern, small in rules if re.fullmatch(pattern, name)), value)
            shrunk[name] = small if small == 0 else min(small, value)
    if not vision:
        special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        special |= dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), len(tokenizer))
        special |= {"is_decoder": True}
        shrunk |= {name: value for name, value in special.items() if name in vars(default)}
        shrunk |= _OWN.get(config_class.model_type) or _OWN.get(config_class.model_type.removesuffix("_text"), {})
    return shrunk


def _variants(shrunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings, and others in case that they contradict each other."""

    def changed(settings: Any, leave: str, heads: int | None) -> Any:
        if not isinstance(settings, dict):
            return settings
        kept = {name: changed(value, leave, heads) for name, value in settings.items() if name != leave}
        return {**kept, **({"num_key_value_heads": heads} if heads and "num_key_value_heads" in kept else {})}

    for leave, heads in (("", None), ("", _HEADS), ("head_dim", None), ("head_dim", _HEADS)):
        yield changed(shrunk, leave, heads)


def tiny(family: str, tokenizer: PreTrainedTokenizerBase | None = None) -> PreTrainedModel:
    """A tiny random model of a family for a tokenizer (None: `gemma_like`), in evaluation mode and float32. Raises what
    the first of several attempts to build one, and to read a text with it, raised."""
    config_class = CONFIG_MAPPING[family.removesuffix(IMAGES)]
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family) == all_families()[family]
    build = (AutoModelForCausalLM if causal else AutoModelForImageTextToText).from_config
    first: Exception | None = None
    for settings in _variants(_shrunk(config_class, tokenizer or gemma_like())):
        torch.manual_seed(0)
        try:
            config = config_class(**settings)
            with torch.device("meta"):
                size = sum(each.numel() for each in build(config).parameters())
            if size > LARGEST:
                raise ValueError(f"the model has {size:,} parameters, too many for this test")
            model = build(config).float().eval()
            for parameter in model.parameters():
                # Large enough that a hidden state depends on the whole context.
                if parameter.ndim >= 2 and parameter.std() < 0.1:
                    torch.nn.init.normal_(parameter, std=0.1)
            with torch.no_grad():
                logits = model(input_ids=torch.arange(8, 28)[None]).logits
            if not logits.isfinite().all():
                raise ValueError("its logits are not finite")
            return model
        except Exception as error:
            first = first or error
    assert first is not None
    raise first
