"""Kills train, compare, eval, probe and merge at random moments and has them go on: nothing may be lost or half-done.

    python stress/kills.py [--kills 50] [--seed 0]

A child process is forked for every run of a command, so that all of its life is work and none is imports. SIGKILL comes
either after a random time or right before a random change of the output (a file opened for writing, moved, removed).
After each kill, what has its final name must be whole, and what was finished must be there; then the same command, or
the one that it names, goes on, until no more kills are due. The end must be that of an unbroken run: the same files and
no others, equal records, equal weights. Prints the count; exits with 1 on any failure.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import argparse
import json
import re
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
import yaml
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ani.cli
import ani.compare.runs
import ani.evaluation.evaluate
from ani.injection.attach import ani_module
from ani.models import load_model, load_tokenizer
from ani.provenance import provenance
from ani.training.checkpoints import ADAPTER, COMPLETE, last_step
from tests.fixtures import save_tiny_llama
from tests.tokenizers import CHATML, gemma_like

KILLS_A_LIFE = 4
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}
VOLATILE = {"tokens_per_second", *provenance()}
"""Keys of records that differ from run to run."""

COMMANDS = {
    "train": "train ../recipe.yaml",
    "compare": "compare ../comparison.yaml",
    "eval": "eval --model ../model --adapter ../adapter --tasks arithmetic,gates,gsm8k,mmlu "
    "--data gsm8k=../gsm8k.jsonl --data mmlu=../mmlu.jsonl --limit 4 --max-new-tokens 4 --batch-size 1 --out out",
    "probe": "probe --model ../model --sentences 240 --out out",
    "merge": "merge ../adapter out --model ../model --max-shard-size 20KB",
}


class Ended(NamedTuple):
    """How a run of a command ended."""

    code: int | None
    """None: killed."""
    said: str
    seconds: float
    changes: int


def prepare(root: Path) -> None:
    """A tiny model with a chat template, an adapter, data, a recipe and a comparison."""
    model = save_tiny_llama(root / "model", gemma_like())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    (model / "chat_template.jinja").write_text(CHATML)
    attached, tokenizer = load_model(str(model)), load_tokenizer(str(model))
    ani.attach(attached, tokenizer, ani.AniConfig(layer=1, gate_hidden_size=8))
    torch.manual_seed(0)
    for parameter in ani_module(attached).parameters():
        torch.nn.init.normal_(parameter)
    ani.save_adapter(attached, root / "adapter")

    sums = [{"question": f"Ann has {i} figs and 12 nuts. How many?", "answer": f"#### {i + 12}"} for i in range(4)]
    choices = ["1", "yes", "no", "maybe"]
    mmlu = [{"subject": "anatomy", "question": f"Is {i} odd?", "choices": choices, "answer": i % 4} for i in range(9)]
    texts = [{"text": f"{name}, the tired porter of the hotel, had not slept"} for name in ("Ann", "Bob", "Cid")]
    for name, records in (("gsm8k", sums), ("mmlu", mmlu), ("texts", texts)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    recipe = {
        "model": "../model",
        "output": "out",
        "dtype": "float32",
        "quantization": "none",
        "ani": {"layer": "auto", "gate_hidden_size": 8},
        "probe": {"sentences": 240},
        "lora": {"r": 4, "alpha": 8, "dropout": 0.1},
        "data": [{"kind": "arithmetic", "count": 24, "digits": [2, 3]}, {"kind": "diagnostic", "count": 8}],
        "training": {
            "learning_rate": 0.01,
            "module_learning_rate": 0.02,
            "batch_size": 4,
            "gradient_accumulation": 1,
            "max_length": 64,
            "steps": 12,
            "log_every": 2,
            "save_every": 2,
            "gradient_checkpointing": False,
        },
    }
    comparison = {
        "output": "out",
        "recipe": "recipe.yaml",
        "overrides": ["training.steps=4"],
        "variants": {"ani": [], "open": ["ani.gate=open"]},
        "baseline": "reference",
        "probe": True,
        "evaluation": {
            "arithmetic": {"count": 2, "digits": [1, 3]},
            "gates": {"limit": 5},
            "language": {"texts": "../texts.jsonl", "count": 3},
            "mmlu": {"data": "../mmlu.jsonl", "limit": 3},
        },
    }
    (root / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (root / "comparison.yaml").write_text(yaml.safe_dump(comparison))


# --- running and killing ---


def run(
    arguments: list[str], folder: Path, *, after_seconds: float | None = None, at_change: int | None = None
) -> Ended:
    """Run a command in a folder; SIGKILL comes after some seconds, or instead of the numbered change of the output."""
    said, counted = folder.with_suffix(".said"), folder.with_suffix(".changes")
    said.touch()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _command(arguments, folder, said, counted, at_change)
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if after_seconds is not None and time.monotonic() - started >= after_seconds:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.002)
    killed = os.WIFSIGNALED(ended[1])
    if killed and os.WTERMSIG(ended[1]) != signal.SIGKILL:
        raise SystemExit(f"{shlex.join(arguments)} died of signal {os.WTERMSIG(ended[1])}:\n{said.read_text()}")
    changes = 0 if killed else int(counted.read_text())
    code = None if killed else os.waitstatus_to_exitcode(ended[1])
    return Ended(code, said.read_text(), time.monotonic() - started, changes)


def _command(arguments: list[str], folder: Path, said: Path, counted: Path, at_change: int | None) -> None:
    code: Any = 1
    changes = 0

    def count(event: str, what: tuple[Any, ...]) -> None:
        nonlocal changes
        writes = event == "open" and isinstance(what[2], int) and what[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes or event in CHANGES) and _inside(what[0], folder):
            if changes == at_change:
                os.kill(os.getpid(), signal.SIGKILL)
            changes += 1

    try:
        os.chdir(folder)
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["ani", *arguments]
        sys.addaudithook(count)
        ani.cli.main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        counted.write_text(str(changes))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _inside(path: Any, folder: Path) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and Path(os.fsdecode(path)).absolute().is_relative_to(folder)


def life(command: str, folder: Path, whole: Ended, kills: int, counts: Counter[str], random: Random) -> None:
    """Start a command, kill it up to so many times, counted by kind, and let it come to its end.

    Raises:
        AssertionError: Something was lost or half-written, or the command did not come to its end.
    """
    folder.mkdir()
    arguments = first = shlex.split(command)
    before: dict[str, Any] = {}
    for _ in range(10 * KILLS_A_LIFE):
        left = kills - counts.total()
        kind = random.choice(["time", "change"]) if left else None
        ended = run(
            arguments,
            folder,
            after_seconds=random.uniform(0, whole.seconds) if kind == "time" else None,
            at_change=random.randrange(whole.changes) if kind == "change" else None,
        )
        if ended.code is None:
            counts[str(kind)] += 1
            need_whole_files(folder)
            after = finished(folder)
            lost = [
                name
                for name, value in before.items()
                if (after.get(name) != value if isinstance(value, bytes) else after.get(name, 0) < value)
            ]
            assert not lost, f"lost: {lost}"
            before = after
            arguments = first
        elif ended.code == 0 or (ended.code == 2 and "it has a finished run" in ended.said):
            return
        elif ended.code == 2 and (told := re.search(r"continue with ani (train --resume \S+),", ended.said)):
            arguments = shlex.split(told[1])
        else:
            raise AssertionError(f"ani {shlex.join(arguments)} exited with {ended.code}:\n{ended.said}")
    raise AssertionError("it does not come to an end")


# --- what must hold ---


def visible(folder: Path) -> list[Path]:
    """The files with final names: none that is hidden, or in a checkpoint that isn't complete."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not any(
            parent.name.startswith("checkpoint-") and not (parent / COMPLETE).is_file() for parent in path.parents
        )
    ]


