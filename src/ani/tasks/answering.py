"""What answers, greedily: a loaded transformers model, or a checkpoint in vLLM; knows nothing about tasks."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ani.errors import InputError
from ani.injection.methods import METHODS, Method
from ani.numbers import find_numbers
from ani.results.decisions import DecidedNumber

if TYPE_CHECKING:
    from transformers import (
        LogitsProcessor,
        LogitsProcessorList,
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )


class RewrittenNumbers(InputError):
    """The tokenizer changes the numbers of a text, so that the model reads others."""


MAX_LENGTH = 4096
"""Tokens of prompt and answer together (paper, "Hyperparameters")."""


def longest_text(config: PreTrainedConfig) -> int:
    """How many tokens of prompt and answer a model is given at most."""
    return min(MAX_LENGTH, getattr(config.get_text_config(), "max_position_embeddings", MAX_LENGTH))


class VllmModel:
    """A checkpoint in vLLM, which makes its own batches; answers come as they are done.

    Its numbers are those of transformers as far as that is possible: the same dtype, `longest_text` tokens, logits in
    float32, and the generation config's end tokens and repetition penalty (the rest of it is for sampling).

    Args:
        name: Directory, hub name, or `smollm2`; a merged checkpoint for a model with an adapter.

    Raises:
        InputError: There is no vLLM, no such model, or one that vLLM doesn't serve with ANI.
    """

    config: PreTrainedConfig
    fingerprint: str
    """Differs for other files in a directory, another commit of the hub's, or another dtype."""

    def __init__(self, name: str) -> None:
        from ani.hardware import default_dtype
        from ani.models import check_weights, load_config, model_source
        from ani.serving.vllm_plugin import caches_prefixes, need_vllm, servable

        # Before its first import: standard output is for results.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        # An engine in a process of its own outlives a killed one, and keeps its memory.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        need_vllm()
        self.config, source = load_config(name), model_source(name)
        settings = servable(self.config, name)
        check_weights(name)  # vLLM asks of the fewest whether it found them
        dtype = str(default_dtype()).removeprefix("torch.")
        self.fingerprint = f"{_fingerprint(source)} {dtype}"
        from vllm import LLM

        llm = LLM(
            source,
            dtype=cast(Any, dtype),
            load_format="safetensors",  # never a pickle
            config_format="hf",  # where a repository has Mistral's own files too, the same as transformers reads
            tokenizer_mode="hf",
            trust_remote_code=False,
            max_model_len=longest_text(self.config),
            enable_prefix_caching=caches_prefixes(settings),
            # In bfloat16 logits have three digits: letters would tie.
            hf_overrides={"head_dtype": "float32"},
            use_tqdm_on_load=False,
        )
        self._engine: Any = llm.llm_engine
        self._penalty: float = llm.get_default_sampling_params().repetition_penalty
        self._ids = map(str, itertools.count())

    def write(
        self, prompts: Sequence[list[int]], max_new_tokens: int, stop: Sequence[str] = ()
    ) -> Iterator[tuple[int, list[int]]]:
        """Continue token ids; (position in `prompts`, new token ids) in the order in which they are done.

        The new ones include an end token, and the text of `stop` that ended them.
        """
        settings = {
            "max_tokens": max_new_tokens,
            "stop": list(stop),
            "detokenize": bool(stop),
            "repetition_penalty": self._penalty,
        }
        for position, output in self._asked((prompt, settings) for prompt in prompts):
            yield position, list(output.token_ids)

    def score(self, prompts: Sequence[tuple[list[int], list[int]]]) -> Iterator[tuple[int, list[float]]]:
        """Of (prompt, tokens) pairs: (position in `prompts`, each token's log-probability of being the next one)."""
        for position, output in self._asked(
            (prompt, {"max_tokens": 1, "detokenize": False, "logprob_token_ids": tokens}) for prompt, tokens in prompts
        ):
            yield position, [output.logprobs[0][token].logprob for token in prompts[position][1]]

    def _asked(self, requests: Iterable[tuple[list[int], dict[str, Any]]]) -> Iterator[tuple[int, Any]]:
        # Not by LLM.generate: it returns when all are done, and what a killed run had done would be lost.
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        waiting = {}
        for position, (prompt, settings) in enumerate(requests):
            waiting[name := next(self._ids)] = position
            params = SamplingParams(temperature=0, output_kind=RequestOutputKind.FINAL_ONLY, **settings)
            self._engine.add_request(name, tokens_input(prompt), params)
        while waiting:
            for output in self._engine.step():
                if output.request_id in waiting:  # others are of an iterator that was given up
                    yield waiting.pop(output.request_id), output.outputs[0]


