"""Every setting needed to rebuild an ANI module; knows nothing about models or tensors."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

FORMAT_VERSION = 1
"""Version of the adapter format on disk; raised when an older reader would misread a newer file."""


class AniConfig(BaseModel):
    """Settings of one ANI module (paper Section 3, "Hyperparameters" for the defaults).

    `embedding_scale`, `hidden_size`, `model_type` and `num_hidden_layers` are facts about the model that `attach`
    fills in; it refuses a model of another type, width or depth.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: int = Field(ge=0)
    """Injection layer l: the edited hidden state is `hidden_states[l]` of transformers; 0 is the embedding output."""
    policy: Literal["terminal", "running"] = "terminal"
    """`terminal`: a prompt number's last token. `running`: every digit token, with the value of the digits so far."""
    scope: Literal["prompt", "all"] = "prompt"
    """Only with `terminal`: `all` also injects into the response while training (Algorithm 1 read literally)."""
    integer_digits: int = Field(default=10, ge=1, le=400)
    fraction_digits: int = Field(default=6, ge=0, le=400)
    bases: tuple[Literal[2, 5, 10], ...] = (10,)
    """Bases b of the Fourier periods b·10^k."""
    sign: Literal["phase", "feature", "none"] = "phase"
    overflow: Literal["wrap", "skip"] = "wrap"
    """Numbers with more than `integer_digits` integer digits: keep the low digits, or leave the number alone."""
    gate_hidden_size: int = Field(default=128, ge=1)
    gate_dropout: float = Field(default=0.1, ge=0, lt=1)
    penalty: float = Field(default=0.1, ge=0)
    """λ of the binarization penalty λ·mean(α(1−α)) (paper Eq. 4)."""
    penalty_ramp: float = Field(default=0.1, ge=0)
    """RMS of e, in units of the hidden state's, at which the penalty has its full weight; below it grows linearly,
    so that the gate is not pushed to decide before there is something to decide about. 0: constant (the paper)."""
    role_weight: float = Field(default=0.0, ge=0)
    """Weight of the gate's cross-entropy on numbers whose role the data tells. 0 is the paper: only the language
    model's loss and the penalty teach the gate."""
    embedding_scale: float | None = Field(default=None, gt=0)
    """RMS of the layer's hidden states at number tokens: the unit in which e is learnt. None: measure on attach."""
    hidden_size: int | None = Field(default=None, ge=1)
    model_type: str | None = None
    num_hidden_layers: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.policy == "running" and self.scope == "all":
            raise ValueError("scope='all' belongs to policy='terminal'; policy='running' always covers all text")
        return self
