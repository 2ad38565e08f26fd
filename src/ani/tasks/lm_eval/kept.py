"""Answers to a benchmark, kept as they come so that a killed run goes on; knows no benchmark."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from lm_eval.api.instance import Instance
from transformers import PreTrainedModel

from ani.errors import InputError
from ani.files import naming_full_disk, replacing_file
from ani.injection.attach import ani_module, is_attached
from ani.injection.methods import Method
from ani.launch import Processes
from ani.results.files import kept_files
from ani.tasks.answering import VllmModel
from ani.untrusted.text import parse_json

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class KeptAnswers:
    """The model's answers by prompt (and continuation), in memory and in a file; lm-evaluation-harness's cache hook.

    The harness has a cache of its own, but it knows neither the model nor an end, and it holds pickles.
    """

    def __init__(
        self,
        path: Path | None,
        fingerprint: Callable[[], str],
        requests_each: int,
        on_question: Callable[[int], None],
        processes: Processes,
    ) -> None:
        self.processes = processes
        self._requests_each, self._on_question = requests_each, on_question
        self._answers: dict[str, Any] = {}
        self._own: dict[str, Any] = {}
        self._answered = 0
        self._file = None
        if path is None:
            return
        heading, self._answers = processes.from_main(lambda: _earlier(path, fingerprint()))
        own = path if processes.main else path.with_name(f"{path.name}.{processes.rank}")
        self._file = own.open("a", encoding="utf-8", newline="\n")
        if not processes.main:  # `_earlier` has left no such file
            self._write(heading)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with naming_full_disk(Path(self._file.name)):  # what could not be written is tried once more
                self._file.close()

    def __getitem__(self, request: Instance) -> Any:
        return self._answers[self._key(request.request_type, request.args)]

    def missing(self, requests: list[Instance]) -> list[Instance]:
        """Those without an answer, each once."""
        wanted = {self._key(request.request_type, request.args): request for request in requests}
        missing = [request for key, request in wanted.items() if key not in self._answers]
        if self.processes.main:
            self._count(len(requests) - len(missing))
        return missing

    def gathered(self) -> bool:
        """Whether this process, the main one, has the answers of all from here on."""
        for own in self.processes.gathered(self._own):
            self._answers |= own
        return self.processes.main

    def add_partial(self, kind: str, request: tuple[str, Any], answer: Any) -> None:
        """What the harness calls with every answer: a text, or a log-probability and whether it is the greatest."""
        key = self._key(kind, request)
        self._own[key] = self._answers[key] = answer if kind == "generate_until" else answer[0]
        self._write(json.dumps((key, self._answers[key])))
        self._count(1)

    def _write(self, line: str) -> None:
        if self._file is not None:
            with naming_full_disk(Path(self._file.name)):
                self._file.write(line + "\n")
                self._file.flush()

    def _key(self, kind: str, request: tuple[str, Any]) -> str:
        # Generation settings are the same for all, and the harness changes the ones it is given.
        return hashlib.sha256(json.dumps(request[: 1 if kind == "generate_until" else 2]).encode()).hexdigest()

    def _count(self, answered: int) -> None:
        done = self._answered // self._requests_each
        self._answered += answered
        if self._answered // self._requests_each > done:
            self._on_question(self._answered // self._requests_each - done)


def _earlier(path: Path, fingerprint: str) -> tuple[str, dict[str, Any]]:
    """The fingerprint, and what a killed run has answered, in any number of processes; then `path` alone has it."""
    answers: dict[str, Any] = {}
    files = kept_files(path)
    for file in files:
        lines = file.read_bytes().decode(errors="replace").split("\n")
        if lines[0] == fingerprint:
            for number, line in enumerate(lines[1:-1], start=2):  # the last one is empty, or was being written
                match parse_json(line, f"{file}, line {number}"):
                    case [str(key), str() | int() | float() as answer]:
                        answers[key] = answer
                    case _:
                        raise InputError(f"{file}, line {number} is no kept answer; delete the file to answer anew")
    with replacing_file(path) as out:
        out.writelines(f"{line}\n" for line in (fingerprint, *map(json.dumps, answers.items())))
    for file in files:
        if file != path:
            file.unlink()
    return fingerprint, answers


def fingerprint(model: PreTrainedModel | VllmModel, method: Method, generation: Any) -> str:
    """Differs for any other weights, module, method or settings; the same whatever the batch size."""
    digest = hashlib.sha256()
    if isinstance(model, VllmModel):
        module = f"vllm {model.fingerprint}"
    else:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            # Bit patterns, as NumPy knows no bfloat16. On a CPU the hash takes less time than a sum of them.
            digest.update(tensor.detach().view(_INTEGERS[tensor.element_size()]).cpu().contiguous().numpy().data)
        module = ani_module(model).config.model_dump_json() if is_attached(model) else ""
    decoding = "" if method.decoding is None else method.decoding.__qualname__
    digest.update(f"{module} {method.write('1 23 456')}{decoding} {json.dumps(generation)}".encode())
    return digest.hexdigest()
