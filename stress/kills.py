"""Kills train, compare, eval, probe and merge at random moments, and continues them: nothing may be lost or half-done.

    python stress/kills.py [--kills 50] [--seed 0]

Each run of a command is a fork, which needs no time for imports. SIGKILL comes after a random time, or right before a
random change of the output (a file opened for writing, moved or removed). After each kill every file with a final name
must be whole and finished results must be there; then the command continues. The end must be that of an unbroken run:
the same files, equal records, equal weights. Exits with 1 on any failure.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}  # PEFT writes sets as lists

import argparse
import json
import re
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing import get_context
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
from ani.injection.model_parts import ani_module
from ani.models import load_model, load_tokenizer
from ani.provenance import provenance
from ani.training.checkpoints import ADAPTER, COMPLETE, last_step
from tests.fixtures import save_tiny_llama
from tests.json_lines import write_lines
from tests.tokenizers import CHATML, gemma_like

KILLS_A_LIFE = 4
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}
VOLATILE = {"tokens_per_second", *provenance()}
"""Keys of records that differ between equal runs."""

COMMANDS = {
    "train": "train ../recipe.yaml",
    "compare": "compare ../comparison.yaml",
    "eval": "eval --model ../model --adapter ../adapter --tasks arithmetic,gates,gsm8k,mmlu "
    "--data gsm8k=../gsm8k.jsonl --data mmlu=../mmlu.jsonl --limit 4 --max-new-tokens 4 --batch-size 1 --out out",
    "probe": "probe --model ../model --sentences 240 --out out",
    "merge": "merge ../adapter out --model ../model --max-shard-size 20KB",
}


class Ended(NamedTuple):
    """End of one run of a command; its code is None if it was killed."""

    code: int | None
    said: str
    seconds: float
    changes: int


RECIPE = """
model: ../model
output: out
dtype: float32
quantization: none
ani: {layer: auto, gate_hidden_size: 8}
probe: {sentences: 240}
lora: {r: 4, alpha: 8, dropout: 0.1}
data: [{kind: arithmetic, count: 24, digits: [2, 3]}, {kind: diagnostic, count: 8}]
training: {learning_rate: 0.01, module_learning_rate: 0.02, batch_size: 4, gradient_accumulation: 1, max_length: 64,
  steps: 12, log_every: 2, save_every: 2, gradient_checkpointing: false}
"""
COMPARISON = """
output: out
recipe: recipe.yaml
overrides: [training.steps=4]
variants: {ani: [], open: [ani.gate=open]}
baseline: reference
probe: true
evaluation:
  arithmetic: {count: 2, digits: [1, 3]}
  gates: {limit: 5}
  language: {count: 3}
  mmlu: {data: ../mmlu.jsonl, limit: 3}
