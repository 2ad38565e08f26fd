from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ani.errors import TrainingFailed
from ani.injection.model_parts import ani_module, last_decision
from ani.models import load_config
from ani.training import run as run_module
from ani.training import trainer as trainer_module
from ani.training.recipe import load_recipe
from ani.training.run import prepare, train
from ani.training.trainer import AniTrainer
from tests.json_lines import write_lines
from tests.properties import deep
from tests.training.runs import log_of

Write = Callable[..., Path]


def without_roles(tmp_path: Path) -> str:
    sums = ({"prompt": f"{i} + {i} =", "completion": f" {2 * i}"} for i in range(10, 40))
    return f"data=[{{kind: jsonl, path: '{write_lines(tmp_path / 'data.jsonl', *sums)}'}}]"


@pytest.mark.parametrize(("bias", "state", "roles"), [(50.0, "open", True), (-50.0, "closed", False)])
def test_a_gate_that_is_dead_from_the_start_stops_the_run(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bias: float, state: str, roles: bool
) -> None:
    overrides = ["training.module_learning_rate=1e-9", "training.log_every=1"]
    _with_bias(monkeypatch, bias)
    with pytest.raises(TrainingFailed, match=rf"the gate saturated at step 1 \({state} for every number.*ani\.penalty"):
        train(load_recipe(tiny_recipe(), [*overrides, *([] if roles else [without_roles(tmp_path)])]))
    if roles:  # one that has learnt goes on
        train(load_recipe(tiny_recipe(output=str(tmp_path / "learns")), ["training.module_learning_rate=0.05"]))
        last = log_of(tmp_path / "learns")[-1]
        assert last["gate_saturated"] == 1 and last["embedding_rms"] > trainer_module.UNMOVED


def _with_bias(monkeypatch: pytest.MonkeyPatch, bias: float) -> None:
    def prepared(recipe: Any) -> Any:
        model, tokenizer = prepare(recipe)
        with torch.no_grad():
            ani_module(model).gate.outer.bias.fill_(bias)
        return model, tokenizer

    monkeypatch.setattr(run_module, "prepare", prepared)


def test_the_number_loss_is_the_mean_distance_of_the_learnt_digits(tiny_recipe: Write, tmp_path: Path) -> None:
    """Number-token loss is a mean over all passes of a step. If the model expects no digit at a digit's place, the loss
    there is a little more than the largest distance."""
    settings = ["method=sft", "training.steps=1", "training.log_every=1", "training.batch_size=4"]
    settings += ["training.gradient_accumulation=8", "lora.dropout=0"]
    losses = []
    for weight in (0, 0.5):
        recipe = load_recipe(
            tiny_recipe(output=str(tmp_path / f"run-{weight}")), [*settings, f"training.number_loss={weight}"]
        )
        train(recipe)
        losses.append(log_of(tmp_path / f"run-{weight}")[0]["loss"])
    model, tokenizer = prepare(recipe)
    digits = torch.tensor([tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)])
    distances = []
    rows = run_module.training_rows(recipe, load_config(recipe.model), tokenizer)
    assert len(rows) == 4 * 8
    for row in rows:
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([row.input_ids])).logits[0].float().softmax(dim=-1)[:, digits]
        for place in range(row.prompt_length, len(row.input_ids)):
            if (written := (digits == row.input_ids[place]).nonzero()).numel():
                found = expected[place - 1]
                distances.append(
                    float((found * (torch.arange(10) - written.item()).abs()).sum() + 9.09 * (1 - found.sum()))
                )
    assert len(distances) > 40
    assert losses[1] - losses[0] == pytest.approx(0.5 * sum(distances) / len(distances), rel=1e-3)


@pytest.mark.parametrize("steps", [["training.steps=8"], ["training.steps=null", "training.epochs=1"]])
def test_learning_rates_fall_at_the_end(tiny_recipe: Write, tmp_path: Path, steps: list[str]) -> None:
    settings = ["training.learning_rate=1e-3", "training.decay=0.5", "training.warmup_steps=2", "training.log_every=1"]
    train(load_recipe(tiny_recipe(), [*settings, *steps]))
    rates = [line["learning_rate"] / 1e-3 for line in log_of(tmp_path / "run") if "learning_rate" in line]
    count = len(rates)
    assert count >= 4
    assert rates == pytest.approx([min(step / 2, 1, (count - step) / round(count / 2)) for step in range(count)])


@pytest.mark.parametrize("policy", ["terminal", "after"] if deep() else ["after"])
def test_leaving_out_the_prompts_logits_changes_nothing(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    settings = [f"ani.policy={policy}", "training.steps=3", "training.log_every=1"]
    train(load_recipe(tiny_recipe(), settings))
    monkeypatch.setattr(trainer_module, "learnt_logits", lambda *_: {})
    train(load_recipe(tiny_recipe(output=str(tmp_path / "all")), settings))
    for line, other in zip(log_of(tmp_path / "run"), log_of(tmp_path / "all"), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert line["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_the_statistics_are_means_over_numbers(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of two batches a log line: a number counts alike, whichever batch it is in."""
    count, rows = AniTrainer._count, []

    def recorded(self: AniTrainer, inputs: dict[str, Any]) -> None:
        count(self, inputs)
        numbers, injection = last_decision(self.model)
        columns = (injection.logits, injection.alpha, injection.injected_ratio, injection.embedding_rms, numbers.roles)
        rows.extend(zip(*(column.tolist() for column in columns), strict=True))

    monkeypatch.setattr(AniTrainer, "_count", recorded)
    train(load_recipe(tiny_recipe(), ["training.steps=2", "training.save_every=2"]))
    (line,) = log_of(tmp_path / "run")

    def mean(values: list[float]) -> Any:
        return pytest.approx(sum(values) / len(values), rel=1e-5)

    assert line["gate_open"] == mean([z > 0 for z, *_ in rows])
    assert line["gate_saturated"] == mean([abs(z) > 6 for z, *_ in rows])
    assert line["gate_undecided"] == mean([alpha * (1 - alpha) for _, alpha, *_ in rows])
    assert line["embedding_ratio"] == mean([ratio for _, _, ratio, _, _ in rows])
    assert line["embedding_rms"] == mean([rms for _, _, _, rms, _ in rows])
    for name, role in (("nominal", 0), ("quantitative", 1)):
        logits = [z for z, *_, r in rows if r == role]
        assert line[f"gate_open_{name}"] == mean([z > 0 for z in logits])
        assert line[f"gate_logit_{name}"] == mean([abs(z) for z in logits])
