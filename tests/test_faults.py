"""Commands that are killed or interrupted, run twice or cannot write; `stress/kills.py` kills them at random."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from ani import InputError
from ani.files import only_process_in, replacing_directory, replacing_file
from ani.results.records import TRAINING_LOG
from ani.training.checkpoints import ADAPTER, COMPLETE, last_step
from ani.training.recipe import load_recipe
from ani.training.run import RECIPE_FILE, resume_recipe, train
from ani.training.trainer import AniTrainer
from tests import test_cli
from tests.refusals import refused
from tests.training.runs import interrupt_at, interrupted, log_of, weights_of

run = test_cli.run
Run = Callable[..., test_cli.Done]
Write = Callable[..., Path]
Commands = Callable[[Path], Any]


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond `size`: what writes it meets the system's own error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def commands(tiny_model: Path, tiny_adapter: Path, tiny_recipe: Write, tmp_path: Path) -> Commands:
    """Each command with its output, by name."""
    recipe = tiny_recipe()
    comparison = tmp_path / "comparison.yaml"
    evaluation = {"arithmetic": {"count": 1, "digits": [1]}}
    settings = {"output": "x", "recipe": recipe.name, "variants": {"sft": ["method=sft"]}, "evaluation": evaluation}
    comparison.write_text(json.dumps(settings))

    def commands(out: Path) -> dict[str, list[Any]]:
        of = ["--model", tiny_model, "--adapter", tiny_adapter]
        return {
            "train": ["train", recipe, f"output={out}"],
            "compare": ["compare", comparison, f"output={out}"],
            "eval": ["eval", *of, "--tasks", "arithmetic,gates", "--limit", "1", "--out", out],
            "probe": ["probe", "--model", tiny_model, "--sentences", "240", "--out", out],
            "merge": ["merge", tiny_adapter, out, "--model", tiny_model],
            "demo": ["demo", "--out", out],
        }

    return commands


# --- a second process ---


def test_a_second_process_is_refused(run: Run, commands: Commands, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name, command in commands(out).items():
        with FileLock(tmp_path / ".out.ani-lock" if name == "merge" else out / ".lock"):
            test_cli.assert_refused(run(*command), f"another process works on {out}", "name another output")
        assert list(out.iterdir()) in ([], [out / ".lock"])


def test_only_the_main_process_of_a_launch_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with only_process_in(tmp_path):
        with pytest.raises(InputError, match="another process"), only_process_in(tmp_path):
            pass
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with only_process_in(tmp_path):
            pass
        assert hidden(tmp_path) == [".lock"]
    assert hidden(tmp_path) == []


# --- interrupted ---


def test_ctrl_c_in_training(run: Run, tiny_recipe: Write, tmp_path: Path) -> None:
    """In a process of its own that works on the folder; then resumed, to the end of an unbroken run."""
    recipe, out = tiny_recipe(training={"steps": 4000, "save_every": 5, "log_every": 1}), tmp_path / "run"
    command = [sys.executable, "-m", "ani", "train", str(recipe)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # A step after the regular checkpoint, so that another one is saved.
        while not ((out / "checkpoint-5" / COMPLETE).exists() and log_of(out)[-1]["step"] > 5):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        for arguments in (["train", recipe], ["train", "--resume", out]):
            test_cli.assert_refused(run(*arguments), f"another process works on {out}")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    step = last_step(out)
    assert 5 < step < 4000 and step == log_of(out)[-1]["step"]
    assert f"ani train --resume {out}" in errors.splitlines()[-1] and "Traceback" not in errors
    assert hidden(out) == []
    test_cli.assert_refused(run("train", recipe), f"ani train --resume {out}")

    # To the next regular checkpoint, and back to a recipe that ends there.
    end = step - step % 5 + 5
    (out / RECIPE_FILE).write_text((out / RECIPE_FILE).read_text().replace("steps: 4000", f"steps: {end}"))
    assert run("train", "--resume", out).code == 0
    assert run("train", recipe, f"training.steps={end}", f"output={tmp_path / 'unbroken'}").code == 0
    weights, others = weights_of(out / ADAPTER), weights_of(tmp_path / "unbroken" / ADAPTER)
    assert weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize(("signals", "kept", "code"), [([signal.SIGTERM], 1, 143), ([signal.SIGINT] * 2, 0, 130)])
def test_signals_end_training(
    run: Run, tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: Any, kept: int, code: int
) -> None:
    def send(trainer: AniTrainer, inputs: dict[str, Any]) -> None:
        count(trainer, inputs)
        for number in signals:
            os.kill(os.getpid(), number)

    count = AniTrainer._count
    monkeypatch.setattr(AniTrainer, "_count", send)
    done = run("train", tiny_recipe(training={"log_every": 4, "gradient_accumulation": 1}))
    assert done.code == code, done
    assert last_step(tmp_path / "run") == kept
    assert done.err.startswith("interrupted: ") and len(done.err.splitlines()) == 1
    assert hidden(tmp_path / "run") == []


TERMINATED_TWICE = """
import os, signal, typer
from ani.terminal import run
app = typer.Typer()
@app.command()
def work() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        print("tidy")
        {end}
