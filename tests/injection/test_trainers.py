"""Trainers of others: each use of an attached model is right, or is refused before anything is trained."""

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from datasets import Dataset
from peft import AdaLoraConfig, LoraConfig, get_peft_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from ani import AniConfig, attach, detach, inspect, load_adapter, merge, save_adapter
from ani.injection.inspection import without_adapter
from ani.injection.model_parts import ani_module, is_attached, last_decision, number_locator
from ani.injection.number_batch import text_starts
from tests.injection.test_attach import TRAINING, assert_same_gradients, gradients, labelled
from tests.refusals import refused
from tests.tiny import MIXED_TEXT, attached, encode, logits_of, pair, randomise
from tests.tokenizers import gemma_like, llama3, shortened

TEXTS = ("So x is 10", "2 apples cost 5 dollars", "34 and -7")
CONFIG = AniConfig(layer=2, policy="terminal", gate_hidden_size=16, gate_dropout=0.0, penalty=0.7)
PAIRS = [("12 + 34 =", " 46"), ("77 + 11 =", " 88"), ("20 + 31 =", " 51"), ("45 + 23 =", " 68")]
ALL_LINEAR: dict[str, Any] = {"r": 2, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


@pytest.fixture(autouse=True)
def fresh_accelerator_state() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class KeepGradients(TrainerCallback):
    def __init__(self) -> None:
        self.kept: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        self.kept.append(gradients(model))


def arguments(tmp_path: Path, **others: Any) -> dict[str, Any]:
    return {
        "output_dir": str(tmp_path / "out"),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 2,
        "max_steps": 1,
        "logging_steps": 1,
        "max_grad_norm": 0.0,
        "learning_rate": 1e-3,
        "seed": 0,
        **others,
    }


def without_warnings(call: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(own loss|frozen|no prompt)")
        call()


def equal_rows(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Rows with the same number of tokens, labels and numbers: each has an equal share of the loss."""
    rows = [{key: value[0] for key, value in labelled(tokenizer, *pair_).items()} for pair_ in PAIRS]
    assert len({len(row["input_ids"]) for row in rows}) == 1
    return rows


def test_gradient_accumulation_changes_nothing(tmp_path: Path) -> None:
    found = []
    for steps in (1, 2):
        model, tokenizer = attached("llama", **TRAINING)
        keeper = KeepGradients()
        Trainer(
            model=model.double(),
            args=TrainingArguments(
                **arguments(
                    tmp_path, per_device_train_batch_size=len(PAIRS) // steps, gradient_accumulation_steps=steps
                )
            ),
            train_dataset=equal_rows(tokenizer),
            data_collator=default_data_collator,
            callbacks=[keeper],
        ).train()
        found.append(keeper.kept[0])
    assert_same_gradients(found[1], found[0])


def test_the_penalty_is_part_of_the_loss_of_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    model, tokenizer = pair("llama")
    attach(model, tokenizer, CONFIG)
    randomise(model, tokenizer)
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**arguments(tmp_path)),
        train_dataset=Dataset.from_list([{"prompt": p, "completion": c} for p, c in PAIRS]),
        processing_class=tokenizer,
        peft_config=LoraConfig(**ALL_LINEAR, modules_to_save=["ani"]),
    )
    trained = trainer.model.train()
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    count = int((batch["labels"][:, 1:] != -100).sum())
    with_penalty = trainer.compute_loss(trained, dict(batch), num_items_in_batch=2 * count)
    decision, module = last_decision(trained), ani_module(trained)
    assert decision is not None and decision.injection.embedding_rms.mean() > CONFIG.penalty_ramp
    alpha = decision.injection.alpha
    module.config = module.config.model_copy(update={"penalty": 0.0})
    without = trainer.compute_loss(trained, dict(batch), num_items_in_batch=2 * count)
    penalty = CONFIG.penalty * (alpha * (1 - alpha)).mean()
    torch.testing.assert_close(with_penalty - without, penalty / 2, rtol=1e-4, atol=1e-5)
    assert penalty > 0


def test_a_module_that_peft_froze_is_warned_of_once() -> None:
    model, tokenizer = attached("llama")
    peft_model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")).train()
    batch = labelled(tokenizer)
    with pytest.warns(UserWarning, match="frozen"):
        peft_model(**batch)
    without_warnings(lambda: peft_model(**batch))


@pytest.mark.parametrize("mark", ["ds_id", "_fsdp_flattened"])  # of DeepSpeed's ZeRO-3, and of FSDP 1
def test_a_module_in_parts_is_refused(mark: str) -> None:
    model, tokenizer = attached("llama")
    setattr(next(ani_module(model).parameters()), mark, 1)
    refused(lambda: model.train()(**labelled(tokenizer)), "--fsdp_version 2", "--zero_stage 2")


def test_a_loss_outside_the_model_is_warned_of_once() -> None:
    """A trainer that keeps the labels, for label smoothing or a loss of its own."""
    model, tokenizer = attached("llama", policy="after", **TRAINING)
    batch = labelled(tokenizer)
    without_warnings(lambda: model.train()(**batch))
    with pytest.warns(UserWarning, match="own loss"):
        model(input_ids=batch["input_ids"])
    without_warnings(lambda: model(input_ids=batch["input_ids"]))


# --- LoRA -------------------------------------------------------------------------------------------------------------


def test_an_adapter_without_the_module(tmp_path: Path) -> None:
    """`modules_to_save=["ani"]` in one adapter, and another one that is active: the module as it was before PEFT."""
    model, tokenizer = attached("llama", gemma_like())
    ids = encode(tokenizer)
    before = logits_of(model, ids)
    wrapped = get_peft_model(model, LoraConfig(**ALL_LINEAR, modules_to_save=["ani"])).eval()
    with torch.no_grad():
        ani_module(wrapped).projection.weight.mul_(2)
    trained = logits_of(wrapped, ids)
    wrapped.add_adapter("b", LoraConfig(**ALL_LINEAR))
    wrapped.set_adapter("b")
    assert torch.equal(logits_of(wrapped, ids), before) and not torch.equal(trained, before)
    assert inspect(wrapped, tokenizer, MIXED_TEXT)
    with without_adapter(wrapped):
        assert torch.equal(logits_of(wrapped, ids), logits_of(pair("llama", gemma_like())[0], ids))
    save_adapter(wrapped, tmp_path / "b")
    loaded = load_adapter(pair("llama", gemma_like())[0], tokenizer, tmp_path / "b")
    assert torch.equal(logits_of(loaded, ids), before)
    wrapped.set_adapter("default")
    assert torch.equal(logits_of(wrapped, ids), trained)
    wrapped.set_adapter("b")
    detach(wrapped)
    assert torch.equal(logits_of(wrapped, ids), logits_of(pair("llama", gemma_like())[0], ids))


# --- packed rows ------------------------------------------------------------------------------------------------------


def packed(tokenizer: PreTrainedTokenizerBase) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The texts, and one row of them with all that says where they start."""
    parts = [encode(tokenizer, text) for text in TEXTS]
    lengths = torch.tensor([part.shape[1] for part in parts])
    row = {
        "input_ids": torch.cat(parts, dim=1),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0),
        "seq_idx": torch.arange(len(parts), dtype=torch.int32).repeat_interleave(lengths).unsqueeze(0),
        "cu_seq_lens_q": torch.tensor([0, *lengths.cumsum(0)], dtype=torch.int32),
    }
    return parts, row


@pytest.mark.parametrize(
    ("family", "policy"), [("llama", "terminal"), ("gemma", "digitwise"), ("llama", "running"), ("gemma", "after")]
)
def test_packed_rows_are_separate_texts(family: str, policy: str) -> None:
    model, tokenizer = attached(family, policy=policy, gate="open")
    parts, row = packed(tokenizer)
    given = {"input_ids": row["input_ids"], "position_ids": row["position_ids"], "use_cache": False}
    alone = torch.cat([logits_of(model, part) for part in parts], dim=1)
    torch.testing.assert_close(logits_of(model, **given), alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["position_ids", "seq_idx", "cu_seq_lens_q"])
def test_what_says_where_texts_start(name: str) -> None:
    parts, row = packed(gemma_like())
    ids = row["input_ids"]
    starts = [0, parts[0].shape[1], parts[0].shape[1] + parts[1].shape[1]]
    assert text_starts(ids, {name: row[name]}) == [starts]
    assert text_starts(ids, {"position_ids": torch.arange(ids.shape[1])[None] + 2}) == [[0]]
    ends = torch.cat([row["cu_seq_lens_q"], row["cu_seq_lens_q"][1:] + ids.shape[1]])
    twice = ends if name == "cu_seq_lens_q" else row[name].repeat(2, 1)
    assert text_starts(ids.repeat(2, 1), {name: twice}) == [starts, starts]


# --- TRL --------------------------------------------------------------------------------------------------------------


def fused(model: nn.Module, trainer: str, penalty: float) -> torch.Tensor:
    """Log-probabilities by TRL's fused head, in training by a trainer."""
    utils = pytest.importorskip("trl.trainer.utils", reason="trl is not installed")
    utils.add_fused_lm_head(model)
    model.add_model_tags(["trl", trainer])
    module = ani_module(model)
    module.config = module.config.model_copy(update={"penalty": penalty, "penalty_ramp": 0.0})
    ids = encode(gemma_like())
    labels = ids.clone()
    labels[:, :8] = -100
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.train()(input_ids=ids, labels=labels, fused_lm_head=True).log_probs


@pytest.mark.parametrize("trainer", ["sft", "dpo", "grpo"])
def test_only_the_loss_of_a_language_model_has_a_penalty(trainer: str) -> None:
    zero, ten = (
        fused(attached("llama", gemma_like(), policy="after", gate_dropout=0.0)[0], trainer, p) for p in (0.0, 10.0)
    )
    assert torch.equal(zero, ten) == (trainer != "sft")
    if trainer != "sft":  # as a rollout and a reference
        model, tokenizer = attached("llama", gemma_like(), policy="after")
        logits = logits_of(model, encode(tokenizer)).log_softmax(-1)[:, :-1]
        expected = logits.gather(-1, encode(tokenizer)[:, 1:, None]).squeeze(-1)
        torch.testing.assert_close(zero[:, 7:], expected[:, 7:], rtol=0, atol=1e-4)
        zero.sum().backward()


def test_gradients_are_straight_through() -> None:
    """Values of inference, gradients of training; also for an untrained module, whose gates are half open."""
    model, tokenizer = pair("llama", gemma_like())
    attach(model, tokenizer, AniConfig(layer=2, gate_dropout=0.0))
    module, rows = ani_module(model).train(), torch.randn(5, 32)
    features = number_locator(model).encoder.encode(["1", "2", "3", "4", "5"])
    for trained in (False, True):
        if trained:
            randomise(model, tokenizer)
        found = []
        for straight_through in (False, True):
            module.train().zero_grad()
            states = module(rows, features, straight_through=straight_through).hidden_states
            (states * torch.arange(32)).sum().backward()
            found.append({name: parameter.grad.clone() for name, parameter in module.named_parameters()})
        torch.testing.assert_close(states, module.eval()(rows, features).hidden_states, rtol=0, atol=1e-5)
        for name, gradient in found[0].items():
            torch.testing.assert_close(found[1][name], gradient)
        assert found[1]["projection.weight"].any()


def test_rollouts_have_the_gates_of_inference() -> None:
    model, tokenizer = attached("llama", gemma_like(), policy="after", gate_dropout=0.5)
    ids = encode(tokenizer)
    expected, written = logits_of(model, ids), model.generate(ids, max_new_tokens=6, do_sample=False)
    assert torch.equal(logits_of(model.train(), ids), expected)
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), written)