def _fingerprint(source: str) -> str:
    path = Path(source)
    if not path.is_dir():
        from huggingface_hub import try_to_load_from_cache

        config = cast(str, try_to_load_from_cache(source, "config.json"))  # it has been read
        return f"{source} {Path(config).parent.name}"  # the commit
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(path.iterdir())]
    return hashlib.sha256(repr(files).encode()).hexdigest()


def decoding(method: Method, tokenizer: PreTrainedTokenizerBase) -> LogitsProcessorList | None:
    """What `generate` is given for a method."""
    from transformers import LogitsProcessorList

    return None if method.decoding is None else LogitsProcessorList([_processor(method.decoding, tokenizer)])


@functools.lru_cache(maxsize=1)  # it may read the whole vocabulary
def _processor(
    make: Callable[[PreTrainedTokenizerBase], LogitsProcessor], tokenizer: PreTrainedTokenizerBase
) -> LogitsProcessor:
    return make(tokenizer)


class Answerer(NamedTuple):
    """A model that is asked, and how texts are written for it."""

    model: PreTrainedModel | VllmModel
    """In evaluation mode; a PeftModel will do, with ANI attached or without."""
    tokenizer: PreTrainedTokenizerBase
    """Any padding side."""
    method: Method = METHODS["ani"]
    """What trained the model's adapter."""
    batch_size: int | None = None
    """Of benchmarks; None: what fits on a GPU, 8 on a CPU. vLLM makes its own."""

    @property
    def has_gate(self) -> bool:
        """Whether the gate can be asked; vLLM's can't."""
        from ani.injection.attach import has_gate

        return not isinstance(self.model, VllmModel) and has_gate(self.model)

    @property
    def gates_numbers(self) -> bool:
        """Whether it decides about numbers of the text, and not about results of calculations alone."""
        from ani.injection.attach import number_locator

        return self.has_gate and number_locator(cast(Any, self.model)).values != "results"

    def greedy_texts(
        self, prompts: Sequence[str], max_new_tokens: int, *, add_special_tokens: bool = True
    ) -> list[str]:
        """What the model writes after each prompt, without special tokens.

        Args:
            prompts: One batch.
            max_new_tokens: At most, each.
            add_special_tokens: To the prompts; False for those that a chat template made.
        """
        import torch

        model, tokenizer = self.model, self.tokenizer
        if isinstance(model, VllmModel):
            rows = cast(list[list[int]], tokenizer(list(prompts), add_special_tokens=add_special_tokens)["input_ids"])
            written = dict(model.write(rows, max_new_tokens))
            ids = [written[position] for position in range(len(rows))]
            return tokenizer.batch_decode(ids, skip_special_tokens=True)
        encoded = tokenizer(
            list(prompts), return_tensors="pt", padding=True, padding_side="left", add_special_tokens=add_special_tokens
        ).to(model.device)
        with torch.inference_mode():
            generated = cast(Any, model).generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                max_new_tokens=max_new_tokens,
                do_sample=False,
                logits_processor=decoding(self.method, tokenizer),
                pad_token_id=tokenizer.pad_token_id,
            )
        return tokenizer.batch_decode(generated[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)

    def decisions(self, text: str, before: Sequence[Mapping[str, Any]] | None = None) -> tuple[DecidedNumber, ...]:
        """The gate's decision about each number of a text, which is read as a user's message, `before` which are others
        of a chat; None: as a prompt by itself."""
        from ani.chat import around_message
        from ani.injection.inspection import inspect

        around = None if before is None else around_message(self.tokenizer, before)
        return tuple(
            DecidedNumber(
                **{
                    **found._asdict(),
                    "value": str(found.value),
                    "alpha": None if math.isnan(found.alpha) else found.alpha,
                }
            )
            for found in inspect(cast(Any, self.model), self.tokenizer, text, around=around)
        )

    def labelled_decisions(
        self, text: str, before: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[DecidedNumber, ...]:
        """The same for each of `find_numbers(text)`, in order.

        Raises:
            RewrittenNumbers: The tokenizer changes the text (as by Unicode's NFKC, "10²" to "102"), so that the model
                reads other numbers than the labelled ones.
            InputError: The adapter injects results of calculations alone.
        """
        from ani.injection.attach import number_locator

        if number_locator(cast(Any, self.model)).values == "results":
            raise InputError(
                "this adapter injects results of calculations alone, so its gate decides about no number; name one "
                "with values: literals or both"
            )
        found, written = [each for each in self.decisions(text, before) if each.text != "="], find_numbers(text)
        if [decision.value for decision in found] != [str(number.value) for number in written]:
            raise RewrittenNumbers(
                f"the tokenizer turns the numbers {[number.text for number in written]} of the text {text!r:.80} into "
                f"{[decision.value for decision in found]}, so their roles aren't known; use one that keeps the text"
            )
        return tuple(found)
