"""Served questions with prefix caching: do they get transformers' tokens, and how much time does a shared prefix save?

Every prompt is asked with an empty prefix cache, with a warm one, and in a second turn, all by transformers as well.
Where greedy answers part, the two tokens' log-probabilities tell a tie, broken by rounding, from an error. Some 10
minutes on two free cores, with 200 prompts.
"""

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _paired
import torch
from generation import attached
from rich.table import Table
from serving import engine
from transformers import AutoModelForCausalLM, PreTrainedModel

import ani
from ani.calculator.data.chats import asked_chats, unasked_chats
from ani.chat import rendered
from ani.data.arithmetic import arithmetic_problems
from ani.injection.attach import ani_module
from ani.models import load_tokenizer

TIE = 1e-3
"""Log-probabilities no further apart are the same, in float32."""
SHOTS = 8


class Answer(NamedTuple):
    """Greedy tokens, and the log-probability of each."""

    tokens: list[int]
    scores: list[float]


def questions(file: Path | None) -> Iterator[tuple[str, str]]:
    """Questions and worked answers of GSM8K's file; without one, endless arithmetic."""
    if file is not None:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield row["question"], row["answer"]
    else:
        for seed in itertools.count():
            first, second, third = arithmetic_problems(3, digits=(3, 6), split="test", seed=seed)
            yield (
                f"{first.prompt} {first.answer}. {second.prompt} {second.answer}. {third.prompt}",
                f"{third.left} {third.operation} {third.right} = {third.answer}",
            )


def served(llm: Any, rows: list[list[int]], new_tokens: int, **extra: Any) -> tuple[list[Answer], int]:
    """vLLM's answers, and how many tokens of the prompts came from the cache."""
    import vllm

    params = vllm.SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=0, extra_args=extra or None
    )
    outputs = llm.generate([{"prompt_token_ids": row} for row in rows], params, use_tqdm=False)
    answers = []
    for output in outputs:
        tokens = list(output.outputs[0].token_ids)
        steps = zip(output.outputs[0].logprobs, tokens, strict=True)
        answers.append(Answer(tokens, [step[token].logprob for step, token in steps]))
    return answers, sum(output.num_cached_tokens for output in outputs)


@torch.inference_mode()
def compared(model: PreTrainedModel, rows: list[list[int]], answers: list[Answer]) -> tuple[int, list[float], float]:
    """How many answers are transformers' greedy ones, the gaps where others part, and how far other scores differ.

    One forward a row over prompt and answer: as long as the answers agree, each of its states is that of a generation.
    """
    same, gaps, widest = 0, [], 0.0
    for row, answer in zip(rows, answers, strict=True):
        logits = model(torch.tensor([[*row, *answer.tokens]])).logits[0, len(row) - 1 : -1]
        expected = logits.float().log_softmax(-1)
        for scores, token, score in zip(expected, answer.tokens, answer.scores, strict=True):
            gap = float(scores.max() - scores[token])
            if gap > 0:
                gaps.append(gap)
                break
            widest = max(widest, abs(float(scores[token]) - score))
        else:
            same += 1
    return same, gaps, widest


