"""The self-test of `attach` refuses a model that reads a text otherwise, and leaves it as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ani import AniConfig, attach, load_adapter, save_adapter
from ani.injection.model_parts import decoder_layers, is_attached
from tests.families.models import tiny as family
from tests.refusals import refused
from tests.tiny import encode, logits_of, pair
from tests.tokenizers import gemma_like


def with_hook(change: Callable[[torch.Tensor], torch.Tensor]) -> PreTrainedModel:
    """A model whose layer 1 reads changed hidden states."""
    model = pair("gemma")[0]
    decoder_layers(model)[1].register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))
    return model


def run_twice() -> PreTrainedModel:
    model = pair("llama", gemma_like())[0]
    layers = decoder_layers(model)
    layers[2] = layers[1]
    return model


def forgetful() -> PreTrainedModel:
    """A model that keeps what it has read outside the cache that it returns."""
    model = pair("gemma")[0]
    forward, kept = model.forward, {}

    def without_cache(input_ids: torch.Tensor, past_key_values: Any = None, **given: Any) -> Any:
        outputs = forward(input_ids=input_ids, past_key_values=kept.pop("cache", None), **given)
        kept["cache"], outputs.past_key_values = outputs.past_key_values, None
        return outputs

    def inputs(input_ids: torch.Tensor, next_sequence_length: int | None = None, **given: Any) -> dict[str, Any]:
        return {"input_ids": input_ids[:, -(next_sequence_length or 0) :], "use_cache": True}

    model.forward, model.prepare_inputs_for_generation = without_cache, inputs
    return model


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: with_hook(lambda states: states + 1), "hidden_states[1]"),
        (lambda: family("cpmant"), "[1, 212, "),
        (run_twice, "2 times"),
        (forgetful, "cache"),
    ],
)
def test_what_is_refused(made: Callable[[], PreTrainedModel], words: str) -> None:
    model, tokenizer = made(), gemma_like()
    classes, attributes = [type(module) for module in model.modules()], set(vars(model))
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    refused(lambda: attach(model, tokenizer, AniConfig(layer=1)), type(model).__name__, words)
    assert not is_attached(model) and set(vars(model)) == attributes
    assert [type(module) for module in model.modules()] == classes
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


def test_it_can_be_skipped(tmp_path: Path) -> None:
    model, tokenizer = with_hook(lambda states: states + 1), gemma_like()
    before = logits_of(model, encode(tokenizer))
    attach(model, tokenizer, AniConfig(layer=1), check=False)
    assert is_attached(model) and torch.equal(logits_of(model, encode(tokenizer)), before)
    save_adapter(model, tmp_path / "adapter")
    other = with_hook(lambda states: states + 1)
    refused(lambda: load_adapter(other, tokenizer, tmp_path / "adapter"), "hidden_states[1]")
    load_adapter(other, tokenizer, tmp_path / "adapter", check=False)
    assert torch.equal(logits_of(other, encode(tokenizer)), before)
