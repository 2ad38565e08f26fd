"""Reads records and makes training examples of them; the kinds that a recipe can name stand in `ani.data.kinds`.

A record is `{"prompt": …, "completion": …}` (texts or lists of chat messages) or `{"messages": […]}`; `roles` may say
what the prompt's numbers are: `"nominal"`, `"quantitative"`, or a list with one of them, or null, for every number.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, get_args

from ani.data.arithmetic import ArithmeticProblem
from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences, sentence_limit
from ani.errors import InputError, one_line
from ani.numbers import find_numbers
from ani.roles import RoleName
from ani.text_files import json_lines

Message = dict[str, str]
_MESSAGE = ("role", "content")


LABELLED_NUMBERS = Path(__file__).with_name("labelled_numbers.jsonl")


class Example(NamedTuple):
    """One prompt and the completion to learn."""

    prompt: str | list[Message]
    completion: str
    roles: tuple[RoleName | None, ...] | None = None
    """Role of every number of the prompt (of its last message, in a chat), in order; None: unknown, one or all."""

    def written(self, write: Callable[[str], str]) -> "Example":
        """The example with its texts as a method writes them; roles stay known where no number is written anew."""
        prompt: str | list[Message]
        if isinstance(self.prompt, str):
            prompt = write(self.prompt)
        else:
            prompt = [{**message, "content": write(message["content"])} for message in self.prompt]
        if prompt == self.prompt:
            return self._replace(completion=write(self.completion))
        return Example(prompt, write(self.completion))


def problem_example(problem: ArithmeticProblem) -> Example:
    """`Calculate 12 + 34 =` → ` 46`; every number is a quantity."""
    role: RoleName = "quantitative"
    return Example(problem.prompt, f" {problem.answer}", (role,) * len(find_numbers(problem.prompt)))


def sentence_examples(sentences: Iterable[DiagnosticSentence]) -> Iterator[Example]:
    """A labelled sentence, cut after its last number: the rest is the completion. Sentences without a rest are left
    out."""
    for sentence in sentences:
        cut = sentence.spans[-1][1]
        prompt, completion = sentence.text[:cut], sentence.text[cut:]
        if len(completion.split()) >= 2:
            yield Example(prompt, completion, sentence.roles)


def diagnostic_examples(count: int, *, seed: int = 0) -> list[Example]:
    """`sentence_examples` of the training split; raises InputError if it has fewer than `count`."""
    # Sentences that end with a number are left out: ask for more than needed.
    sentences = diagnostic_sentences(min(2 * count, sentence_limit("train")), split="train", seed=seed)
    examples = list(sentence_examples(sentences))
    if len(examples) < count:
        raise InputError(
            f"data of kind: diagnostic has count={count}, but there are {len(examples)} sentences to train on at most: "
            "lower count"
        )
    return examples[:count]


def read_jsonl(path: str | Path) -> list[Example]:
    """Read examples from a JSON-lines file; raises InputError if it is missing or empty, or a line is malformed (file
    and line are named)."""
    examples = [example for where, record in json_lines(path) for example in record_examples(record, where)]
    if not examples:
        raise InputError(f"data file {path} holds no examples")
    return examples


ANNOTATION = re.compile(r"<<[^<>]*>>")
"""GSM8K's calculator marks: `48/2 = <<48/2=24>>24`."""


def names_file(source: str) -> bool:
    """Whether a source is a file, and not a dataset's name on the hub."""
    return source.endswith(".jsonl") or Path(source).is_file()


MATH = [
    ("EleutherAI/hendrycks_math", subject)
    for subject in (
        "algebra",
        "counting_and_probability",
        "geometry",
        "intermediate_algebra",
        "number_theory",
        "prealgebra",
        "precalculus",
    )
]
"""MATH on the hub, by its configurations."""


def solved_problems(
    path: str, limit: int | None, question: str, answer: str, configurations: Sequence[str], seed: int
) -> Iterator[tuple[str, str, str]]:
    """Place, prompt (`Q: …\\nA:`) and completion of training problems of a JSON-lines file, or of a dataset's
    configurations on the hub. The seed draws `limit` of them, or all in random order: MATH is sorted by subject.
    Raises InputError if the data can't be read or is empty, or a record is malformed."""
    records = [*data_records(path, "train", None, "a local JSONL file as path", configurations)]
    random.Random(f"solved problems {seed}").shuffle(records)
    where = None
    for where, record in records[:limit]:
        if not isinstance(record, dict) or not {question, answer} <= record.keys():
            raise InputError(f"{where}: expected an object with {question!r} and {answer!r}")
        asked, answered = (text_of(record, key, where) for key in (question, answer))
        yield where, f"Q: {asked}\nA:", f" {answered}"
    if where is None:
        raise InputError(f"data file {path} holds no examples")


