"""A base model whose checkpoint is quantized."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

import ani
from ani import AniConfig, InputError
from ani.models import load_model
from tests.tiny import encode, logits_of, pair, randomise

BLOCK = 8
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}


def in_fp8(path: Path, model: Any) -> None:
    """Write a model's checkpoint, with its linear layers in FP8, each block with its scale."""
    model.save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        blocks = weights[name].unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        scales = blocks.abs().amax(dim=(1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        weights[name] = (blocks / scales[:, None, :, None]).flatten(2).flatten(0, 1).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scales
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))


def packed(path: Path, model: Any) -> None:
    """Write a model's checkpoint, with its linear layers in packed integers of compressed-tensors."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    model = copy.deepcopy(model)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=8, strategy="channel"))
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]))
    for part in model.modules():
        if hasattr(part, "weight_scale"):
            low, high = part.weight.detach().aminmax(dim=1, keepdim=True)
            part.weight_scale.data.copy_(calculate_qparams(low, high, scheme.weights)[0])
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(path)
    compressor.update_config(path)


@pytest.mark.parametrize("write", [in_fp8, packed])
def test_train_save_load(tmp_path: Path, write: Callable[[Path, Any], None]) -> None:
    base, tokenizer = pair("llama")
    tokenizer.save_pretrained(tmp_path / "base")
    write(tmp_path / "base", base)

    def loaded() -> Any:
        return load_model(str(tmp_path / "base"), dtype="float32", device="cpu")

    ids, model = encode(tokenizer), loaded()
    before, exact = logits_of(model, ids), logits_of(base, ids)
    assert 1e-3 < (before - exact).abs().mean() / exact.abs().mean() < 0.5  # rounded, and not without scales
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    ani.attach(model, tokenizer, AniConfig(layer=2, gate_hidden_size=8, policy="after"))
    assert torch.equal(logits_of(model, ids), before)
    randomise(model, tokenizer)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model.train()(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    ani.save_adapter(model, tmp_path / "adapter")
    again = ani.load_adapter(loaded(), tokenizer, tmp_path / "adapter")
    torch.testing.assert_close(logits_of(again, ids), logits_of(model.eval(), ids), rtol=0, atol=1e-4)
    with pytest.raises(InputError, match="quantized"):
        ani.merge(tmp_path / "adapter", tmp_path / "merged")
