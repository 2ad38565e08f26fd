"""vLLM: tokens per second of a served ANI model and of the served calculator over the served base model, and the time
that finding numbers takes per step of 256 requests of prose; with `--questions`, of `xval` over transformers'.

Every gate of the ANI model is open. Both engines run in this process, in turns. Some ten minutes on two cores.
"""

import functools
import json
import os
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _paired
import numpy as np
from generation import attached, sums

import ani
from ani.calculator.data.chats import asked_chats, unasked_chats
from ani.chat import rendered
from ani.data.records import Message
from ani.evaluation.engines import Engine, TransformersEngine, VllmEngine, VllmSettings
from ani.evaluation.model_spec import adapted_model
from ani.injection.locate import NumberLocator
from ani.injection.methods import METHODS
from ani.models import load_model, load_tokenizer, model_source
from ani.serving.engine_step import EngineStep, StepLocator

PROSE = "The committee met on a rainy morning and talked at length about the harbour, its old walls and its people. "
Rows = list[list[int]]


def scan(find: Callable[[EngineStep], object], prose: list[int], requests: int = 256, steps: int = 50) -> float:
    """Milliseconds per decode step in which each request has one token of prose."""
    rows = np.array([prose[i % 40 : i % 40 + 400] for i in range(requests)], dtype=np.int32)
    names, lengths = [str(i) for i in range(requests)], np.full(requests, 100)
    table = names, rows, np.arange(requests), lengths
    find(EngineStep(*table, np.full(requests, 0), np.arange(requests + 1) * 100))
    times = []
    for step in range(100, 100 + steps):
        start = time.perf_counter()
        find(EngineStep(*table, np.full(requests, step), np.arange(requests + 1)))
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def scans(tokenizer: Any) -> dict[str, float]:
    """Milliseconds per step of 256 requests, by what is looked for."""
    from ani.calculator.rows import RowReader
    from ani.calculator.vllm import StepReader

    prose = tokenizer(PROSE * 30)["input_ids"]
    finds: dict[str, Callable[[EngineStep], object]] = {
        policy: StepLocator(NumberLocator(tokenizer, ani.AniConfig(layer=10, hidden_size=576, policy=policy))).find
        for policy in ("after", "running")
    }
    finds["calculator"] = StepReader(RowReader(tokenizer)).read
    return {name: scan(find, prose) for name, find in finds.items()}


