"""Trainers × set-ups of a module × gradient checkpointing: each case trains what it should, or is refused."""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import trl
from accelerate.state import AcceleratorState
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

from ani import AniConfig, InputError, attach, load_adapter, merge, save_adapter
from ani.injection.model_parts import ani_module
from ani.models import evaluating, nf4
from tests.fixtures import save_tiny_llama
from tests.properties import deep
from tests.tiny import encode, logits_of, randomise
from tests.tokenizers import gemma_like

CONFIG = AniConfig(layer=1, gate_hidden_size=8, penalty=10.0, penalty_ramp=0.0)
LORA: dict[str, Any] = {"r": 2, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
ROWS = [
    {"prompt": "12 + 34 =", "chosen": " 46.", "rejected": " 5 or 7."},
    {"prompt": "77 + 11 =", "chosen": " 88.", "rejected": " 1."},
]
ROLLOUTS = {"num_generations": 2, "max_completion_length": 4}
TRAINERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "SFTTrainer": (trl.SFTTrainer, trl.SFTConfig, {}),
    "packed SFTTrainer": (trl.SFTTrainer, trl.SFTConfig, {"packing": True, "max_length": 64}),
    "Trainer": (Trainer, TrainingArguments, {}),
    "DPOTrainer": (trl.DPOTrainer, trl.DPOConfig, {"beta": 1.0}),
    "KTOTrainer": (trl.KTOTrainer, trl.KTOConfig, {}),
    "GRPOTrainer": (trl.GRPOTrainer, trl.GRPOConfig, {"beta": 0.1, **ROLLOUTS}),
    "RLOOTrainer": (trl.RLOOTrainer, trl.RLOOConfig, {"beta": 0.1, **ROLLOUTS}),
    "RewardTrainer": (trl.RewardTrainer, trl.RewardConfig, {}),
}
GENERATE, COMPARE = ("GRPOTrainer", "RLOOTrainer"), ("DPOTrainer", "KTOTrainer", "GRPOTrainer", "RLOOTrainer")
"""Trainers with rollouts, and those with a reference."""
SETUPS = ["module alone", "LoRA first", "LoRA after", "merged checkpoint", "4-bit"]


class Refusal(NamedTuple):
    """A case that is refused before anything is trained."""

    words: tuple[str, ...]
    """The message contains them."""
    instead: Callable[[nn.Module], dict[str, Any]] | None
    """The trainer's arguments by the message's advice, for a model; None: there is none."""


def refusal(trainer: str, setup: str) -> Refusal | None:
    """Why a case is refused: a reward model writes no text; and a reference that TRL makes lacks the module, unless
    the module came with a merged checkpoint, or belongs to PEFT's adapter."""
    if trainer == "RewardTrainer":
        return Refusal(("SequenceClassification",), None)
    if trainer not in COMPARE or setup not in ("module alone", "LoRA first"):
        return None
    if trainer in GENERATE:
        advice = "ani.merge" if setup == "module alone" else "modules_to_save"
        return Refusal((trainer, advice), lambda model: {"beta": 0.0})
    if setup == "LoRA first":
        return Refusal((trainer, "modules_to_save"), None)
    return Refusal((trainer, "ref_model=copy.deepcopy(model)"), lambda model: {"ref_model": copy.deepcopy(model)})


def trained_names(setup: str, model: nn.Module) -> set[str]:
    """The parameters that training should change."""
    names = {name for name, _ in model.named_parameters()}
    if setup == "merged checkpoint":
        return names
    lora = {name for name in names if ".lora_" in name and ".ref." not in name}
    assert bool(lora) == (setup != "module alone") and not any("ani" in name for name in lora)
    own = "ani.modules_to_save.default." if setup in ("LoRA after", "4-bit") else "ani."
    return lora | {name for name in names if own in name}


@pytest.fixture(autouse=True)
def fresh_accelerator_state() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="session")
def base_path(made_once: Any) -> Path:
    """bitsandbytes computes with blocks of 64 weights."""
    return made_once("matrix-base", lambda folder: save_tiny_llama(folder, gemma_like(), hidden_size=64))


@pytest.fixture(scope="session")
def merged_path(base_path: Path, made_once: Any) -> Path:
    def make(folder: Path) -> None:
        model = base(base_path)
        attach(model, gemma_like(), CONFIG)
        randomise(model, gemma_like())
        save_adapter(model, folder.with_name("matrix-adapter"))
        merge(folder.with_name("matrix-adapter"), folder, model=str(base_path))

    return made_once("matrix-merged", make)


def base(path: Path, setup: str = "", kind: Any = AutoModelForCausalLM) -> Any:
    settings: dict[str, Any] = {"num_labels": 1} if kind is AutoModelForSequenceClassification else {}
    settings["quantization_config"] = nf4(torch.float32) if setup == "4-bit" else None
    return kind.from_pretrained(path, dtype=torch.float32, **settings)