def parity(tokenizer: Any, folder: Path, arguments: argparse.Namespace) -> None:
    """Print how many of the answers are transformers' own, by pass."""
    if arguments.adapter is None:
        untrained = attached(tokenizer, "after")
        ani_module(untrained).projection.weight.data *= 10  # so that answers are others without it
        ani.save_adapter(untrained, folder / "adapter")
    ani.merge(arguments.adapter or folder / "adapter", folder / "parity", model="smollm2", dtype="float32")
    model = AutoModelForCausalLM.from_pretrained(folder / "parity", dtype=torch.float32).eval()
    settings = ani_module(model).config
    more = "\nNow with 1,250 more, and 37.5 less:"
    if settings.values == "literals":
        texts = [question for question, _ in itertools.islice(questions(arguments.questions), arguments.prompts)]
    else:  # chats, of which every third asks for something else
        asked = [
            each.prompt for each in asked_chats(arguments.prompts, split="test") if not isinstance(each.prompt, str)
        ]
        asked[::3] = [each.prompt for each in unasked_chats(len(asked[::3]), split="test", pending=True)]
        texts = [rendered(tokenizer, messages) for messages in asked]
        last = [*asked[0], {"role": "assistant", "content": "1"}, {"role": "user", "content": "And what is 125 * 37?"}]
        more = rendered(tokenizer, last).removeprefix(f"{texts[0]}1")
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    # Blocks of 32 tokens, the fewest on a CPU: a question has more than one.
    llm = engine(str(folder / "parity"), arguments.eager, enable_prefix_caching=True, dtype="float32", block_size=32)
    table = Table(
        "pass",
        "prompts",
        "from the cache",
        "same tokens",
        "part at a tie",
        "part otherwise",
        "largest gap",
        "scores differ by",
        title=f"vLLM against transformers, float32, 32 in flight, {arguments.new_tokens} new tokens; "
        f"policy {settings.policy}, values {settings.values}",
    )
    wrong = 0

    def add(name: str, asked: list[list[int]], answers: list[Answer], cached: int) -> None:
        nonlocal wrong
        same, gaps, widest = compared(model, asked, answers)
        ties = sum(gap <= TIE for gap in gaps)
        wrong += len(gaps) - ties
        cells = [len(asked), f"{cached / sum(map(len, asked)):.0%}", same, ties, len(gaps) - ties]
        table.add_row(name, *map(str, cells), f"{max(gaps, default=0):.1e}", f"{widest:.1e}")

    cold, cached = served(llm, rows, arguments.new_tokens)
    add("cold", rows, cold, cached)
    add("warm", rows, *served(llm, rows, arguments.new_tokens))
    turn = tokenizer(more, add_special_tokens=False)["input_ids"]
    longer = [[*row, *answer.tokens, *turn] for row, answer in zip(rows, cold, strict=True)]
    add("second turn", longer, *served(llm, longer, arguments.new_tokens))
    shut, _ = served(llm, rows, arguments.new_tokens, ani_gates="shut")
    _paired.show(table)
    changed = sum(one.tokens != other.tokens for one, other in zip(cold, shut, strict=True))
    print(f"{changed} of {len(rows)} answers are others with shut gates")
    llm.llm_engine.engine_core.shutdown()
    if wrong:
        raise SystemExit(f"{wrong} answers are not transformers'")


def prefix(tokenizer: Any, folder: Path, arguments: argparse.Namespace) -> None:
    """Print the time of requests with a shared prefix that is cached over that of ones that compute it."""
    import vllm

    asked = questions(arguments.questions)
    shots = "".join(
        f"Question: {question}\nAnswer: {answer}\n\n" for question, answer in itertools.islice(asked, SHOTS)
    )
    length = len(tokenizer(shots)["input_ids"])
    engines = {}
    for policy in ("after", "terminal"):
        ani.save_adapter(attached(tokenizer, policy), folder / "adapter")
        ani.merge(folder / "adapter", folder / policy, model="smollm2")
        options = {"enable_prefix_caching": policy == "after", "max_model_len": length + 1024}
        engines[policy] = engine(str(folder / policy), arguments.eager, **options)

    def answering(policy: str) -> Callable[[], object]:
        settings = vllm.SamplingParams(temperature=0, max_tokens=arguments.new_tokens, ignore_eos=True)

        def answer() -> object:
            texts = [f"{shots}Question: {q}\nAnswer:" for q, _ in itertools.islice(asked, arguments.requests)]
            assert len(texts) == arguments.requests, "too few questions for so many pairs"
            return engines[policy].generate(texts, settings, use_tqdm=False)

        return answer

    found = _paired.ratios(answering("after"), answering("terminal"), arguments.repeats, warmup=1)
    title = (
        f"{SHOTS} shots, {length} tokens, {arguments.requests} new questions, {arguments.new_tokens} new tokens each"
    )
    rows = _paired.table(f"{title}: time cached under after / computed under terminal")
    _paired.add(rows, "shared prefix in vLLM, SmolLM2-135M", found, "< 1")
    _paired.show(rows)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path, help="GSM8K's test.jsonl; without it, arithmetic.")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--adapter", help="Of the embedded model; without it, an untrained module under after.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--eager", action="store_true", help="Without vLLM's compilation.")
    parser.add_argument("--only", choices=["parity", "prefix"])
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # as in serving.py
    tokenizer = load_tokenizer("smollm2")
    with tempfile.TemporaryDirectory() as folder:
        for measure in (parity, prefix):
            if arguments.only in (None, measure.__name__):
                measure(tokenizer, Path(folder), arguments)


if __name__ == "__main__":
    main()