def test_rollouts_without_the_module_are_refused() -> None:
    model, _ = attached("llama", gemma_like())

    class TrainerWithVllm:
        use_vllm = True

        def __init__(self) -> None:
            model.add_model_tags(["trl", "grpo"])

    refused(TrainerWithVllm, "use_vllm=False")


# --- others -----------------------------------------------------------------------------------------------------------


def test_tokens_that_are_added_later() -> None:
    tokenizer = copy.deepcopy(shortened(llama3(), 50_000))
    model, _ = attached("llama", tokenizer, policy="terminal")
    tokenizer.add_tokens(["42 apples"])
    model.resize_token_embeddings(len(tokenizer))
    assert [number.text for number in inspect(model, tokenizer, "She has 42 apples and 7")] == ["42", "7"]


def test_torch_export() -> None:
    model, tokenizer = attached("llama", gemma_like())
    refused(lambda: torch.export.export(model, (encode(tokenizer),)), "torch.export", "ani.detach")


def test_accelerate_autocast() -> None:
    model, tokenizer = attached("llama", **TRAINING)
    batch = labelled(tokenizer)
    model.train()
    expected = model(**batch).loss
    prepared = Accelerator(mixed_precision="bf16", cpu=True).prepare(model)
    assert is_attached(prepared)
    outputs = prepared(**batch)
    assert outputs.loss.dtype == torch.float32
    torch.testing.assert_close(outputs.loss, expected, rtol=0.05, atol=0.05)
    outputs.loss.backward()
    assert all(p.grad is not None for p in ani_module(model).parameters())
    detach(prepared)
    assert not is_attached(prepared)
    prepared.eval()(**batch)


