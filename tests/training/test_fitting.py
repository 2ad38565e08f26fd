from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ani
from ani.data.collator import NumberCollator, tokenize
from ani.data.sources import diagnostic_examples
from ani.injection.attach import ani_module, number_locator
from ani.models import load_model, load_tokenizer
from ani.training.checkpoints import ADAPTER
from ani.training.fitting import STRENGTH, fit_gate
from ani.training.recipe import load_recipe
from ani.training.run import train
from tests.json_lines import write_lines
from tests.refusals import refused
from tests.tiny import pair

Write = Callable[..., Path]


@pytest.mark.parametrize("layers", [(), (0, 1)])
def test_the_gate_is_scikit_learns_on_the_base_models_states(layers: tuple[int, ...]) -> None:
    model, tokenizer = pair("llama")
    ani.attach(model, tokenizer, ani.AniConfig(layer=2, policy="terminal", gate="fitted", gate_layers=layers))
    locator = number_locator(model)
    rows = [tokenize(example, tokenizer, locator, 64) for example in diagnostic_examples(40)]
    fit_gate(model, NumberCollator(tokenizer, locator), rows)
    base, _ = pair("llama")
    features, roles = [], []
    for row in rows:
        with torch.no_grad():
            states = base(torch.tensor([row.input_ids]), output_hidden_states=True).hidden_states
        for number, token in locator.find(row.input_ids):
            if row.roles[number.last_token] >= 0:
                read = [states[layer][0, token] for layer in (2, *layers)]
                features.append(torch.cat([each / each.square().mean().add(1e-6).sqrt() for each in read]).numpy())
                roles.append(row.roles[number.last_token])
    reference = make_pipeline(
        StandardScaler(), LogisticRegression(C=STRENGTH, class_weight="balanced", max_iter=1000)
    ).fit(np.array(features), roles)
    assert len(roles) > 40
    gate: Any = ani_module(model).gate
    split = np.array_split(np.array(features, dtype=np.float32), 1 + len(layers), axis=1)
    first, *others = (torch.tensor(part) for part in split)
    found = gate(first, first, others).detach().numpy()
    assert found == pytest.approx(reference.decision_function(np.array(features)), abs=1e-3)


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
    rows = [tokenize(example, tokenizer, locator, 64) for example in diagnostic_examples(24, seed=0)]
    fit_gate(fresh, NumberCollator(tokenizer, locator), rows)
    refit: Any = ani_module(fresh).gate
    assert refit.outer.weight.flatten().tolist() == pytest.approx(loaded.outer.weight.flatten().tolist(), abs=1e-4)


def test_data_of_one_role_is_refused(tiny_recipe: Write, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "d.jsonl", {"prompt": "Room 505 is", "completion": " red.", "roles": "nominal"})
    changes = ["ani.gate=fitted", f"data=[{{kind: jsonl, path: '{data}'}}]"]
    refused(lambda: train(load_recipe(tiny_recipe(), changes)), "ani.gate=fitted", "no quantitative")
