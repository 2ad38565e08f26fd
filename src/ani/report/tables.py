"""The report's tables, once as plain text cells, and from those for the terminal and for Markdown.

Knows nothing about files or HTML.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table as RichTable
from rich.text import Text

from ani.evaluation.statistics import GroupedShare, PairedDifference
from ani.evaluation.tasks.data import BENCHMARKS
from ani.report.records import (
    Answer,
    BenchmarkAnswer,
    GateDecision,
    GatedText,
    ProbedLayer,
    RoutedQuery,
    SelectedLayer,
    TaggedDecision,
    TextLoss,
    as_records,
)
from ani.report.summaries import (
    Accuracy,
    BenchmarkDifference,
    BenchmarkScore,
    Difference,
    Errors,
    Estimate,
    FinerSummary,
    GateShare,
    Gating,
    LayerEffect,
    LayerProbe,
    Perplexity,
    RoutingSummary,
    Share,
    accuracies,
    benchmark_differences,
    benchmark_scores,
    differences,
    errors,
    finer,
    gate_shares,
    gating,
    gating_by_run,
    layer_probes,
    perplexities,
    routing,
)

if TYPE_CHECKING:
    from ani.probing.selection import LayerSelection

MISSING = "–"
_TEXT_KINDS = {"plain": "Without numbers", "nominal": "Nominal numbers"}


class Cell(NamedTuple):
    """A table's cell: what it says, and lines of small print (an interval, a count) beneath; `bold`: the best."""

    text: str
    details: tuple[str, ...] = ()
    bold: bool = False


class Table(NamedTuple):
    """A table of plain text; the first `label_columns` cells of a row name it."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    label_columns: int


def percent(estimate: Estimate) -> Cell:
    """`Estimate(0.6, 0.44, 0.74)` as "60.0%" above "44.0–74.0"."""
    return Cell(f"{estimate.value:.1%}", (f"{100 * estimate.low:.1f}–{100 * estimate.high:.1f}",))


def _counted(estimate: Estimate, total: int) -> Cell:
    text, details, _ = percent(estimate)
    return Cell(text, (*details, f"n = {total}"))


def _share(share: Share | None) -> Cell:
    return Cell(MISSING) if share is None else _counted(share.estimate, share.total)


def accuracy_cells(rows: Sequence[Accuracy]) -> Table:
    """One row an operation and run, all digits together and a column a digit count; an operation's best is bold."""
    digits = _digits(rows)
    lines: list[tuple[Cell, ...]] = []
    for _, group in groupby(rows, key=lambda row: row.operation):
        runs = list(group)
        columns: list[list[Share | None]]
        columns = [[row.overall for row in runs], *([row.by_digits.get(digit) for row in runs] for digit in digits)]
        leaders = [_leader(column) for column in columns]
        for row, shares in zip(runs, zip(*columns, strict=True), strict=True):
            cells = [
                _seeds_share(share, len(row.by_seed), leader) for share, leader in zip(shares, leaders, strict=True)
            ]
            if len(row.by_seed) > 1:
                found = [100 * share.successes / share.total for share in row.by_seed]
                cells[0] = cells[0]._replace(details=(*cells[0].details, f"seeds {min(found):.1f}–{max(found):.1f}"))
            lines.append((Cell(row.operation), Cell(row.run), *cells))
    return Table(
        "Exact answers by number of digits, with Wilson 95% intervals",
        ("Operation", "Run", "All", *_digit_names(digits)),
        tuple(lines),
        label_columns=2,
    )


def _digits(rows: Sequence[Accuracy] | Sequence[Difference]) -> list[int]:
    return sorted({digit for row in rows for digit in row.by_digits})


def _digit_names(digits: Iterable[int]) -> Iterable[str]:
    return (f"{d} digit{'s' if d > 1 else ''}" for d in digits)


def _leader(shares: Iterable[Share | None]) -> float | None:
    """The highest share of several; None where all are equal."""
    values = {share.successes / share.total for share in shares if share is not None}
    return max(values) if len(values) > 1 else None