def chats(tokenizer: Any, count: int) -> Rows:
    """Chats, half of which ask for a calculation."""
    asked = [each.given for each in asked_chats(4 * count, split="test", seed=0) if not each.raw]
    unasked = [each.given for each in unasked_chats(count, split="test", seed=0)]
    messages = [*asked[: count // 2], *unasked[: count - count // 2]]
    return [tokenizer(rendered(tokenizer, each), add_special_tokens=False)["input_ids"] for each in messages]


def engine(path: str, **settings: Any) -> Any:
    """vLLM, by default without prefix caching, because a repeated prompt would cost nothing."""
    import vllm

    return vllm.LLM(
        path,
        max_model_len=1024,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=0.4,  # two engines on one card
        **{"enable_prefix_caching": False, **settings},
    )


def generating(llm: Any, rows: Rows, new_tokens: int, past_end: bool = True) -> Callable[[], Any]:
    """A call that generates so many tokens per row."""
    import vllm

    settings = vllm.SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=past_end, detokenize=False)
    return lambda: llm.generate([{"prompt_token_ids": row} for row in rows], settings, use_tqdm=False)


def parity(given: Namespace, tokenizer: Any, folder: Path) -> None:
    """Print in how many chats of three turns vLLM with the calculator answers as transformers does, in float32, and how
    many prompt tokens it takes from its prefix cache, and the base model from its own."""
    model, count = load_model(given.model, dtype="float32"), given.parity
    calculator = ani.Calculator.load(given.calculator, model, tokenizer)
    reference = TransformersEngine(model, tokenizer, batch_size=32, processors=[calculator])
    paths = checkpoint("calculator", given, tokenizer, folder), model_source(given.model)
    llms = [engine(path, enforce_eager=True, dtype="float32", enable_prefix_caching=True) for path in paths]
    asked = [each.prompt for each in asked_chats(4 * count, split="test", seed=0) if not each.raw]
    turns = asked[:count], [each.prompt for each in unasked_chats(count, split="test", seed=0)], asked[count:]
    dialogues: list[list[Message]] = [[] for _ in range(count)]
    prompts, wrong = [], set()
    for turn in turns:
        for dialogue, message in zip(dialogues, turn, strict=False):
            dialogue.append({"role": "user", "content": message})
        prompts.append([reference.ids(dialogue) for dialogue in dialogues])
        texts = reference.texts(dialogues, 32)
        for i, output in enumerate(generating(llms[0], prompts[-1], 32, past_end=False)()):
            if tokenizer.decode(output.outputs[0].token_ids, skip_special_tokens=True) != texts[i]:
                wrong.add(i)
            dialogues[i].append({"role": "assistant", "content": texts[i]})
    print(f"{count - len(wrong)} of {count} chats equal transformers', in {3 * count} turns")
    for llm, name in zip(llms, ("calculator", "base model"), strict=True):
        llm.reset_prefix_cache()
        cached = [output.num_cached_tokens for rows in prompts for output in generating(llm, rows, 1)()]
        print(f"{name}: {sum(cached)} of {sum(len(row) for rows in prompts for row in rows)} prompt tokens were cached")


def xval(given: Namespace, tokenizer: Any, folder: Path) -> None:
    """Print how fast an untrained `xval` answers the first questions of a file: in transformers, in batches of 64 as a
    comparison asks, and in vLLM."""
    records = given.questions.read_text(encoding="utf-8").splitlines()[: given.requests]
    prompts = [[{"role": "user", "content": json.loads(record)["question"]}] for record in records]
    path = checkpoint("xval", given, tokenizer, folder)
    served = VllmEngine(path, settings=VllmSettings(gpu_memory_utilization=0.4))
    engines: list[Engine] = [TransformersEngine(*adapted_model(path, None), batch_size=64), served]
    written = [engine.texts(prompts, given.new_tokens) for engine in engines]
    tokens = [sum(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"])) for texts in written]
    same = sum(map(str.__eq__, *written))
    print(f"{same} of {len(prompts)} answers are equal; {tokens[0]} and {tokens[1]} tokens")
    rows = _paired.table(f"`xval`, {given.model}, {len(prompts)} questions: throughput of vLLM / transformers")
    calls = [functools.partial(engine.texts, prompts, given.new_tokens) for engine in engines]
    _paired.add(rows, f"{given.new_tokens} tokens", _paired.ratios(*calls, given.repeats, warmup=0))
    _paired.show(rows)


def checkpoint(kind: str, given: Namespace, tokenizer: Any, folder: Path) -> str:
    """A served checkpoint: `calculator`, `xval`, or a policy of an ANI module with open gates."""
    if kind == "calculator":
        from ani.calculator.serving import merge

        merge(given.calculator, folder / kind, model=given.model)
    else:
        settings = METHODS[kind].settings if kind in METHODS else {"layer": 10, "policy": kind}
        ani.save_adapter(attached(given.model, "auto", tokenizer, **(settings or {})), folder / "adapter")
        ani.merge(folder / "adapter", folder / kind, model=given.model)
    return str(folder / kind)


def main() -> None:
    """Print the ratios of throughputs, and the time per step."""
    parser = _paired.parser(__doc__, repeats=7)
    parser.set_defaults(dtype="bfloat16")
    parser.add_argument("--calculator", default="smollm2-calculator", help="one that was fitted for the model")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=["running", "calculator"], default=["running", "calculator"])
    parser.add_argument("--questions", type=Path, help="Only time `xval` on the questions of this JSONL file.")
    parser.add_argument("--new-tokens", type=int, default=64, help="Of an answer to these questions.")
    parser.add_argument("--parity", type=int, default=0, help="Only compare so many chats with transformers.")
    given = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # Engines in processes of their own wait busily, and would slow each other down on the same cores.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with tempfile.TemporaryDirectory() as folder:
        measure = parity if given.parity else xval if given.questions else throughput
        measure(given, load_tokenizer(given.model), Path(folder))


def throughput(given: Namespace, tokenizer: Any, folder: Path) -> None:
    """Print the ratios of served models, then the time that finding numbers takes."""
    rows = _paired.table(f"vLLM, {given.model}, {given.dtype}, {given.requests} requests: throughput ours / base")
    prefill, decode = (tokenizer(sums(given.requests, problems))["input_ids"] for problems in (12, 1))
    texts = (("prefill", prefill, 1), ("decode", decode, 32), ("chats", chats(tokenizer, given.requests), 32))
    base = engine(model_source(given.model), dtype=given.dtype)
    for kind in given.only:
        served = engine(checkpoint(kind, given, tokenizer, folder), dtype=given.dtype)
        for name, prompts, new in texts:
            # Throughput is the inverse of time.
            ours, theirs = generating(served, prompts, new), generating(base, prompts, new)
            _paired.add(rows, f"{kind}, {name}", _paired.ratios(theirs, ours, given.repeats), "≥ 0.98")
        served.llm_engine.engine_core.shutdown()
    base.llm_engine.engine_core.shutdown()
    _paired.show(rows)
    found = _paired.table("vLLM, 256 requests of prose: milliseconds per step to find numbers")
    for name, milliseconds in scans(tokenizer).items():
        _paired.add(found, name, [milliseconds], "≤ 0.3")
    _paired.show(found)


if __name__ == "__main__":
    main()
