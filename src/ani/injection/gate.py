"""The gate: an MLP that gives one logit for each number."""

from collections.abc import Sequence

import torch
from torch import nn

from ani.injection.config import AniConfig
from ani.injection.linear import Linear


class Gate(nn.Module):
    """Two-layer MLP that decides whether a number is a quantity (paper Eq. 2): z = MLP([RMSNorm(h); e / s]).

    Unless `gate_norm` is False, h passes through an RMSNorm, and e comes in the same unit, s (`embedding_scale`):
    hidden states of norm 100 and more drive σ into saturation within a few steps, where neither the loss nor the
    penalty has a gradient. The last layer starts at zero, so every gate starts half open (α = 0.5). Vectors of earlier
    layers each pass through a norm of their own. Only a learned gate reads e; others read the context alone.
    """

    def __init__(self, config: AniConfig) -> None:
        super().__init__()
        assert config.hidden_size is not None
        self.reads_value = config.gate == "learned"
        norm: type[nn.Module] = nn.RMSNorm if config.gate_norm else nn.Identity
        earlier = [width for *_, width in config.gate_reads]
        self.norm = norm(config.hidden_size, eps=1e-6)
        self.earlier_norms = nn.ModuleList(norm(size, eps=1e-6) for size in earlier)
        self.inner = Linear(config.hidden_size * (1 + self.reads_value) + sum(earlier), config.gate_hidden_size)
        self.dropout = nn.Dropout(config.gate_dropout)
        self.outer = Linear(config.gate_hidden_size, 1)
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
