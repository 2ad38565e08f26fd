"""Chats of several turns over HTTP, streamed, with prefix caching: tokens a second of the served calculator over those
of the served base model. `--parity`: in float32, whether every token of the answers is transformers' own.

Both servers are vLLM's own, with its defaults. They run in turns: the other one is stopped meanwhile. The clients run
on the same machine. Half of the questions, at random, ask for a calculation. Some 15 minutes on two cores.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import _paired
import aiohttp
import torch
from served_prompts import TIE, Answer, compared
from transformers import AutoModelForCausalLM

import ani
from ani.calculator.data.chats import asked_chats, unasked_chats
from ani.models import model_source
from ani.serving.serve import serve_command

Chat = Sequence[str]
"""The user's messages."""


def chats(count: int, turns: int) -> list[Chat]:
    """Chats of held-out questions."""
    rng = random.Random(0)
    size = count * turns
    asked = [chat.prompt for chat in asked_chats(2 * size, split="test") if not isinstance(chat.prompt, str)][:size]
    others = [chat.prompt for chat in unasked_chats(size, split="test")]
    questions = [rng.choice(pair)[0]["content"] for pair in zip(asked, others, strict=True)]
    return [questions[at : at + turns] for at in range(0, size, turns)]


class Server:
    """A vLLM server of one checkpoint that runs only while it is asked."""

    def __init__(self, command: Sequence[str], dtype: str, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        options = ["--port", str(port), "--served-model-name", "model", "--dtype", dtype, "--max-model-len", "1024"]
        options += ["--enable-prefix-caching", "--gpu-memory-utilization", "0.4"]  # two servers on one card
        self._log = log
        self._process = subprocess.Popen(
            [*command, *options], stdout=log.open("w"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait(self) -> None:
        """Until it answers; then it is stopped. Ends the benchmark if it doesn't start."""
        asyncio.run(self._started())
        self._signal(signal.SIGSTOP)

    def ask(self, chats: Sequence[Chat], clients: int, **settings: Any) -> list[tuple[list[int], Answer]]:
        """The prompts' and the answers' tokens, in order, if `settings` ask for them; so many chats at once."""
        self._signal(signal.SIGCONT)
        try:
            return asyncio.run(self._ask(chats, clients, settings))
        finally:
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """Stop it for good."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, what: int) -> None:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self._process.pid, what)

    async def _started(self) -> None:
        async with aiohttp.ClientSession() as session:
            while self._process.poll() is None:
                try:
                    async with session.get(f"{self._url}/health") as response:
                        if response.ok:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(1)
        raise SystemExit(f"vLLM's server ended:\n{self._log.read_text()[-2000:]}")

    async def _ask(
        self, chats: Sequence[Chat], clients: int, settings: dict[str, Any]
    ) -> list[tuple[list[int], Answer]]:
        answers: dict[int, list[tuple[list[int], Answer]]] = {}
        waiting = iter(enumerate(chats))

        async def client(session: aiohttp.ClientSession) -> None:
            for number, chat in waiting:
                messages: list[dict[str, str]] = []
                answers[number] = []
                for question in chat:
                    messages.append({"role": "user", "content": question})
                    text, prompt, answer = await self._stream(session, {"messages": messages, **settings})
                    messages.append({"role": "assistant", "content": text})
                    answers[number].append((prompt, answer))

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as session:
            await asyncio.gather(*(client(session) for _ in range(clients)))
        return [answer for number in sorted(answers) for answer in answers[number]]

    async def _stream(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[str, list[int], Answer]:
        asked = {"model": "model", "temperature": 0, "ignore_eos": True, "stream": True, **body}
        text, prompt, answer = "", [], Answer([], [])
        async with session.post(f"{self._url}/v1/chat/completions", json=asked) as response:
            if not response.ok:
                raise SystemExit(await response.text())
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line.removeprefix(b"data: "))
                prompt = chunk.get("prompt_token_ids") or prompt
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
                    answer.tokens.extend(choice.get("token_ids") or [])
                    answer.scores.extend(each["logprob"] for each in (choice.get("logprobs") or {}).get("content", []))
        return text, prompt, answer


@contextmanager
def servers(checkpoints: Sequence[str], merged: str, dtype: str, folder: Path) -> Iterator[list[Server]]:
    """One for each checkpoint, started as `ani serve` starts that of `merged`."""
    started: list[Server] = []
    try:
        for at, checkpoint in enumerate(checkpoints):
            command = [checkpoint if part == merged else part for part in serve_command(merged)]
            started.append(Server(command, dtype, folder / f"{at}.log"))
            started[-1].wait()
        yield started
    finally:
        for server in started:
            server.end()


def speed(merged: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Print the ratio of tokens a second."""
    size = arguments.chats // (arguments.starts * arguments.pairs)
    drawn = chats(size * arguments.starts * (arguments.pairs + 1), arguments.turns)
    parts = [drawn[at : at + size] for at in range(0, len(drawn), size)]
    ours, base = iter(parts), iter(parts)  # new chats in every pair, so that only a chat's own turns are cached

    def asking(server: Server, coming: Iterator[Sequence[Chat]]) -> Callable[[], object]:
        return lambda: server.ask(next(coming), arguments.clients, max_tokens=arguments.new_tokens)

    checkpoints = [merged, model_source("smollm2")]
    found: list[float] = []
    for start in range(arguments.starts):
        order = -1 if start % 2 else 1  # in every other start our server is the first
        with servers(checkpoints[::order], merged, "bfloat16", folder) as started:
            served, plain = started[::order]
            found += _paired.ratios(asking(plain, base), asking(served, ours), arguments.pairs, warmup=1)
    rows = _paired.table(
        f"vLLM's server, SmolLM2-135M, {arguments.turns} turns a chat, {arguments.clients} at once, "
        f"{arguments.new_tokens} new tokens an answer, {arguments.starts} starts: throughput ANI / base"
    )
    _paired.add(rows, f"calculator, {size * len(found)} chats", found, "≥ 0.98")
    _paired.show(rows)


def parity(merged: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Print how many of the streamed answers have transformers' tokens; exits with 1 if one parts from them."""
    drawn = chats(arguments.chats, arguments.turns)
    settings = {"max_tokens": arguments.new_tokens, "logprobs": True, "return_token_ids": True}
    with servers([merged], merged, "float32", folder) as (server,):
        streamed = server.ask(drawn, arguments.clients, **settings)
        shut = server.ask(drawn, arguments.clients, vllm_xargs={"ani_gates": "shut"}, **settings)
    assert all(len(answer.tokens) == len(answer.scores) == arguments.new_tokens for _, answer in streamed)
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
    same, gaps, widest = compared(model, *map(list, zip(*streamed, strict=True)))
    wrong = sum(gap > TIE for gap in gaps)
    print(
        f"{len(drawn)} chats, {len(streamed)} streamed answers: {same} have transformers' tokens, {len(gaps) - wrong} "
        f"part at a tie, {wrong} otherwise; log-probabilities differ by at most {widest:.1e}"
    )
    changed = sum(one.tokens != other.tokens for (_, one), (_, other) in zip(streamed, shut, strict=True))
    print(f"{changed} answers are others with shut gates")
    raise SystemExit(wrong > 0)


def main() -> None:
    """Merge the calculator and print one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--starts", type=int, default=4, help="So often both servers are started; an even number.")
    parser.add_argument(
        "--pairs", type=int, default=2, help="So many parts of a start's chats are timed by themselves."
    )
    parser.add_argument("--parity", action="store_true", help="Compare tokens in place of time.")
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ani.merge("smollm2-calculator", folder / "merged", model="smollm2")
        (parity if arguments.parity else speed)(str(folder / "merged"), folder, arguments)


if __name__ == "__main__":
    main()
