"""The settings of an ANI module."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ani.encoders import EncoderSettings
from ani.injection.methods import DEFAULT_POLICY, Policy

MOST_LAYERS = 10_000
"""Of a model; no file makes anything build more."""


class InjectionSettings(EncoderSettings):
    """Every setting but the layer, which a recipe may leave to be found."""

    policy: Policy = DEFAULT_POLICY
    """`terminal`: a prompt number's last token. `digitwise`: every token of a prompt's number, with its whole value
    (paper Section "Semantic Probing and Adaptive Integration"). `running`: every digit token, with the value of the
    digits so far. `after`: the first token that shows a number to be over (of one that ends a prompt, the first
    generated one), with its whole value; of two numbers that one token shows, the later."""
    scope: Literal["prompt", "all"] = "prompt"
    """With `terminal` alone: `all` also injects into the response while training (Algorithm 1 read literally)."""
    combine: Literal["add", "replace", "substitute"] = "add"
    """`add`: h ← h + α·e. `replace`: h ← h + α·(e − h), which is e where the gate is open. `substitute`: h ← e at layer
    0, and nothing attends to the number's other sub-tokens, so that one position is all there is of it."""
    gate: Literal["learned", "supervised", "fitted", "open"] = "learned"
    """`learned`: by the language model's loss and the penalty, and where `role_weight` says so, from roles (the paper).
    `supervised`: from roles alone, and by the context alone, without e. A number whose role is known is injected by it
    while training, so that the gate needn't be right before there is something to inject, and isn't drawn open by what
    the model gains from it in other texts. `fitted`: from roles alone, too, but before training, on the frozen
    model's standardised states (`ani.training.fitted_gate`); training leaves it as it is. `open`: no gate, α = 1 (the
    paper's static injection)."""
    gate_layers: tuple[Annotated[int, Field(ge=0, le=MOST_LAYERS)], ...] = ()
    """Layers whose hidden states the gate reads beside the injection layer's: ascending, each below it, since what
    comes later isn't known when the gate decides. Empty: that layer alone (the paper)."""
    gate_context: tuple[Annotated[int, Field(ge=0, le=MOST_LAYERS)], ...] = ()
    """Layers of whose attention the gate reads the mean of the values of the text so far, all heads'. Ascending, each
    below the injection layer. While an answer is written, the mean still tells what was asked; the token's own hidden
    state is about the next word. Empty: none (the paper)."""
    gate_hidden_size: int = Field(default=128, ge=1, le=2**16)
    """Width of the gate's inner layer."""
    gate_dropout: float = Field(default=0.1, ge=0, lt=1)
    """On that layer."""
    gate_bias: float = Field(default=0.0, ge=-100, le=100)
    """Added to the gate's logit z at inference: which way a doubt goes. log(k) is for users whom an injection that is
    missed costs k times what one too many does, if roles were equally frequent in training. 0 is the paper."""
    penalty: float = Field(default=0.1, ge=0)
    """λ of the binarization penalty λ·mean(α(1−α)) (paper Eq. 4)."""
    penalty_ramp: float = Field(default=0.1, ge=0)
    """RMS of e, in units of the hidden state's, at which the penalty has its full weight; below it grows linearly,
    so that the gate is not pushed to decide before there is something to decide about. 0: constant (the paper)."""
    role_weight: float = Field(default=0.0, ge=0)
    """Weight of the gate's cross-entropy on numbers whose role the data tells. 0 is the paper: only the language
    model's loss and the penalty teach the gate."""
    embedding_scale: float | None = Field(default=None, gt=0)
    """RMS of the layer's hidden states at number tokens: the unit in which e is learnt. None: measure on attach. 1: no
    unit (the paper)."""
    hidden_size: int | None = Field(default=None, ge=1, le=2**20)
    """Of the model, as are `value_size`, `model_type` and `num_hidden_layers`; None: filled in on attach, and checked
    ever after."""
    value_size: int | None = Field(default=None, ge=0, le=2**20)
    """Width of its attention's values, all heads together; 0: not built like Llama's, as `gate_context` needs it."""
    model_type: str | None = None
    """Its family."""
    num_hidden_layers: int | None = Field(default=None, ge=1, le=MOST_LAYERS)
    """Its decoder layers."""

    @property
    def gate_reads(self) -> list[tuple[int, str, int]]:
        """What the gate reads beside the injection layer's hidden state, in its order: layer, "states" or "values" (the
        mean of its attention's), and width."""
        states = [(index, "states", self.hidden_size or 0) for index in self.gate_layers]
        return sorted(states + [(index, "values", self.value_size or 0) for index in self.gate_context])

    @property
    def causal(self) -> bool:
        """Whether what a token carries depends on no later token, and so is the same in a prompt and an answer."""
        return not self.reads_literals or self.policy in ("running", "after")

    @property
    def reads_literals(self) -> bool:
        """Whether numbers as they are written are injected."""
        return self.values != "pending"

    @property
    def reads_pending(self) -> bool:
        """Whether pending values are injected."""
        return self.values != "literals"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.policy != "terminal" and self.scope == "all":
            raise ValueError(
                "scope='all' is for policy='terminal': 'running' and 'after' always cover all text, and 'digitwise' "
                "would tell a response's first digit what the rest will be"
            )
        if self.gate == "supervised" and not self.role_weight:
            raise ValueError("gate='supervised' learns from known roles alone, so role_weight must be above 0")
        if self.values != "literals" and not (self.causal and self.combine == "add"):
            raise ValueError(
                f"values={self.values!r} needs combine='add', and beside literals a causal policy: policy='after' or "
                "'running'"
            )
        if self.combine == "substitute" and (self.policy, self.scope, self.gate) != ("terminal", "prompt", "open"):
            raise ValueError(
                "combine='substitute' leaves one token of a prompt's number, without choice: it needs "
                "policy='terminal', scope='prompt' and gate='open'"
            )
        layer = getattr(self, "layer", None)
        for name, layers in {"gate_layers": self.gate_layers, "gate_context": self.gate_context}.items():
            if list(layers) != sorted(set(layers)) or (
                isinstance(layer, int) and any(each >= layer for each in layers)
            ):
                raise ValueError(f"{name} must ascend, each below the injection layer, but are {[*layers]}")
            if layers and self.gate == "open":
                raise ValueError(f"gate='open' has no gate that could read {name}")
        if self.combine == "substitute" and getattr(self, "layer", 0) != 0:
            raise ValueError("combine='substitute' takes tokens out of the input, so layer must be 0")
        return self


class AniConfig(InjectionSettings):
    """Settings of one ANI module (paper Section 3; "Hyperparameters" for the defaults, but for docs/paper.md's).

    `embedding_scale`, `hidden_size`, `value_size`, `model_type` and `num_hidden_layers` are facts about the model that
    `attach` fills in; it refuses a model of another type, width or depth.
    """

    layer: int = Field(ge=0, le=MOST_LAYERS)
    """Injection layer l: the edited hidden state is `hidden_states[l]` of transformers; 0 is the embedding output."""
