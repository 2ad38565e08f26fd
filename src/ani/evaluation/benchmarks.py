"""GSM8K, MATH and MMLU through lm-evaluation-harness, on an attached model; knows nothing about prompts or judging."""

import contextlib
import copy
import difflib
import glob
import hashlib
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Self, TypedDict, cast

import torch
from jinja2 import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ani.errors import InputError
from ani.evaluation.backends import VllmModel, longest_text
from ani.evaluation.tasks.answers import judge_gsm8k, judge_math
from ani.evaluation.tasks.data import BENCHMARKS, BenchmarkName
from ani.files import naming_full_disk, replacing_file
from ani.injection.attach import ani_module, is_attached, number_locator
from ani.injection.methods import METHODS, Method
from ani.launch import ALONE, Processes
from ani.models import need_chat_template
from ani.untrusted import parse_json

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns about whatever is done here on purpose


class Benchmark(NamedTuple):
    """A benchmark's questions and its task."""

    name: BenchmarkName
    task: Task
    questions: int
    """How many of the task's are asked, the first ones."""
    settings: dict[str, Any]
    """What `run.json` says of it."""


class BenchmarkRecord(TypedDict):
    """One answered question, a line of `gsm8k.jsonl`, `math.jsonl` or `mmlu.jsonl`."""

    task: BenchmarkName
    id: int
    """Row of the data, from 0."""
    question: str
    answer: str
    """The right one; of MMLU its letter."""
    output: str | list[float]
    """What the model wrote; of MMLU the log-probabilities of A to D."""
    prediction: str | None
    correct: bool
    prompt_hash: str
    """SHA-256 of the chat messages, before a method rewrites them and before the model's template: equal prompts have
    equal ones, whatever the model."""
    truncated: bool
    """The prompt was too long, so its beginning was cut off."""
    marker: NotRequired[str | None]
    """GSM8K: `####`, or "The answer is", by which the prediction was found."""
    subject: NotRequired[str]
    """MATH, MMLU."""
    level: NotRequired[int | None]
    """MATH: 1 to 5."""
    choices: NotRequired[list[str]]
    group: NotRequired[str]
    """MMLU: STEM, humanities, social sciences or other."""
    shots_from: NotRequired[str]
    """MMLU: "dev", or "test, held out" (`ani.evaluation.tasks.data.mmlu`)."""


def load_benchmark(
    name: str, *, data: str | None = None, limit: int | None = None, seed: int = 0, max_new_tokens: int | None = None
) -> Benchmark:
    """Read a benchmark's questions and its prompt.

    Args:
        name: `gsm8k`, `math` or `mmlu`.
        data: A hub name, a JSONL file or a directory of them; None: the set on the hub (`ani.evaluation.tasks.data`).
        limit: Questions, all by default; a larger limit only appends.
        seed: Draws the questions.
        max_new_tokens: Of an answer; None: what the task says. MMLU's answers aren't written.

    Raises:
        InputError: There is no such benchmark, or its data can't be read.
    """
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1, cutoff=0)
        raise InputError(f"no benchmark {name!r}; did you mean {near[0]!r}? There are: {', '.join(BENCHMARKS)}")
    manager = TaskManager(
        include_path=str(Path(__file__).parent / "tasks"),
        include_defaults=False,
        metadata=cast(Any, {"seed": seed, **({} if data is None else {"data": data})}),
    )
    task = manager.load(f"ani_{name}")["tasks"][f"ani_{name}"]
    if max_new_tokens is not None and task.OUTPUT_TYPE == "generate_until":
        task.set_config("generation_kwargs", {"max_gen_toks": max_new_tokens}, update=True)
    questions = min(limit or len(task.eval_docs), len(task.eval_docs))
    settings: dict[str, Any] = {"data": data or "hub", "questions": questions, "of": len(task.eval_docs), "seed": seed}
    settings["version"] = task.VERSION
    if task.OUTPUT_TYPE == "generate_until":
        settings["generation"] = dict(task.config.generation_kwargs)
    else:
        settings["shots_from"] = task.eval_docs[0]["shots_from"]
    return Benchmark(name, task, questions, settings)


def prompt_room(config: PreTrainedConfig, benchmark: Benchmark) -> int:
    """How many tokens a prompt may have, the rest being left to the answer.

    Raises:
        InputError: None.
    """
    longest = longest_text(config)
    generation = benchmark.task.config.generation_kwargs
    answer = generation["max_gen_toks"] if benchmark.task.OUTPUT_TYPE == "generate_until" else 0
    if answer >= longest:
        raise InputError(
            f"answers of up to {answer:,} tokens to {benchmark.name} leave no room for a prompt: {longest:,} are read "
            "and written in all; lower max_new_tokens"
        )
    return longest - cast(int, answer)


