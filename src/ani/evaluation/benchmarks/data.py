"""The questions of GSM8K, MATH and MMLU, from the hub or local files.

Each function is a task's `custom_dataset`: it gives lm-evaluation-harness one split, `test`. The questions come in an
order that the seed draws, so that the first N of them are a fair sample. `data` is one of

- None: the set on the hub, below;
- another hub name, of a set in the same format: of its configurations those of the set below, or else its default one;
- a directory that holds `test.jsonl` (for MMLU also `dev.jsonl`, if there is one), or a JSONL file.

All raise InputError if the data can't be read or a record lacks a field; file and line are named.
"""

import random
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ani.data.records import hub_errors, hub_records, names_file
from ani.data.sources import MATH
from ani.errors import InputError
from ani.evaluation.benchmarks.judging import MARKER, boxed_answer, marked_answer
from ani.results.scores import grouped
from ani.text_files import json_lines

if TYPE_CHECKING:
    from datasets import Dataset

BenchmarkName = Literal["gsm8k", "math", "mmlu"]
Record = dict[str, Any]

GSM8K = [("openai/gsm8k", "main")]
MMLU = [("cais/mmlu", "all")]
"""The sets on the hub and their configurations."""

MMLU_SHOTS = 5
MMLU_GROUPS = {
    "STEM": """abstract_algebra anatomy astronomy college_biology college_chemistry college_computer_science
        college_mathematics college_physics computer_security conceptual_physics electrical_engineering
        elementary_mathematics high_school_biology high_school_chemistry high_school_computer_science
        high_school_mathematics high_school_physics high_school_statistics machine_learning""",
    "humanities": """formal_logic high_school_european_history high_school_us_history high_school_world_history
        international_law jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory
        professional_law world_religions""",
    "social sciences": """econometrics high_school_geography high_school_government_and_politics
        high_school_macroeconomics high_school_microeconomics high_school_psychology human_sexuality
        professional_psychology public_relations security_studies sociology us_foreign_policy""",
    "other": """business_ethics clinical_knowledge college_medicine global_facts human_aging management marketing
        medical_genetics miscellaneous nutrition professional_accounting professional_medicine virology""",
}
"""The four groups of the MMLU paper (arXiv 2009.03300) and their subjects."""
_GROUP = {subject: group for group, subjects in MMLU_GROUPS.items() for subject in subjects.split()}


def gsm8k_questions(data: str | None = None, seed: int = 0, **_: Any) -> "dict[str, Dataset]":
    """Rows of `id`, `question`, `answer` (plain digits)."""
    return _split(_rows(data, "test", GSM8K, _gsm8k_row), seed)


def math_questions(data: str | None = None, seed: int = 0, **_: Any) -> "dict[str, Dataset]":
    """Rows of `id`, `question`, `answer` (LaTeX), `subject`, `level` (1 to 5; None where the set says "Level ?")."""
    return _split(_rows(data, "test", MATH, _math_row), seed)


def mmlu_questions(data: str | None = None, seed: int = 0, **_: Any) -> "dict[str, Dataset]":
    """Rows of `id`, `question`, `choices`, `answer` (0 to 3), `subject`, `group`, `shots`, `shots_from`.

    The examples are the first five of the subject's dev split. A local file has none: then the first five rows of each
    subject are its examples, no question is asked about them, and `shots_from` says "test, held out". Raises InputError
    also if a subject has fewer than five examples.
    """
    rows = _rows(data, "test", MMLU, _mmlu_row)
    dev = grouped(_rows(data, "dev", MMLU, _mmlu_row), itemgetter("subject"))
    shots_from = "dev" if dev else "test, held out"
    if not dev:
        dev = grouped(rows, itemgetter("subject"))
        held_out = {row["id"] for shots in dev.values() for row in shots[:MMLU_SHOTS]}
        rows = [row for row in rows if row["id"] not in held_out]
    for subject in sorted({row["subject"] for row in rows} | set(dev)):
        if (found := len(dev.get(subject, ()))) < MMLU_SHOTS:
            raise InputError(
                f"{data or MMLU[0][0]}: {found} rows of the subject {subject!r} to show as examples, {MMLU_SHOTS} are "
                "needed"
            )
    shots = {
        subject: [{key: row[key] for key in ("question", "choices", "answer")} for row in examples[:MMLU_SHOTS]]
        for subject, examples in dev.items()
    }
    return _split([{**row, "shots": shots[row["subject"]], "shots_from": shots_from} for row in rows], seed)


