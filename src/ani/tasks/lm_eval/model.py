"""lm-evaluation-harness's side of a model: prompts by its template, answers kept; knows no benchmark."""

import contextlib
import copy
import itertools
import logging
from collections.abc import Iterator
from typing import Any, cast

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ani.chat import rendered
from ani.errors import InputError
from ani.injection.methods import Method
from ani.tasks.answering import VllmModel, decoding, longest_text
from ani.tasks.lm_eval.kept import KeptAnswers

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns about whatever is done here on purpose


@contextlib.contextmanager
def exact_letters(model: PreTrainedModel, written: bool) -> Iterator[None]:
    """Logits in float32 while letters are compared.

    A model in bfloat16 gives them with three digits, in steps of 1/8 from 16 on: letters would tie, and the first win.
    """
    head = cast(Any, model.get_output_embeddings())
    plain = type(head) is torch.nn.Linear
    if written or not plain or head.weight.dtype not in (torch.bfloat16, torch.float16):
        yield
        return
    head.forward = lambda hidden: torch.nn.functional.linear(
        hidden.float(), head.weight.float(), None if head.bias is None else head.bias.float()
    )
    try:
        yield
    finally:
        del head.forward


class _Chat:
    """What the backends have in common: prompts are written by the model's template."""

    tokenizer: PreTrainedTokenizerBase
    ani_method: Method

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        messages = [{**message, "content": self.ani_method.write(message["content"])} for message in chat_history]
        return rendered(self.tokenizer, messages, add_generation_prompt=add_generation_prompt)


class VllmChat(_Chat):
    """Asks vLLM what isn't answered yet; what of lm-evaluation-harness's models a benchmark calls.

    The harness has a model for vLLM too, but it returns answers when all are there, asks for every letter apart, with
    the log-probabilities of the whole prompt, and doesn't import beside a vLLM that is built for CPUs.
    """

    def __init__(
        self, model: VllmModel, tokenizer: PreTrainedTokenizerBase, method: Method, kept: KeptAnswers, room: int
    ) -> None:
        self.model, self.tokenizer, self.ani_method, self.ani_kept, self.ani_room = model, tokenizer, method, kept, room

    def tok_encode(self, text: str) -> list[int]:
        return cast(list[int], self.tokenizer.encode(text, add_special_tokens=False))

    def generate_until(self, requests: list[Instance]) -> None:
        settings = requests[0].args[1]  # the same for all
        missing = self.ani_kept.missing(requests)
        rows = [self.tok_encode(request.args[0])[-self.ani_room :] for request in missing]
        stops = [stop for stop in (*settings["until"], self.tokenizer.eos_token) if stop]
        for position, ids in self.model.write(rows, settings["max_gen_toks"], stops):
            text = cast(str, self.tokenizer.decode(ids, skip_special_tokens=True))
            for stop in stops:
                text = text.split(stop)[0]
            self.ani_kept.add_partial("generate_until", missing[position].args, text)

    def loglikelihood(self, requests: list[Instance]) -> None:
        asked: dict[str, list[Instance]] = {}
        for request in self.ani_kept.missing(requests):
            asked.setdefault(request.args[0], []).append(request)
        rows = [
            (self.tok_encode(prompt)[-self.ani_room :], [self._letter(request.args[1]) for request in each])
            for prompt, each in asked.items()
        ]
        prompts = list(asked.values())
        for position, scores in self.model.score(rows):
            for request, score in zip(prompts[position], scores, strict=True):
                self.ani_kept.add_partial("loglikelihood", request.args, (score, None))

    def _letter(self, letter: str) -> int:
        ids = cast(list[int], self.tokenizer.encode(letter, add_special_tokens=False))
        if len(ids) != 1:
            raise InputError(f"the tokenizer writes {letter!r} in {len(ids)} tokens: use the backend transformers")
        return ids[0]


