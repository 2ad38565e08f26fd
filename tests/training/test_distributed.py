"""Two gloo processes on the CPU, each of an agent of its own, as on two nodes, train as one process does."""

import itertools
import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from ani.training.checkpoints import last_step
from ani.training.recipe import load_recipe
from ani.training.run import check, train
from tests.fixtures import MadeOnce
from tests.json_lines import write_lines
from tests.refusals import refused
from tests.training.by_trl import train_by_sft
from tests.training.runs import assert_same_run, weights_of

WORKER = Path(__file__).with_name("distributed_worker.py")


class Pair(NamedTuple):
    """The results of two processes."""

    folder: Path
    results: dict[str, list[Any]]
    """A job's, by process."""
    output: str


def uneven_data(path: Path) -> Path:
    """9 examples: some without a number, some with many; of other lengths, so that they meet in other batches."""
    examples = [{"prompt": "so it goes" + " on" * (i % 2), "completion": " and on"} for i in range(4)]
    examples += [{"prompt": f"{i} + {3 * i} =", "completion": f" {4 * i}"} for i in range(11, 14)]
    examples += [{"prompt": " ".join(map(str, range(i, i + 9))), "completion": f" {i + 9}"} for i in range(20, 22)]
    return write_lines(path, *examples)


@pytest.fixture(scope="module")
def recipe(tiny_model: Path, made_once: MadeOnce) -> Path:
    """7 batches, with all terms of the loss; without dropout, which every process draws for itself."""
    return made_once("distributed-recipe", lambda folder: write_recipe(folder, tiny_model)) / "recipe.yaml"


def write_recipe(folder: Path, tiny_model: Path) -> None:
    folder.mkdir()
    data = str(uneven_data(folder / "data.jsonl"))
    settings = {
        "model": str(tiny_model),
        "output": str(folder / "unused"),
        "dtype": "float32",
        "quantization": "none",
        "ani": {"layer": 1, "gate_hidden_size": 8, "gate_dropout": 0.0, "role_weight": 0.5},
        "lora": {"r": 4, "alpha": 8},
        "data": [{"kind": "jsonl", "path": data}, {"kind": "diagnostic", "count": 4}],
        "training": {
            "learning_rate": 1e-3,
            "module_learning_rate": 5e-3,
            "batch_size": 2,
            "gradient_accumulation": 2,
            "max_length": 64,
            "epochs": 2,
            "log_every": 1,
            "save_every": 3,
            "gradient_checkpointing": False,
        },
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(settings))


THREE_A_PROCESS = ["training.gradient_accumulation=6", "training.gradient_checkpointing=true", "ani.layer=0"]
"""An epoch has 4 batches a process: a step of 3, and one of 1."""


@pytest.fixture(scope="module")
def pair(recipe: Path, made_once: MadeOnce) -> Pair:
    folder = made_once("distributed", lambda folder: train_in_pairs(folder, recipe))
    jobs, *results = (json.loads((folder / f"{name}.json").read_text()) for name in ("jobs", "results-0", "results-1"))
    by_job = {job["name"]: both for job, *both in zip(jobs, *results, strict=True)}
    return Pair(folder, by_job, (folder / "output").read_text())


def train_in_pairs(folder: Path, recipe: Path) -> None:
    """All runs of the two processes (starting them takes longest), and beside them those of one."""
    folder.mkdir()

    def job(name: str, *overrides: str, **settings: Any) -> dict[str, Any]:
        overrides = (*overrides, f"output={folder / name}")
        return {"name": name, "recipe": str(recipe), "overrides": overrides, "fsdp": "fsdp" in name, **settings}

    def resumed(kind: str) -> list[dict[str, Any]]:
        stopped = f"{kind}-stopped"
        again = {"name": f"{kind}-resumed", "resume": str(folder / stopped), "fsdp": kind == "fsdp"}
        return [job(stopped, stop=7), again]

    jobs = [
        *resumed("ddp"),
        job("ddp-signalled", *THREE_A_PROCESS, signal=2),
        job("fsdp"),
        job("fsdp-6", *THREE_A_PROCESS),
    ]
    jobs += [*resumed("fsdp"), job("fsdp-failed", "training.learning_rate=1e36")]
    jobs += [{"name": "fsdp-sft", "sft": load_recipe(recipe).model, "out": str(folder / "two"), "fsdp": True}]
    # The last one: the command ends the process group, and a second group may read the addresses of the first.
    jobs += [{"name": "cli", "cli": ["train", str(recipe), f"output={folder / 'cli'}"]}]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    agent += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    agents = [subprocess.Popen([*agent, str(WORKER), str(folder / "jobs.json")], **pipes) for _ in range(2)]
    try:
        train(load_recipe(recipe, [f"output={folder / 'one'}"]))
        train(load_recipe(recipe, [*THREE_A_PROCESS, f"output={folder / 'one-6'}"]))
        train_by_sft(load_recipe(recipe).model, folder / "one-sft", batch_size=4)
        output = "".join(each.communicate(timeout=300)[0] for each in agents)
    finally:
        for each in agents:
            each.terminate()
    assert [each.returncode for each in agents] == [0, 0], output
    (folder / "output").write_text(output)


