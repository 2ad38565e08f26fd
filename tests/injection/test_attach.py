"""Attach: the model stays the same object, whatever its users and the libraries around it do with it."""

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from datasets import Dataset
from peft import AdaLoraConfig, LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from ani import AniConfig, attach, detach, inspect, load_adapter, save_adapter
from ani.injection.loss import add_loss
from ani.injection.model_parts import ani_module, is_attached, last_decision, number_locator
from ani.injection.scale import CALIBRATION_TEXT
from tests.refusals import refused
from tests.tiny import FAMILIES, LAYERS, MIXED_TEXT, attached, encode, logits_of, pair, randomise
from tests.tokenizers import gemma_like

CONFIG = AniConfig(layer=2, policy="terminal", gate_hidden_size=16, gate_dropout=0.0, penalty=0.7)
TRAINING = {"gate_dropout": 0.0, "penalty": 0.7}
LORA = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "lora_dropout": 0.0}
PAIRS = [("12 + 34 =", " 46"), ("77 + 11 =", " 88"), ("20 + 31 =", " 51"), ("45 + 23 =", " 68")]


@pytest.fixture(autouse=True)
def fresh_accelerator_state() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


# Most tests here are about the model, not the text: `gemma_like` is the tokenizer that is quickest to scan.


def labelled(tokenizer: PreTrainedTokenizerBase, prompt: str = MIXED_TEXT, answer: str = " = 46.") -> dict[str, Any]:
    prompt_ids = tokenizer(prompt)["input_ids"]
    ids = prompt_ids + tokenizer(answer, add_special_tokens=False)["input_ids"]
    labels = [-100] * len(prompt_ids) + ids[len(prompt_ids) :]
    return {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels])}


def penalty_of(model: nn.Module) -> torch.Tensor:
    """λ·mean(α(1−α)) of the latest forward, where the ramp is over."""
    decision = last_decision(model)
    assert decision is not None and decision.injection.embedding_rms.mean() > CONFIG.penalty_ramp
    alpha = decision.injection.alpha
    return ani_module(model).config.penalty * (alpha * (1 - alpha)).mean()


def set_penalty(model: nn.Module, penalty: float) -> None:
    module = ani_module(model)
    module.config = module.config.model_copy(update={"penalty": penalty})


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """In float64, up to rounding, which is of the size of a tensor's largest elements."""
    assert actual.keys() == expected.keys() != set()
    for name, gradient in expected.items():
        assert gradient.dtype == torch.float64
        most = 1e-12 * float(gradient.abs().max())
        torch.testing.assert_close(actual[name], gradient, rtol=0, atol=most, msg=lambda m, n=name: f"{n}: {m}")


