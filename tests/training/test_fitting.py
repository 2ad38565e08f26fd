import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ani
from ani.data.collator import NumberCollator, tokenize
from ani.data.records import Example
from ani.data.sources import DiagnosticSource
from ani.injection.gate import Gate
from ani.injection.model_parts import ani_module, number_locator
from ani.models import load_model, load_tokenizer
from ani.roles import Role
from ani.training import fitting
from ani.training.checkpoints import ADAPTER
from ani.training.fitted_gate import fit_gate
from ani.training.recipe import load_recipe
from ani.training.run import train
from tests.tiny import pair

Write = Callable[..., Path]


def sentences(count: int) -> list[Example]:
    return DiagnosticSource(kind="diagnostic", count=count).examples(0)


@pytest.fixture(autouse=True)
def _little_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny models have some dozens of numbers in a state, none of which can be spared; a real one has thousands."""
    monkeypatch.setattr(fitting, "INPUT_DROPOUT", 0.2)


def _states(rows: list[Any], layers: tuple[int, ...]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The inputs of a gate of these layers at the known numbers of rows, and their roles, by the bare model."""
    base, tokenizer = pair("llama")
    ani.attach(base, tokenizer, ani.AniConfig(layer=layers[0], policy="terminal"))
    locator = number_locator(base)
    bare, _ = pair("llama")
    states: list[list[torch.Tensor]] = [[] for _ in layers]
    roles = []
    for row in rows:
        with torch.no_grad():
            hidden = bare(torch.tensor([row.input_ids]), output_hidden_states=True).hidden_states
        for token, number in locator.find(row.input_ids).items():
            if row.roles[number.last_token] >= 0:
                roles.append(row.roles[number.last_token])
                for kept, layer in zip(states, layers, strict=True):
                    kept.append(hidden[layer][0, token])
    return [torch.stack(kept) for kept in states], torch.tensor(roles)


def test_the_gate_separates_roles_on_the_base_models_states() -> None:
    layers = (2, 0, 1)
    model, tokenizer = pair("llama")
    config = ani.AniConfig(layer=2, policy="terminal", gate="fitted", gate_layers=layers[1:])
    ani.attach(model, tokenizer, config)
    locator = number_locator(model)
    rows = [tokenize(example, tokenizer, locator, 64) for example in sentences(400)]
    before = torch.random.get_rng_state()
    fit_gate(model, NumberCollator(tokenizer, locator), rows)
    assert torch.equal(torch.random.get_rng_state(), before)
    (first, *others), roles = _states(rows, layers)
    gate = ani_module(model).gate
    assert isinstance(gate, Gate)
    logits = gate.eval()(first, first, others)
    shares = [float((logits[roles == role] > 0).float().mean()) for role in (Role.NOMINAL, Role.QUANTITATIVE)]
    assert len(roles) > 400 and shares[0] < 0.2 and shares[1] > 0.8
    # Shuffled roles can't be learnt: what is above comes from the states.
    shuffled = roles[torch.randperm(len(roles), generator=torch.Generator().manual_seed(0))]
    assert abs(float((logits[shuffled == 1] > 0).float().mean() - (logits[shuffled == 0] > 0).float().mean())) < 0.2


def test_a_states_common_part_is_no_hindrance() -> None:
    """Nearly parallel states still show the roles."""
    model, tokenizer = pair("llama")
    ani.attach(model, tokenizer, ani.AniConfig(layer=2, policy="terminal", gate="fitted"))
    locator = number_locator(model)
    common = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    common *= 4 * ani_module(model).scale  # states of a mean cosine of 0.94
    model.model.layers[1].register_forward_hook(lambda *given: given[2] + common)
    rows = [tokenize(example, tokenizer, locator, 64) for example in sentences(400)]
    fit_gate(model, NumberCollator(tokenizer, locator), rows)
    (states,), roles = _states(rows, (2,))
    gate: Any = ani_module(model).gate.eval()
    assert float(((gate(states + common, states) > 0) == (roles == Role.QUANTITATIVE)).float().mean()) > 0.8


def test_it_is_left_as_it_is_in_training_and_saved(tiny_recipe: Write, tiny_model: Path, tmp_path: Path) -> None:
    changes = ["ani.gate=fitted", "ani.gate_layers=[0]", "data=[{kind: diagnostic, count: 24}]"]
    model = train(load_recipe(tiny_recipe(), changes))
    gate: Any = ani_module(model).gate
    assert bool(gate.outer.weight.any()) and bool(ani_module(model).projection.weight.any())
    again, tokenizer = load_model(str(tiny_model), dtype="float32"), load_tokenizer(str(tiny_model))
    loaded: Any = ani_module(ani.load_adapter(again, tokenizer, tmp_path / "run" / ADAPTER)).gate
    assert torch.equal(loaded.outer.weight, gate.outer.weight)
    fresh = load_model(str(tiny_model), dtype="float32")
    ani.attach(fresh, tokenizer, ani_module(again).config)
    locator = number_locator(fresh)
    rows = [tokenize(example, tokenizer, locator, 64) for example in sentences(24)]
    fit_gate(fresh, NumberCollator(tokenizer, locator), rows)
    refit: Any = ani_module(fresh).gate
    assert refit.outer.weight.flatten().tolist() == pytest.approx(loaded.outer.weight.flatten().tolist(), abs=1e-4)


def test_states_are_dropped_out_and_stay_the_same_on_average() -> None:
    torch.manual_seed(0)
    states = torch.ones(1001, 99)  # not a multiple of eight
    dropped = fitting._dropped_out(states)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / (1 - fitting.INPUT_DROPOUT)])
    assert abs(float(dropped.mean()) - 1) < 0.02  # four deviations
    shares = (dropped == 0).float().mean(dim=0)
    assert float((shares - fitting.INPUT_DROPOUT).abs().max()) < 0.1  # no column is spared


def test_a_text_counts_once_and_by_what_is_worst_in_it() -> None:
    wrong = torch.tensor([-9.0, 3.0, -9.0, -9.0, 5.0, 90.0], requires_grad=True)
    loss = fitting._of_texts(wrong, torch.tensor([0, 0, 1, 1, 2, 2]))
    sums = [[-9.0, 3.0], [-9.0, -9.0], [5.0, 90.0]]
    expected = sum(math.log1p(sum(map(math.exp, each))) for each in sums) / 3
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, wrong)
    share = math.exp(3.0) / (1 + math.exp(3.0) + math.exp(-9.0)) / 3
    assert float(gradient[1]) == pytest.approx(share, rel=1e-5) and float(gradient[5]) == pytest.approx(1 / 3)
