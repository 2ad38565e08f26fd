"""The trainable module: projects features to an embedding, opens a gate where its logit is above 0, and adds.

`ani.injection.attach` writes the new hidden state into the model, `ani.serving.vllm` in vLLM.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal, NamedTuple

import torch
from torch import nn

from ani.injection.config import AniConfig
from ani.injection.gate import Gate


class Injection(NamedTuple):
    """What the module did to N hidden states; every field has N rows."""

    hidden_states: torch.Tensor
    """h + α·e, shape (N, d_model), in the dtype of the input."""
    logits: torch.Tensor
    """Gate logits z, shape (N,), at inference with `gate_bias`; infinite without a gate."""
    alpha: torch.Tensor
    """α as applied: σ(z) while training, or the role (`gate="supervised"`); 1[σ(z) > 0.5] at inference, 0 or 1 where it
    is forced; shape (N,)."""
    before: torch.Tensor
    """h, shape (N, d_model), in the module's dtype."""
    embeddings: torch.Tensor
    """e in units of `embedding_scale`, shape (N, d_model)."""
    scaled: torch.Tensor
    """e, shape (N, d_model)."""

    # Computed when asked for: a decode step needs neither.
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

    s is `embedding_scale`, the RMS of the layer's own hidden states at numbers: the residual stream of a deep layer
    is so large that an embedding learnt from zero at an adapter's learning rate would be lost in it. W_P starts at
    zero, so an untrained module changes nothing, exactly; the gate starts half open, so W_P has a gradient.

    The paper's baselines differ in two settings (`ani.injection.methods`): `gate="open"` is α = 1 without a gate, and
    `combine="replace"` or `"substitute"` is h ← h + α·(e − h). A state that is replaced by zero is lost, so W_P then
    starts at random, with RMS(e) near s.

    Args:
        config: With `hidden_size` and `embedding_scale` filled in.
        feature_size: Width of the number features, `d_fourier`.
    """

    def __init__(self, config: AniConfig, feature_size: int) -> None:
        super().__init__()
        assert config.hidden_size is not None and config.embedding_scale is not None
        self.config = config
        self.scale = config.embedding_scale
        self.forced: bool | Literal["by role"] | None = None
        """Every gate open or shut, whatever it has learnt (`ani.injection.inspection.forced_gates`); "by role": those
        of numbers whose role is known (`forced_numbers`)."""
        self.projection = nn.Linear(feature_size, config.hidden_size, bias=False)
        if config.combine == "add":
            nn.init.zeros_(self.projection.weight)
        else:
            nn.init.normal_(self.projection.weight, std=feature_size**-0.5)
        self.gate: Gate | None = None
        if config.gate != "open":
            reads_value = config.gate == "learned"
            earlier = [width for *_, width in config.gate_reads]
            self.gate = Gate(
                config.hidden_size, config.gate_hidden_size, config.gate_dropout, reads_value, earlier
            ).requires_grad_(config.gate != "fitted")

    def forward(
        self,
        hidden_states: torch.Tensor,
        features: torch.Tensor,
        roles: torch.Tensor | None = None,
        earlier: Sequence[torch.Tensor] = (),
    ) -> Injection:
        """Inject into the hidden states of N numbers.

        Args:
            hidden_states: Shape (N, d_model), any floating dtype; computed in the module's own dtype.
            features: φ, shape (N, d_fourier), float32.
            roles: int64 (N,), 1 quantitative, 0 nominal, negative unknown; for `gate="supervised"` in training, and
                gates that are forced by role.
            earlier: What the gate reads of earlier layers at the same numbers, in the order of `config.gate_reads`:
                each of shape (N, its width).
        """
        dtype = self.projection.weight.dtype
        hidden = hidden_states.to(dtype)
        # Autocast would round the features to 8 bits, in training only.
        rounds = torch.is_autocast_enabled(hidden.device.type)
        with torch.autocast(hidden.device.type, enabled=False) if rounds else nullcontext():
            embeddings = self.projection(features.to(dtype))
            if self.gate is not None:
                logits = self.gate(hidden, embeddings, [states.to(dtype) for states in earlier])
                logits = logits + (0.0 if self.training else self.config.gate_bias)
            else:
                logits = hidden.new_full(hidden.shape[:1], torch.inf)
        scaled = self.scale * embeddings
        change = scaled if self.config.combine == "add" else scaled - hidden
        if self.training and self.gate is not None and self.forced is None:
            alpha = torch.sigmoid(logits) if self.config.gate != "fitted" else (logits > 0).to(dtype)
            if self.config.gate != "learned":
                alpha = alpha.detach()
                if roles is not None:
                    alpha = torch.where(roles >= 0, roles.to(dtype), alpha)
            updated = hidden + alpha.unsqueeze(-1) * change
        else:
            # z > 0 is σ(z) > 0.5.
            opened = logits > 0
            if isinstance(self.forced, bool):
                opened = torch.full_like(opened, self.forced)
            elif self.forced == "by role" and roles is not None:
                opened = torch.where(roles < 0, opened, roles > 0)
            alpha = opened.to(dtype)
            # A closed gate returns h itself: bit for bit, also where h + 0·e would not be (−0, overflowing e).
            updated = torch.where(opened.unsqueeze(-1), hidden + change, hidden)
        return Injection(updated.to(hidden_states.dtype), logits, alpha, hidden, embeddings, scaled)

    def auxiliary_loss(
        self, injection: Injection, roles: torch.Tensor, totals: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What ANI adds to the language model's loss, a scalar; 0 without numbers::

            λ·mean(r·α(1−α)) + w·mean over known roles of −log p(role)

        The first term is the binarization penalty, a mean over numbers, not tokens (paper Eq. 4). r = min(1, RMS(e) /
        `penalty_ramp`) phases it in: while W_P is close to zero the loss says nothing about the gate, and a constant
        penalty would drive it to an arbitrary end from which it can't return. The second is `role_weight`'s.

        Args:
            injection: What `forward` returned, in training mode.
            roles: int64 (N,), 1 quantitative, 0 nominal, negative unknown.
            totals: How many numbers and known roles the means are over, int64 (2,), where these are only some of them:
                of an optimizer step's other batches, on any process. None: those given here.
        """
        alpha = injection.alpha.float()
        if self.gate is None or self.config.gate == "fitted":
            return alpha.new_zeros(())
        known = roles >= 0
        # How many there are is nothing that a GPU should be waited for.
        if totals is None:
            totals = torch.stack([torch.ones_like(roles).sum(), known.sum()])
        numbers, with_role = totals.to(alpha.device).clamp(min=1)
        penalties = alpha * (1 - alpha)
        if self.config.penalty_ramp > 0:
            penalties = penalties * (injection.embedding_rms / self.config.penalty_ramp).clamp(max=1)
        loss: torch.Tensor = self.config.penalty * penalties.sum() / numbers
        if self.config.role_weight > 0:
            surprise = nn.functional.binary_cross_entropy_with_logits(
                injection.logits.float(), roles.clamp(min=0).float(), known.float(), reduction="sum"
            )
            loss = loss + self.config.role_weight * surprise / with_role
        return loss
