"""The settings of an ANI module."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from ani.encoders import EncoderSettings
from ani.injection.methods import DEFAULT_POLICY, Policy

Layer = Annotated[int, Field(ge=0, le=10_000)]


class InjectionSettings(EncoderSettings):
    """Every setting except the layer, which a recipe may leave to probing. The defaults are the paper's, except where
    docs/paper.md names another choice."""

    policy: Policy = DEFAULT_POLICY
    """Tokens that carry a number. `terminal`: a prompt number's last token (the paper). `digitwise`: every token of a
    prompt's number. `running`: every digit token, with the value of the digits so far. `after`: the first token from
    which it is certain that the number is complete, usually the token right after it."""
    scope: Literal["prompt", "all"] = "prompt"
    """Only for `terminal`: `all` also injects into the response during training (Algorithm 1 read literally)."""
    combine: Literal["add", "replace", "substitute"] = "add"
    """`add`: h ← h + α·e. `replace`: h ← h + α·(e − h). `substitute`: h ← e at layer 0, and no token attends to the
    number's other sub-tokens, so that the number has one position."""
    gate: Literal["learned", "supervised", "fitted", "open"] = "learned"
    """`learned`: by the language model's loss and the penalty, and by roles if `role_weight` is above 0 (the paper).
    `supervised`: by roles alone, from the context without e. During training the known role, not the gate, decides
    whether a number is injected, so the module can learn before the gate is accurate. `fitted`: by roles alone, before
    training, on the frozen model's standardised states (`ani.training.fitted_gate`). `open`: no gate, α = 1 (the
    paper's static injection)."""
    gate_layers: tuple[Layer, ...] = ()
    """Earlier layers whose hidden states the gate also reads, ascending. Empty: only layer l (the paper)."""
    gate_context: tuple[Layer, ...] = ()
    """Earlier layers, ascending; of each the gate also reads the mean of its attention's value vectors over the text so
    far. While an answer is written, this mean keeps the question, and the token's own state is about the next word."""
    gate_hidden_size: int = Field(default=128, ge=1, le=2**16)
    """Width of the gate's inner layer."""
    gate_norm: bool = True
    """True: each vector that the gate reads, but e, passes through an RMSNorm; false: h as it is (the paper)."""
    gate_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on that layer."""
    gate_bias: float = Field(default=0.0, ge=-100, le=100)
    """Number added to the gate's logit z at inference. log(k) suits users for whom a missing injection costs k times
    what a wrong one costs, if roles were equally frequent in training. 0 is the paper."""
    penalty: float = Field(default=0.1, ge=0)
    """λ of the binarization penalty λ·mean(α(1−α)) (paper Eq. 4)."""
    penalty_ramp: float = Field(default=0.1, ge=0)
    """RMS of e, in units of the hidden state's, from which the penalty has full weight; below, it grows linearly, so
    that the gate decides only once there is something to decide about. 0: constant (the paper)."""
    role_weight: float = Field(default=0.0, ge=0)
    """Weight of the gate's cross-entropy on numbers of known role. 0: no role trains the gate (the paper)."""
    embedding_scale: float | None = Field(default=None, gt=0)
    """RMS of the layer's hidden states at numbers, the unit of e. None: measured by `attach`. 1: the paper."""
    hidden_size: int | None = Field(default=None, ge=1, le=2**20)
    """Width of the model. `attach` fills in this fact and the next three if they are None, and compares them if not."""
    value_size: int | None = Field(default=None, ge=0, le=2**20)
    """Width of the attention's values, all heads together; 0 if the attention isn't built like Llama's."""
    model_type: str | None = None
    """Family of the model."""
    num_hidden_layers: Layer | None = None
    """Number of decoder layers of the model."""

    @property
    def gate_reads(self) -> list[tuple[int, str, int]]:
        """The gate's vectors of earlier layers, in order: layer, "states" or "values", and width."""
        states = [(index, "states", self.hidden_size or 0) for index in self.gate_layers]
        return sorted(states + [(index, "values", self.value_size or 0) for index in self.gate_context])

    @property
    def causal(self) -> bool:
        """True if what a token carries depends on no later token, and so is the same in a prompt and an answer."""
        return self.policy in ("running", "after")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        layer = getattr(self, "layer", None)
        if self.policy != "terminal" and self.scope == "all":
            raise ValueError(f"scope='all' needs policy='terminal', not {self.policy!r}")
        if self.gate == "supervised" and not self.role_weight:
            raise ValueError("gate='supervised' learns from known roles alone, so role_weight must be above 0")
        needed = {"policy": "terminal", "scope": "prompt", "gate": "open"}
        if self.combine == "substitute" and (layer or any(getattr(self, k) != v for k, v in needed.items())):
            raise ValueError("combine='substitute' needs layer=0, policy='terminal', scope='prompt' and gate='open'")
        for name, layers in {"gate_layers": self.gate_layers, "gate_context": self.gate_context}.items():
            below = not isinstance(layer, int) or all(each < layer for each in layers)
            if not below or list(layers) != sorted(set(layers)):
                raise ValueError(f"{name} must ascend, each below the injection layer, but are {[*layers]}")
            if layers and self.gate == "open":
                raise ValueError(f"gate='open' has no gate that could read {name}")
        return self


class AniConfig(InjectionSettings):
    """Settings of one ANI module (paper Section 3 and "Hyperparameters")."""

    layer: Layer
    """Injection layer l: the edited hidden state is `hidden_states[l]` of transformers; 0 is the embedding output."""

    @field_validator("layer", mode="before")
    @classmethod
    def _number(cls, layer: object) -> object:
        if isinstance(layer, str):
            raise ValueError(f"layer must be a number, not {layer!r:.80}; ani.select_layer finds one by probing")
        return layer