def need_whole_files(folder: Path) -> None:
    """Every JSON, JSON-lines, YAML and weights file can be read."""
    for path in visible(folder):
        try:
            if path.suffix in (".json", ".jsonl"):
                records(path)
            elif path.suffix == ".yaml":
                assert isinstance(yaml.safe_load(path.read_text()), dict)
            elif path.suffix == ".safetensors":
                load_file(path)
        except Exception as error:
            raise AssertionError(f"{path} is half-written: {error}") from error


def finished(folder: Path) -> dict[str, Any]:
    """What no kill may take back: the results of a comparison's runs as they are, a run's step, its adapter."""
    done: dict[str, Any] = {str(path): path.read_bytes() for path in folder.glob("out/runs/**/*.jsonl")}
    done = {name: text for name, text in done.items() if "/training/" not in name}
    if (folder / "out" / "recipe.yaml").is_file():
        done["step"] = last_step(folder / "out")
    for adapter in folder.rglob(ADAPTER):
        if adapter.parent.name in ("out", "training"):
            done[str(adapter)] = True
    return done


def records(path: Path) -> Any:
    """A file's JSON without what differs from run to run."""
    text = path.read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.split("\n") if line] if path.suffix == ".jsonl" else [json.loads(text)]
    return [{key: one[key] for key in one if key not in VOLATILE} if isinstance(one, dict) else one for one in found]


