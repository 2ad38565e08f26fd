"""Exceptions whose message is for the user, and parts of messages."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def how_to_install(extra: str) -> str:
    """The command that installs an extra of ours, or several, separated by commas."""
    return f"install it with pip install '.[{extra}]' in ANI's checkout (or give pip its wheel: 'ani-….whl[{extra}]')"


class InputError(ValueError):
    """Bad input; the message is one sentence that names the file, key or value and the fix. The CLI exits with 2."""


class TrainingFailed(RuntimeError):
    """Training can't continue; the message says where, why and what to do. The CLI exits with 1."""


def one_line(text: object, limit: int = 300) -> str:
    """A text, or an error's text, for a message: one line, printable, at most `limit` characters."""
    line = " ".join(str(text).split())
    if not line and isinstance(text, BaseException):
        line = type(text).__name__
    line = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return line.encode("utf-8", "backslashreplace").decode()


UNKNOWN_KEY = "unknown_key"
"""Type of pydantic's error for an unknown key; it contains the key and the nearest known one."""


def first_problem(error: "ValidationError", key: str = "") -> str:
    """The first problem that pydantic found in the value of `key`, with the key and the value, for a message."""
    first = error.errors()[0]
    # Under ani.layer pydantic also names the type, which is not a key.
    location = [part for i, part in enumerate(first["loc"]) if not (i == 2 and first["loc"][0] == "ani")]
    unknown = first["ctx"] if first["type"] == UNKNOWN_KEY else {}
    parts = [*([key] if key else []), *location, *([unknown["key"]] if unknown else [])]
    where = one_line(".".join(map(str, parts)), 80)
    if unknown:
        return f"unknown key {where!r}; did you mean {unknown['nearest']!r}?"
    if first["type"] == "missing":
        return f"key {where!r} is missing"
    message = one_line(first["msg"].removeprefix("Value error, "))
    try:
        return f"{where}: {message} (got {one_line(repr(first['input']), 100)})" if where else message
    except ValueError:  # Python writes no integer of thousands of digits
        return f"{where}: {message}"