def _seeds_share(share: Share | None, seeds: int, leader: float | None) -> Cell:
    if share is None:
        return Cell(MISSING)
    text, details, _ = percent(share.estimate)
    count = f"n = {share.total}" if seeds == 1 else f"n = {share.total} × {seeds} seeds"
    return Cell(text, (*details, count), share.successes / share.total == leader)


def difference_cells(rows: Sequence[Difference], baseline: str) -> Table:
    """One row an operation and run: its accuracy minus the baseline's, in all and by digit count."""
    digits = _digits(rows)
    return Table(
        f"Exact answers compared to {baseline}, in percentage points: the same problems in pairs, with 95% bootstrap "
        "intervals and the one-sided p of no gain",
        ("Operation", "Run", "All", *_digit_names(digits)),
        tuple(
            (
                Cell(row.operation),
                Cell(row.run),
                _difference(row.overall),
                *(_difference(row.by_digits.get(digit)) for digit in digits),
            )
            for row in rows
        ),
        label_columns=2,
    )


def _difference(found: PairedDifference | None) -> Cell:
    if found is None:
        return Cell(MISSING)
    text, details, _ = _points(Estimate(found.value, found.low, found.high))
    return Cell(text, (*details, f"p = {found.p:.3f}"))


def error_cells(rows: Sequence[Errors]) -> Table:
    """One row an operation and run: what became of its answers."""

    def share(count: int, row: Errors) -> Cell:
        return Cell(f"{count / row.asked:.1%}", (f"{count} of {row.asked}",))

    return Table(
        "How wrong answers are wrong: every wrong digit off by one, as by a lost carry; other digits; another length "
        "or sign, or no number (shares of all answers)",
        ("Operation", "Run", "Carries", "Other digits", "Length or sign"),
        tuple(
            (
                Cell(row.operation),
                Cell(row.run),
                share(row.carries, row),
                share(row.digits, row),
                share(row.length, row),
            )
            for row in rows
        ),
        label_columns=2,
    )


def gating_cells(summary: Gating) -> Table:
    """One row a measure: both shares, balanced accuracy, AUC."""
    numbers = sum(share.total for share in summary[:2] if isinstance(share, Share))
    rows = [
        ("Nominal numbers left alone (gate closed)", _share(summary.nominal_closed)),
        ("Quantitative numbers injected (gate open)", _share(summary.quantitative_open)),
    ]
    balanced = summary.balanced_accuracy
    if balanced is not None:
        rows.append(("Balanced accuracy", _counted(balanced, numbers)))
    if summary.auc is not None:
        rows.append(("AUC of α", Cell(f"{summary.auc:.3f}", (f"n = {numbers}",))))
    return Table(
        "How well the gate tells the roles apart, with 95% intervals",
        ("Measure", "Value"),
        tuple((Cell(name), value) for name, value in rows),
        label_columns=1,
    )


def gating_domain_cells(summaries: Mapping[str, Gating]) -> Table:
    """One row a domain."""
    return Table(
        "The gate by domain, with Wilson 95% intervals",
        ("Domain", "Nominal closed", "Quantitative open"),
        tuple(
            (Cell(domain), _share(summary.nominal_closed), _share(summary.quantitative_open))
            for domain, summary in summaries.items()
        ),
        label_columns=1,
    )


def gating_run_cells(summaries: Mapping[str, Gating]) -> Table:
    """One row a run of a comparison."""
    return Table(
        "How well the gates tell the roles apart, with 95% intervals",
        ("Run", "Nominal closed", "Quantitative open", "Balanced accuracy", "AUC of α"),
        tuple(
            (
                Cell(run),
                _share(summary.nominal_closed),
                _share(summary.quantitative_open),
                Cell(MISSING) if summary.balanced_accuracy is None else percent(summary.balanced_accuracy),
                Cell(MISSING if summary.auc is None else f"{summary.auc:.3f}"),
            )
            for run, summary in summaries.items()
        ),
        label_columns=1,
    )