READERS: dict[str, Callable[..., "dict[str, Dataset]"]]
READERS = {"gsm8k": gsm8k_questions, "math": math_questions, "mmlu": mmlu_questions}


def records(data: str | None, split: str, hub: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    """Places and records of a split; `hub` names sets on the hub and their configurations. None of `dev` where a local
    file or directory has no such split."""
    instead = "a JSONL file or a directory with test.jsonl as data"
    if data is None:
        return [found for name, part in hub for found in hub_records(name, split, None, instead, part)]
    folder = Path(data)
    if folder.is_dir() or names_file(data):
        path = folder / f"{split}.jsonl" if folder.is_dir() else folder
        return [] if split == "dev" and (path == folder or not path.exists()) else list(json_lines(path))
    with hub_errors(data, split, instead):
        from datasets import get_dataset_config_names

        named = get_dataset_config_names(data)
    parts: list[Any] = [part for _, part in hub if part in named] or [None]
    return [found for part in parts for found in hub_records(data, split, None, instead, part)]


def _rows(data: str | None, split: str, hub: list[tuple[str, str]], row: Callable[[Any, str], Record]) -> list[Record]:
    return [{"id": number, **row(record, where)} for number, (where, record) in enumerate(records(data, split, hub))]


def _split(rows: list[Record], seed: int) -> "dict[str, Dataset]":
    from datasets import Dataset

    if not rows:
        raise InputError("the data holds no question; give the benchmark's test split")
    random.Random(f"benchmark {seed}").shuffle(rows)
    return {"test": Dataset.from_list(rows)}


def _gsm8k_row(record: Any, where: str) -> Record:
    question, solution = _text(record, "question", where), _text(record, "answer", where)
    answer = marked_answer(solution) if MARKER in solution else None
    if answer is None:
        raise InputError(f"{where}: 'answer' must end in {MARKER} and a number")
    return {"question": question, "answer": answer[0]}


def _math_row(record: Any, where: str) -> Record:
    question, solution = _text(record, "problem", where), _text(record, "solution", where)
    answer = boxed_answer(solution)
    if not answer:
        raise InputError(rf"{where}: 'solution' must hold the answer in \boxed{{}}")
    level = _text(record, "level", where).removeprefix("Level ")
    return {
        "question": question,
        "answer": answer,
        "subject": _text(record, "type", where),
        "level": int(level) if level in ("1", "2", "3", "4", "5") else None,
    }


def _mmlu_row(record: Any, where: str) -> Record:
    question, subject = _text(record, "question", where), _text(record, "subject", where)
    choices = _field(record, "choices", where, lambda value: isinstance(value, list) and len(value) == 4)
    answer = _field(record, "answer", where, lambda value: type(value) is int and 0 <= value <= 3)
    if subject not in _GROUP:
        raise InputError(f"{where}: 'subject' must be one of MMLU's 57, not {subject!r:.80}")
    return {
        "question": question.strip(),
        "choices": [str(choice) for choice in choices],
        "answer": answer,
        "subject": subject,
        "group": _GROUP[subject],
    }


def _text(record: Any, key: str, where: str) -> str:
    return cast(str, _field(record, key, where, lambda value: isinstance(value, str) and bool(value.strip())))


def _field(record: Any, key: str, where: str, fits: Callable[[Any], bool]) -> Any:
    if not isinstance(record, dict) or key not in record:
        raise InputError(f"{where}: no {key!r}; see the benchmark's format on the hub")
    if not fits(record[key]):
        raise InputError(f"{where}: {key!r} has a value of the wrong kind, {record[key]!r:.80}")
    return record[key]
