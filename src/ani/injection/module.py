"""The trainable module: projects the features to an embedding, decides by the gate, and adds."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import nn

from ani.injection.config import AniConfig
from ani.injection.gate import Gate
from ani.injection.linear import Linear


class Injection(NamedTuple):
    """The module's result for N numbers; every field has N rows."""

    hidden_states: torch.Tensor
    """h + α·e, shape (N, d_model), in the dtype of the input."""
    logits: torch.Tensor
    """Gate logits z, shape (N,), at inference with `gate_bias`; infinite without a gate."""
    alpha: torch.Tensor
    """α as applied, shape (N,): σ(z), or the role, during training; 0 or 1 at inference and where it is forced."""
    before: torch.Tensor
    """h, shape (N, d_model), in the dtype in which the module computes."""
    embeddings: torch.Tensor
    """e in units of `embedding_scale`, shape (N, d_model)."""
    scaled: torch.Tensor
    """e, shape (N, d_model)."""

    @property
    def embedding_rms(self) -> torch.Tensor:
        """RMS of e in units of `embedding_scale`, shape (N,), detached."""
        return _rms(self.embeddings)

    @property
    def injected_ratio(self) -> torch.Tensor:
        """‖α·e‖ / ‖h‖, shape (N,), detached."""
        smallest = torch.finfo(torch.float32).tiny
        return self.alpha.detach() * _rms(self.scaled) / _rms(self.before).clamp(min=smallest)


def _rms(vectors: torch.Tensor) -> torch.Tensor:
    return vectors.detach().float().square().mean(dim=-1).sqrt()


class AniModule(nn.Module):
    """Adaptive numerical injection (paper Eq. 1, 2, 3, 5 and 6)::

        e = s · W_P φ(x)            z = MLP([RMSNorm(h); e / s]), at inference + `gate_bias` (the paper: 0)
        α = σ(z) while training,  1[σ(z) > 0.5] at inference
        h ← h + α · e

    s is `embedding_scale`, the RMS of the layer's own hidden states at numbers: in the large residual stream of a deep
    layer, an embedding learnt from zero at an adapter's learning rate would be negligible. W_P starts at zero, so an
    untrained module changes nothing, exactly; the gate starts half open, so W_P has a gradient. `gate="open"`: α = 1.
    `combine="replace"` or `"substitute"`: h ← h + α·(e − h), and W_P starts at random, with RMS(e) near s, because a
    state that is replaced by zero is lost.

    Args:
        config: With `hidden_size` and `embedding_scale` filled in.
        feature_size: Width of the number features, `d_fourier`.
    """

    def __init__(self, config: AniConfig, feature_size: int) -> None:
        super().__init__()
        assert config.hidden_size is not None and config.embedding_scale is not None
        self.config = config
        self.scale = config.embedding_scale
        self.forced: bool | None = None
        """True or False: every gate is open or closed (`ani.forced_gates`). None: the gate decides."""
        self.projection = Linear(feature_size, config.hidden_size, bias=False)
        if config.combine == "add":
            nn.init.zeros_(self.projection.weight)
        else:
            self.start_at_random()
        self.gate = None if config.gate == "open" else Gate(config).requires_grad_(config.gate != "fitted")

    def start_at_random(self) -> None:
        """Draw W_P anew, so that e has about the RMS of the layer's hidden states."""
        nn.init.normal_(self.projection.weight, std=self.projection.in_features**-0.5)

    def forward(
        self,
        hidden_states: torch.Tensor,
        features: torch.Tensor,
        roles: torch.Tensor | None = None,
        earlier: Sequence[torch.Tensor] = (),
        straight_through: bool = False,
    ) -> Injection:
        """Inject into the hidden states of N numbers: as in training if gradients are computed, else as at inference.

        Args:
            hidden_states: h, shape (N, d_model), any floating dtype; computed in float32, or in its dtype or the
                module's if that is wider.
            features: φ, shape (N, d_fourier), float32.
            roles: `ani.roles.Role`, int64 (N,); used in training unless `gate="learned"`.
            earlier: The gate's vectors of earlier layers, in the order of `config.gate_reads`, each (N, its width).
            straight_through: In training, the values are those of inference, and the gradients those of training.
        """
        relaxes = self.training and torch.is_grad_enabled() and self.gate is not None and self.forced is None
        given, own = hidden_states.dtype, self.projection.weight.dtype
        wider = torch.promote_types(given, own)
        dtype = torch.promote_types(wider, torch.float32)  # less would round h or the features
        hidden = hidden_states.to(dtype)
        # Autocast would round the features to 8 bits, in training only.
        rounds = torch.is_autocast_enabled(hidden.device.type)
        with torch.autocast(hidden.device.type, enabled=False) if rounds else nullcontext():
            embeddings = self.projection(features.to(dtype))
            if self.gate is not None:
                logits = self.gate(hidden, embeddings, [states.to(dtype) for states in earlier])
                logits = logits + (0.0 if relaxes and not straight_through else self.config.gate_bias)
            else:
                logits = hidden.new_full(hidden.shape[:1], torch.inf)
        scaled = self.scale * embeddings
        change = scaled if self.config.combine == "add" else scaled - hidden
        # z > 0 is σ(z) > 0.5.
        opened = logits > 0 if self.forced is None else torch.full_like(logits, self.forced, dtype=torch.bool)
        alpha = opened.to(dtype)
        # A closed gate returns h itself: bit for bit, also where h + 0·e would not be (−0, overflowing e).
        updated = torch.where(opened.unsqueeze(-1), hidden + change, hidden)
        if relaxes:
            alpha = torch.sigmoid(logits) if self.config.gate != "fitted" else alpha
            if self.config.gate != "learned":
                alpha = alpha.detach()
                if roles is not None:
                    alpha = torch.where(roles >= 0, roles.to(dtype), alpha)
            trained = hidden + alpha.unsqueeze(-1) * change
            updated = trained + (updated - trained).detach() if straight_through else trained
        return Injection(updated.to(hidden_states.dtype), logits, alpha, hidden, embeddings, scaled)
