"""The batch scripts of docs/cluster.md, with SLURM's commands replaced by ones that print their arguments."""

import re
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from tests.docs.test_pages import ROOT, assert_accepted

SCRIPTS = ROOT / "docs" / "examples"
FAKES = {
    "scontrol": 'test "$*" = "show hostnames node[1-2]" && printf "node1\\nnode2\\n"',
    "srun": 'printf "%s\\n" "$@"',
}


def started_by(script: str, folder: Path, *arguments: str) -> list[str]:
    """The arguments of srun."""
    for name, does in FAKES.items():
        (folder / name).write_text(f"#!/bin/bash\n{does}\n")
        (folder / name).chmod(0o755)
    slurm = {"NNODES": 2, "GPUS_ON_NODE": 8, "CPUS_PER_TASK": 32, "JOB_ID": 7, "JOB_NODELIST": "node[1-2]"}
    environment = {"PATH": f"{folder}:/usr/bin:/bin"} | {f"SLURM_{key}": str(value) for key, value in slurm.items()}
    command = ["bash", str(SCRIPTS / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("given", [["recipes/demo.yaml", "output=/shared/my run"], ["--resume", "/shared/my run"]])
def test_a_training(tmp_path: Path, given: list[str]) -> None:
    program, *words = started_by("torchrun.sbatch", tmp_path, *given)
    job = get_args_parser().parse_args(words)
    assert (program, job.nnodes, job.nproc_per_node) == ("torchrun", "2", "8")
    assert (job.rdzv_backend, job.rdzv_id, job.rdzv_endpoint) == ("c10d", "7", "node1:29500")
    assert (job.module, job.training_script, job.training_script_args) == (True, "ani", ["train", *given])
    assert_accepted(*job.training_script_args)


def test_a_comparison_by_ray(tmp_path: Path) -> None:
    given = ["compare", "recipes/demo-comparison.yaml", "output=/shared/my runs"]
    words = started_by("ray.sbatch", tmp_path, *given)
    ray, command = words[: words.index("--")], words[words.index("--") + 1 :]
    assert " ".join(ray) == "ray symmetric-run --address node1:6379 --min-nodes 2 --num-cpus 32 --num-gpus 8"
    assert command == ["ani", *given, "--ray", "auto"]
    assert_accepted(*given, "--ray", "auto")


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda script: script.name)
def test_the_header_of_a_script(script: Path) -> None:
    first, *lines = script.read_text().splitlines()
    assert first == "#!/bin/bash"
    asked = dict(re.fullmatch(r"#SBATCH --([a-z-]+)=(\S+)", line).groups() for line in lines if "#SBATCH" in line)
    assert {"nodes", "gpus-per-node", "cpus-per-task", "time"} < asked.keys()
    assert asked["ntasks-per-node"] == "1"  # torchrun and Ray start the others
    assert asked["signal"] == "TERM@300"  # without B:, which signals the script alone
    # sbatch reads none below the first command.
    assert all(line.startswith("#") for line in lines[: max(i for i, line in enumerate(lines) if "#SBATCH" in line)])
