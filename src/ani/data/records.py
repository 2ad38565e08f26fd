"""Training examples, and the records from which they are read, in JSON-lines files and in datasets on the hub.

A record is `{"prompt": …, "completion": …}` (texts or lists of chat messages) or `{"messages": […]}`. `roles` may name
the roles of the prompt's numbers: `"nominal"`, `"quantitative"`, or a list with one of them, or null, for every number.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, get_args

from ani.errors import InputError, one_line
from ani.numbers import find_numbers
from ani.revisions import hub_name, pinned
from ani.roles import RoleName
from ani.text_files import json_lines

Message = dict[str, str]
"""A chat message: its `role` and `content`."""


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
        return Example(prompt, write(self.completion), self.roles if prompt == self.prompt else None)


def read_examples(path: str | Path) -> list[Example]:
    """Examples of a JSON-lines file; raises InputError if the file is missing or empty, or a line is malformed (file
    and line are named)."""
    examples = [example for where, record in json_lines(path) for example in record_examples(record, where)]
    if not examples:
        raise InputError(f"data file {path} contains no examples")
    return examples


LABELLED_NUMBERS = Path(__file__).with_name("labelled_numbers.jsonl")
OURS = "ours"
"""`source` of a labelled sentence of our own; other records of `LABELLED_NUMBERS` are from natural texts."""


def labelled_numbers() -> list[tuple[str, Any]]:
    """Place and value of each record of `LABELLED_NUMBERS`."""
    return [*json_lines(LABELLED_NUMBERS)]


def names_file(source: str) -> bool:
    """True if a source is a file, not a dataset's name on the hub."""
    return source.endswith(".jsonl") or Path(source).is_file()


def data_records(
    source: str, split: str, limit: int | None, instead: str, configurations: Sequence[str | None] = (None,)
) -> Iterator[tuple[str, Any]]:
    """Place and value of each record of a JSON-lines file, or of a dataset's configurations as `hub_records`."""
    if names_file(source):
        yield from json_lines(source)
        return
    for configuration in configurations:
        yield from hub_records(source, split, limit, instead, configuration)


def hub_records(
    name: str, split: str, limit: int | None, instead: str, configuration: str | None = None
) -> list[tuple[str, Any]]:
    """Place ("name[3]") and value of each of the first `limit` records of a dataset on the hub (`NAME`, or
    `NAME@REVISION`), streamed. Raises InputError, which says what to give `instead`, if the dataset can't be reached.
    """
    with hub_errors(name, split, instead):
        from datasets import load_dataset

        named = () if configuration is None else (configuration,)
        found = hub_name(pinned(name, "dataset"))
        records = islice(load_dataset(found.name, *named, split=split, streaming=True, **found.options), limit)
        return [(f"{name}[{i}]", record) for i, record in enumerate(records)]


@contextmanager
def hub_errors(name: str, split: str, instead: str) -> Iterator[None]:
    """Turn an error of `datasets` into an InputError that says what to give `instead`."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        what = f"dataset {name!r} (split {split!r}) can't be read from the hub: {one_line(error, 200)}"
        raise InputError(f"{what}; give {instead} instead") from error


def checked_keys(record: Any, keys: Sequence[str], where: str, instead: str = "") -> None:
    """Raise InputError unless a record is an object with these keys; the message may name others `instead`."""
    if not isinstance(record, dict):
        raise InputError(f"{where}: expected an object, found {type(record).__name__}")
    if missing := [key for key in keys if key not in record]:
        raise InputError(f"{where}: no {missing[0]!r}; a record has {' and '.join(map(repr, keys))}{instead}")


def text_of(record: dict[str, Any], key: str, where: str) -> str:
    """The text under a key that the record has; raises InputError if the value is something else."""
    if not isinstance(record[key], str):
        raise InputError(f"{where}: {key!r} must be a text, not {type(record[key]).__name__}")
    return str(record[key])


def checked_roles(
    roles: Any, text: str, where: str, of: str = "the text", partial: bool = False
) -> tuple[RoleName | None, ...]:
    """One role for each number of `text`, from a single role or a list of them; with `partial` a list may contain null.
    Raises InputError if there is no such role, or the list has another length than the text has numbers."""
    count = len(find_numbers(text))
    named = roles if isinstance(roles, list) else [roles]
    if any(role not in get_args(RoleName) and not (partial and role is None) for role in named):
        or_null = " (null: unknown)" if partial else ""
        raise InputError(f"{where}: 'roles' must be 'nominal' or 'quantitative', or a list of them{or_null}")
    if isinstance(roles, list) and len(roles) != count:
        raise InputError(f"{where}: 'roles' names {len(roles)} numbers, but {of} contains {count}")
    return tuple(roles) if isinstance(roles, list) else (roles,) * count


def record_examples(record: Any, where: str) -> Iterator[Example]:
    """Examples of one record, one for each answer of a chat; raises InputError, which names the record `where`, if it
    is malformed."""
    if isinstance(record, dict) and "messages" in record:
        messages = _messages(record["messages"], where)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i > 0]
        if not turns:
            raise InputError(f"{where}: 'messages' contains no assistant message after the first")
        for turn in turns:
            if not messages[turn]["content"]:
                raise InputError(f"{where}: an answer of the assistant in 'messages' is empty; leave it out")
            roles = record.get("roles") if turn == turns[-1] else None
            yield _example(messages[:turn], messages[turn]["content"], roles, where)
        return
    checked_keys(record, ("prompt", "completion"), where, ", or 'messages'")
    prompt, completion = record["prompt"], record["completion"]
    if isinstance(completion, list):
        answers = _messages(completion, where)
        if len(answers) != 1 or answers[0]["role"] != "assistant":
            raise InputError(f"{where}: 'completion' must be a text or one assistant message")
        completion = answers[0]["content"]
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
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise InputError(f"{where}: every chat message needs a text 'role' and a text 'content'")
    return [{key: message[key] for key in ("role", "content")} for message in messages]


def _example(prompt: str | list[Message], completion: str, roles: Any, where: str) -> Example:
    if roles is None:
        return Example(prompt, completion)
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return Example(prompt, completion, checked_roles(roles, text, where, of="the prompt", partial=True))
