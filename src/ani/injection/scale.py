"""Measures the RMS of a layer's hidden states, which is the unit of number embeddings."""

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.errors import InputError
from ani.injection.locate import NumberLocator
from ani.models import evaluating

CALIBRATION_TEXT = (
    "Room 505 has a capacity of 10 people. The bill came to $23.50, and 8 guests paid 188 in total. "
    "In 2019 the town had 48210 inhabitants; 7% of them took bus 12. 345 + 678 = 1023. "
    "She ran 5.2 km in 31 minutes. Order 90417 holds 3 boxes of 250 screws. "
)
"""Text on whose numbers `attach` measures the layer's RMS; fixed, so that the same model gives the same scale."""


@torch.no_grad()
def measured_scale(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layer: int, locator: NumberLocator
) -> float:
    """RMS of `hidden_states[layer]` at the tokens where it is edited, the median over a fixed text: in many models the
    first token is a hundred times larger than all others. Raises InputError if the layer's hidden states aren't of
    shape (B, T, d_model), or have no such scale."""
    encoded = tokenizer(CALIBRATION_TEXT, return_tensors="pt").to(model.device)
    with evaluating(model):
        hidden = model(
            input_ids=encoded["input_ids"], output_hidden_states=True, use_cache=False, return_dict=True
        ).hidden_states[layer]
    if hidden.ndim != 3:
        raise InputError(
            f"the hidden states of {type(model).__name__}'s layers have the shape {list(hidden.shape)}, not (batch, "
            "tokens, width): there is no single one to inject into; choose a model with one stream, such as Gemma 3"
        )
    positions = locator.batch(encoded["input_ids"].tolist()).positions
    scale = float(hidden[0, positions].float().square().mean(dim=-1).sqrt().median())
    if not 0 < scale < float("inf"):
        raise InputError(
            f"the hidden states of layer {layer} have RMS {scale} at numbers, so no embedding scale can be measured; "
            "load the model's weights, or set embedding_scale in the config"
        )
    return scale
