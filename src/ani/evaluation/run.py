"""`ani eval`: runs tasks on one model and leaves their result files; knows nothing about training."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.arithmetic import SYMBOLS, Operation, arithmetic_problems
from ani.data.diagnostic import diagnostic_sentences
from ani.data.finer import HUB_NAME, finer_sentences
from ani.data.tool_routing import drawn_queries
from ani.errors import InputError
from ani.evaluation.arithmetic import BATCH_SIZE, PAPER_DIGITS, evaluate_arithmetic, exact_match_by_digits
from ani.evaluation.backends import VllmModel
from ani.evaluation.benchmarks import answer_files, evaluate_benchmark, load_benchmark, prompt_room
from ani.evaluation.finer import evaluate_finer
from ani.evaluation.gate_shares import GateText, check_lengths, gate_shares
from ani.evaluation.gating import evaluate_gating
from ani.evaluation.results import write_json, write_records
from ani.evaluation.routing import BATCH_SIZE as ROUTING_BATCH_SIZE
from ani.evaluation.routing import evaluate_routing
from ani.evaluation.statistics import wilson_interval
from ani.evaluation.tasks.data import BENCHMARKS
from ani.injection.methods import METHODS, Method
from ani.launch import ALONE, Processes
from ani.models import need_chat_template
from ani.progress import counting
from ani.provenance import provenance
from ani.report import (
    accuracy_table,
    benchmark_tables,
    finer_table,
    gate_shares_table,
    gating_table,
    routing_table,
)
from ani.report.records import (
    BenchmarkAnswer,
    GatedText,
    RoutedQuery,
    Run,
    TaggedDecision,
    as_records,
    read_object,
)
from ani.report.summaries import benchmark_scores, finer, routing
from ani.report.summaries import gate_shares as share_summary

TASKS = ("arithmetic", "gating", *BENCHMARKS, "routing", "finer")
NEED_GATE = ("gating", "finer")
"""Tasks for models with a gate alone."""
WITH_DATA = (*BENCHMARKS, "finer")
"""Tasks whose data may be named."""
RUN = "run.json"
SMALL = 100
"""Problems a digit length, or sentences of `gating`, where no limit is given: as many as the paper's."""


class _Task(NamedTuple):
    """A task whose data are read."""

    total: int
    """Of what is counted while it runs, such as problems."""
    unit: str
    records: Callable[[Processes, Callable[[int], None]], Iterator[Any]]
    """Runs it, with a function to call with the number done: all records in order, on the main process alone."""
    tables: Callable[[list[Any]], list[Any]]
    result: Callable[[list[Any]], Any]
    """What scripts get."""
    facts: Mapping[str, Any] = {}
    """What `run.json` says of it."""