def need_same(folder: Path, whole: Path) -> float:
    """The same files, and nothing else; equal records and weights. Returns the largest difference of a weight."""
    names = {path.relative_to(folder) for path in folder.rglob("*")}
    expected = {path.relative_to(whole) for path in whole.rglob("*")}
    assert names == expected, f"{folder}: too many {names - expected}, too few {expected - names}"
    difference = 0.0
    for name in sorted(expected):
        path, other = folder / name, whole / name
        if path.is_dir() or (any(part.startswith("checkpoint-") for part in name.parts) and ADAPTER not in name.parts):
            continue  # the Trainer's own files hold times
        if path.suffix == ".safetensors":
            weights, others = load_file(path), load_file(other)
            assert weights.keys() == others.keys(), path
            for key, tensor in weights.items():
                difference = max(difference, float((tensor - others[key]).abs().max()))
        elif path.suffix in (".json", ".jsonl") and path.name != "ani_config.json":
            assert records(path) == records(other), f"{path} differs from {other}"
        elif path.name not in ("report.html", "ani_config.json"):  # a date; a hash of the weights
            assert path.read_bytes() == other.read_bytes(), f"{path} differs from {other}"
    assert difference <= 1e-6, f"{folder}: weights differ by {difference}"
    return difference


def main() -> None:
    """Kill, have it go on, compare, count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = Random(options.seed)
    counts: dict[str, Counter[str]] = {command: Counter() for command in COMMANDS}
    lives: Counter[str] = Counter()
    failures: list[str] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        root = Path(name).resolve()
        prepare(root)
        whole: dict[str, Ended] = {}
        for command, text in COMMANDS.items():
            (root / f"whole-{command}").mkdir()
            ended = run(shlex.split(text), root / f"whole-{command}")
            if ended.code != 0:
                raise SystemExit(f"ani {text} exited with {ended.code}:\n{ended.said}")
            whole[command] = ended
            print(f"ani {command}, unbroken: {ended.seconds:.1f} s, {ended.changes} changes of files", flush=True)
        worst = 0.0
        while (left := options.kills - sum(count.total() for count in counts.values())) and len(failures) < 10:
            command = min(COMMANDS, key=lambda one: counts[one].total())
            lives[command] += 1
            folder, count = root / f"{command}-{lives[command]}", Counter[str]()
            try:
                life(
                    COMMANDS[command], folder, whole[command], min(random.randint(1, KILLS_A_LIFE), left), count, random
                )
                worst = max(worst, need_same(folder, root / f"whole-{command}"))
            except AssertionError as error:
                failures.append(f"ani {command}, life {lives[command]}: {error}")
            counts[command] += count
    print(f"{'command':<10}{'runs':>6}{'kills after a time':>20}{'kills at a change':>19}")
    for command in COMMANDS:
        print(f"{command:<10}{lives[command]:>6}{counts[command]['time']:>20}{counts[command]['change']:>19}")
    killed = sum(count.total() for count in counts.values())
    print(
        f"{killed} kills in {lives.total()} runs, {time.monotonic() - started:.0f} s: {len(failures)} failures; "
        f"weights differ from an unbroken run's by {worst:g} at most"
    )
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
