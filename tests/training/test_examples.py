from collections.abc import Callable
from pathlib import Path

import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from ani.training.examples import NOTHING, LengthGroupedSampler, load_examples
from ani.training.recipe import load_recipe
from ani.training.run import train
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


def test_data_have_a_seed_of_their_own(tiny_recipe: Write) -> None:
    own, *others = (
        load_examples(load_recipe(tiny_recipe(), settings))
        for settings in (["seed=4", "data_seed=0"], ["seed=0"], ["seed=4"])
    )
    assert own == others[0] != others[1]


def test_every_epoch_has_an_order_of_its_own() -> None:
    sampler = LengthGroupedSampler([1] * 24, 2, seed=3)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("rows", [11, 12, 13, 24, 3])
def test_processes_share_the_order_of_one(rows: int) -> None:
    lengths = [(7 * i) % 5 for i in range(rows)]
    (alone := LengthGroupedSampler(lengths, 2, seed=3)).set_epoch(1)
    (shared := LengthGroupedSampler(lengths, 2, seed=3, multiple=6)).set_epoch(1)
    shards = [list(BatchSamplerShard(BatchSampler(shared, 2, drop_last=False), 3, process)) for process in range(3)]
    assert {len(shard) for shard in shards} == {-(-rows // 6)}
    rounds = [row for batches in zip(*shards, strict=True) for batch in batches for row in batch]
    assert len(rounds) == len(shared)
    assert rounds == [*alone, *[NOTHING] * (len(rounds) - rows)]


def test_a_supervised_gate_needs_both_roles(tiny_recipe: Write) -> None:
    settings = ["ani.gate=supervised", "ani.role_weight=1"]
    sums, sentences = {"kind": "arithmetic", "count": 4}, {"kind": "diagnostic", "count": 4}
    refused(lambda: load_examples(load_recipe(tiny_recipe(data=[sums]), settings)), "no nominal number", "roles")
    assert len(load_examples(load_recipe(tiny_recipe(data=[sums, sentences]), settings))) == 8