def evaluate(
    model: PreTrainedModel | VllmModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str],
    out: Path,
    *,
    console: Console,
    operations: Sequence[Operation] = ("addition",),
    data: Mapping[str, str] | None = None,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    method: Method = METHODS["ani"],
    quiet: bool = False,
    facts: Mapping[str, Any] | None = None,
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Run tasks; one JSON-lines file a task in `out`, and a table on the console unless `quiet`.

    Benchmarks keep each answer as it comes: the same call after an interruption goes on with them.

    Args:
        model: With a gate, and so not in vLLM, for `gating` and `finer`.
        tokenizer: The model's; with a chat template for benchmarks and `routing`.
        tasks: Of `TASKS`.
        out: Directory; earlier results of the same tasks are replaced, those of others kept.
        console: For progress and tables.
        operations: Of the arithmetic problems.
        data: Task of `WITH_DATA`: where its data are, a hub name or a path. Default: the set on the hub.
        limit: Problems for each operation and digit length, sentences of `gating`, queries, questions, or of `finer`
            sentences with and without a nominal tag, drawn by `seed`; a larger limit only adds some. Default: 100
            problems and sentences of `gating`, all else.
        max_new_tokens: Of a benchmark's written answer; default: what its task says.
        batch_size: Of benchmarks; default: as many as fit on a GPU, 8 on a CPU. vLLM makes its own.
        seed: Of problems, sentences and the choice of queries and questions; problems and sentences never stand in
            training data, whatever the seed.
        method: What trained the model's adapter.
        quiet: Print nothing.
        facts: What `run.json` says of the model.
        processes: Those that share the work, all calling this; the main one writes and prints.

    Returns:
        For scripts: per task, counts and shares with 95% intervals (None where nothing was counted).

    Raises:
        InputError: A task's data can't be read, the tokenizer has no chat template where one is needed, or a
            benchmark's answers leave no room for its prompts.
    """
    data = data or {}
    for task in data:
        if task not in WITH_DATA:
            raise InputError(f"the task {task} takes no data; those that do are {', '.join(WITH_DATA)}")
        if task not in tasks:
            raise InputError(f"data for {task}, which is not among the tasks {', '.join(tasks)}")
    if needy := [task for task in tasks if task in (*BENCHMARKS, "routing")]:
        need_chat_template(tokenizer, " and ".join(needy))
    # All bad input is met before the first file is touched.
    found: dict[str, _Task] = {}
    for task in tasks:
        if task == "arithmetic":
            found[task] = _arithmetic(model, tokenizer, operations, limit or SMALL, seed, method)
        elif task == "gating":
            found[task] = _gating(cast(PreTrainedModel, model), tokenizer, limit or SMALL, seed)
        elif task == "routing":
            found[task] = _routing(model, tokenizer, limit, seed, method)
        elif task == "finer":
            found[task] = _finer(cast(PreTrainedModel, model), tokenizer, data.get(task, HUB_NAME), limit, seed)
        else:
            found[task] = _benchmark(
                model, tokenizer, task, data.get(task), limit, max_new_tokens, batch_size, seed, method, out
            )
    progress = Console(quiet=True) if quiet else console
    results = _run(found, {"limit": limit, "seed": seed}, out, progress, facts, processes)
    if processes.main:
        for task in found:
            for file in answer_files(_answers(out, task)):
                file.unlink(missing_ok=True)
    return results


def evaluate_gate_shares(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[GateText],
    out: Path,
    *,
    console: Console,
    quiet: bool = False,
    settings: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    processes: Processes = ALONE,
) -> list[dict[str, Any]]:
    """`ani gate-shares`: how often gates are open, by source and group; `gate-shares.jsonl` in `out` and a table.

    Args:
        model: With a gate.
        tokenizer: The model's.
        texts: From `ani.evaluation.gate_shares`.
        out: Directory; earlier results of the same tasks are replaced, those of others kept.
        console: For progress and tables.
        quiet: Print nothing.
        settings: What `run.json` says of the texts.
        facts: What it says of the model.
        processes: As for `evaluate`.

    Returns:
        For scripts: one entry a source and group.

    Raises:
        InputError: A text is longer than the model can read.
    """
    check_lengths(model, tokenizer, texts)  # before the first file is touched
    task = _Task(
        len(texts),
        "texts",
        _shared(texts, lambda some, count: gate_shares(model, tokenizer, some, count)),
        lambda records: [gate_shares_table(records)],
        lambda records: [share._asdict() for share in share_summary(as_records(records, GatedText))],
    )
    progress = Console(quiet=True) if quiet else console
    results = _run({"gate-shares": task}, settings or {}, out, progress, facts, processes)
    return cast(list[dict[str, Any]], results["gate-shares"])


def _run(
    tasks: Mapping[str, _Task],
    settings: Mapping[str, Any],
    out: Path,
    console: Console,
    facts: Mapping[str, Any] | None,
    processes: Processes,
) -> dict[str, Any]:
    """Replaces what the folder has of these tasks, and keeps its other results, which are of the same model."""
    progress = console if processes.main else Console(quiet=True)
    model = dict(facts or {})
    if processes.main:
        every = _earlier_settings(out, model) | {name: {**settings, **task.facts} for name, task in tasks.items()}
        for name in tasks:
            (out / f"{name}.jsonl").unlink(missing_ok=True)
        # Before the results, so that those of a killed run are never taken for another model's.
        write_json(out / RUN, {"title": f"Results: {', '.join(every)}", "settings": every, **model, **provenance()})
    results: dict[str, Any] = {}
    for name, task in tasks.items():
        with counting(progress, f"{name}, {task.unit}", task.total) as count:
            made = task.records(processes, processes.counted(count))
            # What can't be written is met before the work: `made` begins when the file is open.
            records = write_records(out / f"{name}.jsonl", made) if processes.main else list(made)
        if processes.main:
            for table in task.tables(records):
                progress.print(table)
            results[name] = task.result(records)
    return processes.told(lambda: results)


def _shared(
    items: Sequence[Any], records: Callable[[Any, Callable[[int], None]], Iterable[Any]], together: int = 1
) -> Callable[[Processes, Callable[[int], None]], Iterator[Any]]:
    """The records of a task whose items are independent; `together` of them are answered as one batch."""
    return lambda processes, count: processes.merged(items, lambda batch: records(batch, count), together)


def _earlier_settings(out: Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the folder's results by task; raises InputError if they are another model's."""
    if not (out / RUN).is_file():
        return {}
    run = read_object(out / RUN, Run)
    found = {task: settings for task, settings in run.settings.items() if (out / f"{task}.jsonl").is_file()}
    if found and (run.model, run.adapter, run.backend) != (
        model.get("model"),
        model.get("adapter"),
        model.get("backend", Run().backend),
    ):
        raise InputError(
            f"{out} holds results of the model {run.model}, adapter {run.adapter}, by {run.backend}; name another "
            "output, or remove it"
        )
    return found