def language_cells(rows: Mapping[str, Mapping[str, Perplexity]], baseline: str | None) -> Table:
    """One row a run: its perplexity by kind of text and, with a baseline, how much more it loses a token."""
    caption = "Perplexity of word tokens, with 95% bootstrap intervals over texts"
    header = ["Run", *_TEXT_KINDS.values()]
    if baseline is not None:
        caption += f"; the mean loss minus that of {baseline}, in nats a token (less is better), on the same texts"
        header += [f"{name}: loss" for name in _TEXT_KINDS.values()]
    lines = []
    for run, kinds in rows.items():
        found = [kinds.get(kind) for kind in _TEXT_KINDS]
        cells = [Cell(run), *map(_perplexity, found)]
        if baseline is not None:
            cells += [_nats(None if one is None else one.difference) for one in found]
        lines.append(tuple(cells))
    return Table(caption, tuple(header), tuple(lines), label_columns=1)


def _perplexity(found: Perplexity | None) -> Cell:
    if found is None:
        return Cell(MISSING)
    value, low, high = (f"{number:.2f}" if number < 10_000 else f"{number:.1e}" for number in found.value)
    count = f"n = {found.texts}" if found.seeds == 1 else f"n = {found.texts} × {found.seeds} seeds"
    return Cell(value, (f"{low}–{high}", count))