"""


def prepare(root: Path) -> None:
    """Write a tiny model with a chat template, an adapter, data, a recipe and a comparison."""
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
    write_lines(root / "gsm8k.jsonl", *sums)
    write_lines(root / "mmlu.jsonl", *mmlu)
    (root / "recipe.yaml").write_text(RECIPE)
    (root / "comparison.yaml").write_text(COMPARISON)


def run(arguments: list[str], folder: Path, *, seconds: float | None = None, change: int | None = None) -> Ended:
    """Run a command in a folder; SIGKILL comes after some seconds, or instead of the numbered change of its output."""
    said, counted = folder.with_suffix(".said"), folder.with_suffix(".changes")
    started = time.monotonic()
    child = get_context("fork").Process(target=_command, args=(arguments, folder, said, counted, change))
    child.start()
    child.join(seconds)
    child.kill()
    child.join()
    code, took, text = child.exitcode, time.monotonic() - started, said.read_text() if said.exists() else ""
    if code == -signal.SIGKILL:
        return Ended(None, text, took, 0)
    if code is None or code < 0:
        raise SystemExit(f"{shlex.join(arguments)} died of signal {code}:\n{text}")
    return Ended(code, text, took, int(counted.read_text()))


def _command(arguments: list[str], folder: Path, said: Path, counted: Path, kill_at: int | None) -> None:
    changes = 0

    def count(event: str, what: tuple[Any, ...]) -> None:
        nonlocal changes
        writes = event == "open" and isinstance(what[2], int) and what[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        named = (writes or event in CHANGES) and isinstance(what[0], str | bytes | os.PathLike)
        if named and Path(os.fsdecode(what[0])).absolute().is_relative_to(folder):
            if changes == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            changes += 1

    os.chdir(folder)
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["ani", *arguments]
    sys.addaudithook(count)
    try:
        ani.cli.main()
    finally:
        counted.write_text(str(changes))


def life(command: str, folder: Path, whole: Ended, kills: int, counts: Counter[str], random: Random) -> None:
    """Start a command, kill it up to `kills` times, counted by kind, and let it end. Raises AssertionError if something
    was lost or half-written, or the command does not end."""
    folder.mkdir()
    arguments = first = shlex.split(command)
    before: dict[str, Any] = {}
    for _ in range(10 * KILLS_A_LIFE):
        kind, moment = random.choice(
            [("seconds", random.uniform(0, whole.seconds)), ("change", random.randrange(whole.changes))]
        )
        given: dict[str, Any] = {kind: moment} if kills > counts.total() else {}
        ended = run(arguments, folder, **given)
        if ended.code is None:
            counts[kind] += 1
            need_whole_files(folder)
            after = finished(folder)
            lost = {name for name, value in before.items() if name not in after or after[name] != value}
            assert not lost - {"step"} and after.get("step", 0) >= before.get("step", 0), f"lost or changed: {lost}"
            before, arguments = after, first
        elif ended.code == 0 or (ended.code == 2 and "it has a finished run" in ended.said):
            return
        elif ended.code == 2 and (found := re.search(r"continue with ani (train --resume \S+),", ended.said)):
            arguments = shlex.split(found[1])
        else:
            raise AssertionError(f"ani {shlex.join(arguments)} exited with {ended.code}:\n{ended.said}")
    raise AssertionError("the command does not end")


def need_whole_files(folder: Path) -> None:
    """Assert that every file with a final name can be read: neither hidden nor in an incomplete checkpoint."""
    readers = {".json": records, ".jsonl": records, ".yaml": lambda path: dict(yaml.safe_load(path.read_text()))}
    for path in sorted(folder.rglob("*")):
        checkpoints = [parent for parent in path.parents if parent.name.startswith("checkpoint-")]
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and all((each / COMPLETE).is_file() for each in checkpoints):
            try:
                {**readers, ".safetensors": load_file}.get(path.suffix, Path.read_bytes)(path)
            except Exception as error:
                raise AssertionError(f"{path} is half-written: {error}") from error


def finished(folder: Path) -> dict[str, Any]:
    """Results that no kill may undo: a comparison's records by file, a run's last step, its adapter."""
    done: dict[str, Any] = {str(path): path.read_bytes() for path in folder.glob("out/runs/**/*.jsonl")}
    done = {name: text for name, text in done.items() if "/training/" not in name}
    if (folder / "out" / "recipe.yaml").is_file():
        done["step"] = last_step(folder / "out")
    return done | {str(path): True for path in folder.rglob(ADAPTER) if path.parent.name in ("out", "training")}


def records(path: Path) -> Any:
    """JSON values of a file without the keys `VOLATILE`."""
    text = path.read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.split("\n") if line] if path.suffix == ".jsonl" else [json.loads(text)]
    return [{key: one[key] for key in one if key not in VOLATILE} if isinstance(one, dict) else one for one in found]


def need_same(folder: Path, whole: Path) -> None:
    """Assert the same files with equal records, and weights within 1e-6."""
    names = {path.relative_to(folder) for path in folder.rglob("*")}
    expected = {path.relative_to(whole) for path in whole.rglob("*")}
    assert names == expected, f"{folder}: too many {names - expected}, too few {expected - names}"
    for name in sorted(expected):
        path, other = folder / name, whole / name
        if path.is_dir() or (any(part.startswith("checkpoint-") for part in name.parts) and ADAPTER not in name.parts):
            continue  # the Trainer's own files contain times
        if path.suffix == ".safetensors":
            torch.testing.assert_close(load_file(path), load_file(other), rtol=0, atol=1e-6)
        elif path.suffix in (".json", ".jsonl") and path.name != "ani_config.json":
            assert records(path) == records(other), f"{path} differs from {other}"
        elif path.name not in ("report.html", "ani_config.json"):  # a date; a hash of the weights
            assert path.read_bytes() == other.read_bytes(), f"{path} differs from {other}"


def main() -> None:
    """Kill and continue every command, compare its end, and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random, started = Random(options.seed), time.monotonic()
    counts: dict[str, Counter[str]] = {command: Counter() for command in COMMANDS}
    lives, failures = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        root = Path(name).resolve()
        prepare(root)
        whole: dict[str, Ended] = {}
        for command, text in COMMANDS.items():
            (root / f"whole-{command}").mkdir()
            whole[command] = run(shlex.split(text), root / f"whole-{command}")
            if whole[command].code != 0:
                raise SystemExit(f"ani {text} failed:\n{whole[command].said}")
        while (left := options.kills - sum(count.total() for count in counts.values())) and len(failures) < 10:
            command = min(COMMANDS, key=lambda one: counts[one].total())
            lives[command] += 1
            folder, count = root / f"{command}-{lives[command]}", Counter[str]()
            kills = min(random.randint(1, KILLS_A_LIFE), left)
            try:
                life(COMMANDS[command], folder, whole[command], kills, count, random)
                need_same(folder, root / f"whole-{command}")
            except AssertionError as error:
                failures.append(f"ani {command}, life {lives[command]}: {error}")
            counts[command] += count
    for command, count in counts.items():
        print(f"{command}: {lives[command]} runs, kills: {dict(count)}")
    print(f"{time.monotonic() - started:.0f} s, {len(failures)} failures", *failures, sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
