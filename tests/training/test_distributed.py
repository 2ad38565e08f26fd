"""Two gloo processes on the CPU, each of an agent of its own, as on two nodes, train as one process does."""

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

    jobs = []
    for kind in ("ddp", "fsdp"):
        stopped = str(folder / f"{kind}-stopped")
        jobs += [
            job(kind),
            job(f"{kind}-6", *THREE_A_PROCESS),
            job(f"{kind}-stopped", stop=7),
            {"name": f"{kind}-resumed", "resume": stopped, "fsdp": kind == "fsdp"},
            job(f"{kind}-failed", "training.learning_rate=1e36"),
            job(f"{kind}-signalled", *THREE_A_PROCESS, signal=2),
        ]
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
        output = "".join(each.communicate(timeout=300)[0] for each in agents)
    finally:
        for each in agents:
            each.terminate()
    assert [each.returncode for each in agents] == [0, 0], output
    (folder / "output").write_text(output)


def assert_alike(run: Path, reference: Path) -> None:
    assert_same_run(run, reference, tolerance=1e-4)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("accumulation", ["", "-6"])
def test_two_processes_train_as_one(pair: Pair, kind: str, accumulation: str) -> None:
    assert_alike(pair.folder / f"{kind}{accumulation}", pair.folder / f"one{accumulation}")


def test_fsdp_shards_every_layer(pair: Pair) -> None:
    for result in pair.results["fsdp-6"]:  # injected at layer 0, whose class FSDP meets first
        assert result["sharded"]
        assert [unit.rpartition(".")[2] for unit in result["units"] if ".layers." in unit] == ["0", "1", "2"]
    assert not pair.results["ddp-6"][0]["units"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_resumed_run_is_the_unbroken_one(pair: Pair, kind: str) -> None:
    assert pair.results[f"{kind}-stopped"] == [{"interrupted": True}] * 2
    assert pair.results[f"{kind}-resumed"][0]["lines"] == [7, 8]  # in the second epoch
    assert_alike(pair.folder / f"{kind}-stopped", pair.folder / kind)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_signal_to_one_process_stops_both_after_the_same_step(pair: Pair, kind: str) -> None:
    run = pair.folder / f"{kind}-signalled"
    assert pair.results[run.name] == [{"ended": 143}] * 2  # only the second got it
    assert last_step(run) == 3


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_processes_fail_together(pair: Pair, kind: str) -> None:
    first, second = pair.results[f"{kind}-failed"]
    assert first == second
    assert "the loss is nan at step 2" in first["error"]


def test_one_process_speaks(pair: Pair) -> None:
    assert pair.results["ddp"][0]["lines"] == list(range(1, 9))
    assert pair.results["ddp"][1]["lines"] == []
    assert pair.output.count("The adapter:") == 1
    assert pair.output.count("step    8/8") == 1
    assert_alike(pair.folder / "cli", pair.folder / "one")


@pytest.mark.parametrize("kind", ["fsdp", "deepspeed"])
def test_two_processes_of_trl_shard_the_model_and_train_as_one(tiny_model: Path, tmp_path: Path, kind: str) -> None:
    if kind == "deepspeed" and find_spec("deepspeed") is None:
        pytest.skip("needs DeepSpeed: pip install deepspeed")
    job = {"name": "sft", "sft": str(tiny_model), "out": str(tmp_path / "two"), "fsdp": kind == "fsdp"}
    (tmp_path / "jobs.json").write_text(json.dumps([job]))
    launch = {
        "fsdp": "torch.distributed.run --standalone --nproc-per-node 2",
        "deepspeed": "accelerate.commands.launch --num_processes 2 --mixed_precision no --use_deepspeed --zero_stage 2",
    }[kind].split()
    command = [sys.executable, "-m", *launch, str(WORKER), str(tmp_path / "jobs.json")]
    with subprocess.Popen(command, env={**os.environ, "DS_ACCELERATOR": "cpu"}) as launched:
        train_by_sft(str(tiny_model), tmp_path / "one", batch_size=4)
    assert launched.returncode == 0
    assert [json.loads((tmp_path / f"results-{i}.json").read_text()) for i in range(2)] == [[{"sharded": True}]] * 2
    weights, others = (weights_of(tmp_path / name / "adapter") for name in ("two", "one"))
    assert weights.keys() == others.keys()
    assert weights["ani.safetensors:projection.weight"].abs().max() > 1e-2  # it begins at 0
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], atol=1e-4, rtol=0, msg=name)


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
