"""The parts of methods: no gate, replacing instead of adding, and every token of a number."""

from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedModel

from ani import AniConfig
from ani.errors import InputError
from ani.injection.attach import attach
from ani.injection.loss import auxiliary_loss
from ani.injection.methods import METHODS
from ani.injection.model_parts import ani_module, decoder_layers, last_decision, number_locator
from ani.injection.module import AniModule
from tests.properties import deep
from tests.tiny import FAMILIES, MIXED_TEXT, attached, encode, logits_of, pair

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: METHODS[name].settings for name in ("digitwise", "static", "static-additive", "digitwise-gated")},
    "replace-gated": {"combine": "replace"},
    "supervised": {"gate": "supervised", "role_weight": 1.0},
    "no-gate-norm": {"gate_norm": False},
    "gate-layers": {"gate_layers": (0,), "gate_context": (0,)},
}
families = pytest.mark.parametrize("family", FAMILIES)
in_turn = pytest.mark.parametrize(
    ("family", "variant"), [*product(FAMILIES, VARIANTS)] if deep() else [*zip(cycle(FAMILIES), VARIANTS, strict=False)]
)


def hidden_states(model: PreTrainedModel, input_ids: torch.Tensor, layer: int) -> torch.Tensor:
    with torch.no_grad():
        output = model(input_ids=input_ids, output_hidden_states=True)
    return torch.as_tensor(output.hidden_states[layer][0])


@in_turn
def test_the_hidden_state_is_what_the_settings_say(family: str, variant: str) -> None:
    model, tokenizer = attached(family, **VARIANTS[variant])
    module, scanner = ani_module(model), number_locator(model).scanner
    ids = encode(tokenizer, MIXED_TEXT)
    before = hidden_states(pair(family)[0], ids, module.config.layer)
    after = hidden_states(model, ids, module.config.layer)

    decision = last_decision(model)
    assert decision is not None
    policy = module.config.policy
    expected = before.clone()
    place = 0
    opened = []
    for number in scanner.scan(ids[0].tolist()):
        for token in range(number.last_token if policy == "terminal" else number.first_token, number.last_token + 1):
            features = number_locator(model).encoder.encode([number.text])
            embedding = module.scale * (features @ module.projection.weight.detach().T)[0]
            assert int(decision.numbers.positions[place]) == token
            opened.append(bool(decision.injection.logits[place] > 0))
            if opened[-1]:
                expected[token] = embedding if module.config.combine == "replace" else before[token] + embedding
            place += 1
    assert place == len(decision.numbers)
    assert all(opened) if module.config.gate == "open" else any(opened) and not all(opened)
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)


def module_of(**settings: Any) -> AniModule:
    return AniModule(AniConfig(layer=1, hidden_size=32, value_size=16, embedding_scale=3.0, **settings), 16)


def test_without_a_gate_there_is_nothing_to_decide() -> None:
    module = module_of(gate="open", role_weight=1.0)
    assert [name for name, _ in module.named_parameters()] == ["projection.weight"]
    injection = module.train()(torch.randn(5, 32), torch.randn(5, 16))
    assert injection.alpha.tolist() == [1.0] * 5
    assert float(auxiliary_loss(module, injection, torch.tensor([0, 1, 0, 1, -1]))) == 0


def test_a_supervised_gate_learns_from_roles_alone() -> None:
    hidden, features, roles = torch.randn(5, 32), torch.randn(5, 16), torch.tensor([1, 0, 1, -1, 0])
    supervised = module_of(gate="supervised", role_weight=1.0).train()
    nn.init.normal_(supervised.projection.weight)
    injection = supervised(hidden, features, roles)
    assert injection.alpha.tolist() == [1, 0, 1, pytest.approx(injection.logits[3].sigmoid().item()), 0]
    assert torch.equal(injection.hidden_states[roles == 0], hidden[roles == 0])
    injection.hidden_states.sum().backward()
    assert supervised.gate is not None
    assert all(parameter.grad is None for parameter in supervised.gate.parameters())
    assert supervised.projection.weight.grad.any()
    auxiliary_loss(supervised, supervised(hidden, features, roles), roles).backward()
    assert supervised.gate.outer.weight.grad.any()
    # At inference it decides as any gate, by the context alone.
    decided = supervised.eval()(hidden, features, 1 - roles)
    assert torch.equal(decided.alpha, (decided.logits > 0).float())
    assert torch.equal(decided.logits, supervised(hidden, features.flip(0), roles).logits)


@families
def test_the_gate_reads_the_mean_of_what_attention_may_read(family: str) -> None:
    model, tokenizer = attached(family, gate_layers=(1,), gate_context=(0, 1))
    read: list[torch.Tensor] = []
    values: dict[int, torch.Tensor] = {}
    gate, layers = ani_module(model).gate, decoder_layers(model)
    assert gate is not None
    gate.register_forward_pre_hook(lambda _, given: read.extend(given[2]))
    for index in (0, 1):
        layers[index].self_attn.v_proj.register_forward_hook(
            lambda *given, index=index: values.update({index: given[2]})
        )
    ids = encode(tokenizer)
    states = hidden_states(model, ids, 1)
    decision = last_decision(model)
    assert decision is not None
    first, second = (layers[index].self_attn for index in (0, 1))
    for place, token in enumerate(decision.numbers.positions.tolist()):
        assert torch.equal(read[1][place], states[token])
        for kept, attention, value in ((read[0], first, values[0]), (read[2], second, values[1])):
            window = getattr(attention, "sliding_window", None) or len(ids[0])
            mean = value[0, max(0, token + 1 - window) : token + 1].mean(dim=0).view(-1, 1, attention.head_dim)
            torch.testing.assert_close(kept[place], mean.flatten(), rtol=1e-4, atol=1e-5)


def test_no_mean_is_read_of_attention_of_another_build() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=len(pair("qwen3")[1]), **sizes))
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(InputError, match="needs attention as Llama has it, and GPTNeoXLayer has another"):
        attach(model, pair("qwen3")[1], AniConfig(layer=1, gate_context=(0,)))
    assert {name: type(module) for name, module in model.named_modules()} == before
    attach(model, pair("qwen3")[1], AniConfig(layer=1))
    assert ani_module(model).config.value_size == 0


@in_turn
def test_a_cache_and_a_batch_give_what_a_row_gives(family: str, variant: str) -> None:
    model, tokenizer = attached(family, **VARIANTS[variant])
    ids = encode(tokenizer, "Room 505 holds 12 people; 3.5 kg cost $1,234,567 and")
    output = model.generate(
        ids, max_new_tokens=8, do_sample=False, output_logits=True, return_dict_in_generate=True, eos_token_id=None
    )
    numbers = number_locator(model).batch(ids.tolist())
    logits = logits_of(model, output.sequences, numbers=numbers)[:, ids.shape[1] - 1 : -1]
    assert (torch.stack(output.logits, dim=1) - logits).abs().max() <= 1e-4
    texts = [MIXED_TEXT, "no number here", "7 of 1999"]
    together = logits_of(model, **tokenizer(texts, return_tensors="pt", padding=True, padding_side="right"))
    for row, text in enumerate(texts):
        alone = logits_of(model, encode(tokenizer, text))[0]
        assert (together[row, : len(alone)] - alone).abs().max() <= 1e-4


def test_a_half_open_gate_replaces_half() -> None:
    module = module_of(combine="replace").train()
    hidden, features = torch.randn(4, 32), torch.randn(4, 16)
    injection = module(hidden, features)
    embedding = 3.0 * module.projection(features)
    torch.testing.assert_close(injection.hidden_states, (hidden + embedding) / 2)
