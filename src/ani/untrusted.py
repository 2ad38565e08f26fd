"""Files that others made, read within limits and refused in one sentence; knows nothing about what they are for."""

import json
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, TextIO

import yaml
from pydantic import ValidationError

from ani.errors import InputError

LARGEST_SETTINGS = 2**20
"""Bytes of a JSON file of settings."""
LARGEST_YAML = 200_000
"""Bytes: PyYAML takes a second for 100,000, and recipes have some thousand."""
LONGEST_LINE = 2**24
"""Characters of a line of JSON."""
DEEPEST = 100
"""Levels of lists and objects in each other; whoever prints or walks a value then can't exhaust the stack."""

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)
_YAML = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(f"{_YAML}{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge"))
_LONGEST_INTEGER = 40
_MOST_VALUES = 100_000


def one_line(text: object, limit: int = 300) -> str:
    """A text for a message: one line, printable, at most `limit` characters."""
    line = " ".join(str(text).split())
    line = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return line.encode("utf-8", "backslashreplace").decode()


def first_problem(error: ValidationError) -> str:
    """What pydantic says first, with its key, for a message."""
    problem = error.errors(include_url=False)[0]
    key = one_line(".".join(str(part) for part in problem["loc"]), 80)
    message = one_line(problem["msg"])
    return f"{key}: {message}" if key else message


def read_text(path: Path, limit: int = LARGEST_SETTINGS) -> str:
    """The text of a file, without a byte order mark.

    Raises:
        InputError: It can't be read, holds more than `limit` bytes, or is not UTF-8.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a directory; a file is needed")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a ValueError: NUL in the path
        raise InputError(f"{one_line(path)} can't be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > limit:
        raise InputError(f"{path} is larger than {limit:,} bytes, so it is not what it should be; check the file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def bounded_lines(file: TextIO, name: str) -> Iterator[str]:
    """The lines of an open file that errors call `name`; raises InputError before one of them fills the memory."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise InputError(f"{name}, line {number} is longer than {LONGEST_LINE:,} characters; write a record a line")
        yield line


def parse_json(text: str, where: str) -> Any:
    """A JSON value whose texts can be written as UTF-8.

    Raises:
        InputError: It is no JSON, or has an integer of thousands of digits, lone surrogates or more than `DEEPEST`
            levels.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON ({error})") from error
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON (an integer of over 4,300 digits; write it as a text)") from error
    except RecursionError as error:
        raise InputError(f"{where}: not valid JSON ({_too_deep()})") from error
    if text.count("[") + text.count("{") > DEEPEST:
        depth = 0
        for bracket in _BRACKET.finditer(text):
            depth += (bracket[1] is not None) - (bracket[2] is not None)
            if depth > DEEPEST:
                raise InputError(f"{where}: not valid JSON ({_too_deep()})")
    if _HALF_PAIR.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{where}: a text holds {error.object[error.start]!r}, half of a surrogate pair, which stands for no "
                "character; remove it"
            ) from error
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object of settings; raises InputError as `read_text` and `parse_json`, or if it is something else."""
    value = parse_json(read_text(path), f"{path} is damaged")
    if not isinstance(value, dict):
        raise InputError(f"{path} is damaged: it must hold a JSON object, not {type(value).__name__}")
    return value


def parse_yaml(text: str, where: str) -> Any:
    """A YAML value of texts, numbers, booleans, null, lists and mappings.

    Raises:
        InputError: It is no YAML, of another type, has a key twice, or is larger than a settings file needs to be
            (also by aliases: they are counted each time).
    """
    if len(text) > LARGEST_YAML:
        raise InputError(f"{where} is not valid YAML of settings: it has more than {LARGEST_YAML:,} characters")
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _values(node, where, {})
        return loader.construct_document(node)
    except InputError:
        raise
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{where} is not valid YAML: {one_line(error)}") from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # of a tag on a value that it doesn't fit
        raise InputError(f"{where} is not valid YAML: a value can't be read ({one_line(error)})") from error
    finally:
        loader.dispose()


def _values(node: yaml.Node, where: str, counted: dict[int, int], depth: int = 0) -> int:
    """How many values a node stands for, with each alias as what it names; raises InputError as `parse_yaml`."""
    if id(node) in counted:
        if not counted[id(node)]:
            raise _refused(node, where, "an alias stands for a value that holds it; write it out")
        return counted[id(node)]
    if depth > DEEPEST:
        raise _refused(node, where, _too_deep())
    counted[id(node)] = 0  # under way
    count = 1
    if node.tag not in _PLAIN_TAGS:
        kind = node.tag.removeprefix(_YAML)
        raise _refused(node, where, f"YAML reads a value as {one_line(kind, 40)!r}; put it in quotes")
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node, where)
    elif isinstance(node, yaml.SequenceNode):
        count += sum(_values(item, where, counted, depth + 1) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        keys: set[Hashable] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (f"{_YAML}str", f"{_YAML}merge"):
                raise _refused(key, where, "a key must be a text; put it in quotes")
            if key.value in keys:
                raise _refused(key, where, f"the key {one_line(key.value, 40)!r} is there twice; remove one")
            keys.add(key.value)
            count += _values(key, where, counted) + _values(value, where, counted, depth + 1)
    if count > _MOST_VALUES:
        raise InputError(f"{where} stands for more than {_MOST_VALUES:,} values, with its aliases; shorten it")
    counted[id(node)] = count
    return count


def _check_scalar(node: yaml.ScalarNode, where: str) -> None:
    if "\0" in node.value or _SURROGATE.search(node.value):
        raise _refused(node, where, "a text holds NUL or half of a surrogate pair; remove it")
    if node.tag == f"{_YAML}int" and len(node.value) > _LONGEST_INTEGER:
        raise _refused(node, where, f"an integer of {len(node.value)} characters is too large; lower it")


def _refused(node: yaml.Node, where: str, why: str) -> InputError:
    return InputError(f"{where} is not valid YAML of settings, line {node.start_mark.line + 1}: {why}")


def _too_deep() -> str:
    return f"lists and objects stand in each other more than {DEEPEST} deep; flatten them"
