"""The method against the paper's equations, on a tiny model, and where each baseline changes which hidden state."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import ani
from ani.injection.linear import Linear
from tests.paper import facts, project
from tests.tiny import attached, encode, tiny

TEXT = "The 12 men and 345 of room 12 are here"
LAYER = 2


def hidden_states(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    labels = torch.full_like(ids, -100) if model.training else None  # all is prompt
    with torch.set_grad_enabled(model.training):  # without gradients, a model has the gates of inference
        outputs = model(input_ids=ids, labels=labels, output_hidden_states=True)
    return tuple(states[0].detach() for states in outputs.hidden_states)


def changes(name: str, text: str = TEXT) -> tuple[torch.Tensor, torch.Tensor, int, dict[str, list[list[int]]]]:
    """Hidden states of a method's layer without and with it, that layer, and the tokens of each number in the text."""
    model, tokenizer = attached("qwen3", **{"layer": LAYER, **(project.method_settings(name) or {})})
    ids = encode(tokenizer, text)
    layer = (project.method_settings(name) or {}).get("layer", LAYER)
    with_it, without = hidden_states(model, ids), hidden_states(tiny("qwen3"), ids)
    for below in range(layer):
        assert torch.equal(with_it[below], without[below])
    tokens: dict[str, list[list[int]]] = {}
    for number in ani.NumberScanner(tokenizer).scan(ids[0].tolist()):
        digits = [*range(number.first_token, number.last_token + 1)]
        tokens.setdefault(number.text, []).append(digits[-len(number.text) :])  # a blank is a token of its own
    return without[layer], with_it[layer], layer, tokens


@pytest.mark.parametrize("name", ["static", "static-additive", "digitwise", "xval", "fone"])
def test_a_method_changes_its_own_tokens_alone(name: str) -> None:
    before, after, _, tokens = changes(name)
    every = [digits for places in tokens.values() for digits in places]
    expected = {token for digits in every for token in (digits if name == "digitwise" else digits[-1:])}
    found = (before != after).any(dim=1).nonzero().flatten().tolist()
    if name in ("xval", "fone"):  # the other sub-tokens are hidden, so their states mean nothing
        found = [token for token in found if token not in {token for digits in every for token in digits[:-1]}]
    assert set(found) == expected


@pytest.mark.parametrize(
    ("name", "adds"),
    [("static-additive", True), ("digitwise", True), ("static", False), ("xval", False), ("fone", False)],
)
def test_a_method_adds_or_replaces(name: str, adds: bool) -> None:
    before, after, _, tokens = changes(name)
    first, second = (places[-1] for places in tokens["12"])
    added = torch.allclose(after[first] - before[first], after[second] - before[second], atol=1e-5)
    replaced = torch.allclose(after[first], after[second], atol=1e-5)
    contexts_differ = not torch.allclose(before[first], before[second], atol=1e-3)
    if contexts_differ:
        assert (added, replaced) == (adds, not adds)
    else:  # at layer 0 one token has one embedding: only another token can tell
        (digits,) = tokens["345"]
        same_change = torch.allclose(
            after[digits[0]] - before[digits[0]], after[digits[-1]] - before[digits[-1]], atol=1e-5
        )
        assert same_change is adds
        if not adds:
            assert replaced


@pytest.mark.parametrize("name", ["ani", "digitwise-gated"])
def test_a_gated_method_adds_where_the_gate_is_open(name: str) -> None:
    before, after, _, tokens = changes(name, "Room 505 holds 12 men, 345 of 12, 99 of 7, and 80 of 66 at 19 are 3")
    every = [digits for places in tokens.values() for digits in places]
    expected = {token for digits in every for token in (digits if name == "digitwise-gated" else digits[-1:])}
    found = set((before != after).any(dim=1).nonzero().flatten().tolist())
    assert found < expected  # some gates are closed
    assert found
    if name == "digitwise-gated":
        assert any(len(found & set(digits)) > 1 or digits[-1] not in found & set(digits) for digits in every)
        assert found & {token for digits in every for token in digits[:-1]}