@pytest.mark.parametrize("kind", [LoraConfig, AdaLoraConfig])
def test_lora_never_enters_the_module(kind: Any, tmp_path: Path) -> None:
    model, tokenizer = attached("llama", gemma_like())
    base, merged = tmp_path / "base", tmp_path / "merged"
    pair("llama", tokenizer)[0].save_pretrained(base)
    tokenizer.save_pretrained(base)
    save_adapter(model, tmp_path / "adapter")
    merge(tmp_path / "adapter", merged, model=str(base))
    names = ani_module(model).state_dict().keys()
    for each in (model, AutoModelForCausalLM.from_pretrained(merged)):
        wrapped = get_peft_model(each, kind(**ALL_LINEAR, **({"total_step": 2} if kind is AdaLoraConfig else {})))
        assert ani_module(wrapped).state_dict().keys() == names
        assert any("lora" in name and "q_proj" in name for name, _ in wrapped.named_parameters())


@pytest.mark.parametrize("policy", ["terminal", "after"])
def test_packed_rows_are_separate_texts_in_training(policy: str) -> None:
    model, tokenizer = attached("llama", gemma_like(), policy=policy, gate_dropout=0.0, role_weight=0.0)
    parts, row = packed(tokenizer)
    labels = row["input_ids"].masked_fill(row["position_ids"] < 7, -100)  # prompts with a number in each
    features = []
    for ids, own in zip(parts, labels.split([part.shape[1] for part in parts], dim=1), strict=True):
        model.train()(input_ids=ids, labels=own)
        decision = last_decision(model)
        features += [] if decision is None else [decision.numbers.features]
    model(input_ids=row["input_ids"], labels=labels, position_ids=row["position_ids"], use_cache=False)
    decision = last_decision(model)
    assert decision is not None and torch.equal(decision.numbers.features, torch.cat(features))


