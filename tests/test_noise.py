"""Only what we say is printed: of every command, each in a process of its own."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ani.comparison import DEMO

from tests import test_cli
from tests.json_lines import write_lines

data = test_cli.data

OF_MODEL = "--model {model} --adapter {adapter}"
SMALL = "model={model} ani.layer=1 lora=null training.steps=1 training.batch_size=4 data.0.count=8 data.1.count=8"
LINES = {
    "demo": f"--out run {SMALL}",
    "inspect": f"'Room 505 holds 10' --json {OF_MODEL}",
    "playground": f"--port {{port}} {OF_MODEL}",
    "probe": "--out run --model {model} --sentences 240 --layers 0,1",
    "train": "recipe.yaml",
    "compare": f"{DEMO} --dry-run 'overrides={json.dumps(SMALL.split())}'",
    "eval": f"--out run {OF_MODEL} --tasks reading,calculations,gating,gsm8k,mmlu,routing,finer --limit 1 "
    "--max-new-tokens 1 --data gsm8k={gsm8k} --data mmlu={mmlu} --data finer={finer}",
    "gate-shares": f"examples.jsonl --field prompt --out run {OF_MODEL}",
    "diff": "eval eval-other",
    "report": "eval",
    "diagnostic": "run --quantitative examples.jsonl --nominal diagnostic --count 2",
    "merge": "{adapter} run --model {model}",
    "serve": "{model}",
    "env": "",
}
SAID = {
    "train": "note: 1 of 9 examples are left out: .*\n",
    "serve": "error: .* is no merged checkpoint; .*\n|error: vLLM is missing; .*\n",
}
"""What standard error holds, where that isn't nothing."""


@pytest.mark.parametrize("command", test_cli.COMMANDS)
def test_standard_error_has_only_ours(
    command: str,
    chat_model: Path,
    tiny_adapter: Path,
    tiny_recipe: Callable[..., Path],
    data: dict[str, Path],
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
    line = LINES[command].format(model=chat_model, adapter=tiny_adapter, port=port, **data)
    with subprocess.Popen(
        [sys.executable, "-m", "ani.cli", command, *shlex.split(line)],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "HF_HUB_DISABLE_PROGRESS_BARS"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            if command == "playground":
                assert process.stdout is not None and "http://127.0.0.1" in process.stdout.readline()
                process.terminate()
            _, printed = process.communicate(timeout=300)
        finally:
            process.kill()
    assert re.fullmatch(SAID.get(command, ""), printed), printed
    assert process.returncode == {"playground": 143, "serve": 2}.get(command, 0)
