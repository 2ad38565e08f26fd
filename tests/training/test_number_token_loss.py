import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ani import InputError
from ani.data.collator import IGNORED
from ani.training.number_token_loss import NumberTokenLoss
from ani.training.recipe import load_recipe
from ani.training.trainer import LOG_FILE, AniTrainer, train
from tests.conftest import save_tiny_llama
from tests.tokenizers import gemma_like, llama3, qwen

Write = Callable[..., Path]


def logs_of(recipe: Path, *overrides: str) -> list[dict[str, float]]:
    settings = load_recipe(recipe, overrides)
    train(settings)
    return [json.loads(line) for line in (Path(settings.output) / LOG_FILE).read_text().splitlines()]


def expected_total(logits: torch.Tensor, labels: torch.Tensor, digit_ids: list[int]) -> tuple[float, int]:
    """The definition, a position at a time: the expected distance to the right digit."""
    total, count = 0.0, 0
    for position in range(labels.numel()):
        label = int(labels.reshape(-1)[position])
        if label in digit_ids:
            weights = logits.reshape(-1, logits.shape[-1])[position, digit_ids].double().exp()
            distances = [abs(digit - digit_ids.index(label)) for digit in range(10)]
            total += float(weights @ torch.tensor(distances, dtype=torch.float64) / weights.sum())
            count += 1
    return total, count


def test_the_value_is_the_expected_distance() -> None:
    tokenizer = gemma_like()
    digit_ids = [int(tokenizer.convert_tokens_to_ids(digit)) for digit in "0123456789"]
    letter = int(tokenizer.convert_tokens_to_ids("a"))
    width = len(tokenizer) + 7  # padded, as many models' vocabularies are
    logits = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(0)) * 3
    labels = torch.tensor(
        [[digit_ids[3], letter, digit_ids[9], IGNORED, digit_ids[0]], [IGNORED, letter, digit_ids[3], letter, letter]]
    )
    loss = NumberTokenLoss(tokenizer, width)
    total, count = expected_total(logits, labels, digit_ids)
    assert loss.count(labels) == count == 4
    assert loss.total(logits, labels).item() == pytest.approx(total, rel=1e-5)
    rounded = loss.total(logits.bfloat16(), labels)
    assert rounded.item() == pytest.approx(expected_total(logits.bfloat16(), labels, digit_ids)[0], rel=1e-5)
    certain = torch.zeros(1, 2, width)
    certain[0, 0, digit_ids[4]] = certain[0, 1, digit_ids[4]] = 50
    assert loss.total(certain, torch.tensor([[digit_ids[4], digit_ids[9]]])).item() == pytest.approx(5)
    only_text = torch.tensor([[letter, IGNORED]])
    assert (loss.count(only_text), loss.total(certain, only_text).item()) == (0, 0)


def test_the_tokenizer_stays_as_it_is() -> None:
    before = qwen().get_added_vocab()
    NumberTokenLoss(qwen(), len(qwen()))
    assert qwen().get_added_vocab() == before


def test_the_trainer_adds_the_weighted_mean_over_the_digits_of_a_step(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same step once with and once without the term: its loss differs by λ times the mean over two batches."""
    tokenizer = gemma_like()
    digit_ids = [int(tokenizer.convert_tokens_to_ids(digit)) for digit in "0123456789"]
    seen: list[tuple[float, int]] = []
    original = AniTrainer.compute_loss

    def recorded(self: AniTrainer, model: torch.nn.Module, inputs: dict, *args: object, **kwargs: object) -> object:
        loss, outputs = original(self, model, inputs, True, kwargs["num_items_in_batch"])
        following = inputs["labels"][:, 1:]
        columns = (following != IGNORED).any(dim=0)
        assert outputs["logits"].shape[1] == int(columns.sum())
        seen.append(expected_total(outputs["logits"].detach(), following[:, columns], digit_ids))
        return loss

    monkeypatch.setattr(AniTrainer, "compute_loss", recorded)
    data = [{"kind": "arithmetic", "count": 8, "digits": [1, 6]}]  # so that the two batches differ in their digits
    settings = ["training.steps=1", "training.log_every=1", "training.batch_size=3"]
    (plain,) = logs_of(tiny_recipe(data=data), *settings)
    seen.clear()
    output = f"output={tmp_path / 'weighted'}"
    (line,) = logs_of(tiny_recipe(data=data), *settings, output, "training.number_token_loss=0.3")
    assert len(seen) == 2 and seen[0][1] != seen[1][1]
    mean = sum(total for total, _ in seen) / sum(count for _, count in seen)
    assert line["number_token_loss"] == pytest.approx(mean, rel=1e-4)
    assert line["loss"] == pytest.approx(plain["loss"] + 0.3 * mean, rel=1e-4)
    assert line["grad_norm"] != pytest.approx(plain["grad_norm"], rel=1e-2)


def test_the_term_is_learnt(tiny_recipe: Write) -> None:
    data = [{"kind": "arithmetic", "count": 24, "digits": [2]}]
    lines = logs_of(tiny_recipe(data=data), "training.steps=30", "training.number_token_loss=1", "method=sft")
    assert lines[-1]["number_token_loss"] < 0.7 * lines[0]["number_token_loss"]


def test_without_a_weight_the_package_is_not_needed(tiny_recipe: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ntloss", None)
    (line,) = logs_of(tiny_recipe(), "training.steps=1")
    assert "number_token_loss" not in line


def test_what_is_missing_is_said_before_training(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny_llama(tmp_path / "llama3", llama3())
    overrides = ["training.number_token_loss=0.3"]
    with pytest.raises(InputError, match=r"number_token_loss .*one token a digit .*'012'"):
        train(load_recipe(tiny_recipe(model=str(model)), overrides))
    assert not list((tmp_path / "run").glob("*"))  # the next attempt isn't told to resume this one
    monkeypatch.setitem(sys.modules, "ntloss", None)
    with pytest.raises(InputError, match=r'pip install "ani\[train\]"'):
        train(load_recipe(tiny_recipe(), overrides))
