from collections.abc import Callable
from pathlib import Path

import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from ani.data.calculation_sentences import calculation_sentences
from ani.data.calculations import calculation_problems
from ani.data.sources import Example
from ani.data.value_problems import comparing_problems, modulo_problems
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


def test_calculations_come_from_the_training_split(tiny_recipe: Write) -> None:
    settings = {"operands": [2, 3], "digits": [3], "operations": ["division", "addition"], "parentheses": False}
    data = [
        {"kind": "calculations", "count": 6, "decimals": False, **settings},
        {"kind": "calculation-sentences", "count": 8},
    ]
    examples = load_examples(load_recipe(tiny_recipe(data=data), ["seed=4"]))
    problems = calculation_problems(6, decimals=False, **settings, split="train", seed=4)
    sentences = calculation_sentences(8, split="train", seed=4)
    sentences += [each.answered() for each in [each for each in sentences if each.role == "nominal"][::4]]
    assert [each.prompt for each in examples] == [each.prompt for each in (*problems, *sentences)]
    assert [each.completion for each in examples[:6]] == [f" {problem.answer}" for problem in problems]
    assert [(each.completion, each.roles) for each in examples[6:]] == [(s.completion, s.roles) for s in sentences]


def test_value_problems_come_from_the_training_split(tiny_recipe: Write) -> None:
    data = [{"kind": "comparing", "count": 4}, {"kind": "modulo", "count": 4, "digits": [5], "moduli": [7]}]
    examples = load_examples(load_recipe(tiny_recipe(data=data), ["seed=4"]))
    problems = comparing_problems(4, forms=["plain"], split="train", seed=4)
    problems += modulo_problems(4, digits=[5], moduli=[7], split="train", seed=4)
    assert [(each.prompt, each.completion) for each in examples] == [(p.prompt, f" {p.answer}") for p in problems]
    assert {each.roles for each in examples} == {("quantitative", "quantitative")}


@pytest.mark.parametrize("rows", [11, 12, 13, 24, 3])
def test_processes_share_the_order_of_one(rows: int) -> None:
    lengths = [(7 * i) % 5 for i in range(rows)]
    (alone := LengthGroupedSampler(lengths, 2, seed=3)).set_epoch(1)
    (shared := LengthGroupedSampler(lengths, 2, seed=3, processes=3)).set_epoch(1)
    shards = [list(BatchSamplerShard(BatchSampler(shared, 2, drop_last=False), 3, process)) for process in range(3)]
    assert {len(shard) for shard in shards} == {-(-rows // 6)}
    rounds = [row for batches in zip(*shards, strict=True) for batch in batches for row in batch]
    assert len(rounds) == len(shared)
    assert rounds == [*alone, *[NOTHING] * (len(rounds) - rows)]


def test_a_supervised_gate_needs_both_roles(tiny_recipe: Write) -> None:
    settings = ["ani.gate=supervised", "ani.role_weight=1"]
    sums, sentences = {"kind": "arithmetic", "count": 4}, {"kind": "calculation-sentences", "count": 4}
    refused(lambda: load_examples(load_recipe(tiny_recipe(data=[sums]), settings)), "no nominal number", "roles")
    assert len(load_examples(load_recipe(tiny_recipe(data=[sums, sentences]), settings))) == 9  # one is shown twice


def test_a_share_of_sums_needs_the_value_where_there_is_one(tiny_recipe: Write) -> None:
    data = [{"kind": "arithmetic", "count": 20, "digits": [4], "counterfactual": 0.25}]

    def loaded(*settings: str) -> list[Example]:
        return load_examples(load_recipe(tiny_recipe(data=data), settings))

    plain = loaded("method=sft")
    assert {each.values for each in plain} == {None}
    for policy in ("after", "placewise"):
        examples = loaded(f"ani.policy={policy}")
        assert [each.prompt for each in examples] == [each.prompt for each in plain]
        others = [pair for pair in zip(examples, plain, strict=True) if pair[0] != pair[1]]
        assert len(others) == 5 and all(each.values and each.completion != was.completion for each, was in others)
        assert all((len({*value}) > 1) == (policy == "placewise") for each, _ in others for value in each.values or ())
    refused(lambda: loaded("ani.values=both", "ani.policy=after"), "contradicts the results", "ani.values=both")
    refused(lambda: loaded("data.0.operations=[addition,multiplication]"), "addition and subtraction, not for '*'")
    refused(lambda: loaded("data.0.counterfactual=1.5"), "counterfactual")
