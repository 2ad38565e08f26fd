"""A comparison over a Ray cluster: nodes on this machine, of which some are killed."""

import threading
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from ray.cluster_utils import Cluster
from rich.console import Console

import ani.cli
from ani.compare.cluster import on_ray
from ani.compare.runs import in_this_process, on_cluster, run_comparison
from ani.training.checkpoints import ADAPTER
from tests.refusals import refused

PROGRAM = Path(__file__).parent / "stopping.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # worker_niceness: with its default, 15, other tests would leave the workers no time.
    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": {"worker_niceness": 0}}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


def have_nodes(cluster: Cluster, count: int) -> None:
    """Add nodes besides the head until there are `count`."""
    for _ in range(count - len(cluster.worker_nodes)):
        cluster.add_node(num_cpus=1, num_gpus=0)


@pytest.fixture
def write(tiny_recipe: Callable[..., Path], tmp_path: Path) -> Callable[[str], Path]:
    """Write a comparison whose output is `FOLDER/results`."""

    def write(folder: str) -> Path:
        tiny_recipe(training={"log_every": 1, "save_every": 2, "steps": 4, "gradient_accumulation": 1})
        settings = {
            "output": str(tmp_path / folder / "results"),
            "recipe": "recipe.yaml",
            "variants": {"early": ["ani.layer=1"], "late": ["ani.layer=2"]},
            "reference": False,
            "evaluation": {"arithmetic": {"count": 3, "digits": [1, 3]}, "gates": {"limit": 5}},
        }
        path = tmp_path / "comparison.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    return write


def kill_node_of(stopped: Path, cluster: Cluster) -> None:
    """Wait until a process has stopped there, and kill the raylet that it descends from, with all its processes."""
    while not stopped.exists():
        time.sleep(0.1)
    parents = {parent.pid for parent in psutil.Process(int(stopped.read_text())).parents()}
    (node,) = (each for each in cluster.worker_nodes if each.all_processes["raylet"][0].process.pid in parents)
    cluster.remove_node(node, allow_graceful=False)


def test_what_a_cluster_lacks_is_named(
    cluster: Cluster, write: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write("ray"))
    have_nodes(cluster, 1)

    def compare() -> None:
        with on_ray(cluster.address, 2) as ray:
            assert ray is not None
            run_comparison(path, Console(file=StringIO()), start=on_cluster([path], ray), machine=ray.machine)

    monkeypatch.delenv("ANI_DEVICE", raising=False)
    refused(compare, "2 GPUs")
    monkeypatch.setenv("ANI_DEVICE", "cpu")
    monkeypatch.setattr(Path, "touch", lambda path: None)  # what this process writes, no node sees
    refused(compare, str(tmp_path / "ray" / "results"))


def test_nodes_die_and_the_runs_go_on_elsewhere(
    cluster: Cluster, write: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    have_nodes(cluster, 3)
    run_comparison(write("alone"), Console(file=StringIO()), start=in_this_process)

    def kill() -> None:
        kill_node_of(tmp_path / "trains", cluster)
        kill_node_of(tmp_path / "answers", cluster)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    path = write("ray")
    monkeypatch.setattr("sys.argv", [str(PROGRAM), "compare", str(path), "--ray", cluster.address, "--device", "cpu"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        ani.cli.main()
    killer.join(timeout=60)
    assert not killer.is_alive()
    alone, ray = tmp_path / "alone" / "results", tmp_path / "ray" / "results"
    files = ["arithmetic.jsonl", "gates.jsonl", "comparison.md"]
    files += [f"runs/{name}/seed-0/training/{ADAPTER}/ani.safetensors" for name in ("early", "late")]
    for name in files:
        assert (ray / name).read_bytes() == (alone / name).read_bytes(), name
    assert not [*ray.glob(".ray-*")]
    printed = capfd.readouterr().out
    assert "(early, seed 0 pid=" in printed and "2/2 late, seed 0" in printed
