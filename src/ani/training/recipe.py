"""`Recipe`: the settings of a training run, and which of them go together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from ani.data.sources import AnySource
from ani.errors import InputError
from ani.injection.config import AniConfig, InjectionSettings
from ani.injection.methods import DEFAULT_POLICY, METHODS, MethodName, unknown_method
from ani.models import Attention, DTypeName, Quantization
from ani.revisions import pinned
from ani.settings import Section, override, read_settings, validated


class LoraSettings(Section):
    """PEFT's LoRA (paper, "Hyperparameters")."""

    r: int = Field(default=64, ge=1)
    """Rank."""
    alpha: int = Field(default=128, ge=1)
    """The update is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the update's input."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Names of modules, or `all-linear`: all linear layers except the output embedding."""


class AniSettings(InjectionSettings):
    """Settings of the ANI module; `layer` may be `auto` or `paper`."""

    layer: Annotated[int, Field(ge=0)] | Literal["auto", "paper"]
    """Injection layer, as in AniConfig. `auto`: chosen by probing the model; `paper`: the paper's for a model of this
    shape."""

    def config(self) -> AniConfig:
        """Settings of the module, once the layer is a number (`ani.training.run.with_layer`)."""
        return AniConfig(**self.model_dump())


class ProbeSettings(Section):
    """Settings of the probes for `ani.layer: auto` (`ani.probing`)."""

    data: str | None = None
    """Labelled sentences: a file, a directory, or `diagnostic`, our own; null: our own."""
    held_out: str | None = None
    """Labelled sentences to test on; null: `data` itself, domain by domain."""
    sentences: int | None = Field(default=None, ge=1)
    """Maximum number of sentences; null: all of a file, 4,000 of our own."""
    chat: bool = False
    """True: each sentence is a user's message in the model's chat template."""


class TrainingSettings(Section):
    """Optimization (paper, "Hyperparameters", for the defaults; docs/paper.md has what differs)."""

    learning_rate: float = Field(default=5e-5, gt=0)
    """Learning rate of the LoRA weights; constant except for `warmup_steps` and `decay`."""
    module_learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the ANI module, which starts at zero; the paper: 5e-5."""
    random_start: bool = False
    """True: W_P starts at random, with e as large as the layer's hidden states; false: at zero, so that an untrained
    module changes nothing. Methods that replace a state (`static`, `xval`, `fone`) always start at random."""
    loss_on: Literal["answer", "all"] = "answer"
    """Tokens that are learnt: those of the answer, or all of the example."""
    batch_size: int = Field(default=1, ge=1)
    """Examples per forward pass, if it is not packed; times `gradient_accumulation`, examples per optimizer step."""
    gradient_accumulation: int = Field(default=32, ge=1)
    """Forward passes per optimizer step, of all processes together; fewer if they are packed."""
    max_length: int = Field(default=4096, ge=8)
    """Maximum number of tokens of an example, whose rest is cut off, and of a packed row."""
    epochs: float = Field(default=1.0, gt=0, le=1e6)
    """Passes over the data."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps; null: as many as `epochs` has."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the learning rates rise from 0."""
    decay: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, at the end, in which the learning rates fall linearly to 0; 0 is the paper."""
    max_gradient_norm: float = Field(default=1.0, gt=0, allow_inf_nan=True)
    """Norm to which longer gradients are scaled down; `.inf`: no limit."""
    number_loss: float = Field(default=0.0, ge=0)
    """Weight of the number-token loss, for any method: the mean, over the learnt tokens that are one digit, of the
    distance between that digit and the digits that the model expects (NTL-WAS, arXiv 2411.02083; the package `ntloss`).
    0: none; its authors: 0.3."""
    gradient_checkpointing: bool = True
    """True: activations are computed again in the backward pass, which takes less memory and more time."""
    log_every: int = Field(default=10, ge=1)
    """Steps between log lines."""
    save_every: int = Field(default=100, ge=1)
    """Steps between checkpoints, of which two are kept."""


