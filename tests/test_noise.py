"""Only what we say is printed: of every command, each in a fork of one process that has its imports."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ani.compare.plan import DEMO
from tests import test_cli, test_demo
from tests.json_lines import write_lines

data, small_demo = test_cli.data, test_demo.small_demo

OF_MODEL = "--model {model} --adapter {adapter}"
SMALL = "model={model} ani.layer=1 lora=null training.steps=1 training.batch_size=4 data.0.count=8 data.1.count=8"
LINES = {
    "inspect": f"'Room 505 holds 10' --json {OF_MODEL}",  # the first, of which the others are forks
    "demo": f"--out run {SMALL}",
    "playground": f"--port {{port}} {OF_MODEL}",
    "probe": "--out run --model {model} --sentences 240 --layers 0,1",
    "train": "../recipe.yaml",
    "compare": f"{DEMO} variants=null",  # the demo carries one out
    "eval": f"--out run {OF_MODEL} --tasks reading,calculations,gates,gsm8k,mmlu,routing --limit 1 "
    "--max-new-tokens 1 --data gsm8k={gsm8k} --data mmlu={mmlu} "
    "--texts finer={finer} --texts ../examples.jsonl --field prompt",
    "diff": "../first ../second",
    "report": "../first",
    "diagnostic": "run --quantitative ../examples.jsonl --nominal diagnostic --count 2",
    "merge": "{adapter} run --model {model}",
    "push": "{adapter} me/mine",
    "serve": "{model}",
    "env": "",
}
SAID = {
    "compare": "error: recipe .*demo-comparison.yaml: variants: .*\n",
    "train": "note: 1 of 9 examples are left out: .*\n",
    "push": "error: .*hub.*\n",
    "serve": "error: .* is no merged checkpoint; .*\n|error: vLLM is missing; .*\n",
}
"""What standard error holds, where that isn't nothing."""


RUN_ALL = """
import json, os, signal, sys, time
from pathlib import Path
from ani import cli

def run(command, arguments):
    os.mkdir(command)
    os.chdir(command)
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), number)
    if command == "demo":
        from ani.compare import plan, runs
        plan.DEMO = Path(small_demo)
        runs.in_own_processes = lambda arguments: runs.in_this_process
    sys.argv = ["ani", command, *arguments]
    cli.main()

signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may ignore it, and then waitpid fails
_, lines, small_demo = sys.argv
lines, home, codes = json.loads(lines), Path.cwd(), {}
first = next(iter(lines))
try:
    run(first, lines.pop(first))
except SystemExit as end:
    codes[first] = end.code
sys.stdout.flush()
for command, arguments in lines.items():
    os.chdir(home)
    if not (child := os.fork()):
        run(command, arguments)
    if command == "playground":
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if (said := home / command / "out").exists() and "http://127.0.0.1" in said.read_text():
                os.kill(child, signal.SIGTERM)
                break
            time.sleep(0.1)
    codes[command] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
(home / "codes.json").write_text(json.dumps(codes))
"""


def test_standard_error_has_only_ours(
    chat_model: Path,
    tiny_adapter: Path,
    tiny_recipe: Callable[..., Path],
    data: dict[str, Path],
    small_demo: Path,
    results: Path,
    tmp_path: Path,
) -> None:
    prompts = [f"{i} + 1 =" for i in range(8)] + ["7 " * 99]
    examples = write_lines(
        tmp_path / "examples.jsonl", *({"prompt": x, "completion": " 5", "problem": x} for x in prompts)
    )
    tiny_recipe(data=[{"kind": "jsonl", "path": str(examples)}], training={"steps": 1})
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    given = {"model": chat_model, "adapter": tiny_adapter, "port": port, **data}
    lines = {command: shlex.split(line.format(**given)) for command, line in LINES.items()}
    assert lines.keys() == test_cli.COMMANDS.keys()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # a fork of a process with several threads waits for them
    del environment["HF_HUB_DISABLE_PROGRESS_BARS"]
    with subprocess.Popen(
        [sys.executable, "-c", RUN_ALL, json.dumps(lines), str(small_demo)],
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            process.wait(600)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    for command in lines:
        printed = (tmp_path / command / "err").read_text()
        assert re.fullmatch(SAID.get(command, ""), printed), f"{command}: {printed}"
    codes = {"playground": 143, "compare": 2, "push": 2, "serve": 2}
    assert json.loads((tmp_path / "codes.json").read_text()) == {command: codes.get(command, 0) for command in lines}
