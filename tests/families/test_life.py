"""Models that also read images: their texts alone are injected and trained."""

from pathlib import Path

import torch

import ani
from ani import load_adapter, save_adapter
from ani.injection.model_parts import last_decision, number_locator
from ani.training.recipe import Recipe
from ani.training.run import with_adapter
from tests import tokenizers
from tests.families.checks import deviation
from tests.families.models import tiny
from tests.tiny import encode, logits_of, randomise

PROMPT = "What is 1234 + 567?"


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