class Recipe(Section):
    """Settings of a training run. The defaults are the paper's, or ours where docs/paper.md says so."""

    model: str = "smollm2"
    """Directory, hub name (`NAME` or `NAME@REVISION`), or `smollm2` (embedded)."""
    output: str
    """Directory for adapter, checkpoints and logs."""
    seed: int = Field(default=0, ge=0)
    """Seed of initialization, dropout and the order of examples."""
    data_seed: int | None = Field(default=None, ge=0)
    """Seed of generated and drawn examples; null: `seed`."""
    dtype: DTypeName = "auto"
    """Dtype of the base model, and of LoRA's products if it is bfloat16; `auto`: bfloat16 where the hardware has it,
    else float32. The module, norms and the loss compute in float32."""
    quantization: Quantization = "nf4"
    """`nf4`: 4-bit base weights (QLoRA), by bitsandbytes."""
    attention: Attention = "auto"
    """Attention implementation of transformers in training; `auto`: `eager` on a CPU, else transformers' choice."""
    method: MethodName = "ani"
    """Row of the paper's tables (`ani.injection.methods`)."""
    ani: AniSettings | None = None
    """Settings of the module that the method does not fix; ignored by methods without a module."""
    probe: ProbeSettings = ProbeSettings()
    """Settings of the probes for `ani.layer: auto`."""
    lora: LoraSettings | None = LoraSettings()
    """LoRA; null: train the module alone."""
    data: list[AnySource] = Field(min_length=1)
    """Sources of examples, shuffled together."""
    training: TrainingSettings = TrainingSettings()
    """Batches, steps and rates."""

    @property
    def probing(self) -> dict[str, Any]:
        """Arguments of `ani.probing.run.probe`: `probe`, and the policy that the layer is for."""
        return {**self.probe.model_dump(), "policy": DEFAULT_POLICY if self.ani is None else self.ani.policy}

    def pinned(self) -> Self:
        """The recipe with the commits of model and data on the hub (`ani.revisions.pinned`)."""
        return self.model_copy(update={"model": pinned(self.model), "data": [source.pinned() for source in self.data]})

    @field_validator("method")
    @classmethod
    def _known(cls, name: MethodName) -> MethodName:
        if name not in METHODS:
            raise ValueError(unknown_method(name))
        return name

    @model_validator(mode="before")
    @classmethod
    def _as_the_method_says(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        name, section = raw.get("method", "ani"), raw.get("ani")
        fixed = _fixed(name)
        if isinstance(section, AniSettings):
            section = section.model_dump()
        if section is None and "layer" in fixed:
            section = {}
        if not isinstance(section, dict):
            return raw  # pydantic says what is wrong
        for key, value in fixed.items():
            if key in section and _plain(section[key]) != _plain(value):
                raise ValueError(
                    f"method {name!r} has ani.{key}={value!r} of its own, not {section[key]!r:.80}: leave ani.{key} out"
                )
        return {**raw, "ani": {**section, **fixed}}

    @model_validator(mode="after")
    def _trainable(self) -> Self:
        if METHODS[self.method].settings is None:
            if self.lora is None:
                raise ValueError(f"method {self.method!r} trains LoRA weights only, so lora can't be null")
            object.__setattr__(self, "ani", None)  # it was valid, and stays out of what is written
        elif self.ani is None:
            raise ValueError(f"key 'ani' is missing: method {self.method!r} needs it, with a layer at least")
        return self


def _fixed(method: object) -> Mapping[str, Any]:
    """Settings of the section `ani` that a method fixes."""
    return (METHODS[method].settings or {}) if isinstance(method, str) and method in METHODS else {}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def load_recipe(path: str | Path, *overrides: Sequence[str]) -> Recipe:
    """Read a training recipe, a YAML file; raises InputError as `ani.settings.load_settings`, or if a value contradicts
    the method.

    `overrides` are lists of dotted changes such as `training.steps=100`, applied one after the other. A list that
    chooses a method drops earlier settings that the method fixes. It must not contradict them itself, and for a method
    without a module neither it nor a later list may set the module.
    """
    raw = read_settings(path)
    choices = [[change for change in changes if change.startswith("method=")] for changes in overrides]
    chosen: dict[str, Any] = {}
    override(chosen, [change for each in choices for change in each])
    choosing = max((index for index, each in enumerate(choices) if each), default=None)
    for index, changes in enumerate(overrides):
        if index == choosing and isinstance(raw.get("ani"), dict):
            fixed = _fixed(chosen["method"])
            raw["ani"] = {key: value for key, value in raw["ani"].items() if key not in fixed}
        override(raw, changes)
    if "variants" in raw:
        raise InputError(f"recipe {path} is a comparison of variants; carry it out with ani compare")
    recipe = validated(Recipe, raw, f"recipe {path}")
    of_module = [
        change for changes in overrides[choosing or 0 :] for change in changes if change.startswith(("ani.", "ani={"))
    ]
    if METHODS[recipe.method].settings is None and of_module:
        raise InputError(f"override {of_module[0]!r:.80}: method {recipe.method!r} has no module to set; leave it out")
    return recipe
