"""Names of result files; reads JSON lines, and writes them atomically."""

import errno
import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ani.errors import InputError, first_problem, one_line
from ani.files import replacing_file

RUN = "run.json"
"""Origin of a folder's results (`Run`)."""
REPORT = "report.html"
LAYERS = "layers.jsonl"
"""Curve of the probes."""
SELECTION = "selection.json"
"""Chosen layer."""
TRAINING_LOG = "training_log.jsonl"

Probability = Annotated[float, Field(ge=0, le=1)]
Integer = Annotated[int, Field(ge=-(2**53), le=2**53)]
"""Integer that a float can represent."""


class Record(BaseModel):
    """A line of a result file: unknown keys are ignored, values are never coerced from another type."""

    # A log-probability may be -Infinity: by default it would be written as null.
    model_config = ConfigDict(frozen=True, strict=True, ser_json_inf_nan="constants")


class TrainedRun(Record):
    """A run of a comparison: a variant trained with a seed, and its injection layer."""

    variant: str
    seed: Integer | None = None
    layer: Integer | None = None
    """None: a model without ANI."""


class Run(Record):
    """Origin of results, the file `run.json`. Every key may be missing."""

    title: str = "Adaptive Numerical Injection"
    model: str | None = None
    layer: Integer | None = None
    policy: str | None = None
    adapter: str | None = None
    backend: str = "transformers"
    processors: tuple[str, ...] = ()
    """Names of the logits processors that took part in generation, such as a calculator."""
    commit: str | None = None
    command: str | None = None
    date: str | None = None
    notes: tuple[str, ...] = ()
    """Notes on a comparison's rows: their precision and backend, and differences between them."""
    baseline: str | None = None
    """Run to which a comparison's other runs are compared."""
    runs: tuple[TrainedRun, ...] = ()
    """Runs of a comparison."""
    published: dict[str, dict[str, float]] = {}
    """Values of a paper for a comparison's runs, in percent by column of the tables."""
    packages: dict[str, str] = {}
    revisions: dict[str, str] = {}
    """Commits on the hub of the models and data sets that were read, by name."""
    settings: dict[str, Any] = {}


R = TypeVar("R", bound=Record)


def task_file(folder: Path, task: str) -> Path:
    """Return the path of a task's records."""
    return folder / f"{task}.jsonl"


def read_run(folder: Path) -> Run | None:
    """Read a folder's `run.json`; None if there is none."""
    return read_object(folder / RUN, Run) if (folder / RUN).is_file() else None


def read_object(path: Path, kind: type[R]) -> R:
    """Read a file of one JSON object. Raises InputError, naming the file and the key, if it is malformed."""
    try:
        return kind.model_validate_json(_bytes(path))
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error)}; correct the file or delete it") from error


def read_records(path: Path, kind: type[R]) -> list[R]:
    """Read a file of JSON lines (blank lines are skipped); raises InputError if one is malformed, naming file, line
    and key."""
    found = []
    # Split on b"\n" alone: str.splitlines would also break at U+2028, which may occur raw in a JSON string.
    for number, line in enumerate(_bytes(path).split(b"\n"), start=1):
        if line.strip():
            try:
                found.append(kind.model_validate_json(line))
            except ValidationError as error:
                where = f"{path}, line {number}"
                raise InputError(f"{where}: {first_problem(error)}; correct the line or delete it") from error
    return found


def record_json(record: Record) -> str:
    """Return the record as one line of JSON."""
    return json.dumps(record.model_dump(mode="json", exclude_unset=True), ensure_ascii=False)


def write_records(path: Path, records: Iterable[R]) -> list[R]:
    """Write records as they come; the file appears under its name when the last one is there. Returns them all."""
    written = []
    with replacing_file(path) as file:
        for record in records:
            file.write(record_json(record) + "\n")
            written.append(record)
    return written


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, whole or not at all."""
    with replacing_file(path) as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _bytes(path: Path) -> bytes:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a device has no end
            raise OSError(errno.EINVAL, "Not a regular file")
        return path.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        raise InputError(f"{one_line(path)} can't be read: {error.strerror}; replace or delete it") from error