def _nats(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell(MISSING)
    value, low, high = (f"{number:+.3f}" for number in estimate)
    return Cell(value, (f"{low}…{high}",))


BENCHMARK_NAMES: dict[str, str] = {name: name.upper() for name in BENCHMARKS}
_BENCHMARKS_CAPTION = "Right answers"


def benchmark_cells(rows: Sequence[BenchmarkScore]) -> Table:
    """One row a run, one column a benchmark (paper, Tables "Main Results" and "Scalability"); the best is bold."""
    by_run: dict[str, dict[str, BenchmarkScore]] = {}
    for row in rows:
        by_run.setdefault(row.run, {})[row.task] = row
    tasks = list(dict.fromkeys(row.task for row in rows))
    leaders = {
        task: _leader([scores[task].overall if task in scores else None for scores in by_run.values()])
        for task in tasks
    }
    lines = []
    for run, scores in by_run.items():
        found = [scores.get(task) for task in tasks]
        cells = [
            Cell(MISSING) if score is None else _seeds_share(score.overall, len(score.by_seed), leaders[score.task])
            for score in found
        ]
        lines.append((Cell(run), *cells))
    return Table(
        f"{_BENCHMARKS_CAPTION}, with Wilson 95% intervals",
        ("Run", *(BENCHMARK_NAMES[task] for task in tasks)),
        tuple(lines),
        label_columns=1,
    )


def benchmark_part_cells(rows: Sequence[BenchmarkScore], *, subjects: bool) -> Table:
    """One row a part of a benchmark, one column a run; parts are levels and groups, or subjects."""
    runs = list(dict.fromkeys(row.run for row in rows))
    parts: dict[tuple[str, str], dict[str, Cell]] = {}
    for row in rows:
        for part, share in (row.by_subject if subjects else row.by_part).items():
            parts.setdefault((row.task, part), {})[row.run] = _seeds_share(share, len(row.by_seed), None)
    return Table(
        f"{_BENCHMARKS_CAPTION} by {'subject' if subjects else 'level or group'}, with Wilson 95% intervals",
        ("Benchmark", "Subject" if subjects else "Part", *runs),
        tuple(
            (Cell(BENCHMARK_NAMES[task]), Cell(part), *(cells.get(run, Cell(MISSING)) for run in runs))
            for (task, part), cells in parts.items()
        ),
        label_columns=2,
    )


def benchmark_difference_cells(rows: Sequence[BenchmarkDifference], baseline: str, *, subjects: bool = False) -> Table:
    """One row a benchmark and part of it, one column a run: its accuracy minus the baseline's."""
    runs = list(dict.fromkeys(row.run for row in rows))
    parts: dict[tuple[str, str], dict[str, Cell]] = {}
    for row in rows:
        found = row.by_subject if subjects else {"all": row.overall, **row.by_part}
        for part, difference in found.items():
            parts.setdefault((row.task, part), {})[row.run] = _difference(difference)
    return Table(
        f"{_BENCHMARKS_CAPTION}{' by subject' if subjects else ''} compared to {baseline}, in percentage points: the "
        "same questions in pairs, with 95% bootstrap intervals and the one-sided p of no gain",
        ("Benchmark", "Part", *runs),
        tuple(
            (Cell(BENCHMARK_NAMES[task]), Cell(part), *(cells.get(run, Cell(MISSING)) for run in runs))
            for (task, part), cells in parts.items()
        ),
        label_columns=2,
    )


def routing_cells(summary: RoutingSummary) -> Table:
    """One row a measure."""
    names = {
        "traps_closed": "Gate: traps closed",
        "operands_open": "Gate: operands open",
        "exact": "Calls: every operand and nothing else",
        "traps_avoided": "Calls: traps kept out, of all",
        "traps_avoided_when_called": "Calls: traps kept out, of those in queries with a call",
        "operands_passed": "Calls: operands passed",
        "called": "Queries with a readable call",
        "malformed": "Queries with a malformed call",
        "none": "Queries without a call",
    }
    return _measures("Tool routing, with 95% intervals (queries resampled as wholes)", summary, names)


def finer_cells(summary: FinerSummary) -> Table:
    """One row a measure."""
    names = {
        "nominal_bypassed": "Numbers under a nominal tag left alone",
        "quantitative_injected": "Other tagged numbers injected",
        "precision": "Nominal ones among the numbers left alone",
    }
    return _measures("FiNER-139, with 95% intervals (sentences resampled as wholes)", summary, names)


def _measures(caption: str, summary: RoutingSummary | FinerSummary, names: Mapping[str, str]) -> Table:
    return Table(
        caption,
        ("Measure", "Value"),
        tuple((Cell(name), grouped(getattr(summary, field))) for field, name in names.items()),
        label_columns=1,
    )


def grouped(share: GroupedShare) -> Cell:
    """A share whose interval is there already."""
    if share["share"] is None or share["low"] is None or share["high"] is None:
        return Cell(MISSING)
    return _counted(Estimate(share["share"], share["low"], share["high"]), share["total"])


def gate_share_cells(rows: Sequence[GateShare]) -> Table:
    """One row a source or group."""
    return Table(
        "How often gates are open, with 95% intervals (texts resampled as wholes)",
        ("Source", "Group", "Texts", "Numbers injected", "Texts with an open gate, of those with a number"),
        tuple(
            (
                Cell(row.source),
                Cell("all" if row.group is None else row.group),
                Cell(str(row.texts)),
                grouped(row.numbers),
                grouped(row.texts_open),
            )
            for row in rows
        ),
        label_columns=2,
    )


def comparison_cells(
    answers: Iterable[Mapping[str, Any]],
    decisions: Iterable[Mapping[str, Any]],
    losses: Iterable[Mapping[str, Any]],
    benchmarks: Iterable[Mapping[str, Any]],
    baseline: str | None,
) -> tuple[Table, ...]:
    """Whichever there is reason for: accuracy, differences to the baseline, kinds of errors, benchmarks, gating,
    language; one row a run."""
    answered = as_records(answers, Answer)
    rows = accuracies(answered)
    tables = [accuracy_cells(rows)] if rows else []
    if baseline is not None and (compared := differences(answered, baseline)):
        tables.append(difference_cells(compared, baseline))
    if wrong := errors(answered):
        tables.append(error_cells(wrong))
    if judged := as_records(benchmarks, BenchmarkAnswer):
        scores = benchmark_scores(judged)
        tables.append(benchmark_cells(scores))
        if any(score.by_part for score in scores):
            tables.append(benchmark_part_cells(scores, subjects=False))
        if baseline is not None and (pairs := benchmark_differences(judged, baseline)):
            tables.append(benchmark_difference_cells(pairs, baseline))
    if gates := gating_by_run(as_records(decisions, GateDecision)):
        tables.append(gating_run_cells(gates))
    if language := perplexities(as_records(losses, TextLoss), baseline):
        tables.append(language_cells(language, baseline))
    return tuple(tables)


def rich_table(table: Table) -> RichTable:
    """For the terminal."""
    rich = RichTable(title=table.caption, title_justify="left", show_lines=_tall(table))
    for index, name in enumerate(table.header):
        rich.add_column(Text(name), justify="left" if index < table.label_columns else "right")
    for row in table.rows:
        # Text, not str: a run's name may look like rich's markup.
        rich.add_row(*(_rich_cell(cell) for cell in row))
    return rich


def _tall(table: Table) -> bool:
    """Whether rows need rules between them."""
    return len(table.rows) > 1 and any(cell.details for row in table.rows for cell in row)


def _rich_cell(cell: Cell) -> Text:
    text = Text("\n".join((cell.text, *cell.details)))
    if cell.bold:
        text.stylize("bold", 0, len(cell.text))
    return text


def _markdown(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    def plain(cell: Cell) -> str:
        text = escaped(cell.text)
        if cell.bold:
            text = f"**{text}**"
        return f"{text} ({escaped(', '.join(cell.details))})" if cell.details else text

    def escaped(text: str) -> str:
        text = " ".join(text.split())
        for character in "\\|<&`*_[":
            text = text.replace(character, "\\" + character)
        return text

    rules = ("---" if index < table.label_columns else "---:" for index in range(len(table.header)))
    return "\n".join([line(table.header), line(rules), *(line(map(plain, row)) for row in table.rows)]) + "\n"


def accuracy_table(records: Iterable[Mapping[str, Any]]) -> RichTable:
    """Accuracy by run and digits for the terminal.

    Args:
        records: as in `arithmetic.jsonl`: run, operation, digits, correct, and more that is not shown.

    Raises:
        InputError: a record lacks a key or holds a wrong type.
    """
    return rich_table(accuracy_cells(accuracies(as_records(records, Answer))))


def accuracy_markdown(records: Iterable[Mapping[str, Any]]) -> str:
    """The same table in Markdown."""
    return _markdown(accuracy_cells(accuracies(as_records(records, Answer))))


def gating_table(records: Iterable[Mapping[str, Any]]) -> RichTable:
    """How well the gate tells roles apart, for the terminal.

    Args:
        records: as in `gating.jsonl`: role, alpha, injected, and more that is not shown.

    Raises:
        InputError: a record lacks a key or holds a wrong type.
    """
    return rich_table(gating_cells(gating(as_records(records, GateDecision))))


def gating_markdown(records: Iterable[Mapping[str, Any]]) -> str:
    """The same table in Markdown."""
    return _markdown(gating_cells(gating(as_records(records, GateDecision))))


def benchmark_tables(records: Iterable[Mapping[str, Any]]) -> list[RichTable]:
    """Right answers in all and by level or group, for the terminal.

    Args:
        records: as in `gsm8k.jsonl`, `math.jsonl` or `mmlu.jsonl`.

    Raises:
        InputError: a record lacks a key or holds a wrong type.
    """
    return [rich_table(table) for table in comparison_cells((), (), (), records, None)]


def routing_table(records: Iterable[Mapping[str, Any]]) -> RichTable:
    """Tool routing for the terminal; records as in `routing.jsonl`."""
    return rich_table(routing_cells(routing(as_records(records, RoutedQuery))))


def finer_table(records: Iterable[Mapping[str, Any]]) -> RichTable:
    """FiNER-139 for the terminal; records as in `finer.jsonl`."""
    return rich_table(finer_cells(finer(as_records(records, TaggedDecision))))


def gate_shares_table(records: Iterable[Mapping[str, Any]]) -> RichTable:
    """How often gates are open, for the terminal; records as in `gate-shares.jsonl`."""
    return rich_table(gate_share_cells(gate_shares(as_records(records, GatedText))))


def comparison_tables(
    answers: Iterable[Mapping[str, Any]],
    decisions: Iterable[Mapping[str, Any]],
    losses: Iterable[Mapping[str, Any]],
    benchmarks: Iterable[Mapping[str, Any]] = (),
    baseline: str | None = None,
) -> list[RichTable]:
    """A comparison's tables for the terminal (`comparison_cells`), each if there are results.

    Args:
        answers: as in the `arithmetic.jsonl` of a comparison, with prompt and seed.
        decisions: as in its `gating.jsonl`, with run and seed.
        losses: as in its `language.jsonl`, with run and seed.
        benchmarks: as in its `gsm8k.jsonl`, `math.jsonl` and `mmlu.jsonl`, with run and seed.
        baseline: the run to which the others are compared.

    Raises:
        InputError: a record lacks a key or holds a wrong type, or runs were asked different problems.
    """
    return [rich_table(table) for table in comparison_cells(answers, decisions, losses, benchmarks, baseline)]


def comparison_markdown(
    answers: Iterable[Mapping[str, Any]],
    decisions: Iterable[Mapping[str, Any]],
    losses: Iterable[Mapping[str, Any]],
    benchmarks: Iterable[Mapping[str, Any]] = (),
    baseline: str | None = None,
) -> str:
    """The same tables in Markdown, each under its caption."""
    tables = comparison_cells(answers, decisions, losses, benchmarks, baseline)
    return "\n".join(f"{table.caption}:\n\n{_markdown(table)}" for table in tables)


def layers_cells(curve: Sequence[LayerProbe], selection: SelectedLayer | None) -> Table:
    """One row a layer; with a selection, a last column that marks its layers."""
    caption = "Accuracy of linear probes for numbers' roles by layer, with 95% intervals"
    header = ("Layer", "Random split", "Held out", "Control", "Selectivity")
    rows = [
        (
            Cell(str(probe.layer)),
            _inline(percent(probe.random_split)),
            _inline(percent(probe.held_out)),
            Cell(f"{probe.control:.1%}"),
            _inline(_points(probe.selectivity)),
        )
        for probe in curve
    ]
    if selection is None:
        return Table(caption, header, tuple(rows), label_columns=1)
    marks = {
        "chosen": selection.layer,
        "paper's rule": selection.argmax,
        "best held out": selection.best,
        "early peak": selection.early_peak,
    }
    return Table(
        f"{caption}; best held out: smoothed over neighbours",
        (*header, "Mark"),
        tuple(
            (*row, Cell(", ".join(mark for mark, layer in marks.items() if layer == probe.layer)))
            for row, probe in zip(rows, curve, strict=True)
        ),
        label_columns=1,
    )


def _points(estimate: Estimate) -> Cell:
    value, low, high = (f"{100 * number:+.1f}" for number in estimate)
    return Cell(value, (f"{low}…{high}",))


def _inline(cell: Cell) -> Cell:
    """Details in brackets: a table of many rows stays short."""
    return Cell(f"{cell.text} ({', '.join(cell.details)})")


def layer_effects_cells(effects: Sequence[LayerEffect]) -> Table:
    """One row a layer."""
    return Table(
        "Right answers by layer of injection, and the held-out accuracy of a linear probe there, with 95% intervals",
        ("Layer", "Run", "Right answers", "Probe, held out"),
        tuple(
            (Cell(str(effect.layer)), Cell(effect.run), _share(effect.task), percent(effect.probe))
            for effect in effects
        ),
        label_columns=2,
    )


def layers_table(selection: "LayerSelection") -> RichTable:
    """The curve over layers, with what was chosen, for the terminal."""
    curve = layer_probes(as_records((point._asdict() for point in selection.curve), ProbedLayer))
    return rich_table(layers_cells(curve, SelectedLayer.model_validate(selection._asdict())))
