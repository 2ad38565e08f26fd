"""Reads untrusted texts, JSON, JSON lines and YAML, with limits on size and nesting."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

import yaml
from pydantic import ValidationError
from pydantic_core import from_json

from ani.errors import InputError

LARGEST_SETTINGS = 2**20
"""Bytes of a JSON file of settings."""
LARGEST_YAML = 200_000
"""Characters: PyYAML takes a second for 100,000, and recipes have some thousand."""
LONGEST_LINE = 2**24
"""Characters of a line of JSON."""
LARGEST_MEMBER = 2**31
"""Bytes of a file in a zip, unpacked; FiNER-139's own have some hundred million."""
DEEPEST = 100
"""Levels of lists and mappings in each other in YAML; whoever walks a value then can't exhaust the stack."""

_YAML = "tag:yaml.org,2002:"
_PLAIN_KINDS = frozenset({"null", "bool", "int", "float", "str", "seq", "map"})
_LONGEST_INTEGER = 40


def one_line(text: object, limit: int = 300) -> str:
    """A text, or what an error says, for a message: one line, printable, at most `limit` characters."""
    line = " ".join(str(text).split())
    if not line and isinstance(text, BaseException):
        line = type(text).__name__
    line = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return line.encode("utf-8", "backslashreplace").decode()


def first_problem(error: ValidationError) -> str:
    """What pydantic says first, with its key, for a message."""
    problem = error.errors(include_url=False)[0]
    key = one_line(".".join(str(part) for part in problem["loc"]), 80)
    message = one_line(problem["msg"].removeprefix("Value error, "))
    return f"{key}: {message}" if key else message


def read_text(path: Path, limit: int = LARGEST_SETTINGS) -> str:
    """The text of a file, without a byte order mark; raises InputError if it can't be read, holds more than `limit`
    bytes, or is not UTF-8."""
    try:
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
    """A JSON value whose texts can be written as UTF-8. Raises InputError if it is no JSON, or has an integer of
    thousands of digits, half of a surrogate pair, or some 200 levels of lists and objects in each other."""
    try:
        return from_json(text)
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error})") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object of settings; raises InputError as `read_text` and `parse_json`, or if it is something else."""
    value = parse_json(read_text(path), f"{path} is damaged")
    if not isinstance(value, dict):
        raise InputError(f"{path} is damaged: it must hold a JSON object, not {type(value).__name__}")
    return value


def json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Each line's place ("file, line 3") and its JSON value, read as they are wanted; blank lines are left out. Raises
    InputError if the file is missing or not UTF-8, or a line is no JSON."""
    path = Path(path)
    try:
        if path.is_dir():
            raise InputError(f"data file {path} is a directory; name a file in it")
        if not path.is_file():
            raise InputError(f"data file {path} does not exist")
        file = path.open(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"data file {one_line(path)} can't be read: {error.strerror}") from error
    with file:
        yield from _json_values(file, str(path))


def zipped_json_lines(path: str | Path, member: str) -> Iterator[tuple[str, Any]]:
    """As `json_lines`, of the file of a zip that is called `member` in whatever folder; nothing is unpacked to disk.
    Raises InputError if it is no zip, has no such file or one that is too large, or as `json_lines`."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if Path(name).name == member), None)
            if name is None:
                names = one_line(", ".join(archive.namelist()[:10]))
                raise InputError(f"{path} holds no {member}, only {names or 'nothing'}")
            size = archive.getinfo(name).file_size  # no more than that is unpacked
            if size > LARGEST_MEMBER:
                raise InputError(f"{path}/{one_line(name)} would unpack to {size:,} bytes; name another zip")
            with archive.open(name) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as lines:
                yield from _json_values(lines, f"{path}/{one_line(name)}")
    except (InputError, MemoryError):
        raise
    except Exception as error:  # zipfile and the libraries that unpack for it have errors of many kinds
        raise InputError(f"{path} can't be read as a zip: {one_line(error)}") from error


def _json_values(file: TextIO, name: str) -> Iterator[tuple[str, Any]]:
    try:
        for number, line in enumerate(bounded_lines(file, name), start=1):
            if line.strip():
                where = f"{name}, line {number}"
                yield where, parse_json(line, where)
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def parse_yaml(text: str, where: str) -> Any:
    """A YAML value of texts, numbers, booleans, null, lists and mappings, each written out where it stands. Raises
    InputError if it is no YAML, of another type, has an anchor or alias or a key twice, or is larger than a settings
    file needs to be."""
    if len(text) > LARGEST_YAML:
        raise InputError(f"{where} is not valid YAML: it has more than {LARGEST_YAML:,} characters; shorten it")
    try:
        return yaml.load(text, _SettingsLoader)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not valid YAML: {one_line(error)}") from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # of a tag on a value that it doesn't fit
        raise InputError(f"{where} is not valid YAML: a value can't be read ({one_line(error)})") from error


class _SettingsLoader(yaml.SafeLoader):
    """PyYAML's safe loader, for what JSON could say as well; refuses the rest with a `YAMLError` of one line."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if event.anchor is not None:
            raise _refused(event, "anchors (&) and aliases (*) are not read; write the value out")
        if self._depth > DEEPEST:
            raise _refused(event, f"lists and mappings stand in each other more than {DEEPEST} deep; flatten them")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        kind = "" if node is None else node.tag.removeprefix(_YAML)
        if kind not in _PLAIN_KINDS:
            raise _refused(event, f"YAML reads a value as {one_line(repr(kind), 40)}; put it in quotes")
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if "\0" in node.value or any("\ud800" <= character <= "\udfff" for character in node.value):
            raise _refused(node, "a text holds NUL or half of a surrogate pair; remove it")
        if node.tag == f"{_YAML}int" and len(node.value) > _LONGEST_INTEGER:
            raise _refused(node, f"an integer of {len(node.value)} characters is too large; lower it")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if key.tag != f"{_YAML}str" or not isinstance(key, yaml.ScalarNode):
                raise _refused(key, "a key must be a text; put it in quotes")
            if key.value in keys:
                raise _refused(key, f"the key {one_line(repr(key.value), 40)} is there twice; remove one")
            keys.add(key.value)
        return node


def _refused(found: yaml.Node | yaml.Event, why: str) -> yaml.YAMLError:
    return yaml.YAMLError(f"line {cast(yaml.Mark, found.start_mark).line + 1}: {why}")