def evaluate_benchmark(
    model: PreTrainedModel | VllmModel,
    tokenizer: PreTrainedTokenizerBase,
    benchmark: Benchmark,
    *,
    method: Method = METHODS["ani"],
    batch_size: int | None = None,
    answers: Path | None = None,
    share_prefix: bool = True,
    on_question: Callable[[int], None] | None = None,
    processes: Processes = ALONE,
) -> Iterator[BenchmarkRecord]:
    """Answer every question and judge it; records come when all are answered, in the benchmark's order.

    Prompts are chat messages in the model's template, answers greedy. A template's thinking mode is off, as the paper's
    scores of its reference model suggest. A template without a system role has that text before the user's.

    Args:
        model: In evaluation mode; a PeftModel will do, with ANI attached or without.
        tokenizer: The model's, with a chat template.
        benchmark: From `load_benchmark`.
        method: How texts are written for the model, and its answers read.
        batch_size: None: as many as fit on a GPU, 8 on a CPU. vLLM makes its own batches, and shares prefixes itself.
        answers: A file that keeps every answer as it comes, so that a killed run goes on; of use to the same model and
            settings only, others begin it anew. It stays when all is answered. Of several processes each has a file of
            its own beside it (`answer_files`); a run may go on with another number of them.
        share_prefix: Compute what all prompts of a written benchmark begin with once, and not for every question. Not
            done where it can't be: a module that substitutes numbers, sliding windows, prompts that are cut off.
        on_question: Called with the number of questions answered.
        processes: Those that share the work, all calling this. They answer the batches in which one would answer all,
            if there is a batch size; the main one judges, and for the others no records come.

    Raises:
        InputError: The tokenizer has no chat template, or answers leave no room for prompts (`prompt_room`).
    """
    room = prompt_room(model.config, benchmark)
    need_chat_template(tokenizer, benchmark.name)
    task = benchmark.task
    written = task.OUTPUT_TYPE == "generate_until"
    if isinstance(model, VllmModel) and not written:
        room = min(room, longest_text(model.config) - 1)  # it can't but write a token
    docs = [dict(doc) for _, doc in task.doc_iterator(limit=benchmark.questions)]
    fingerprint = partial(_fingerprint, model, method, benchmark)
    with _Answers(answers, fingerprint, 1 if written else 4, on_question, processes) as kept:
        lm: _ChatModel | _VllmChat
        precise: contextlib.AbstractContextManager[None]
        if isinstance(model, VllmModel):
            lm, precise = _VllmChat(model, tokenizer, method, kept, room), contextlib.nullcontext()
        else:
            lm, precise = _ChatModel(model, tokenizer, method, kept, batch_size), _exact_letters(model, written)
        prompts = [_prompt(task, doc, lm.apply_chat_template) for doc in docs]
        requests = [_requests(task, doc, prompt) for doc, prompt in zip(docs, prompts, strict=True)]
        if isinstance(lm, _ChatModel) and share_prefix and written:
            lm.share(prompts)
        with contextlib.redirect_stdout(sys.stderr), precise:  # the harness prints to stdout
            getattr(lm, requests[0][0].request_type)([request for each in requests for request in each])
        if not kept.gathered():
            return
        for doc, prompt, each in zip(docs, prompts, requests, strict=True):
            results = [kept[request] for request in each]
            judged = _judged(benchmark.name, doc, method.read(results[0]) if written else results)
            facts = {
                "prompt_hash": hashlib.sha256(_prompt(task, doc, _as_json).encode()).hexdigest(),
                "truncated": len(lm.tok_encode(prompt)) > room,
            }
            yield cast(BenchmarkRecord, {"task": benchmark.name, **judged, **facts})


def _prompt(task: Task, doc: dict[str, Any], template: Callable[..., str]) -> str:
    return cast(
        str,
        task.fewshot_context(
            doc, num_fewshot=0, apply_chat_template=True, fewshot_as_multiturn=True, chat_template=template
        ),
    )


