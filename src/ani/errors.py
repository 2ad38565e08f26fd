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


def first_problem(error: "ValidationError") -> str:
    """The first problem that pydantic found, with its key, for a message."""
    problem = error.errors(include_url=False)[0]
    key = one_line(".".join(str(part) for part in problem["loc"]), 80)
    message = one_line(problem["msg"].removeprefix("Value error, "))
    return f"{key}: {message}" if key else message