@pytest.mark.parametrize("loaded", [False, True])
def test_a_layer_that_is_offloaded(loaded: bool, tmp_path: Path) -> None:
    model, tokenizer = attached("llama", gemma_like())
    save_adapter(model, tmp_path / "adapter")
    ids = encode(tokenizer)
    base = pair("llama", gemma_like())[0]
    base.save_pretrained(tmp_path / "base")
    parts = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    places = parts | {f"model.layers.{i}": "disk" if i == 2 else "cpu" for i in range(4)}
    offloaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", device_map=places, offload_folder=str(tmp_path / "offload")
    )
    assert next(offloaded.model.layers[2].parameters()).device.type == "meta"
    if loaded:
        load_adapter(offloaded, tokenizer, tmp_path / "adapter")
    else:
        attach(offloaded, tokenizer, ani_module(model).config)
        ani_module(offloaded).load_state_dict(ani_module(model).state_dict())
    torch.testing.assert_close(logits_of(offloaded, ids), logits_of(model, ids))


def test_texts_without_prompts_are_warned_of() -> None:
    model, tokenizer = attached("llama", gemma_like(), policy="terminal")
    row = packed(tokenizer)[1]
    given = {"input_ids": row["input_ids"], "position_ids": row["position_ids"]}
    labels = row["input_ids"].masked_fill(row["position_ids"] == 0, -100)  # the first token of a text has no label
    with pytest.warns(UserWarning, match="no prompt"):
        model.train()(**given, labels=labels)
    labels[0, 1] = -100
    without_warnings(lambda: model(**given, labels=labels))