@pytest.mark.parametrize("training", [False, True])
def test_what_is_added_is_the_projected_value_times_alpha(training: bool) -> None:
    """Eq. 1, 3, 5 and 6."""
    model, tokenizer = attached("qwen3", layer=LAYER, policy="terminal", embedding_scale=1.0)
    model.train(training)
    ids = encode(tokenizer, TEXT)
    module = project.module_of(model)
    without, with_it = hidden_states(tiny("qwen3"), ids)[LAYER], hidden_states(model, ids)[LAYER]
    numbers = ani.NumberScanner(tokenizer).scan(ids[0].tolist())
    features = ani.FourierNumberEncoder(10, 6).encode([number.value for number in numbers])
    with torch.no_grad():
        embeddings = features @ module.projection.weight.T
    alpha, logits = project.alphas(model), project.gate_logits(model)
    opened = torch.sigmoid(logits)
    assert torch.equal(alpha, opened if training else (opened > 0.5).to(alpha.dtype))
    expected = without.clone()
    for number, open_gate, embedding in zip(numbers, alpha, embeddings, strict=True):
        expected[number.last_token] += open_gate * embedding
    torch.testing.assert_close(with_it, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("logit", "alpha"), [(0.01, 1.0), (-0.01, 0.0)])
def test_the_threshold_is_one_half(logit: float, alpha: float) -> None:
    model, tokenizer = attached("qwen3", layer=LAYER)
    outer = [layer for layer in project.module_of(model).gate.modules() if isinstance(layer, Linear)][-1]
    with torch.no_grad():
        outer.weight.zero_()
        outer.bias.fill_(logit)
        model(input_ids=encode(tokenizer, TEXT))
    assert project.alphas(model).unique().tolist() == [alpha]


def test_the_loss_is_cross_entropy_and_the_penalty() -> None:
    """Eq. 4: in training α is σ(z), and λ·mean(α(1 − α)) over numbers is added to next-token prediction."""
    model, tokenizer = attached("qwen3", layer=LAYER, policy="terminal", scope="all", penalty_ramp=0.0)
    ids = encode(tokenizer, TEXT)
    model.train()
    output = model(input_ids=ids, labels=ids)
    alpha = project.alphas(model)
    assert torch.equal(alpha, torch.sigmoid(project.gate_logits(model)))
    assert bool(((alpha > 0) & (alpha < 1)).all())
    predicted = nn.functional.cross_entropy(output.logits[0, :-1], ids[0, 1:])
    penalty = 0.1 * (alpha * (1 - alpha)).mean()
    assert float(penalty) > 1e-3
    torch.testing.assert_close(output.loss, predicted + penalty, atol=1e-5, rtol=0)


def test_the_module_is_a_projection_and_a_gate_of_two_layers() -> None:
    """W_P of shape (d_model, d_fourier); the gate reads [h; e] through two layers with dropout 0.1."""
    model, _ = attached("qwen3", layer=LAYER, sign="phase")
    width, module = model.config.hidden_size, project.module_of(model)
    assert module.projection.weight.shape == (width, 2 * (10 + 6))
    assert module.projection.bias is None
    linear = [layer for layer in module.gate.modules() if isinstance(layer, Linear)]
    assert [linear[0].weight.shape[1], linear[-1].weight.shape[0], len(linear)] == [2 * width, 1, 2]
    assert [layer.p for layer in module.gate.modules() if isinstance(layer, nn.Dropout)] == [0.1]


def test_defaults_are_the_papers() -> None:
    config = ani.AniConfig(layer=24)
    for key, value in facts.MODULE.items():
        found = getattr(config, key)
        assert f"ani.{key}" in facts.DEVIATIONS or (tuple(found) if isinstance(found, list) else found) == value, key
    assert config.gate == facts.ANI["gate"] and config.combine == facts.ANI["combine"]


def test_features_are_those_of_fone() -> None:
    """cos and sin of 2πx/T for T = 10^i, i from 1 − 6 to 10."""
    (features,) = ani.FourierNumberEncoder(10, 6, sign="phase").encode(["1234.5"])
    angles = [2 * math.pi * (1234.5 / 10**i % 1.0) for i in range(1 - 6, 10 + 1)]
    expected = [wave(angle) for angle in angles for wave in (math.cos, math.sin)]
    torch.testing.assert_close(features, torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("text", "written"), [("He has 42 apples", "He has 2:42 apples"), ("7 of 505", "1:7 of 3:505")]
)
def test_numerologic_writes_the_digit_count_first(text: str, written: str) -> None:
    assert project.written_by("numerologic", text) == written
    assert project.written_by("sft", text) == project.written_by("ani", text) == text
