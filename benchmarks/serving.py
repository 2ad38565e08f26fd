"""Tokens a second of the served ANI model over the served base model, in vLLM, every gate open; the scanner's cost.
`--only calculator`: of the calculator that ships, as its gate has it. `--scan`: only what the plugin does before a step
of 256 requests of prose, in seconds of one core.

Some 10 minutes on two cores, and some more where vLLM compiles the models, which it does unless told otherwise.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _paired
import numpy as np
import torch
from generation import attached

import ani
from ani.calculator.data.chats import asked_chats, unasked_chats
from ani.chat import rendered
from ani.data.arithmetic import arithmetic_problems
from ani.injection.attach import number_locator
from ani.injection.locate import NumberLocator
from ani.models import load_model, load_tokenizer, model_source
from ani.serving.scheduling import Scheduled, StepLocator

PROSE = (
    "The committee met on a rainy morning and talked at length about the harbour, its old walls, and the people who "
    "had lived there for generations; nobody could say what should be done, but all agreed that something had to "
    "change before the winter came. "
)


def engine(path: str, eager: bool, **options: Any) -> Any:
    """Prefix caching is off unless `options` say otherwise, because a repeated prompt would cost nothing."""
    import vllm

    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": False,
        "enforce_eager": eager,
        "gpu_memory_utilization": 0.4,  # two engines on one card
    }
    return vllm.LLM(path, **{**settings, **options})


def cost(locator: Any, rows: list[list[int]], repeats: int) -> tuple[float, float]:
    """Microseconds to find the numbers, per scheduled token: of whole prompts, and of a step of one token a request."""

    def timed(step: list[Scheduled], before: list[Scheduled]) -> float:
        times = []
        for _ in range(repeats):
            steps = StepLocator(locator)
            steps.find(before)
            start = time.perf_counter()
            steps.find(step)
            times.append(time.perf_counter() - start)
        return 1e6 * statistics.median(times) / sum(request.stop - request.start for request in step)

    prompts, begun, decodes, offset = [], [], [], 0
    for i, row in enumerate(rows):
        prompts.append(Scheduled(str(i), row, len(row), 0, len(row), offset))
        begun.append(Scheduled(str(i), row, len(row) - 8, 0, len(row) - 1, offset))
        decodes.append(Scheduled(str(i), row, len(row) - 8, len(row) - 1, len(row), i))
        offset += len(row)
    return timed(prompts, []), timed(decodes, begun)


def scan(tokenizer: Any, requests: int = 256, steps: int = 50, **settings: Any) -> float:
    """Milliseconds a decode step, in which each request has a token of prose, of finding whatever numbers there are."""
    from ani.serving import vllm as plugin

    prose = tokenizer(PROSE * 12)["input_ids"]
    rows = np.array([prose[i % 40 : i % 40 + 400] for i in range(requests)], dtype=np.int32)
    locator = NumberLocator(tokenizer, ani.AniConfig(layer=10, hidden_size=576, **settings))
    model = plugin.AniForCausalLM.__new__(plugin.AniForCausalLM)
    torch.nn.Module.__init__(model)
    model.ani_steps = StepLocator(locator)
    model.__dict__["ani_prepare"] = model.ani_steps.find
    batch = SimpleNamespace(
        num_reqs=requests,
        req_ids=[str(i) for i in range(requests)],
        num_prompt_tokens=np.full(requests, 100),
        token_ids_cpu=rows,
    )
    runner = SimpleNamespace(get_model=lambda: model, input_batch=batch)
    runner.query_start_loc = SimpleNamespace(np=np.arange(requests + 1))
    runner.requests = {name: SimpleNamespace(sampling_params=None) for name in batch.req_ids}
    times = []
    for step in range(steps):
        batch.num_computed_tokens_cpu = np.full(requests, 200 + step)
        start = time.perf_counter()
        plugin._prepare_v1(runner)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument(
        "--only", nargs="+", choices=["terminal", "running", "calculator"], default=["terminal", "running"]
    )
    parser.add_argument("--eager", action="store_true", help="Without vLLM's compilation.")
    parser.add_argument("--scan", action="store_true", help="Only what finding numbers costs a step.")
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # Engines in processes of their own wait busily, and would slow each other down on the same cores.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    tokenizer = load_tokenizer("smollm2")
    if arguments.scan:
        for settings in ({"policy": "after"}, {"policy": "running"}, {"values": "pending"}):
            named = " ".join(settings.values())
            print(f"{named}, 256 requests of prose: {scan(tokenizer, **settings):.2f} ms a step")
        return

    def prompts(problems: int) -> list[list[int]]:
        return [
            tokenizer(" ".join(f"{p.prompt} {p.answer}." for p in drawn))["input_ids"]
            for drawn in (
                arithmetic_problems(problems, digits=(3, 6), split="test", seed=row)
                for row in range(arguments.requests)
            )
        ]

    def chats() -> list[list[int]]:
        """Half of them ask for a calculation."""
        drawn = [each.prompt for each in asked_chats(2 * arguments.requests, split="test", seed=0)]
        asked = [prompt for prompt in drawn if not isinstance(prompt, str)][: arguments.requests // 2]
        others = unasked_chats(arguments.requests - len(asked), split="test", seed=0)
        messages = [*asked, *(each.prompt for each in others)]
        return [tokenizer(rendered(tokenizer, each), add_special_tokens=False)["input_ids"] for each in messages]

    def generating(llm: Any, rows: list[list[int]], new_tokens: int) -> Callable[[], object]:
        import vllm

        settings = vllm.SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        return lambda: llm.generate([{"prompt_token_ids": row} for row in rows], settings, use_tqdm=False)

    rows = _paired.table(f"vLLM, SmolLM2-135M, {arguments.requests} requests: throughput ANI / base")
    costs = []
    with tempfile.TemporaryDirectory() as folder:
        base = engine(model_source("smollm2"), arguments.eager)
        for policy in arguments.only:
            if policy == "calculator":  # the one that ships
                model = load_model("smollm2")
                ani.load_adapter(model, tokenizer, "smollm2-calculator")
            else:
                model = attached(tokenizer, policy)
            costs.append((policy, *cost(number_locator(model), prompts(24), 20)))
            ani.save_adapter(model, Path(folder) / "adapter")
            ani.merge(Path(folder) / "adapter", Path(folder) / policy, model="smollm2")
            served = engine(str(Path(folder) / policy), arguments.eager)
            workloads = [("prefill-heavy", prompts(12), 1), ("decode-heavy", prompts(1), 32), ("chats", chats(), 32)]
            for what, texts, new_tokens in workloads:
                # Throughput is the inverse of time: time of the base over time of ANI.
                found = _paired.ratios(
                    generating(base, texts, new_tokens), generating(served, texts, new_tokens), arguments.repeats
                )
                _paired.add(rows, f"{policy}, {what}", found, "≥ 0.98")
            served.llm_engine.engine_core.shutdown()
        base.llm_engine.engine_core.shutdown()
    _paired.show(rows)
    for policy, prefill, decode in costs:
        print(f"{policy}: finding numbers costs {prefill:.2f} µs a prefilled token, {decode:.2f} µs a decoded one")


if __name__ == "__main__":
    main()
