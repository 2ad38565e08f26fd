"""The gate's vectors of earlier layers: their hidden states (`gate_layers`), and the mean of their attention's values
over the text so far (`gate_context`)."""

import copy
import sys
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ani.errors import InputError
from ani.injection.classes import ClassOfBaseInstances, restore_class, swap_class
from ani.injection.config import AniConfig
from ani.injection.running_pass import current_pass, running_pass


def read_earlier_layers(layers: nn.ModuleList, config: AniConfig) -> None:
    """Let the decoder layers that the config names keep their vectors for the gate; raises InputError if their
    attention isn't built like Llama's."""
    if config.gate_context and not config.value_size:
        raise InputError(f"gate_context needs attention as Llama has it, and {type(layers[0]).__name__} has another")
    for index in config.gate_layers:
        swap_class(layers[index], _GateLayer, ClassOfBaseInstances)
    for index in config.gate_context:
        attention: Any = layers[index].self_attn
        attention.ani_config, attention.config = attention.config, copy.copy(attention.config)
        attention.config._attn_implementation_internal = _CONTEXT


def forget_earlier_layers(layers: nn.ModuleList, config: AniConfig) -> None:
    """Undo `read_earlier_layers`."""
    for index in config.gate_layers:
        restore_class(layers[index])
    for index in config.gate_context:
        attention: Any = layers[index].self_attn
        attention.config = vars(attention).pop("ani_config")


class _GateLayer(nn.Module):
    """Mixed into the class of a layer of `gate_layers`: keeps its input's hidden states at the numbers."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        current = current_pass()
        if len(current.numbers) or current.model.training:
            states = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            current.earlier.append(states[current.numbers.at(states.device)])
        return super().__call__(*args, **kwargs)


_CONTEXT = "ani_context"
"""Name of `_context_attention` among transformers' attention functions."""


def _context_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The attention function of the layers of `gate_context`.

    It calls the model's own twice: for the tokens' queries, and for queries of zeros. Zeros weigh all values alike, so
    the second output is their mean, the same for all query heads that use the same value head.
    """
    attention: Any = module
    eager = vars(sys.modules[type(module).__module__])["eager_attention_forward"]
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention.ani_config._attn_implementation, eager)
    current = running_pass.get()  # none where gradient checkpointing computes a layer again
    if current is not None and (len(current.numbers) or current.model.training):
        with torch.no_grad():
            mean = attend(module, torch.zeros_like(query), key, value, attention_mask, **{**kwargs, "dropout": 0.0})[0]
            queries_per_value = query.shape[1] // value.shape[1]
            current.earlier.append(mean[:, :, ::queries_per_value].flatten(2)[current.numbers.at(mean.device)])
    attended: tuple[torch.Tensor, torch.Tensor | None] = attend(module, query, key, value, attention_mask, **kwargs)
    return attended


ALL_ATTENTION_FUNCTIONS.register(_CONTEXT, _context_attention)
