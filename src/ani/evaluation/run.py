"""`ani eval`: runs tasks on one model and leaves their result files; knows nothing about training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.arithmetic import SYMBOLS, Operation, arithmetic_problems
from ani.data.diagnostic import diagnostic_sentences
from ani.evaluation.arithmetic import PAPER_DIGITS, evaluate_arithmetic, exact_match_by_digits
from ani.evaluation.gating import evaluate_gating
from ani.evaluation.results import write_json, write_records
from ani.evaluation.statistics import wilson_interval
from ani.injection.methods import METHODS, Method
from ani.progress import counting
from ani.provenance import provenance
from ani.report import accuracy_table, gating_table

RESULT_FILES = ("arithmetic.jsonl", "gating.jsonl", "run.json")


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str],
    operations: Sequence[Operation],
    out: Path,
    *,
    limit: int,
    seed: int,
    console: Console,
    method: Method = METHODS["ani"],
    quiet: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run tasks; one JSON-lines file a task in `out`, and a table on the console unless `quiet`.

    Args:
        model: With ANI attached for `gating`.
        tokenizer: The model's.
        tasks: Of `arithmetic` and `gating`.
        operations: Of the arithmetic problems.
        out: Directory; files of earlier runs are replaced.
        limit: Problems for each operation and digit length, and sentences.
        seed: Of problems and sentences; they never stand in training data, whatever the seed.
        console: For progress and tables.
        method: What trained the model's adapter.
        quiet: Print nothing.
        facts: What `run.json` says of the model.

    Returns:
        For scripts: per task, counts and shares with 95% Wilson intervals (None where nothing was counted).
    """
    progress = Console(quiet=True) if quiet else console
    results: dict[str, Any] = {}
    # All bad input is met before the first file is touched.
    problems = arithmetic_problems(
        limit * len(PAPER_DIGITS) * len(operations) if "arithmetic" in tasks else 0,
        digits=PAPER_DIGITS,
        operations=operations,
        split="test",
        seed=seed,
    )
    sentences = diagnostic_sentences(limit if "gating" in tasks else 0, split="test", seed=seed)
    for name in RESULT_FILES:  # of an earlier run, perhaps of another model
        (out / name).unlink(missing_ok=True)
    if "arithmetic" in tasks:
        with counting(progress, "problems", len(problems)) as count:
            answers = write_records(
                out / "arithmetic.jsonl",
                evaluate_arithmetic(model, tokenizer, problems, run="model", method=method, on_batch=count),
            )
        progress.print(accuracy_table(answers))
        results["arithmetic"] = {
            operation: {
                str(digits): _share(correct, asked)
                for digits, (correct, asked) in exact_match_by_digits(
                    cast(Any, [answer for answer in answers if answer["operation"] == SYMBOLS[operation]])
                ).items()
            }
            for operation in operations
        }
    if "gating" in tasks:
        with counting(progress, "sentences", len(sentences)) as count:
            decisions = write_records(out / "gating.jsonl", evaluate_gating(model, tokenizer, sentences, count))
        progress.print(gating_table(decisions))
        results["gating"] = {
            role: _share(
                sum(d["injected"] == (role == "quantitative") for d in decisions if d["role"] == role),
                sum(d["role"] == role for d in decisions),
            )
            for role in ("nominal", "quantitative")
        }
    settings = {"tasks": list(tasks), "operations": list(operations), "limit": limit, "seed": seed}
    write_json(
        out / "run.json",
        {"title": f"ani eval: {', '.join(tasks)}", "settings": settings, **(facts or {}), **provenance()},
    )
    return results


def _share(right: int, total: int) -> dict[str, Any]:
    counts = {"right": right, "total": total}
    if total == 0:  # a few sentences may hold numbers of one role only
        return {**counts, "share": None, "low": None, "high": None}
    low, high = wilson_interval(right, total)
    return {**counts, "share": right / total, "low": low, "high": high}