class ChatModel(_Chat, HFLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-evaluation-harness's model, for one that is loaded; asks it only what isn't answered yet."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        method: Method,
        kept: KeptAnswers,
        batch_size: int | None,
    ) -> None:
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            backend="causal",
            add_bos_token=False,  # the template writes it
            batch_size=batch_size or ("auto" if model.device.type == "cuda" else 8),
            max_length=longest_text(model.config),
        )
        self.ani_method = method
        self.ani_kept = kept
        self.set_cache_hook(kept)
        self.ani_prefix: list[int] = []
        self.ani_cache: DynamicCache | None = None
        self.ani_letters = 0

    def share(self, prompts: list[str]) -> None:
        """Compute the keys and values of what all prompts begin with, up to the end of a line, once."""
        rows = [self.tok_encode(prompt) for prompt in prompts]
        ends = zip(min(rows), max(rows), strict=False)
        prefix = [token for token, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends)]
        while prefix and "\n" not in self.tok_decode(prefix[-1:]):  # no number goes on beyond a line
            prefix.pop()
        if len(prompts) == 1 or not prefix:
            return
        cache = DynamicCache(config=self.model.config)
        with torch.inference_mode():
            self.model(input_ids=torch.tensor([prefix], device=self.device), past_key_values=cache, use_cache=True)
        if not any(cache.is_sliding):
            self.ani_prefix, self.ani_cache = prefix, cache

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **settings: Any) -> torch.Tensor:
        """Generate, with the shared prefix in the cache if each row begins with it: prefix, padding, the rest."""
        settings["logits_processor"] = decoding(self.ani_method, self.tokenizer)
        size, mask = len(self.ani_prefix), settings["attention_mask"]
        texts = [row[kept.bool()] for row, kept in zip(context, mask, strict=True)]
        if self.ani_cache is None or any(
            text[:size].tolist() != self.ani_prefix or len(text) <= size for text in texts
        ):
            return cast(torch.Tensor, super()._model_generate(context, max_length, stop, **settings))
        padding = context.shape[1] - mask.sum(dim=1)
        for row, (text, pad) in enumerate(zip(texts, padding.tolist(), strict=True)):
            context[row] = torch.cat([text[:size], context[row, :pad], text[size:]])
            mask[row] = 1
            mask[row, size : size + pad] = 0
        cache = copy.deepcopy(self.ani_cache)
        cache.batch_repeat_interleave(len(context))
        return cast(torch.Tensor, super()._model_generate(context, max_length, stop, past_key_values=cache, **settings))

    def _loglikelihood_tokens(self, requests: list[Any], *args: Any, **settings: Any) -> list[tuple[float, bool]]:
        if any((context + letter)[-2] == 0 for _, context, letter in requests):
            raise InputError("a prompt ends in the token 0, with which the harness pads: use the backend vllm")
        self.ani_letters = max((len(letter) for *_, letter in requests), default=1)
        return cast(list[tuple[float, bool]], super()._loglikelihood_tokens(requests, *args, **settings))

    def _model_call(self, inps: torch.Tensor) -> torch.Tensor:
        """Logits where letters may stand, at the ends of rows, which zeros pad: (rows, the longest letter's tokens,
        vocabulary). To find a batch for written answers: of the last token, with a cache, as `generate` has."""
        ends = inps.shape[1] - (inps != 0).flip(1).int().argmax(dim=1)
        at = ends[:, None] - torch.arange(self.ani_letters or 1, 0, -1, device=inps.device)
        columns, where = at.clamp(min=0).unique(return_inverse=True)
        with torch.inference_mode():
            logits = self.model(inps, logits_to_keep=columns, use_cache=not self.ani_letters).logits
        return cast(torch.Tensor, logits[torch.arange(len(inps), device=inps.device)[:, None], where])

    def _select_cont_toks(self, logits: torch.Tensor, contlen: int, inplen: int) -> torch.Tensor:
        return logits[-contlen:]  # of what `_model_call` returns

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        # As the model would write it: no token holds the template's last character and the letter.
        return self.tok_encode(context), self.tok_encode(continuation, add_special_tokens=False)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        return cast(list[str], super().generate_until(self._mine(requests), disable_tqdm))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return cast(list[tuple[float, bool]], super().loglikelihood(self._mine(requests), disable_tqdm))

    def _mine(self, requests: list[Instance]) -> list[Instance]:
        """What this process is to ask: whole batches of those that a single one would make."""
        missing = self.ani_kept.missing(requests)
        if self.ani_kept.processes.count == 1:
            return missing
        asked: dict[str, list[Instance]] = {}
        for request in missing:
            asked.setdefault(request.args[0], []).append(request)

        def place(prompt: str) -> tuple[int, Any]:  # as the harness sorts
            ids = self.tok_encode(prompt)
            return -len(ids), prompt if requests[0].request_type == "generate_until" else ids

        together = self.batch_size if isinstance(self.batch_size, int) else 1
        batches = self.ani_kept.processes.share(sorted(asked, key=place), together)
        return [request for batch in batches for prompt in batch for request in asked[prompt]]
