"""The self-test of `attach`: a model reads a text as ANI expects, whatever its family.

Layer l's input is the hidden state of each token of the text, and the cache shows what was read before. The same
forward pass measures the RMS of that hidden state, which is the unit of number embeddings.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ani.errors import InputError, one_line
from ani.injection.config import AniConfig
from ani.injection.locate import NumberLocator
from ani.injection.model_parts import decoder_layers
from ani.injection.running_pass import current_pass
from ani.models import evaluating

CALIBRATION_TEXT = (
    "Room 505 has a capacity of 10 people. The bill came to $23.50, and 8 guests paid 188 in total. "
    "In 2019 the town had 48210 inhabitants; 7% of them took bus 12. 345 + 678 = 1023. "
    "She ran 5.2 km in 31 minutes. Order 90417 holds 3 boxes of 250 screws. "
)
"""Text on whose numbers `attach` measures the layer's RMS; fixed, so that the same model gives the same scale."""
_CUT_TEXT = "It is 12345678901234567890"
"""Text that `generate` reads in two pieces: the second is the last token of a number."""


@contextmanager
def _inputs(layers: nn.ModuleList) -> Iterator[list[list[Any]]]:
    """Within the block, keep the hidden states that are the input of each layer, a list per layer: one per call."""
    inputs: list[list[Any]] = [[] for _ in layers]

    def keep(index: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        inputs[index].append(kwargs.get("hidden_states", args[0] if args else None))

    hooks = [layer.register_forward_pre_hook(partial(keep, i), with_kwargs=True) for i, layer in enumerate(layers)]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def measured_scale(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: AniConfig, locator: NumberLocator, check: bool
) -> float:
    """RMS of layer l's input at the tokens where it is edited, the median over a fixed text: in many models the first
    token is a hundred times larger than all others. If the config has a scale already, return that.

    Raises InputError if there is no such scale, and with `check` unless layer l's input is `hidden_states[l]`, of shape
    (B, T, d_model).
    """
    layer = config.layer
    encoded = tokenizer(CALIBRATION_TEXT, return_tensors="pt").to(model.device)
    ids = encoded["input_ids"]
    with evaluating(model), _refusing(model), _inputs(decoder_layers(model)) as inputs:
        outputs = model(input_ids=ids, output_hidden_states=True, use_cache=False, return_dict=True)
    if check:
        _check_inputs(model, inputs, layer, ids.shape[1], outputs.hidden_states)
    if config.embedding_scale is not None:
        return config.embedding_scale
    hidden = inputs[layer][0]
    positions = locator.batch(ids.tolist()).positions
    scale = float(hidden[0, positions].float().square().mean(dim=-1).sqrt().median())
    if not 0 < scale < float("inf"):
        raise InputError(
            f"the hidden states of layer {layer} have RMS {scale} at numbers, so no embedding scale can be measured; "
            "load the model's weights, or set embedding_scale in the config"
        )
    return scale


def _check_inputs(model: PreTrainedModel, inputs: list[list[Any]], layer: int, length: int, recorded: Any) -> None:
    calls = inputs[layer]
    if len(calls) != 1:
        raise _refusal(model, f"layer {layer} runs {len(calls)} times in a forward pass")
    wanted, found = (1, length, model.config.get_text_config().hidden_size), getattr(calls[0], "shape", None)
    if found != wanted:
        read = f"a tensor of shape {list(found)}" if found else repr(type(calls[0]).__name__)
        raise _refusal(model, f"layer {layer} reads {read}, where the hidden states of a text have {list(wanted)}")
    if recorded and len(inputs) > 1 and inputs[1] and _equal(inputs[1][0], recorded[0]):
        recorded = (inputs[0][0], *recorded)  # Mamba's hidden_states begin with the first layer's output
    if not recorded or not _equal(calls[0], recorded[layer]):
        raise _refusal(model, f"the input of layer {layer} is not the model's hidden_states[{layer}]")


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.allclose(first, second.to(first.device), rtol=0, atol=0, equal_nan=True)


@torch.no_grad()
def check_cache(model: Any, tokenizer: PreTrainedTokenizerBase, layer: int) -> None:
    """Raise InputError unless an attached model's second forward pass in `generate`, which reads one more token of a
    number, knows the tokens of the first."""
    ids = tokenizer(_CUT_TEXT, add_special_tokens=False, return_tensors="pt")["input_ids"].to(model.device)
    read: list[int] = []

    def count(_: nn.Module, args: Any, kwargs: Any) -> None:
        read.append(current_pass().start + kwargs.get("hidden_states", args[0] if args else None).shape[1])

    def last_token(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).index_fill_(1, ids[0, -1:].to(scores.device), 0.0)

    first = int(ids[0, 0])  # it isn't generated, and padding that equals EOS needs no mask
    settings = {"do_sample": False, "num_beams": 1, "use_cache": True, "disable_compile": True, "max_new_tokens": 2}
    settings |= {"pad_token_id": first, "eos_token_id": first}
    hook = decoder_layers(model)[layer].register_forward_pre_hook(count, with_kwargs=True)
    own, model.generation_config = model.generation_config, GenerationConfig(**cast(Any, settings))
    try:
        with evaluating(model), _refusing(model):
            model.generate(ids[:, :-1], logits_processor=[last_token])
    finally:
        model.generation_config = own
        hook.remove()
    wanted = [ids.shape[1] - 1, ids.shape[1]]
    if read != wanted:
        raise _refusal(model, f"generate reads a text up to its tokens {wanted}, and the caches show ANI {read}")


@contextmanager
def _refusing(model: nn.Module) -> Iterator[None]:
    """Turn the error of a model that can't read a text into an InputError."""
    try:
        yield
    except (torch.cuda.OutOfMemoryError, MemoryError, InputError):
        raise
    except Exception as error:  # a family's code may raise anything
        raise _refusal(model, f"it can't read a short text: {type(error).__name__}, {one_line(error, 200)}") from error


def _refusal(model: nn.Module, observed: str) -> InputError:
    return InputError(
        f"ANI can't be attached to {type(model).__name__}: {observed}; choose another model, or skip this test with "
        "check=False if you know better"
    )
