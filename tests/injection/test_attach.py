"""Attach: the model stays the same object, whatever its users and the libraries around it do with it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DynamicCache,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
)

from ani import AniConfig, attach, detach
from ani.injection.loss import add_loss
from ani.injection.model_parts import ani_module, last_decision, number_locator
from ani.injection.self_test import CALIBRATION_TEXT
from tests.properties import cover, deep
from tests.refusals import refused
from tests.tiny import FAMILIES, LAYERS, MIXED_TEXT, attached, encode, logits_of, pair, randomise, tiny
from tests.tokenizers import gemma_like

TRAINING = {"gate_dropout": 0.0, "penalty": 0.7}


# Most tests here are about the model, not the text: `gemma_like` is the tokenizer that is quickest to scan.


def labelled(tokenizer: PreTrainedTokenizerBase, prompt: str = MIXED_TEXT, answer: str = " = 46.") -> dict[str, Any]:
    prompt_ids = tokenizer(prompt)["input_ids"]
    ids = prompt_ids + tokenizer(answer, add_special_tokens=False)["input_ids"]
    labels = [-100] * len(prompt_ids) + ids[len(prompt_ids) :]
    return {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels])}


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


@cover(family=FAMILIES, layer=[0, 2, LAYERS - 1], asked_before=[False, True])
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


def test_no_decoder_only_language_model() -> None:
    sizes = {"vocab_size": 64, "d_model": 16, "d_ff": 16, "d_kv": 4, "num_layers": 1, "num_heads": 2}
    encoder = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    others = (
        T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)),
        BertForMaskedLM(BertConfig(**encoder, num_hidden_layers=1)),
        pair("gemma")[0].model,
        nn.Linear(2, 2),
    )
    for model in others:
        refused(lambda model=model: attach(model, pair("gemma")[1], AniConfig(layer=0)), type(model).__name__)


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


@pytest.mark.parametrize("family", FAMILIES)
def test_cache_that_ani_has_not_seen(family: str) -> None:
    model, tokenizer = attached(family, gemma_like())
    ids = encode(tokenizer)
    cache = DynamicCache(config=model.config)
    logits_of(pair(family, gemma_like())[0], ids, past_key_values=cache)
    refused(lambda: model(input_ids=ids[:, :3], past_key_values=cache), "cache", str(ids.shape[1]))


# --- the loss and its gradients ---------------------------------------------------------------------------------------


@cover(family=FAMILIES, use_reentrant=[False, True], layer=[0, 2])
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


if deep():  # half a minute

    @torch._dynamo.config.patch(disable=False)
    def test_torch_compile() -> None:
        tokenizer = gemma_like()
        model, plain = (tiny("llama", tokenizer=tokenizer, num_hidden_layers=2) for _ in range(2))
        attach(model, tokenizer, AniConfig(layer=1))
        randomise(model, tokenizer)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager")  # Dynamo's graphs; tests/serving tests the compilers
        for text in (MIXED_TEXT, "nothing to see here"):
            ids = encode(tokenizer, text)
            assert (logits_of(compiled, ids) - logits_of(model, ids)).abs().max() <= 1e-4
            assert torch.equal(logits_of(model, ids), logits_of(plain, ids)) == (text == "nothing to see here")
        torch._dynamo.reset()
