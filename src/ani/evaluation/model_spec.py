"""The model that is evaluated: its name, adapter, dtype and backend; loads it."""

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.devices import default_dtype
from ani.errors import InputError
from ani.evaluation.engines import (
    Engine,
    Machine,
    Processor,
    TransformersEngine,
    VllmEngine,
    VllmSettings,
    this_machine,
)
from ani.evaluation.task import Task
from ani.evaluation.tasks.benchmarks import Benchmark
from ani.injection.adapter import Adapter
from ani.injection.adapter_files import SHIPPED
from ani.injection.methods import METHODS, Method
from ani.injection.model_parts import has_gate
from ani.models import (
    EMBEDDED,
    DTypeName,
    Quantization,
    load_config,
    load_model,
    load_tokenizer,
    model_source,
)
from ani.results.records import read_run
from ani.revisions import pinned
from ani.serving.checkpoint import merged_method
from ani.serving.merge import merge
from ani.serving.plugin import why_not_vllm

MERGED = ".merged-"
"""Prefix of the temporary merged checkpoint in a result folder, from which vLLM answers."""


class ModelSpec(NamedTuple):
    """A model to evaluate; nothing is loaded yet."""

    model: str
    adapter: str | None = None
    backend: str = "transformers"
    """`transformers` or `vllm`; `auto` until it is `resolved`."""
    batch_size: int | None = None
    processors: tuple[Processor, ...] = ()
    """Logits processors that take part in generation."""
    dtype: DTypeName = "auto"
    """For transformers, and so `quantization`."""
    quantization: Quantization = "none"
    vllm: VllmSettings = VllmSettings()

    def resolved(self, tasks: Sequence[Task], out: Path, machine: Machine | None = None) -> "ModelSpec":
        """Replace `auto` by the backend of the results in `out`; without results by vLLM for benchmarks, if it is
        installed, uses a GPU (of `machine`, by default this one) and passes `check`; else by transformers. Raises as
        `check`."""
        found = read_run(out)
        if self.backend != "auto":
            self.check(tasks)
            return self
        if found is not None:
            return self._replace(backend=found.backend).resolved(tasks, out)
        with suppress(InputError):
            if any(isinstance(task, Benchmark) for task in tasks) and (machine or this_machine()).serves_by_vllm:
                return self._replace(backend="vllm").resolved(tasks, out)
        return self._replace(backend="transformers").resolved(tasks, out)

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise InputError for bad input that is known before anything is loaded."""
        gated = _gated(tasks)
        if self.backend == "vllm":
            if gated:
                raise InputError(
                    f"{gated} needs the gate's decisions, which vLLM doesn't give: use --backend transformers"
                )
            if self.adapter is not None and (settings := Adapter.read(self.adapter).settings.module) is not None:
                reason = why_not_vllm(load_config(self.model), settings)
                if reason is not None:
                    raise InputError(f"{self.adapter}: {reason}")
            if self.processors:
                raise InputError(f"vLLM can't use {self.processors[0].name}: use --backend transformers")
            if self.batch_size is not None:
                raise InputError("vLLM makes its own batches: leave out --batch-size")
        elif self.vllm != VllmSettings():
            raise InputError("the backend transformers takes no settings of vLLM: leave out --vllm")
        if self._method() is None and gated:
            raise InputError(f"{gated} needs --adapter: a model without ANI has no gate")

    def start(self, tasks: Sequence[Task], out: Path, console: Console) -> tuple["ModelSpec", Engine]:
        """Return the spec as `resolved`, and the model loaded. Where `auto` chose vLLM, and vLLM can't serve the model
        after all, print the reason and load it by transformers, unless `out` has results or vLLM settings are given.
        Raises as `load`."""
        spec = self.resolved(tasks, out)
        try:
            return spec, spec.load(tasks, out)
        except InputError as error:
            chosen = self.backend == "auto" and spec.backend == "vllm"
            if not chosen or read_run(out) is not None or self.vllm != VllmSettings():
                raise
            spec.clear(out)
            spec = self._replace(backend="transformers").resolved(tasks, out)
            console.print(f"by transformers, not vLLM ({error})", highlight=False, markup=False)
            return spec, spec.load(tasks, out)

    def load(self, tasks: Sequence[Task], out: Path = Path()) -> Engine:
        """Load the model; for vLLM an adapter is merged first, in `out` (see `clear`). Raises InputError if it can't be
        loaded, or lacks a gate that a task needs."""
        method = self._method() or METHODS["ani"]
        if self.backend == "vllm":
            return VllmEngine(self.served(out), method, self.vllm, any(task.needs_score for task in tasks))
        model, tokenizer = adapted_model(self.model, self.adapter, self.dtype, self.quantization)
        if (gated := _gated(tasks)) and not has_gate(model):
            raise InputError(f"{gated} needs an adapter with a gate, but {self.adapter or self.model} has none")
        processors = [processor.load(model, tokenizer) for processor in self.processors]
        return TransformersEngine(model, tokenizer, method, self.batch_size, self.vllm.max_model_len, processors)

    def served(self, out: Path) -> str:
        """Return the checkpoint for vLLM: the model, or model and adapter merged in `out`."""
        if self.adapter is None:
            return self.model
        merged = out / f"{MERGED}{Adapter.read(self.adapter).digest()[:12]}"
        if not merged.is_dir():
            merge(self.adapter, merged, model=self.model)
        return str(merged)

    @staticmethod
    def clear(out: Path) -> None:
        """Remove the merged checkpoints in `out`."""
        for merged in out.glob(f"{MERGED}*"):
            shutil.rmtree(merged)

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of `run.json`. `fingerprint` depends on the model's files or the hub's commit, adapter, dtype and
        backend."""
        dtype = default_dtype() if self.dtype == "auto" else f"torch.{self.dtype}"
        adapter = None if self.adapter is None else Adapter.read(self.adapter).digest()
        length = self.vllm.model_dump(include={"max_model_len"}, exclude_defaults=True)
        processors = tuple(processor.name for processor in self.processors)
        settings = (adapter, self.backend, str(dtype), self.quantization, *processors, *length.items())
        return {
            "model": self.model,
            "adapter": self.adapter,
            "backend": self.backend,
            "fingerprint": hashlib.sha256(repr((_files(self.model), *settings)).encode()).hexdigest(),
            **({"processors": processors} if processors else {}),
        }

    def _method(self) -> Method | None:
        if self.adapter is None:
            return _merged_method(self.model)
        return METHODS[Adapter.read(self.adapter).settings.method]


