"""The whole life of an adapter in seven families: attach, train, save, load, generate, merge, reload."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

import ani
from ani import load_adapter, save_adapter
from ani.injection.model_parts import ani_module, last_decision, number_locator
from ani.models import load_model, load_tokenizer
from ani.training.recipe import Recipe
from ani.training.run import with_adapter
from tests import tokenizers
from tests.families.checks import deviation
from tests.families.models import tiny
from tests.tiny import encode, logits_of, randomise

PROMPT, ANSWER = "What is 1234 + 567?", " 1801."
TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "gpt2": tokenizers.gpt2,
    "gpt_neox": tokenizers.smollm2,
    "gemma4": tokenizers.gemma_like,
    "llama4, images": tokenizers.gemma_like,
    "gpt_oss": tokenizers.gemma_like,
    "qwen3_5, images": tokenizers.gemma_like,
    "qwen2_5_vl": tokenizers.gemma_like,
}


@pytest.mark.parametrize("family", TOKENIZERS)
def test_life_of_an_adapter(family: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[family]()
    base = tiny(family, tokenizer)
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    model, tokenizer = (
        load_model(str(tmp_path / "base"), dtype="float32", device="cpu"),
        load_tokenizer(str(tmp_path / "base")),
    )
    assert type(model) is type(base)
    ids = encode(tokenizer, PROMPT)
    before = logits_of(model, ids)

    ani.attach(model.requires_grad_(False), tokenizer, ani.AniConfig(layer=1, gate="open"))
    assert torch.equal(logits_of(model, ids), before)
    row = encode(tokenizer, PROMPT + ANSWER)
    labels = torch.where(torch.arange(row.shape[1]) < ids.shape[1], -100, row)
    optimizer = torch.optim.AdamW(ani_module(model).parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = model.train()(input_ids=row, labels=labels, use_cache=False).loss
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]

    expected = logits_of(model.eval(), ids)
    assert deviation(expected, before) > 1e-3
    save_adapter(model, tmp_path / "adapter")
    loaded = load_model(str(tmp_path / "base"), dtype="float32", device="cpu")
    load_adapter(loaded, tokenizer, tmp_path / "adapter")
    assert torch.equal(logits_of(loaded, ids), expected)
    greedy = {"max_new_tokens": 6, "do_sample": False, "disable_compile": True}
    answer = loaded.generate(ids, use_cache=True, **greedy)
    assert torch.equal(loaded.generate(ids, use_cache=False, **greedy), answer)

    ani.merge(tmp_path / "adapter", tmp_path / "merged", dtype="float32")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert deviation(logits_of(merged, ids), expected) < 1e-5
    assert torch.equal(merged.generate(ids, **greedy), answer)
    assert {name for name, _ in base.named_parameters()} <= {name for name, _ in merged.named_parameters()}
    again = load_model(str(tmp_path / "merged"), dtype="float32", device="cpu")
    assert torch.equal(logits_of(again, ids), logits_of(merged, ids))


def test_images_are_boundaries() -> None:
    """Image tokens separate numbers: of `12`, an image and `34`, each number is injected, at its own token."""
    tokenizer, model = tokenizers.gemma_like(), tiny("qwen2_5_vl")
    image = model.config.image_token_id = tokenizer.unk_token_id
    parts = [encode(tokenizer, "Room 12"), torch.full((1, 4), image), encode(tokenizer, "34 apples and 5 more")]
    ids, vision = torch.cat(parts, dim=1), model.config.vision_config
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    given = {
        "pixel_values": torch.randn(16, patch, generator=torch.Generator().manual_seed(0)),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (ids == image).int(),
    }
    before = logits_of(model, ids, **given)
    ani.attach(model, tokenizer, ani.AniConfig(layer=1, policy="terminal", gate="open"))
    assert torch.equal(logits_of(model, ids, **given), before)
    randomise(model, tokenizer)
    assert deviation(logits_of(model, ids, **given), before) > 1e-3
    decision, numbers = last_decision(model), number_locator(model).scanner.scan(ids[0].tolist())
    assert [number.text for number in numbers] == ["12", "34", "5"] and decision is not None
    assert decision.numbers.positions.tolist() == [number.last_token for number in numbers]
    assert numbers[0].last_token + 4 < numbers[1].first_token


def test_a_recipe_trains_the_decoder_alone(tmp_path: Path) -> None:
    """PEFT would add LoRA to Gemma 3's image tower too, which no text reaches."""
    tokenizer, settings = tokenizers.gemma_like(), {"quantization": "none", "lora": {"r": 2}, "ani": {"layer": 1}}
    recipe = Recipe.model_validate({"output": str(tmp_path), "data": [{"kind": "diagnostic", "count": 1}], **settings})
    model = with_adapter(tiny("gemma3"), tokenizer, recipe)
    ids = encode(tokenizer, PROMPT)
    model.train()(input_ids=ids, labels=ids).loss.backward()
    trained = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert sum("lora_" in name for name in trained) == 2 * 4 * 7  # A and B of seven layers in each decoder layer
    assert all(gradient is not None for gradient in trained.values())
    save_adapter(model, tmp_path / "adapter")
    load_adapter(tiny("gemma3"), tokenizer, tmp_path / "adapter")
