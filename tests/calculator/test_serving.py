"""vLLM with the calculator writes what transformers' `generate` writes with it, and its caches are the base model's."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from ani import InputError
from ani.calculator.calculator import Calculator, CalculatorConfig, shape_of
from ani.calculator.rows import RowReader
from ani.calculator.serving import FOLDER, merge, why_not
from ani.serving.engine_step import EngineStep
from ani.serving.plugin import SWITCH, Check
from tests import tiny as tiny_models
from tests.fixtures import need_libnuma
from tests.properties import deep

vllm = pytest.importorskip("vllm")
need_libnuma()

from ani.calculator.vllm import StepReader  # noqa: E402  # it imports vLLM
from tests.serving.test_vllm import engine, engine_config, quiet_vllm, served  # noqa: E402, F401

SYSTEM = "You are a helpful assistant who answers every question of a customer in one short sentence, and politely. "
"""Twice this is more than a block of the KV cache."""
NEW = 12
CONTEXT = 2


def chats(count: int) -> list[str]:
    """Texts that begin alike; two in three ask for a value."""
    draw = random.Random(0)
    kinds = ["What is {} {} {}?\n", "Compute {} {} {}.\nAnswer:", "Room {} {} {} is closed.\n"]
    texts = [
        kinds[i % 3].format(draw.randrange(1000), draw.choice("+-*/"), draw.randrange(1, 99)) for i in range(count)
    ]
    return [2 * SYSTEM + text for text in texts]


def calculated(folder: Path, family: str = "llama") -> tuple[Any, Any, Calculator]:
    """A tiny model, saved as `folder`/base, its tokenizer, and a random calculator, saved as `folder`/calculator."""
    tokenizer = tiny_models.tokenizer_of(family, 12_000)
    # vLLM's attention on a CPU has kernels for heads of 32 and more.
    model = tiny_models.tiny(family, tokenizer=tokenizer, head_dim=32, num_hidden_layers=3)
    for each in (model, tokenizer):
        each.save_pretrained(folder / "base")
    facts = {"base": str(folder / "base"), "layers": [1, 2], "context": [0, 1][:CONTEXT], "value_size": 64}
    config = CalculatorConfig(gate_hidden_size=8, **facts, **shape_of(model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        gate = config.gate()
        torch.nn.init.normal_(gate.outer.weight, std=2.0)
    calculator = Calculator(model, tokenizer, gate, config)
    last = []
    for text in chats(21):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        model(ids, past_key_values=DynamicCache())
        last.append(calculator.logits(torch.tensor([0]), torch.tensor([[ids.shape[1] - 1]])).item())
    # The threshold goes into the widest gap between the middle decisions.
    middle = sorted(last)[7:14]
    low, high = max(pairwise(middle), key=lambda pair: pair[1] - pair[0])
    calculator.gate.outer.bias.data -= (low + high) / 2
    calculator.save(folder / "calculator")
    return model, tokenizer, calculator


def greedy(model: Any, rows: list[list[int]], calculator: Calculator | None = None) -> list[list[int]]:
    """transformers' tokens."""
    settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    processors = [] if calculator is None else [calculator]
    rows_of = (torch.tensor([row]) for row in rows)
    return [model.generate(ids, logits_processor=processors, **settings)[0, ids.shape[1] :].tolist() for ids in rows_of]


@pytest.mark.parametrize("family", ["llama", "qwen3"] if deep() else ["llama"])
def test_vllm_writes_what_transformers_writes(tmp_path: Path, family: str) -> None:
    model, tokenizer, calculator = calculated(tmp_path, family)
    merge(str(tmp_path / "calculator"), tmp_path / "out", dtype="float32")
    rows = [tokenizer(text)["input_ids"] for text in chats(21)]
    expected, plain = greedy(model, rows, calculator), greedy(model, rows)
    written = sum(a != b for a, b in zip(expected, plain, strict=True))
    assert 3 < written < 19  # gates are open and closed
    llm = engine(tmp_path / "out", rows, in_flight=8, chunk=23, num_gpu_blocks_override=64)
    try:
        answers, cached = served(llm, rows, NEW)
        assert [tokens for tokens, _ in answers] == expected and cached > 0
        closed, _ = served(llm, rows, NEW, **{SWITCH: "closed"})
        assert [tokens for tokens, _ in closed] == plain
        question = tokenizer("\nWhat is 21 * 34?\n", add_special_tokens=False)["input_ids"]
        turns = [[*row, *answer, *question] for row, answer in zip(rows, expected, strict=True)]
        again, cached = served(llm, turns, NEW)
        assert [tokens for tokens, _ in again] == greedy(model, turns, calculator) and cached >= len(rows) * 32
    finally:
        llm.llm_engine.engine_core.shutdown()


def test_merge(tmp_path: Path) -> None:
    model, tokenizer, calculator = calculated(tmp_path)
    with pytest.raises(InputError, match="base"):
        merge(str(tmp_path / "calculator"), tmp_path / "base")
    merge(str(tmp_path / "calculator"), tmp_path / "out", dtype="float32")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("llama", ["CalculatorLlamaForCausalLM"])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(loaded.state_dict()[name], weight) for name, weight in model.state_dict().items())
    assert Calculator.load(tmp_path / "out" / FOLDER, loaded, tokenizer).config == calculator.config


def test_settings_that_would_be_served_wrongly_are_refused() -> None:
    for changes, named in (
        ({"speculative_config": object()}, "--speculative-config"),
        ({"enable_batch_sharded_sampling": True}, "--enable-batch-sharded-sampling"),
        ({"pipeline_parallel_size": 2}, "--tensor-parallel-size"),
        ({"async_scheduling": True}, "--no-async-scheduling"),
    ):
        config = engine_config(**changes)
        config.speculative_config = changes.get("speculative_config")
        config.parallel_config.enable_batch_sharded_sampling = changes.get("enable_batch_sharded_sampling", False)
        with pytest.raises(ValueError, match=named):
            Check(why_not).verify_and_update_config(config)


def test_steps_read_what_whole_rows_read() -> None:
    """However a request is cut into steps; prose after which nothing is pending is not read."""
    tokenizer = tiny_models.tokenizer_of("llama")
    rows = RowReader(tokenizer)
    reader, read = StepReader(rows), []
    after = rows.after
    rows.after = lambda row, ids: read.append(len(ids)) or after(row, ids)  # type: ignore[assignment,func-returns-value]
    prompt, answer = (
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in ("Tell me a tale of 7 dwarfs. ", "Once upon a time they had 3 + 4 = 7 hats, and then 12 * 3 = 3")
    )
    ids = prompt + answer
    expected = [each and each.value for each in RowReader(tokenizer).every(ids)]
    table, ints = np.array([ids]), lambda *values: np.array(values)
    cuts = [(0, 3), (3, len(prompt)), *((i, i + 1) for i in range(len(prompt), len(ids)))]
    for start, stop in cuts:
        step = EngineStep(["a"], table, ints(0), ints(len(prompt)), ints(start), ints(0, stop - start))
        row = reader.read(step).get(0)
        assert stop < len(prompt) or (row and row.pending and row.pending.value) == expected[stop - 1]
    assert any(expected) and sum(read) <= len(ids) and len(read) < len(answer)