def assert_alike(run: Path, reference: Path) -> None:
    assert_same_run(run, reference, tolerance=1e-4)


@pytest.mark.parametrize(("run", "one"), [("cli", "one"), ("fsdp", "one"), ("fsdp-6", "one-6")])
def test_two_processes_train_as_one(pair: Pair, run: str, one: str) -> None:
    assert_alike(pair.folder / run, pair.folder / one)


def test_fsdp_shards_every_layer(pair: Pair) -> None:
    for result in pair.results["fsdp-6"]:  # injected at layer 0, whose class FSDP meets first
        assert result["sharded"]
        assert [unit.rpartition(".")[2] for unit in result["units"] if ".layers." in unit] == ["0", "1", "2"]
    assert not pair.results["ddp-resumed"][0]["units"]


@pytest.mark.parametrize(("kind", "unbroken"), [("ddp", "cli"), ("fsdp", "fsdp")])
def test_a_resumed_run_is_the_unbroken_one(pair: Pair, kind: str, unbroken: str) -> None:
    assert pair.results[f"{kind}-stopped"] == [{"interrupted": True}] * 2
    first, second = pair.results[f"{kind}-resumed"]
    assert first["lines"] == [7, 8] and second["lines"] == []  # in the second epoch; one process speaks
    assert_alike(pair.folder / f"{kind}-stopped", pair.folder / unbroken)


def test_a_signal_to_one_process_stops_both_after_the_same_step(pair: Pair) -> None:
    assert pair.results["ddp-signalled"] == [{"ended": 143}] * 2  # only the second got it
    assert last_step(pair.folder / "ddp-signalled") == 3


def test_processes_fail_together(pair: Pair) -> None:
    first, second = pair.results["fsdp-failed"]
    assert first == second and "the loss is nan at step 2" in first["error"]


def test_one_process_speaks(pair: Pair) -> None:
    assert pair.output.count("The adapter:") == pair.output.count("step    8/8") == 1


def assert_same_training(two: Path, one: Path, results: list[Any]) -> None:
    assert results == [{"sharded": True}] * 2
    weights, others = (weights_of(folder / "adapter") for folder in (two, one))
    assert weights.keys() == others.keys()
    assert weights["ani.safetensors:projection.weight"].abs().max() > 1e-2  # it begins at 0
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], atol=1e-4, rtol=0, msg=name)


def test_two_processes_of_trl_shard_the_model_and_train_as_one(pair: Pair) -> None:
    assert_same_training(pair.folder / "two", pair.folder / "one-sft", pair.results["fsdp-sft"])


def test_two_processes_of_deepspeed_train_as_one(tiny_model: Path, tmp_path: Path) -> None:
    if find_spec("deepspeed") is None:
        pytest.skip("needs DeepSpeed: pip install deepspeed")
    (tmp_path / "jobs.json").write_text(json.dumps([{"sft": str(tiny_model), "out": str(tmp_path / "two")}]))
    launch = "accelerate.commands.launch --num_processes 2 --mixed_precision no --use_deepspeed --zero_stage 2"
    command = [sys.executable, "-m", *launch.split(), str(WORKER), str(tmp_path / "jobs.json")]
    subprocess.run(command, env={**os.environ, "DS_ACCELERATOR": "cpu"}, check=True)
    train_by_sft(str(tiny_model), tmp_path / "one", batch_size=4)
    results = [*itertools.chain(*(json.loads((tmp_path / f"results-{i}.json").read_text()) for i in range(2)))]
    assert_same_training(tmp_path / "two", tmp_path / "one", results)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"WORLD_SIZE": "3"}, "training.gradient_accumulation=2"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "--fsdp_version 2"),
    ],
)
def test_what_cannot_be_launched_is_refused(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], named: str
) -> None:
    check(load_recipe(recipe))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    refused(lambda: check(load_recipe(recipe)), named)