def model_of(setup: str, trainer: str, base_path: Path, merged_path: Path) -> Any:
    """A model with a module that changes logits, or the path of one, which TRL's trainers take."""
    if setup == "merged checkpoint":
        return base(merged_path) if trainer == "Trainer" else str(merged_path)
    lora, kind = LORA, AutoModelForCausalLM
    if trainer == "RewardTrainer":
        lora, kind = {**LORA, "task_type": "SEQ_CLS"}, AutoModelForSequenceClassification
    model = base(base_path, setup, kind).requires_grad_(False)
    if setup == "LoRA first":
        model = get_peft_model(model, LoraConfig(**lora))
    attach(model, gemma_like(), CONFIG)
    with evaluating(model):
        randomise(model, gemma_like())
    if setup in ("LoRA after", "4-bit"):
        model = get_peft_model(model, LoraConfig(**lora, modules_to_save=["ani"]))
    return model


def trainer_of(
    name: str, model: Any, tokenizer: PreTrainedTokenizerBase, out: Path, checkpointing: bool, **more: Any
) -> Any:
    kind, arguments, settings = TRAINERS[name]
    settings = {
        "output_dir": str(out),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": checkpointing,
        "per_device_train_batch_size": 2,
        "max_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        **settings,
    }
    rows: list[Any] = ROWS
    if "SFT" in name or name == "KTOTrainer":
        rows = [
            {"prompt": row["prompt"], "completion": row[key], "label": key == "chosen"}
            for row in ROWS
            for key in ("chosen", "rejected")
        ]
    elif name in GENERATE:
        more["reward_funcs"] = lambda completions, **_: [i % 2 for i in range(len(completions))]
        settings["beta"] = more.pop("beta", settings["beta"])
    elif name == "Trainer":
        rows = [tokenizer(row["prompt"] + row["chosen"]) for row in ROWS]
        more["data_collator"] = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    return kind(
        model=model,
        args=arguments(**settings),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        **more,
    )


ALIKE = ("packed SFTTrainer", "RLOOTrainer")
"""Trainers whose code is another one's: outside of `make stress` two set-ups are enough."""
CASES = [
    (checkpointing, setup, trainer)
    for place, (setup, trainer) in enumerate(itertools.product(SETUPS, TRAINERS))
    for checkpointing in ([False, True] if deep() else [place % 3 == 0])
    if deep() or trainer not in ALIKE or setup in ("module alone", "LoRA after")
]


@pytest.mark.parametrize(("checkpointing", "setup", "trainer"), CASES)
def test_what_is_trained(
    trainer: str, setup: str, checkpointing: bool, base_path: Path, merged_path: Path, tmp_path: Path
) -> None:
    tokenizer = copy.deepcopy(gemma_like())

    def made_for(arguments: Callable[[Any], dict[str, Any]]) -> Any:
        model = model_of(setup, trainer, base_path, merged_path)
        return trainer_of(trainer, model, tokenizer, tmp_path, checkpointing, **arguments(model))

    def arguments(model: Any) -> dict[str, Any]:
        return {}

    if why := refusal(trainer, setup):
        with pytest.raises(ValueError) as caught:
            made_for(arguments)
        assert all(word in str(caught.value) for word in why.words)
        assert isinstance(caught.value, InputError) == (setup != "merged checkpoint")  # which transformers refuses
        if why.instead is None:
            return
    made = made_for(why.instead if why and why.instead else arguments)
    before = {name: parameter.detach().clone() for name, parameter in made.model.named_parameters()}
    expected = trained_names(setup, made.model)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        made.train()
    warned = any("model's own loss" in str(each.message) for each in caught_warnings)
    assert warned == (trainer in COMPARE)
    changed = {name for name, each in made.model.named_parameters() if not torch.equal(each, before[name])}
    assert changed == expected
    assert {each.dtype for each in ani_module(made.model).parameters()} == {torch.float32}
    if trainer == "DPOTrainer":  # it starts at its reference, but TRL rounds what is trained beside 4-bit weights
        first = made.state.log_history[0]["loss"]
        assert first == pytest.approx(0.6931, abs=1e-2 if setup == "4-bit" else 1e-3)
    assert_saved(setup, made.model.eval(), tokenizer, base_path, tmp_path)


def assert_saved(setup: str, model: Any, tokenizer: PreTrainedTokenizerBase, base_path: Path, folder: Path) -> None:
    """A trained model that is saved, and loaded into a fresh base model, gives the same logits, bit for bit."""
    ids = encode(tokenizer)
    if setup == "4-bit":  # TRL casts LoRA to bfloat16; PEFT loads it in float32
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.data = parameter.data.float()
    expected = logits_of(model, ids)
    if setup == "merged checkpoint":
        model.save_pretrained(folder / "saved")
        tokenizer.save_pretrained(folder / "saved")
        assert torch.equal(logits_of(AutoModelForCausalLM.from_pretrained(folder / "saved"), ids), expected)
        return
    save_adapter(model, folder / "saved")
    loaded = load_adapter(base(base_path, setup), tokenizer, folder / "saved")
    assert torch.equal(logits_of(loaded, ids), expected)
    if setup in ("LoRA after", "4-bit"):  # then PEFT's own files contain the module too
        model.save_pretrained(folder / "peft", save_embedding_layers=False)
        attach(plain := base(base_path, setup), tokenizer, ani_module(model).config)
        assert torch.equal(logits_of(PeftModel.from_pretrained(plain, folder / "peft").eval(), ids), expected)