def _arithmetic(
    model: PreTrainedModel | VllmModel,
    tokenizer: PreTrainedTokenizerBase,
    operations: Sequence[Operation],
    limit: int,
    seed: int,
    method: Method,
) -> _Task:
    problems = arithmetic_problems(
        limit * len(PAPER_DIGITS) * len(operations), digits=PAPER_DIGITS, operations=operations, split="test", seed=seed
    )

    def result(answers: list[Any]) -> dict[str, Any]:
        return {
            operation: {
                str(digits): _share(correct, asked)
                for digits, (correct, asked) in exact_match_by_digits(
                    [answer for answer in answers if answer["operation"] == SYMBOLS[operation]]
                ).items()
            }
            for operation in operations
        }

    return _Task(
        len(problems),
        "problems",
        _shared(
            sorted(problems, key=lambda problem: problem.digits),
            lambda batch, count: evaluate_arithmetic(
                model, tokenizer, batch, run="model", method=method, on_batch=count
            ),
            BATCH_SIZE,
        ),
        lambda answers: [accuracy_table(answers)],
        result,
        {"limit": limit, "operations": list(operations)},
    )


def _gating(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, limit: int, seed: int) -> _Task:
    sentences = diagnostic_sentences(limit, split="test", seed=seed)

    def result(decisions: list[Any]) -> dict[str, Any]:
        return {
            role: _share(
                sum(d["injected"] == (role == "quantitative") for d in decisions if d["role"] == role),
                sum(d["role"] == role for d in decisions),
            )
            for role in ("nominal", "quantitative")
        }

    return _Task(
        len(sentences),
        "sentences",
        _shared(sentences, lambda some, count: evaluate_gating(model, tokenizer, some, count)),
        lambda decisions: [gating_table(decisions)],
        result,
        {"limit": limit},
    )


def _routing(
    model: PreTrainedModel | VllmModel,
    tokenizer: PreTrainedTokenizerBase,
    limit: int | None,
    seed: int,
    method: Method,
) -> _Task:
    queries = drawn_queries(limit, seed)
    return _Task(
        len(queries),
        "queries",
        _shared(
            queries,
            lambda batch, count: evaluate_routing(model, tokenizer, batch, method=method, on_batch=count),
            ROUTING_BATCH_SIZE,
        ),
        lambda records: [routing_table(records)],
        lambda records: routing(as_records(records, RoutedQuery))._asdict(),
    )


def _finer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: str, limit: int | None, seed: int
) -> _Task:
    sentences = finer_sentences(data, limit=limit, seed=seed)
    return _Task(
        len(sentences),
        "sentences",
        _shared(sentences, lambda some, count: evaluate_finer(model, tokenizer, some, count)),
        lambda records: [finer_table(records)],
        lambda records: finer(as_records(records, TaggedDecision))._asdict(),
        {"data": data, "sentences": len(sentences)},
    )


def _benchmark(
    model: PreTrainedModel | VllmModel,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    data: str | None,
    limit: int | None,
    max_new_tokens: int | None,
    batch_size: int | None,
    seed: int,
    method: Method,
    out: Path,
) -> _Task:
    benchmark = load_benchmark(name, data=data, limit=limit, seed=seed, max_new_tokens=max_new_tokens)
    prompt_room(model.config, benchmark)

    def result(records: list[Any]) -> dict[str, Any]:
        (score,) = benchmark_scores(as_records(records, BenchmarkAnswer))
        shares = {"all": score.overall, **score.by_part, **score.by_subject}
        return {part: _share(round(share.successes), share.total) for part, share in shares.items()}

    return _Task(
        benchmark.questions,
        "questions",
        lambda processes, count: evaluate_benchmark(
            model,
            tokenizer,
            benchmark,
            method=method,
            batch_size=batch_size,
            answers=_answers(out, name),
            on_question=count,
            processes=processes,
        ),
        benchmark_tables,
        result,
        benchmark.settings,
    )


def _answers(out: Path, task: str) -> Path:
    """Keeps a benchmark's answers until the run is complete."""
    return out / f"{task}.answers"


def _share(right: int, total: int) -> dict[str, Any]:
    counts = {"right": right, "total": total}
    if total == 0:  # a few sentences may hold numbers of one role only
        return {**counts, "share": None, "low": None, "high": None}
    low, high = wilson_interval(right, total)
    return {**counts, "share": right / total, "low": low, "high": high}