# --- what the edit looks like -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked_before", [False, True])
@pytest.mark.parametrize("layer", [0, 2, LAYERS - 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_show_the_edit(family: str, layer: int, asked_before: bool) -> None:
    base, _ = pair(family, gemma_like())
    model, tokenizer = pair(family, gemma_like())
    ids = encode(tokenizer)
    expected = base(input_ids=ids, output_hidden_states=True).hidden_states
    if asked_before:  # transformers installs its recording hooks at the first request
        model(input_ids=ids, output_hidden_states=True)
    attach(model, tokenizer, AniConfig(layer=layer))
    randomise(model, tokenizer)
    actual = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert len(actual) == len(expected) == LAYERS + 1
    for before in range(layer):
        assert torch.equal(actual[before], expected[before])
    decision = last_decision(model)
    assert decision is not None
    edited = expected[layer].clone()
    positions = decision.numbers.positions
    edited[0, positions] = ani_module(model)(edited[0, positions], decision.numbers.features).hidden_states
    assert not torch.equal(edited, expected[layer])
    torch.testing.assert_close(actual[layer], edited, rtol=0, atol=1e-5)
    assert not torch.equal(actual[layer + 1], expected[layer + 1])
    as_tuple = model(input_ids=ids, output_hidden_states=True, return_dict=False)
    torch.testing.assert_close(as_tuple[-1][layer], edited, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_attaching_changes_no_bit(family: str) -> None:
    model, tokenizer = pair(family, gemma_like())
    ids = encode(tokenizer)
    before = logits_of(model, ids)
    assert attach(model, tokenizer, AniConfig(layer=2)) is model
    assert is_attached(model) and isinstance(model, PreTrainedModel)
    assert torch.equal(logits_of(model, ids), before)
    batch = labelled(tokenizer)
    assert torch.equal(logits_of(model.train(), **batch), logits_of(pair(family, gemma_like())[0], **batch))


@pytest.mark.parametrize("policy", ["terminal", "after"])
def test_scale_is_the_median_rms_of_the_layer_where_it_is_edited(policy: Any) -> None:
    model, tokenizer = pair("llama")
    attach(model, tokenizer, AniConfig(layer=3, policy=policy))
    ids = encode(tokenizer, CALIBRATION_TEXT)
    with torch.no_grad():
        hidden = pair("llama")[0](input_ids=ids, output_hidden_states=True).hidden_states[3][0]
    row, scanner = ids[0].tolist(), number_locator(model).scanner
    at = [n.last_token for n in scanner.scan(row)] if policy == "terminal" else list(scanner.scan_ended(row, 0))
    assert ani_module(model).scale == pytest.approx(float(hidden[at].square().mean(dim=1).sqrt().median()), rel=1e-6)


# --- bad input --------------------------------------------------------------------------------------------------------


def other_models() -> dict[str, Callable[[], nn.Module]]:
    return {
        "encoder-decoder": lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=64, d_model=16, d_ff=16, d_kv=4, num_layers=1, num_heads=2, decoder_start_token_id=0)
        ),
        "encoder": lambda: BertForMaskedLM(
            BertConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
        ),
        "without head": lambda: pair("gemma")[0].model,
        "no transformers model": lambda: nn.Linear(2, 2),
    }


@pytest.mark.parametrize("kind", list(other_models()))
def test_no_decoder_only_language_model(kind: str) -> None:
    model = other_models()[kind]()
    refused(lambda: attach(model, pair("gemma")[1], AniConfig(layer=0)), type(model).__name__)


@pytest.mark.parametrize("family", ["gpt2", "bloom", "llama4_text"])
def test_a_decoder_of_another_build(family: str) -> None:
    config = AutoConfig.for_model(
        family, vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_local_experts=1
    )
    model = AutoModelForCausalLM.from_config(config)
    message = refused(lambda: attach(model, pair("gemma")[1], AniConfig(layer=0)), type(model).__name__, "no list")
    assert "decoder-only" not in message and "AutoModelForCausalLM" not in message  # it is one, and was


def test_hidden_states_in_several_streams() -> None:
    """Gemma 3n's have the shape (streams, batch, tokens, width)."""
    model, tokenizer = pair("gemma")
    model.forward = lambda **_: SimpleNamespace(hidden_states=[torch.ones(4, 1, 8, 32)] * LAYERS)
    refused(lambda: attach(model, tokenizer, AniConfig(layer=1)), type(model).__name__, "[4, 1, ")
    assert not is_attached(model)


def test_embeddings_instead_of_ids() -> None:
    model, tokenizer = attached("llama")
    ids = encode(tokenizer)
    embeddings = model.get_input_embeddings()(ids)
    refused(lambda: model(inputs_embeds=embeddings), "input_ids", "numbers=")
    refused(lambda: model.generate(inputs_embeds=embeddings, max_new_tokens=2), "input_ids")
    numbers = number_locator(model).batch(ids.tolist())
    torch.testing.assert_close(model(inputs_embeds=embeddings, numbers=numbers).logits, logits_of(model, ids))


def test_what_an_attached_model_refuses() -> None:
    model, tokenizer = attached("gemma")
    ids = encode(tokenizer)
    refused(lambda: attach(model, tokenizer, AniConfig(layer=1)), "attached", "ani.detach")
    refused(lambda: detach(detach(pair("gemma")[0])), "nothing")
    refused(lambda: model.model(input_ids=ids), "decoder")
    refused(lambda: model.generate_batch([[1, 2]]), "generate")
    refused(lambda: model.train()(input_ids=ids), "labels", "running")
    for policy in ("running", "after"):
        attached("gemma", policy=policy)[0].train()(input_ids=ids)  # needs to know no prompt


def test_an_argument_of_another_kind_is_named(tmp_path: Path) -> None:
    model, tokenizer = pair("gemma")
    untyped: Any = attach
    refused(lambda: untyped(model, "smollm2", CONFIG), "tokenizer", "'smollm2'")
    refused(lambda: untyped("smollm2", tokenizer, CONFIG), "model", "'smollm2'")
    refused(lambda: untyped(model, tokenizer, {"layer": 2}), "config", "{'layer': 2}")
    refused(lambda: load_adapter(model, cast(Any, tmp_path), tokenizer), "tokenizer", str(tmp_path)[:20])
    refused(lambda: inspect(attached("gemma")[0], cast(Any, MIXED_TEXT), cast(Any, tokenizer)), "tokenizer")
    with pytest.raises(ValueError, match=r"'auto'.*ani\.select_layer"):
        AniConfig(layer=cast(Any, "auto"))


@pytest.mark.parametrize("family", FAMILIES)
def test_cache_that_ani_has_not_seen(family: str) -> None:
    model, tokenizer = attached(family, gemma_like())
    ids = encode(tokenizer)
    cache = DynamicCache(config=model.config)
    logits_of(pair(family, gemma_like())[0], ids, past_key_values=cache)
    refused(lambda: model(input_ids=ids[:, :3], past_key_values=cache), "cache", str(ids.shape[1]))


# --- copies -----------------------------------------------------------------------------------------------------------


# --- the loss and its gradients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing(family: str, use_reentrant: bool, layer: int) -> None:
    found = []
    for checkpointing in (False, True):
        context = {"gate_context": (0,)} if layer else {}
        model, tokenizer = attached(family, gemma_like(), layer=layer, **TRAINING, **context)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            assert model.is_gradient_checkpointing
        model.double().train()(**labelled(tokenizer)).loss.backward()
        found.append(gradients(model))
    assert any("ani.gate" in name for name in found[0])
    assert_same_gradients(found[1], found[0])


# --- the libraries around it ------------------------------------------------------------------------------------------


class KeepGradients(TrainerCallback):
    def __init__(self) -> None:
        self.kept: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        self.kept.append(gradients(model))


def arguments(tmp_path: Path) -> dict[str, Any]:
    return {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_grad_norm": 0.0,
        "learning_rate": 1e-3,
        "seed": 0,
    }


def without_warnings(call: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*label_smoothing_factor")
        call()


def equal_rows(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Rows with the same number of tokens, labels and numbers: each has an equal share of the loss."""
    rows = [{key: value[0] for key, value in labelled(tokenizer, *pair_).items()} for pair_ in PAIRS]
    assert len({len(row["input_ids"]) for row in rows}) == 1
    return rows


def test_gradient_accumulation_changes_nothing(tmp_path: Path) -> None:
    found = []
    for steps in (1, 2, 4):
        model, tokenizer = attached("llama", **TRAINING)
        keeper = KeepGradients()
        Trainer(
            model=model.double(),
            args=TrainingArguments(
                **arguments(tmp_path),
                max_steps=1,
                per_device_train_batch_size=len(PAIRS) // steps,
                gradient_accumulation_steps=steps,
            ),
            train_dataset=equal_rows(tokenizer),
            data_collator=default_data_collator,
            callbacks=[keeper],
        ).train()
        found.append(keeper.kept[0])
    assert_same_gradients(found[1], found[0])
    assert_same_gradients(found[2], found[0])


@pytest.mark.parametrize("peft", ["no", "peft_config", "PeftModel"])
def test_trl_trainer_unchanged(peft: str, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    model, tokenizer = pair("llama")
    wrapped: nn.Module = model
    lora = LoraConfig(**LORA)
    if peft == "PeftModel":
        wrapped = get_peft_model(model, lora)
    elif peft == "peft_config":
        lora = LoraConfig(**LORA, modules_to_save=["ani"])
    attach(wrapped, tokenizer, CONFIG)
    randomise(wrapped, tokenizer)
    keeper = KeepGradients()
    trainer = trl.SFTTrainer(
        model=wrapped,
        args=trl.SFTConfig(
            **arguments(tmp_path), max_steps=1, per_device_train_batch_size=2, bf16=False, gradient_checkpointing=False
        ),
        train_dataset=Dataset.from_list([{"prompt": p, "completion": c} for p, c in PAIRS]),
        processing_class=tokenizer,
        callbacks=[keeper],
        peft_config=lora if peft == "peft_config" else None,
    )
    trained = trainer.model.train()
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    count = int((batch["labels"][:, 1:] != -100).sum())
    with_penalty = trainer.compute_loss(trained, dict(batch), num_items_in_batch=2 * count)
    penalty = penalty_of(trained)
    set_penalty(trained, 0.0)
    without = trainer.compute_loss(trained, dict(batch), num_items_in_batch=2 * count)
    torch.testing.assert_close(with_penalty - without, penalty / 2, rtol=1e-4, atol=1e-5)
    assert penalty > 0
    set_penalty(trained, CONFIG.penalty)
    before = copy.deepcopy(ani_module(trained).state_dict())
    without_warnings(trainer.train)
    for part in ("projection", "gate.inner", "gate.outer"):
        assert any(part in name and gradient.any() for name, gradient in keeper.kept[0].items()), part
    after = ani_module(trained).state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("order", ["LoRA first", "ANI first"])
def test_peft_in_both_orders(order: str, tmp_path: Path) -> None:
    model, tokenizer = pair("llama")
    batch = labelled(tokenizer)
    if order == "LoRA first":
        wrapped = get_peft_model(model, LoraConfig(**LORA))
        attach(wrapped, tokenizer, CONFIG)
    else:
        attach(model, tokenizer, CONFIG)
        lora = {**LORA, "target_modules": "all-linear"}  # which PEFT keeps out of what it saves whole
        wrapped = get_peft_model(model, LoraConfig(**lora, modules_to_save=["ani"]))
    randomise(wrapped, tokenizer)
    trainable = [p for p in wrapped.parameters() if p.requires_grad]
    assert all(p.requires_grad for p in ani_module(wrapped).parameters())
    assert not any("lora" in name for name, _ in ani_module(wrapped).named_parameters())
    optimizer = torch.optim.SGD(trainable, lr=0.1)
    wrapped.train()(**batch).loss.backward()
    optimizer.step()
    wrapped.eval()
    expected = logits_of(wrapped, batch["input_ids"])
    save_adapter(wrapped, tmp_path / "ani")
    loaded = load_adapter(pair("llama")[0], tokenizer, tmp_path / "ani")
    assert torch.equal(logits_of(loaded, batch["input_ids"]), expected)
    if order == "ANI first":  # then PEFT's own files hold the module too
        wrapped.save_pretrained(tmp_path / "peft", save_embedding_layers=False)
        base, _ = pair("llama")
        attach(base, tokenizer, ani_module(wrapped).config)
        again = PeftModel.from_pretrained(base, tmp_path / "peft").eval()
        assert torch.equal(logits_of(again, batch["input_ids"]), expected)


def test_a_tuner_that_calls_forward_directly() -> None:
    model, tokenizer = pair("llama")
    wrapped = get_peft_model(model, AdaLoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", total_step=10))
    attach(wrapped, tokenizer, CONFIG)
    randomise(wrapped, tokenizer)
    ids = encode(tokenizer)
    assert (logits_of(wrapped, ids) - logits_of(pair("llama")[0], ids)).abs().max() > 0.01
    assert last_decision(wrapped) is not None


@torch._dynamo.config.patch(disable=False)
def test_torch_compile() -> None:
    model, tokenizer = attached("llama", gemma_like())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")  # Dynamo's graphs; tests/serving tests the compilers
    plain, _ = pair("llama", gemma_like())
    for text in (MIXED_TEXT, "nothing to see here"):
        ids = encode(tokenizer, text)
        assert (logits_of(compiled, ids) - logits_of(model, ids)).abs().max() <= 1e-4
        assert torch.equal(logits_of(model, ids), logits_of(plain, ids)) == (text == "nothing to see here")
    torch._dynamo.reset()


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


def test_the_penalty_goes_to_the_losss_device() -> None:
    """In a model on several devices: module and labels on one, the head on another."""
    penalty, loss = torch.ones(1), torch.ones(1, device="meta")
    with pytest.raises(RuntimeError, match="meta"):
        penalty + loss
    labels = torch.ones((1, 4), dtype=torch.int64)
    for num_items in (None, torch.tensor(8)):
        given: Any = SimpleNamespace(loss=loss, log_probs=loss, label_mask=loss)
        outputs = add_loss(given, penalty, labels, num_items, None)
        in_tuple = add_loss((loss,), penalty, labels, num_items, None)
        assert {outputs.loss.device, outputs.log_probs.device, in_tuple[0].device} == {loss.device}


def test_a_module_that_peft_froze_is_warned_of_once() -> None:
    model, tokenizer = attached("llama")
    peft_model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")).train()
    batch = labelled(tokenizer)
    with pytest.warns(UserWarning, match="frozen"):
        peft_model(**batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        peft_model(**batch)


def own_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize("smoothing", [0.1, 0.0])
def test_a_trainer_that_keeps_the_labels_is_warned_of_once(smoothing: float, tmp_path: Path) -> None:
    model, tokenizer = attached("llama", policy="after", **TRAINING)

    def train(smoothing: float, loss: Any) -> None:
        settings = {**arguments(tmp_path), "max_steps": 1, "label_smoothing_factor": smoothing}
        Trainer(
            model=model,
            args=TrainingArguments(**settings, per_device_train_batch_size=2, gradient_checkpointing=True),
            train_dataset=equal_rows(tokenizer),
            data_collator=default_data_collator,
            compute_loss_func=loss,
        ).train()

    without_warnings(lambda: train(0.0, None))  # its labels reach the model
    loss = None if smoothing else own_loss
    with pytest.warns(UserWarning, match="label_smoothing_factor"):
        train(smoothing, loss)
    without_warnings(lambda: train(smoothing, loss))