def _as_json(messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    return json.dumps(messages, ensure_ascii=False)


def _requests(task: Task, doc: dict[str, Any], prompt: str) -> list[Instance]:
    made = task.construct_requests(doc, prompt, apply_chat_template=True, metadata=(task.task_name, 0, 1))
    return made if isinstance(made, list) else [made]


def _judged(name: BenchmarkName, doc: dict[str, Any], result: Any) -> dict[str, Any]:
    if name == "gsm8k":
        return {**doc, "output": result, **judge_gsm8k(doc["answer"], result)}
    if name == "math":
        return {**doc, "output": result, **judge_math(doc["answer"], result)}
    best = max(range(4), key=lambda choice: result[choice])
    judged = {"answer": "ABCD"[doc["answer"]], "prediction": "ABCD"[best], "correct": best == doc["answer"]}
    return {key: value for key, value in doc.items() if key != "shots"} | {"output": result} | judged


@contextlib.contextmanager
def _exact_letters(model: PreTrainedModel, written: bool) -> Iterator[None]:
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
        render = partial(
            self.tokenizer.apply_chat_template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            enable_thinking=False,
        )
        try:
            return cast(str, render(messages))
        except TemplateError:  # no system role
            system, user = messages
            return cast(str, render([{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}]))


class _VllmChat(_Chat):
    """Asks vLLM what isn't answered yet; what of lm-evaluation-harness's models `evaluate_benchmark` calls.

    The harness has a model for vLLM too, but it returns answers when all are there, asks for every letter apart, with
    the log-probabilities of the whole prompt, and doesn't import beside a vLLM that is built for CPUs.
    """

    def __init__(
        self, model: VllmModel, tokenizer: PreTrainedTokenizerBase, method: Method, kept: "_Answers", room: int
    ) -> None:
        self.model, self.tokenizer, self.ani_method, self.ani_kept, self.ani_room = model, tokenizer, method, kept, room

    def tok_encode(self, text: str) -> list[int]:
        bos = self.tokenizer.bos_token
        return cast(list[int], self.tokenizer.encode(text, add_special_tokens=not (bos and text.startswith(bos))))

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


class _ChatModel(_Chat, HFLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-evaluation-harness's model, for one that is loaded; asks it only what isn't answered yet."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        method: Method,
        kept: "_Answers",
        batch_size: int | None,
    ) -> None:
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            backend="causal",
            batch_size=batch_size or ("auto" if model.device.type == "cuda" else 8),
            max_length=longest_text(model.config),
        )
        self.ani_method = method
        self.ani_kept = kept
        self.set_cache_hook(kept)
        self.ani_prefix: list[int] = []
        self.ani_cache: DynamicCache | None = None

    def share(self, prompts: list[str]) -> None:
        """Compute the keys and values of what all prompts begin with, up to the end of a line, once."""
        rows = [self.tok_encode(prompt) for prompt in prompts]
        prefix = [
            one
            for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(min(rows), max(rows), strict=False))
        ]
        while prefix and "\n" not in self.tok_decode(prefix[-1:]):  # no number goes on beyond a line
            prefix.pop()
        substitutes = is_attached(self.model) and number_locator(self.model).substitutes
        if len(prompts) == 1 or substitutes or not prefix:
            return
        cache = DynamicCache(config=self.model.config)
        with torch.inference_mode():
            self.model(input_ids=torch.tensor([prefix], device=self.device), past_key_values=cache, use_cache=True)
        if not any(cache.is_sliding):
            self.ani_prefix, self.ani_cache = prefix, cache

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **settings: Any) -> torch.Tensor:
        """Generate, with the shared prefix in the cache if each row begins with it: prefix, padding, the rest."""
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


class _Answers:
    """The model's answers by prompt (and continuation), in memory and in a file; lm-evaluation-harness's cache hook.

    The harness has a cache of its own, but it knows neither the model nor an end, and it holds pickles.
    """

    def __init__(
        self,
        path: Path | None,
        fingerprint: Callable[[], str],
        requests_each: int,
        on_question: Callable[[int], None] | None,
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
        heading, self._answers = processes.told(lambda: _earlier(path, fingerprint()))
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
        if self._on_question is not None and self._answered // self._requests_each > done:
            self._on_question(self._answered // self._requests_each - done)


def answer_files(answers: Path) -> list[Path]:
    """What `evaluate_benchmark` keeps answers in: the main process's file, if there is one, and those of others."""
    name = glob.escape(answers.name)
    return [*answers.parent.glob(name), *answers.parent.glob(f"{name}.[0-9]*")]


def _earlier(path: Path, fingerprint: str) -> tuple[str, dict[str, Any]]:
    """The fingerprint, and what a killed run has answered, in any number of processes; then `path` alone has it."""
    answers: dict[str, Any] = {}
    files = answer_files(path)
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


def _fingerprint(model: PreTrainedModel | VllmModel, method: Method, benchmark: Benchmark) -> str:
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
    generation = benchmark.task.config.generation_kwargs
    digest.update(f"{module} {method.write('1 23 456')} {json.dumps(generation)}".encode())
    return digest.hexdigest()
