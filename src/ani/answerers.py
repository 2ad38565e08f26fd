"""Who answers, by the names that a command line has for models and adapters; knows nothing about what is asked."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.errors import InputError
from ani.injection.adapter import SHIPPED, adapter_base, adapter_digest, adapter_method, adapter_settings, load_adapter
from ani.injection.attach import has_gate
from ani.injection.methods import METHODS, Method
from ani.models import EMBEDDED, load_config, load_model, load_tokenizer
from ani.results.files import read_run
from ani.serving.checkpoint import merged_method
from ani.serving.merge import merge
from ani.serving.vllm_plugin import check_merged
from ani.tasks.answering import Answerer, VllmModel
from ani.tasks.benchmarks import Benchmark
from ani.tasks.task import Task

MERGED = ".merged-"
"""Of a folder of results: how what vLLM answers from is called, until all is answered."""


class Candidate(NamedTuple):
    """What `ani eval` evaluates, and how it is run; nothing is loaded yet."""

    model: str
    adapter: str | None
    backend: str
    """`transformers` or `vllm`; `auto` until it is `settled`."""
    batch_size: int | None
    forced: bool = False
    """Whether exact results are forced, as by the method `forced`."""

    def settled(self, tasks: Sequence[Task], out: Path, *, alone: bool) -> "Candidate":
        """With the backend that `auto` stands for: that of the results in `out`; where there are none, for benchmarks
        vLLM, if it is installed, there is a GPU, and all of this is for it. Raises as `check`."""
        found = read_run(out)
        if self.backend == "auto" and found is not None:
            return self._replace(backend=found.backend).settled(tasks, out, alone=alone)
        if self.backend == "auto":
            fast = torch.cuda.is_available() and find_spec("vllm")
            with suppress(InputError):
                if fast and any(isinstance(task, Benchmark) for task in tasks):
                    return self._replace(backend="vllm").settled(tasks, out, alone=alone)
            return self._replace(backend="transformers").settled(tasks, out, alone=alone)
        self.check(tasks, alone=alone)
        return self

    def check(self, tasks: Sequence[Task], *, alone: bool) -> None:
        """Raise InputError for what can be told before anything is loaded; `alone`: one process does all the work."""
        gated = _gated(tasks)
        if self.backend == "vllm":
            if not alone:
                raise InputError("vLLM spreads its work itself: leave out --processes, or use --backend transformers")
            if gated is not None:
                raise InputError(
                    f"{gated} needs the gate's decisions, which vLLM doesn't give: use --backend transformers"
                )
            if self.adapter is not None and (settings := adapter_settings(self.adapter)) is not None:
                check_merged(load_config(self.model), settings.combine, self.adapter)
            if self.forced:
                raise InputError("vLLM isn't made to write results: leave out --forced, or use --backend transformers")
            if self.batch_size is not None:
                raise InputError("vLLM makes its own batches: leave out --batch-size")
        if self._method() is None and gated is not None:
            raise InputError(f"{gated} needs --adapter: a model without ANI has no gate")

    def load(self, tasks: Sequence[Task], out: Path = Path()) -> Answerer:
        """The model, ready to be asked; raises InputError if it can't be loaded, or lacks a gate that a task needs. For
        vLLM an adapter is merged first, in `out`; `clear` takes that away."""
        method = self._method() or METHODS["ani"]
        if self.forced:
            method = method._replace(decoding=METHODS["forced"].decoding)
        if self.backend == "vllm":
            name = self.model
            if self.adapter is not None:
                name = str(out / f"{MERGED}{adapter_digest(self.adapter)[:12]}")
                if not Path(name).is_dir():  # of a run that was killed: kept answers know the files by their times
                    merge(self.adapter, name, model=self.model)
            return Answerer(VllmModel(name), load_tokenizer(name), method)
        model, tokenizer = adapted_model(self.model, self.adapter)
        if gated := _gated(tasks):
            need_gate(model, self.adapter or self.model, gated)
        return Answerer(model, tokenizer, method, self.batch_size)

    @staticmethod
    def clear(out: Path) -> None:
        """Remove what `load` has merged in `out`."""
        for merged in out.glob(f"{MERGED}*"):
            shutil.rmtree(merged)

    @property
    def facts(self) -> dict[str, Any]:
        """What `run.json` says of it."""
        return {
            "model": self.model,
            "adapter": self.adapter,
            "backend": self.backend,
            **({"forced": True} if self.forced else {}),
        }

    def _method(self) -> Method | None:
        return adapter_method(self.adapter) if self.adapter is not None else _merged_method(self.model)


def model_for(model: str | None, adapter: str | None) -> str:
    """The model to load: the one that is named, else the base that the adapter names, else the embedded one; raises as
    `adapter_base`."""
    return model or (EMBEDDED if adapter is None else adapter_base(adapter))


def adapted_model(model: str, adapter: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in evaluation mode, with an adapter if one is named, and its tokenizer."""
    tokenizer = load_tokenizer(model)
    loaded = load_model(model)
    if adapter is not None:
        load_adapter(loaded, tokenizer, adapter)
    return loaded, tokenizer


def model_and_adapter(model: str | None, adapter: str | None) -> tuple[str, str | None]:
    """The model to load (`model_for`) and its adapter: the one that is named, else the one that ships for the model;
    None: the model is a merged checkpoint, which has its own."""
    model = model_for(model, adapter)
    if adapter is None and model == EMBEDDED:
        return model, SHIPPED[0]
    if adapter is None and _merged_method(model) is None:
        raise InputError(f"--adapter is missing: an adapter ships for smollm2 only, not for {model!r}")
    return model, adapter


def need_gate(model: PreTrainedModel, name: str, what: str) -> None:
    """Raises InputError if the model, known by `name`, has no gate, which `what` needs."""
    if not has_gate(model):
        raise InputError(f"{what} needs an adapter with a gate, and that of {name} has none")


def _gated(tasks: Sequence[Task]) -> str | None:
    return next((f"the task {task.name}" for task in tasks if task.needs_gate), None)


def _merged_method(model: str) -> Method | None:
    return None if model == EMBEDDED else merged_method(load_config(model))