def _files(model: str) -> Any:
    """Return what identifies a model's files: their sizes and times, or the hub's commit."""
    path = Path(model_source(model))
    if not path.is_dir():
        return pinned(model)
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(path.iterdir())]


def model_for(model: str | None, adapter: str | None) -> str:
    """Return the model to load: the one that is named, else the adapter's base, else the embedded one; raises as
    `Adapter.base_model`."""
    return model or (EMBEDDED if adapter is None else Adapter.read(adapter).base_model())


def adapted_model(
    model: str, adapter: str | None, dtype: DTypeName = "auto", quantization: Quantization = "none"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model in evaluation mode, with its adapter if one is named, and its tokenizer."""
    tokenizer = load_tokenizer(model)
    loaded = load_model(model, dtype=dtype, quantization=quantization)
    if adapter is not None:
        Adapter.read(adapter).load(loaded, tokenizer)
        loaded.eval()
    return loaded, tokenizer


def model_and_adapter(model: str | None, adapter: str | None) -> tuple[str, str | None]:
    """Return the model to load (`model_for`) and its adapter: the one that is named, else the one that ships for the
    model, or None for a merged checkpoint."""
    model = model_for(model, adapter)
    if adapter is None and model == EMBEDDED:
        return model, SHIPPED[0]
    if adapter is None and _merged_method(model) is None:
        raise InputError(f"--adapter is missing: an adapter ships for smollm2 only, not for {model!r}")
    return model, adapter


def _gated(tasks: Sequence[Task]) -> str | None:
    return next((f"the task {task.name}" for task in tasks if task.needs_gate), None)


def _merged_method(model: str) -> Method | None:
    return None if model == EMBEDDED else merged_method(load_config(model))