def data_records(
    source: str, split: str, limit: int | None, instead: str, configurations: Sequence[str | None] = (None,)
) -> Iterator[tuple[str, Any]]:
    """Place and value of each record of a JSON-lines file, or as `hub_records` of a dataset's configurations."""
    if names_file(source):
        yield from json_lines(source)
        return
    for configuration in configurations:
        yield from hub_records(source, split, limit, instead, configuration)


def hub_records(
    name: str, split: str, limit: int | None, instead: str, configuration: str | None = None
) -> list[tuple[str, Any]]:
    """The place ("name[3]") and value of each of the first `limit` records of a dataset on the hub, streamed; of one of
    its configurations, where it has several. Raises InputError if it can't be reached; says what to give `instead`."""
    with hub_errors(name, split, instead):
        from datasets import load_dataset

        named = () if configuration is None else (configuration,)
        records = islice(load_dataset(name, *named, split=split, streaming=True), limit)
        return [(f"{name}[{i}]", record) for i, record in enumerate(records)]


@contextmanager
def hub_errors(name: str, split: str, instead: str) -> Iterator[None]:
    """Whatever `datasets` raises in the block becomes an `InputError` that says what to give `instead`."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = one_line(error, 200)
        raise InputError(
            f"dataset {name!r} (split {split!r}) can't be read from the hub: {reason}; give {instead} instead"
        ) from error


def text_of(record: dict[str, Any], key: str, where: str) -> str:
    """The text under a key that is there; raises InputError if it is something else."""
    if not isinstance(record[key], str):
        raise InputError(f"{where}: {key!r} must be a text, not {type(record[key]).__name__}")
    return str(record[key])


def checked_roles(
    roles: Any, text: str, where: str, of: str = "the text", partial: bool = False
) -> tuple[RoleName | None, ...]:
    """One role for each number of `text`, from a single role or a list of them; where `partial`, a list may hold null.
    Raises InputError if there is no such role, or the list is longer or shorter than the numbers are many."""
    count = len(find_numbers(text))
    named = roles if isinstance(roles, list) else [roles]
    if any(role not in get_args(RoleName) and not (partial and role is None) for role in named):
        or_null = " (null: unknown)" if partial else ""
        raise InputError(f"{where}: 'roles' must be 'nominal' or 'quantitative', or a list of them{or_null}")
    if isinstance(roles, list) and len(roles) != count:
        raise InputError(f"{where}: 'roles' names {len(roles)} numbers, {of} holds {count}")
    return tuple(roles) if isinstance(roles, list) else (roles,) * count


def labelled_numbers(*, natural: bool) -> list[tuple[str, Any]]:
    """Records of `LABELLED_NUMBERS` with their places: of natural texts, or of sentences of our own."""
    return [each for each in json_lines(LABELLED_NUMBERS) if (each[1]["source"] != "ours") == natural]


def record_examples(record: Any, where: str) -> Iterator[Example]:
    """The examples of one record; raises InputError if it is malformed, in which `where` names it."""
    if not isinstance(record, dict):
        raise InputError(f"{where}: expected an object, found {type(record).__name__}")
    if "messages" in record:
        messages = _messages(record["messages"], where)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i > 0]
        if not turns:
            raise InputError(f"{where}: 'messages' holds no assistant message after the first")
        for turn in turns:
            if not messages[turn]["content"]:
                raise InputError(f"{where}: an answer of the assistant in 'messages' is empty; leave it out")
            roles = record.get("roles") if turn == turns[-1] else None
            yield _example(messages[:turn], messages[turn]["content"], roles, where)
        return
    for key in ("prompt", "completion"):
        if key not in record:
            raise InputError(f"{where}: no {key!r}; a record has 'prompt' and 'completion', or 'messages'")
    prompt, completion = record["prompt"], record["completion"]
    if isinstance(completion, list):
        turns_given = _messages(completion, where)
        if len(turns_given) != 1 or turns_given[0]["role"] != "assistant":
            raise InputError(f"{where}: 'completion' must be a text or one assistant message")
        completion = turns_given[0]["content"]
    if isinstance(prompt, list):
        prompt = _messages(prompt, where)
    if not isinstance(prompt, str | list) or not isinstance(completion, str) or not prompt or not completion:
        raise InputError(f"{where}: 'prompt' and 'completion' must be texts (or chat messages), and not empty")
    yield _example(prompt, completion, record.get("roles"), where)


def _messages(messages: Any, where: str) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{where}: chat messages must be a list, and not empty")
    for message in messages:
        if isinstance(message, dict) and message.get("tool_calls"):
            raise InputError(
                f"{where}: a chat message has 'tool_calls', which aren't trained; write the call as text in 'content'"
            )
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in _MESSAGE):
            raise InputError(f"{where}: every chat message needs a text 'role' and a text 'content'")
    return [{key: message[key] for key in _MESSAGE} for message in messages]


def _example(prompt: str | list[Message], completion: str, roles: Any, where: str) -> Example:
    if roles is None:
        return Example(prompt, completion)
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return Example(prompt, completion, checked_roles(roles, text, where, of="the prompt", partial=True))