run(app)
"""


@pytest.mark.parametrize("end", ["pass", "raise RecursionError", "import nothing_of_this_name"])
def test_a_second_sigterm_lets_tidying_end(end: str) -> None:
    program = TERMINATED_TWICE.format(end=end)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (143, "tidy\n", "")


def test_ctrl_c_at_the_last_step_finishes(tiny_recipe: Write, tmp_path: Path) -> None:
    def interrupt(line: dict[str, Any]) -> None:
        if line["step"] == line["steps"]:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(tiny_recipe()), on_log=interrupt)
    assert (tmp_path / "run" / ADAPTER).is_dir()


WORK = {
    "compare": ("compare.runs.run_comparison", "continue with the same command"),
    "eval": ("evaluation.evaluate.evaluate", "start the same command again"),
    "probe": ("probing.run.probe", "start the same command again"),
    "merge": ("serving.merge.merge", "start the same command again"),
}


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupted_command_says_how_to_go_on(
    run: Run, commands: Commands, tmp_path: Path, monkeypatch: Any, end: Any, code: int
) -> None:
    def ended(*args: Any, **kwargs: Any) -> None:
        raise end

    for name, (work, how) in WORK.items():
        monkeypatch.setattr(f"ani.{work}", ended)
        done = run(*commands(tmp_path / "out")[name], code=code)
        assert done.err.startswith(f"interrupted: {how}") and len(done.err.splitlines()) == 1
        assert not (tmp_path / "out").exists()


def test_a_killed_run_can_be_resumed(tiny_recipe: Write, tmp_path: Path) -> None:
    recipe, out = load_recipe(tiny_recipe()), tmp_path / "run"
    out.mkdir()
    for name in (".lock", f".{RECIPE_FILE}.partial"):  # killed before it wrote its recipe
        (out / name).touch()
    with pytest.raises(KeyboardInterrupt):
        train(recipe, on_log=interrupt_at(4))
    assert hidden(out) == []
    refused(lambda: train(recipe), f"continue with ani train --resume {out},")
    # Killed between the last checkpoint and the adapter, or between the adapter and the lock's removal.
    train(resume_recipe(out), resume=True)
    finished = weights_of(out / ADAPTER)
    shutil.rmtree(out / ADAPTER)
    (out / ".adapter.partial").mkdir()
    (out / ".adapter.partial" / "half").touch()
    (out / f".{TRAINING_LOG}.partial").touch()
    log = log_of(out)
    train(resume_recipe(out), resume=True)
    assert all(torch.equal(tensor, finished[name]) for name, tensor in weights_of(out / ADAPTER).items())
    assert log_of(out) == log and hidden(out) == []
    (out / ".adapter.ani-lock").touch()
    refused(lambda: train(recipe), "is not empty: it has a finished run")
    assert hidden(out) == []
    (out / RECIPE_FILE).unlink()
    shutil.rmtree(out / ADAPTER)
    refused(lambda: train(recipe), str(out))


# --- what killed processes leave ---


def test_leftovers_are_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".a.partial").mkdir()
    (tmp_path / ".a.partial" / "half").touch()
    (tmp_path / ".a.old").mkdir()
    (tmp_path / ".a.old" / "earlier").touch()
    (tmp_path / ".a.ani-lock").touch()
    with pytest.raises(KeyError), replacing_directory(tmp_path / "a") as work:
        assert list(work.iterdir()) == []
        raise KeyError
    # Killed between its two moves: the earlier directory is back.
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["a", "a/earlier"]
    (tmp_path / ".a.old").mkdir()
    with replacing_directory(tmp_path / "a") as work:
        with pytest.raises(InputError, match="another process works on"), replacing_directory(tmp_path / "a"):
            pass
        (work / "new").touch(mode=0o600)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["a", "a/new"]
    assert (tmp_path / "a" / "new").stat().st_mode & 0o777 == (tmp_path / "a").stat().st_mode & 0o666
    (tmp_path / ".b.partial").write_text("half")
    with replacing_file(tmp_path / "b") as file:
        file.write("whole")
    assert (tmp_path / "b").read_text() == "whole" and hidden(tmp_path) == []


def test_a_killed_evaluation_mixes_no_models(
    run: Run, commands: Commands, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command, other = commands(out)["eval"], ["eval", "--model", tiny_model, "--limit", "1", "--out", out]
    with monkeypatch.context() as patch:
        patch.setattr("ani.evaluation.tasks.gates.Gates.answer", interrupted)
        assert run(*command).code == 130
    assert {path.name for path in out.iterdir()} == {"run.json", "arithmetic.jsonl", "gates.answers.jsonl"}
    test_cli.assert_refused(run(*other), "results of the model")
    (out / "arithmetic.jsonl").unlink()
    assert run(*other).code == 0  # there was nothing of the first model left


# --- disks that can't be written ---


def test_training_on_a_full_disk(run: Run, tiny_recipe: Write, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(tiny_recipe()), on_log=interrupt_at(4))
    size = (out / "checkpoint-3" / "optimizer.pt").stat().st_size
    for limit in (size - 1, 3000):  # torch's file, then safetensors'
        with largest_file(limit):
            done = run("train", "--resume", out)
        assert done.code == 1 and len(done.err.splitlines()) == 1, done
        assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-3"] and hidden(out) == []
    assert run("train", "--resume", out).code == 0


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no directory that even root can't write")
def test_a_read_only_output(run: Run, commands: Commands) -> None:
    for command in commands(Path("/sys/kernel/ani")).values():
        done = run(*command)
        test_cli.assert_refused(done, "output /sys/kernel/ani can't be written", "name another")
