"""The gate: decides from a frozen model's states whether the next token writes the pending value.

The gate reads the hidden states of some layers at one token, and the mean of the attention's values over the text up to
that token from some layers. `GateStates` takes both from the model's forward passes by hooks and from its KV cache. It
changes nothing: hidden states and caches stay the base model's, bit for bit.
"""

import inspect
import weakref
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import gelu, pad, rms_norm
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ani.errors import InputError
from ani.injection.model_parts import decoder_layers

KEPT = 32
"""Tokens of a forward pass whose states are kept: in assisted decoding, each token of a draft needs its own."""


class Gate(nn.Module):
    """Two-layer MLP over normalised parts: z = MLP([RMSNorm(part) for each part]).

    Args:
        sizes: Widths of the parts.
        hidden_size: Width of the inner layer.
        dropout: Dropout on the inner layer, while fitting.
    """

    def __init__(self, sizes: Iterable[int], hidden_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes = [*sizes]
        self.inner = nn.Linear(sum(self.sizes), hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(hidden_size, 1)

    def normalised(self, parts: torch.Tensor) -> torch.Tensor:
        """Each part over its root mean square; shape (…, sum of `sizes`)."""
        split = parts.split(self.sizes, dim=-1)
        return torch.cat([rms_norm(part, part.shape[-1:], eps=1e-6) for part in split], dim=-1)

    def forward(self, parts: torch.Tensor) -> torch.Tensor:
        """Gate logits z, shape (…,), of parts (…, sum of `sizes`); the gate is open where z > 0."""
        logits: torch.Tensor = self.outer(self.dropout(gelu(self.inner(self.normalised(parts))))).squeeze(-1)
        return logits


class GateStates:
    """The values that the gate reads from a model's latest forward pass.

    Args:
        model: A decoder-only transformers model. It gets hooks, which are removed when this object is deleted.
        layers: The layers whose hidden states are read, ascending: `hidden_states[l]` of transformers.
        context: The layers whose attention's values are read, ascending.
        kept: Tokens at the end of a pass whose states are kept; None: all.
    """

    def __init__(self, model: PreTrainedModel, layers: list[int], context: list[int], kept: int | None = KEPT) -> None:
        self.layers, self.context, self.kept = layers, context, kept
        self._states: dict[int, torch.Tensor] = {}
        self._cache: Cache | None = None
        self._mask: Any = None
        self._ids: torch.Tensor | None = None
        names = tuple(inspect.signature(type(model).forward).parameters)[1:]
        ours = weakref.ref(self)

        def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (states := ours()) is not None:
                given = {**dict(zip(names, args, strict=False)), **kwargs}
                states._states.clear()
                states._cache, states._mask = given.get("past_key_values"), given.get("attention_mask")
                states._ids = given.get("input_ids")

        def keep(index: int) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                if (states := ours()) is not None:
                    hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
                    # A copy: a view would keep the whole prompt's states alive.
                    states._states[index] = hidden.detach() if kept is None else hidden.detach()[:, -kept:].clone()

            return hook

        found = decoder_layers(model)
        hooks = [model.register_forward_pre_hook(begin, with_kwargs=True)]
        hooks += [found[index].register_forward_pre_hook(keep(index), with_kwargs=True) for index in layers]
        for hook in hooks:
            weakref.finalize(self, hook.remove)

    @property
    def length(self) -> int:
        """Tokens of the text, padding included, up to the end of the latest pass.

        Raises:
            InputError: There was no pass with a KV cache.
        """
        if self._cache is None:
            raise InputError("the calculator reads the KV cache: generate with use_cache=True")
        return int(self._cache.get_seq_length())

    def have_read(self, input_ids: torch.Tensor) -> bool:
        """Return whether the latest pass has read the last token of these texts, int64 (B, length); it has not while a
        draft is proposed."""
        if self._ids is None:
            return False
        place, begin = input_ids.shape[1] - 1, self.length - self._ids.shape[1]
        read = self._ids[:, : place + 1 - begin].to(input_ids.device)
        return begin <= place < self.length and torch.equal(input_ids[:, begin:], read)

    def parts(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """The gate's parts at tokens of the latest pass, float32 (R, N, sum of the widths), on one layer's device.

        Args:
            rows: Rows of the batch, int64 (R,).
            places: Places of N tokens in the text of each row, padding included, int64 (R, N).

        Raises:
            InputError: The states of a token are no longer kept.
        """
        length = self.length
        first = self._states[self.layers[0]]
        back = places - length + first.shape[1]
        if bool((back < 0).any()):
            raise InputError(f"the calculator keeps the states of the last {first.shape[1]} tokens of a pass")
        read = [self._states[index][rows.unsqueeze(1).to(first.device), back.to(first.device)] for index in self.layers]
        weights = self._text(rows, length).unsqueeze(1) * (torch.arange(length) <= places.cpu().unsqueeze(-1))
        read += [self._mean(index, rows, weights) for index in self.context]
        return torch.cat([part.to(first.device, torch.float32) for part in read], dim=-1)

    def _text(self, rows: torch.Tensor, length: int) -> torch.Tensor:
        """1 for text and 0 for padding, float32 (R, length), on the CPU."""
        mask: Any = self._mask
        if isinstance(mask, dict):
            mask = mask.get("full_attention", next(iter(mask.values())))
        if mask is None:
            return torch.ones(len(rows), length)
        if mask.ndim == 4:  # what the last token attends to
            mask = mask[:, 0, -1]
        seen = mask if mask.dtype == torch.bool or not mask.is_floating_point() else mask == 0
        shown: torch.Tensor = seen[rows.to(mask.device), :length].float().cpu()
        return shown

    def _mean(self, index: int, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The weighted means of a layer's cached values, (R, N, width); weights of shape (R, N, length)."""
        values: torch.Tensor = cast(Any, self._cache).layers[index].values  # (B, heads, tokens, width of a head)
        if len(rows) < len(values):
            values = values[rows.to(values.device)]
        kept, length = values.shape[2], weights.shape[2]
        # A window keeps fewer tokens, a static cache has room for more.
        weights = weights[..., length - kept :] if kept < length else pad(weights, (0, kept - length))
        weights = weights.to(values.device)
        summed = (weights.unsqueeze(1).to(values.dtype) @ values).transpose(1, 2).flatten(2)
        return summed.float() / weights.sum(dim=-1, keepdim=True).clamp(min=1)
