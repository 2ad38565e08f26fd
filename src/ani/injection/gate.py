"""The gate: an MLP that gives one logit for each number."""

from collections.abc import Sequence

import torch
from torch import nn

from ani.injection.linear import Linear


class Gate(nn.Module):
    """Two-layer MLP that decides whether a number is a quantity (paper Eq. 2): z = MLP([RMSNorm(h); e / s]).

    Unless `normed` is False, h passes through an RMSNorm, and e comes in the same unit, s (`embedding_scale`): hidden
    states of norm 100 and more drive σ into saturation within a few steps, where neither the loss nor the penalty has a
    gradient. The last layer starts at zero, so every gate starts half open (α = 0.5). Vectors of earlier layers each
    pass through a norm of their own.

    Args:
        hidden_size: Width of the model, `d_model`.
        gate_hidden_size: Width of the MLP's inner layer.
        dropout: Dropout on the inner layer.
        reads_value: True if the gate reads e; else it reads the context alone, z = MLP(RMSNorm(h)).
        earlier: Widths of the vectors of earlier layers that it reads.
        normed: False if h and the vectors of earlier layers are read as they are.
    """

    def __init__(
        self,
        hidden_size: int,
        gate_hidden_size: int,
        dropout: float,
        reads_value: bool = True,
        earlier: Sequence[int] = (),
        normed: bool = True,
    ) -> None:
        super().__init__()
        self.reads_value = reads_value
        norm: type[nn.Module] = nn.RMSNorm if normed else nn.Identity
        self.norm = norm(hidden_size, eps=1e-6)
        self.earlier_norms = nn.ModuleList(norm(size, eps=1e-6) for size in earlier)
        self.inner = Linear(hidden_size * (1 + reads_value) + sum(earlier), gate_hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.outer = Linear(gate_hidden_size, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(
        self, hidden_states: torch.Tensor, embeddings: torch.Tensor, earlier: Sequence[torch.Tensor] = ()
    ) -> torch.Tensor:
        """Return the gate logits z, shape (N,), for hidden states and number embeddings, each of shape (N, d_model),
        and vectors of earlier layers, each of shape (N, its width)."""
        read = [self.norm(hidden_states)]
        read += [norm(states) for norm, states in zip(self.earlier_norms, earlier, strict=True)]
        if self.reads_value:
            read.append(embeddings)
        inner = nn.functional.gelu(self.inner(torch.cat(read, dim=-1)))
        if torch.is_grad_enabled():  # not in the rollouts of a model that is being trained
            inner = self.dropout(inner)
        logits: torch.Tensor = self.outer(inner).squeeze(-1)
        return logits
