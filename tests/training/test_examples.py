from collections.abc import Callable
from pathlib import Path

import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from ani.models import load_config, load_tokenizer
from ani.training.examples import (
    NOTHING,
    LengthGroupedSampler,
)
from ani.training.recipe import load_recipe
from ani.training.run import train, training_rows
from tests.json_lines import write_lines
from tests.refusals import refused

Write = Callable[..., Path]


def test_examples_without_a_completion_within_the_limit_are_left_out(tiny_recipe: Write, tmp_path: Path) -> None:
    long, short = {"prompt": "12 " * 40, "completion": "3"}, {"prompt": "12 + 3 =", "completion": " 15"}
    path = write_lines(tmp_path / "data.jsonl", long, short, short)
    settings = [f"data=[{{kind: jsonl, path: '{path}'}}]", "training.batch_size=1", "training.steps=3"]
    with pytest.warns(UserWarning, match="1 of 3 examples are left out"):
        train(load_recipe(tiny_recipe(), settings))  # with it, a batch of its own would have the loss 0 / 0
    write_lines(path, long)
    refused(lambda: train(load_recipe(tiny_recipe(output=str(tmp_path / "other")), settings)), "max_length=64")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("rows", [11, 12, 24])
def test_processes_share_the_order_of_one(rows: int) -> None:
    lengths = [(7 * i) % 5 for i in range(rows)]
    (alone := LengthGroupedSampler(lengths, 2, seed=3)).set_epoch(1)
    (shared := LengthGroupedSampler(lengths, 2, seed=3, multiple=6)).set_epoch(1)
    (other := LengthGroupedSampler(lengths, 2, seed=3)).set_epoch(2)
    assert [*other] != [*alone]
    shards = [list(BatchSamplerShard(BatchSampler(shared, 2, drop_last=False), 3, process)) for process in range(3)]
    assert {len(shard) for shard in shards} == {-(-rows // 6)}
    rounds = [row for batches in zip(*shards, strict=True) for batch in batches for row in batch]
    assert len(rounds) == len(shared)
    assert rounds == [*alone, *[NOTHING] * (len(rounds) - rows)]


SUMS, SENTENCES = {"kind": "arithmetic", "count": 4}, {"kind": "diagnostic", "count": 4}


@pytest.mark.parametrize(
    ("gate", "policy", "learns"),
    [("supervised", "after", False), ("learned", "after", True), ("learned", "terminal", False)],
)
def test_a_gate_needs_both_roles(gate: str, policy: str, learns: bool, tiny_recipe: Write) -> None:
    """Answers' numbers have no known role: a learned gate may find names there, if the policy shows them."""
    settings = [f"ani.gate={gate}", f"ani.policy={policy}", "ani.role_weight=1"]

    def rows(*data: dict[str, object]) -> list[object]:
        recipe = load_recipe(tiny_recipe(data=[*data]), settings)
        return [*training_rows(recipe, load_config(recipe.model), load_tokenizer(recipe.model))]

    assert len(rows(SUMS, SENTENCES)) == 8
    if learns:
        assert len(rows(SUMS)) == 4
    else:
        refused(lambda: rows(SUMS), "no nominal number", "roles")
