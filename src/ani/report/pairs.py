"""`ani diff`: two result folders, problem by problem (paper, "Confidence Intervals and Difficulty-wise Analysis").

Knows nothing about models or how results came to be.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table as RichTable

from ani.data.arithmetic import SYMBOLS
from ani.errors import InputError
from ani.evaluation.statistics import PairedDifference
from ani.evaluation.tasks.data import BENCHMARKS
from ani.report.records import Answer, BenchmarkAnswer, Run, read_lines, read_object
from ani.report.summaries import benchmark_differences, differences
from ani.report.tables import benchmark_difference_cells, difference_cells, rich_table
from ani.untrusted import one_line

NAMES: dict[str, str] = {symbol: name for name, symbol in SYMBOLS.items()}
A = TypeVar("A", Answer, BenchmarkAnswer)

ARITHMETIC = "arithmetic.jsonl"
BENCHMARK_FILES = tuple(f"{name}.jsonl" for name in BENCHMARKS)


def compare_folders(run: Path, baseline: Path) -> tuple[list[RichTable], dict[str, Any]]:
    """Compare one model's results to another's on the same problems, in all and by digits, level, group and subject.

    Args:
        run: Folder with `arithmetic.jsonl`, `gsm8k.jsonl`, `math.jsonl` or `mmlu.jsonl`, of one model.
        baseline: Another one. Operations and benchmarks that only one of them has are left out.

    Returns:
        Tables for the terminal; and for scripts, per task and part the difference of the shares of right answers, its
        95% interval and the one-sided p of no gain.

    Raises:
        InputError: A folder has no such results or those of several models, the two have none in common, or their
            problems, prompts or settings of generation (`run.json`) differ.
    """
    names = str(run), str(baseline)
    if run.resolve() == baseline.resolve():
        raise InputError(f"{run} would be compared to itself; name two folders")
    found = [
        {file: (folder / file) for file in (ARITHMETIC, *BENCHMARK_FILES) if (folder / file).is_file()}
        for folder in (run, baseline)
    ]
    for folder, files in zip((run, baseline), found, strict=True):
        if not files:
            raise InputError(
                f"{folder} holds none of {ARITHMETIC}, {', '.join(BENCHMARK_FILES)}; `ani eval --out` writes them"
            )
    common = [file for file in found[0] if file in found[1]]

    def both(file: str, kind: type[A]) -> list[A]:
        return [
            record.model_copy(update={"run": name})
            for name, files in zip(names, found, strict=True)
            for record in _one_model(files[file], kind)
        ]

    for task in BENCHMARKS:
        if f"{task}.jsonl" in common:
            _same_generation(task, run, baseline)

    tables: list[RichTable] = []
    results: dict[str, Any] = {}
    if ARITHMETIC in common:
        answers = both(ARITHMETIC, Answer)
        asked = [{answer.operation for answer in answers if answer.run == name} for name in names]
        rows = differences([answer for answer in answers if answer.operation in asked[0] & asked[1]], names[1])
        tables += [rich_table(difference_cells(rows, names[1]))] if rows else []
        for row in rows:
            results[NAMES.get(row.operation, row.operation)] = _facts({"all": row.overall, **row.by_digits})
    judged = [answer for file in common if file != ARITHMETIC for answer in both(file, BenchmarkAnswer)]
    if judged:
        pairs = benchmark_differences(judged, names[1])
        tables.append(rich_table(benchmark_difference_cells(pairs, names[1])))
        if any(pair.by_subject for pair in pairs):
            tables.append(rich_table(benchmark_difference_cells(pairs, names[1], subjects=True)))
        for pair in pairs:
            results[pair.task] = _facts({"all": pair.overall, **pair.by_part, **pair.by_subject})
    if not results:
        raise InputError(
            f"{run} has {', '.join(found[0])}, and {baseline} has {', '.join(found[1])}: no operation or benchmark in "
            "common"
        )
    return tables, results


def _same_generation(task: str, run: Path, baseline: Path) -> None:
    """A shorter answer may be wrong for being cut off. Folders without such settings in `run.json` are let pass."""
    found = [
        settings.get("generation")
        for folder in (run, baseline)
        if (folder / "run.json").is_file()
        and isinstance(settings := read_object(folder / "run.json", Run).settings.get(task, {}), dict)
    ]
    if len(found) == 2 and None not in found and found[0] != found[1]:
        ours, theirs = (one_line(json.dumps(generation), 200) for generation in found)
        raise InputError(
            f"{task}: answers were generated with {ours} for {run} and {theirs} for {baseline}, by their run.json; "
            "evaluate both with the same --max-new-tokens"
        )


def backends_differ(run: Path, baseline: Path) -> str | None:
    """A sentence to show beside a comparison whose two folders were answered by different backends; else None."""
    files = [folder / "run.json" for folder in (run, baseline)]
    ours, theirs = (read_object(file, Run).backend if file.is_file() else Run().backend for file in files)
    if ours == theirs:
        return None
    return f"{run} was answered by {ours}, {baseline} by {theirs}: rounding differs, and is part of the differences"


def _one_model(path: Path, kind: type[A]) -> list[A]:
    records = read_lines(path, kind)
    models = dict.fromkeys((record.run, record.seed) for record in records)
    if len(models) > 1:
        raise InputError(
            f"{path} holds the answers of {len(models)} models; name the folder of one, such as cells/NAME/seed-0"
        )
    return records


def _facts(parts: Mapping[Any, PairedDifference]) -> dict[str, Any]:
    return {str(part): difference._asdict() for part, difference in parts.items()}
