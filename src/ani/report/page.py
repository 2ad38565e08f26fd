"""Builds the report: one HTML page, whole in itself, from the result files of a folder.

Knows nothing about how results are computed or drawn (summaries, tables, figures do); it arranges them.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jinja2 import Environment, StrictUndefined, Template

from ani.errors import InputError
from ani.files import replacing_file
from ani.report.figures import (
    MOST_LINES,
    Chart,
    accuracy_chart,
    alpha_chart,
    bar_chart,
    gate_chart,
    layer_effects_chart,
    layers_chart,
    loss_chart,
    signals_chart,
    task_over_probe_chart,
)
from ani.report.pairs import ARITHMETIC, BENCHMARK_FILES
from ani.report.records import (
    Answer,
    BenchmarkAnswer,
    GateDecision,
    GatedText,
    InspectedSentence,
    ProbedLayer,
    Record,
    RoutedQuery,
    Run,
    SelectedLayer,
    TaggedDecision,
    TextLoss,
    TrainingStep,
    read_lines,
    read_object,
)
from ani.report.summaries import (
    Correlation,
    Estimate,
    LayerProbe,
    accuracies,
    benchmark_differences,
    benchmark_scores,
    correlation,
    differences,
    errors,
    exact_shares,
    finer,
    gate_shares,
    gating,
    gating_by_domain,
    gating_by_run,
    layer_effects,
    layer_probes,
    perplexities,
    routing,
)
from ani.report.tables import (
    BENCHMARK_NAMES,
    Table,
    accuracy_cells,
    benchmark_cells,
    benchmark_difference_cells,
    benchmark_part_cells,
    difference_cells,
    error_cells,
    finer_cells,
    gate_share_cells,
    gating_cells,
    gating_domain_cells,
    gating_run_cells,
    language_cells,
    layer_effects_cells,
    layers_cells,
    percent,
    routing_cells,
)

RUN = "run.json"
TRAINING = "training_log.jsonl"
GATING = "gating.jsonl"
LANGUAGE = "language.jsonl"
ROUTING = "routing.jsonl"
FINER = "finer.jsonl"
GATE_SHARES = "gate-shares.jsonl"
INSPECTED = "inspected.jsonl"
LAYERS = "layers.jsonl"
SELECTION = "selection.json"
RESULTS = (ARITHMETIC, GATING, *BENCHMARK_FILES, ROUTING, FINER, GATE_SHARES, LANGUAGE, INSPECTED, LAYERS, TRAINING)

HEADLINES = 4
"""More accuracies than these are left to the table."""
GATING_NOTE = (
    "Held-out sentences: a quantitative number (an operand) should open the gate, a nominal one (a name) should leave "
    "it closed. Intervals take numbers as independent, which numbers of one sentence are not quite."
)
BENCHMARKS_NOTE = (
    "GSM8K: 8-shot, MATH: 4-shot, both with chains of thought; MMLU: 5-shot, by the log-probabilities of A to D. "
    "Intervals are for other questions, not for other training seeds."
)
ROUTING_NOTE = (
    "Queries with a calculator at hand. An operand is a number that the calculation needs; a trap is a name that looks "
    "like one. A query without a readable call is no success, and counted apart."
)
FINER_NOTE = (
    "Numbers of financial reports under XBRL tags. A gate that is always closed would leave every nominal one alone: "
    "read the first two measures together."
)
GATE_SHARES_NOTE = (
    "How many of the numbers the gate lets through, by benchmark and subject, or in other texts; each text is read as "
    "a prompt by itself."
)
LANGUAGE_NOTE = (
    "What training costs on ordinary text. Scored are word tokens: not numbers, nor the token right after one. Texts "
    "without numbers can only show what training did to the model; in sentences whose numbers are all names, injecting "
    "one can do harm as well. Means over training seeds; intervals are for other texts, not for other seeds."
)
PROBES_NOTE = (
    "A linear probe tells from the hidden state after a layer (0: the embedding output) whether a number is a quantity "
    "or a name. Random split: the paper's measure; sentences like those it learnt from. Held out: domains, templates "
    "and number values that it has not seen. Control task: roles shuffled among number values, so what a probe learns "
    "by heart; selectivity: the random split's accuracy on the same numbers minus that, in percentage points. Bands "
    "and brackets: 95% intervals, bootstrapped over templates."
)
EFFECTS_NOTE = (
    "By the layer that numbers are injected at, beside the held-out accuracy of a linear probe of the untrained model "
    "there. Bars, band and small print: 95% intervals."
)
FEWEST_LAYERS = 3
"""That task and probe accuracy are compared over."""
WIDE = 0.5
"""Of a correlation's interval, out of 2: worth a warning."""

R = TypeVar("R", bound=Record)


class Headline(NamedTuple):
    """A number to see first: what it is, the number, and its interval."""

    name: str
    value: str
    detail: str


class Figure(NamedTuple):
    """A chart under its heading; a wide one has a row to itself."""

    title: str
    chart: Chart
    wide: bool = False


class Section(NamedTuple):
    """A part of the page. `folded` tables stand behind a click (and are open in print)."""

    anchor: str
    title: str
    notes: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()
    sentences: tuple[InspectedSentence, ...] = ()


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("ani.report").joinpath("template.html").read_text(encoding="utf-8")
    return environment.from_string(source)


def _arithmetic(answers: Sequence[Answer], baseline: str | None) -> tuple[Section, list[Headline]]:
    rows = accuracies(answers)
    operations = list(dict.fromkeys(row.operation for row in rows))
    notes = ["An answer is exact if every digit is right. Bars and small print: Wilson 95% intervals."]
    if any(len(row.by_seed) > 1 for row in rows):
        notes.append("Shares are means over training seeds; intervals are for other problems, not for other seeds.")
    notes += [
        f"{row.run}, {row.operation}: {row.unreadable} of {asked} answers held no number."
        for row in rows
        for asked in [row.overall.total * len(row.by_seed)]
        if row.unreadable
    ]
    section = Section(
        "arithmetic",
        "Arithmetic",
        tuple(notes),
        tuple(
            Figure(
                f"Exact answers, {operation}",
                accuracy_chart(found, f"accuracy-{index}", baseline),
                len(found) > MOST_LINES,
            )
            for index, operation in enumerate(operations)
            for found in [[row for row in rows if row.operation == operation]]
        ),
        (
            accuracy_cells(rows),
            *([difference_cells(differences(answers, baseline), baseline)] if baseline is not None else []),
            *([error_cells(wrong)] if (wrong := errors(answers)) else []),
        ),
    )
    headlines: list[Headline] = []
    if len(rows) > HEADLINES:
        return section, headlines
    for row in rows:
        value, (interval,), _ = percent(row.overall.estimate)
        detail = f"{interval}, n = {row.overall.total}"
        headlines.append(Headline(f"Exact answers, {row.operation}, {row.run}", value, detail))
    return section, headlines


def _gating(decisions: Sequence[GateDecision]) -> tuple[Section, list[Headline]]:
    if runs := gating_by_run(decisions):
        return Section("gating", "Gates and roles", (GATING_NOTE,), tables=(gating_run_cells(runs),)), []
    summary = gating(decisions)
    domains = gating_by_domain(decisions)
    chart = alpha_chart(decisions, "alpha")
    section = Section(
        "gating",
        "Gate and roles",
        (GATING_NOTE,),
        (Figure("α by role", chart),) if chart else (),
        (gating_cells(summary),),
        (gating_domain_cells(domains),) if domains else (),
    )
    headlines = []
    if summary.balanced_accuracy is not None:
        value, (interval,), _ = percent(summary.balanced_accuracy)
        headlines.append(Headline("Roles told apart, balanced accuracy", value, interval))
    return section, headlines


def _language(losses: Sequence[TextLoss], baseline: str | None) -> Section:
    table = language_cells(perplexities(losses, baseline), baseline)
    return Section("language", "Language", (LANGUAGE_NOTE,), tables=(table,))


def _benchmarks(answers: Sequence[BenchmarkAnswer], baseline: str | None) -> Section:
    rows = benchmark_scores(answers)
    pairs = benchmark_differences(answers, baseline) if baseline is not None else []
    notes = [
        f"{BENCHMARK_NAMES[row.task]}, {row.run}: {count} of {row.overall.total * len(row.by_seed)} {what}."
        for row in rows
        for count, what in (
            (row.unreadable, "answers held no answer that could be read"),
            (row.truncated, "prompts were too long and lost their beginning"),
        )
        if count
    ]
    by_task = {task: [row for row in rows if row.task == task] for task in dict.fromkeys(row.task for row in rows)}
    return Section(
        "benchmarks",
        "Benchmarks",
        (BENCHMARKS_NOTE, *notes),
        tuple(
            Figure(
                f"Right answers, {BENCHMARK_NAMES[task]}",
                bar_chart({row.run: row.overall.estimate for row in found}, f"benchmark-{task}", "Right answers"),
            )
            for task, found in by_task.items()
            if len(found) > 1
        ),
        (
            benchmark_cells(rows),
            *([benchmark_part_cells(rows, subjects=False)] if any(row.by_part for row in rows) else []),
            *([benchmark_difference_cells(pairs, baseline)] if pairs and baseline is not None else []),
        ),
        (
            *([benchmark_part_cells(rows, subjects=True)] if any(row.by_subject for row in rows) else []),
            *(
                [benchmark_difference_cells(pairs, baseline, subjects=True)]
                if baseline is not None and any(pair.by_subject for pair in pairs)
                else []
            ),
        ),
    )


def _gate_shares(texts: Sequence[GatedText]) -> Section:
    rows = gate_shares(texts)
    bars: dict[str, dict[str, Estimate]] = {}
    for row in rows:
        share, low, high = row.numbers["share"], row.numbers["low"], row.numbers["high"]
        if share is not None and low is not None and high is not None:
            where, name = ("", row.source) if row.group is None else (row.source, row.group)
            bars.setdefault(where, {})[name] = Estimate(share, low, high)
    return Section(
        "gate-shares",
        "Open gates by text",
        (GATE_SHARES_NOTE,),
        tuple(
            Figure(
                f"Numbers injected, {source}" if source else "Numbers injected",
                bar_chart(shares, f"gate-shares-{index}", "Share of numbers injected"),
            )
            for index, (source, shares) in enumerate(bars.items())
        ),
        (gate_share_cells([row for row in rows if row.group is None]),),
        tuple(
            gate_share_cells(found)
            for source in dict.fromkeys(row.source for row in rows)
            if (found := [row for row in rows if row.source == source and row.group is not None])
        ),
    )


def _training(log: Sequence[TrainingStep]) -> Section:
    # A resumed run logs the steps since its checkpoint again: the later record counts.
    steps = {record.step: record for record in log}
    log = [steps[step] for step in sorted(steps)]
    charts = (
        ("Training loss", loss_chart(log, "loss"), False),
        ("Open gates by role", gate_chart(log, "gates"), False),
        ("Further quantities", signals_chart(log, "signals"), True),
    )
    return Section(
        "training",
        "Training",
        (f"{len(log)} logged steps, {log[0].step} to {log[-1].step}.",),
        tuple(Figure(title, chart, wide) for title, chart, wide in charts if chart),
    )


def _inspected(sentences: Sequence[InspectedSentence]) -> Section:
    return Section(
        "inspected",
        "Inspected sentences",
        (
            "Every number of a sentence with its gate: ● underlined, open (the number's features are "
            "injected); ○ dashed, closed (left alone).",
        ),
        sentences=tuple(sentences),
    )


def _layers(curve: Sequence[LayerProbe], selection: SelectedLayer | None) -> tuple[Section, list[Headline]]:
    section = Section(
        "layers",
        "Which layer",
        (PROBES_NOTE,) if selection is None else (selection.reason, PROBES_NOTE),
        (Figure("Roles read by linear probes", layers_chart(curve, selection, "layers")),),
        folded=(layers_cells(curve, selection),),
    )
    if selection is None:
        return section, []
    held_out = next(probe.held_out for probe in curve if probe.layer == selection.layer)
    value, (interval,), _ = percent(held_out)
    return section, [Headline("Injection layer", str(selection.layer), f"roles read held out: {value}, {interval}")]


def _layer_effects(
    answers: Sequence[Answer], judged: Sequence[BenchmarkAnswer], run: Run, curve: Sequence[LayerProbe]
) -> Section | None:
    """Of MATH as in the paper, or else of arithmetic; None where fewer than three layers can be compared."""
    layers = {cell.variant: cell.layer for cell in run.cells if cell.layer is not None}
    shares = {row.run: row.overall for row in benchmark_scores(judged) if row.task == "math"}
    task = "right answers to MATH" if shares else "exact answers of all operations"
    effects = layer_effects(shares or exact_shares(answers), layers, curve)
    if len(effects) < FEWEST_LAYERS:
        return None
    unprobed = sorted(set(layers.values()) - {probe.layer for probe in curve})
    left_out = [f"Not probed, so left out: layer {layer}." for layer in unprobed]
    found = correlation([effect.probe.value for effect in effects], [effect.task.estimate.value for effect in effects])
    return Section(
        "layer-effects",
        "Layer sensitivity",
        (f"Task accuracy: {task}. {EFFECTS_NOTE}", _correlation_note(found), *left_out),
        (
            Figure("By layer", layer_effects_chart(effects, curve, "layer-effects")),
            Figure("Task over probe", task_over_probe_chart(effects, "task-over-probe")),
        ),
        (layer_effects_cells(effects),),
    )


def _correlation_note(found: Correlation | None) -> str:
    if found is None:
        return "Task and probe accuracy have no correlation: one of them is the same at all layers."
    note = (
        f"Over {found.points} layers: Pearson's r = {found.pearson:+.2f} (95% interval {found.low:+.2f} to "
        f"{found.high:+.2f}, p = {found.pearson_p:.3f}), Spearman's ρ = {found.spearman:+.2f} "
        f"(p = {found.spearman_p:.3f}); p two-sided, by permutation."
    )
    if found.high - found.low > WIDE:
        note += (
            f" {found.points} layers say little: the interval is wide, {found.high - found.low:.2f} of the 2 that a "
            "correlation can span."
        )
    return f"{note} Both take the points as exact, which they are not."


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _provenance(run: Run) -> dict[str, dict[str, str]]:
    facts = {
        "Model": run.model,
        "Layer": run.layer,
        "Policy": run.policy,
        "Adapter": run.adapter,
        "Backend": run.backend if run.model is not None else None,  # a folder of several models names neither
        "Commit": run.commit,
        "Command": run.command,
        "Date": run.date,
    }
    groups = {
        "Run": {name: str(value) for name, value in facts.items() if value is not None},
        "Settings": {name: _setting(value) for name, value in run.settings.items()},
        "Packages": dict(sorted(run.packages.items())),
    }
    return {title: entries for title, entries in groups.items() if entries}


def _read(folder: Path, name: str, kind: type[R]) -> list[R]:
    path = folder / name
    return read_lines(path, kind) if path.exists() else []


def _read_curve(folder: Path) -> list[LayerProbe]:
    records = _read(folder, LAYERS, ProbedLayer)
    try:
        return layer_probes(records)
    except InputError as error:
        raise InputError(f"{folder / LAYERS}: {error}") from error


def _read_selection(folder: Path, curve: Sequence[LayerProbe]) -> SelectedLayer | None:
    path = folder / SELECTION
    if not path.exists():
        return None
    selection = read_object(path, SelectedLayer)
    known = {probe.layer for probe in curve}
    for layer in (selection.layer, selection.best, selection.argmax, selection.early_peak):
        if layer is not None and layer not in known:
            raise InputError(f"{path}: layer {layer} is not in {LAYERS}; `ani probe` writes both")
    return selection


def build_report(folder: Path) -> Path:
    """Writes `report.html` in `folder` from the result files found there.

    Reads `run.json` and `RESULTS`, all optional; a section appears only if its file exists and holds a record, and that
    on layer sensitivity if a comparison's runs inject at three of the probed layers or more. The page loads nothing,
    runs no script, and replaces an older one in one step.

    Returns:
        The path of the page.

    Raises:
        InputError: no result file in the folder, or one is malformed (the message names file and line).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that `ani train` or `ani eval` wrote to")
    has_run = (folder / RUN).exists()
    run = read_object(folder / RUN, Run) if has_run else Run()
    sections: list[Section] = []
    headlines: list[Headline] = []
    if answers := _read(folder, ARITHMETIC, Answer):
        section, found = _arithmetic(answers, run.baseline)
        sections.append(section)
        headlines += found
    if decisions := _read(folder, GATING, GateDecision):
        section, found = _gating(decisions)
        sections.append(section)
        headlines += found
    if judged := [answer for name in BENCHMARK_FILES for answer in _read(folder, name, BenchmarkAnswer)]:
        sections.append(_benchmarks(judged, run.baseline))
    if queries := _read(folder, ROUTING, RoutedQuery):
        tables = (routing_cells(routing(queries)),)
        sections.append(Section("routing", "Tool routing", (ROUTING_NOTE,), tables=tables))
    if tagged := _read(folder, FINER, TaggedDecision):
        tables = (finer_cells(finer(tagged)),)
        sections.append(Section("finer", "FiNER-139", (FINER_NOTE,), tables=tables))
    if texts := _read(folder, GATE_SHARES, GatedText):
        sections.append(_gate_shares(texts))
    if losses := _read(folder, LANGUAGE, TextLoss):
        sections.append(_language(losses, run.baseline))
    if sentences := _read(folder, INSPECTED, InspectedSentence):
        sections.append(_inspected(sentences))
    if curve := _read_curve(folder):
        section, found = _layers(curve, _read_selection(folder, curve))
        sections.append(section)
        headlines += found
        if effects := _layer_effects(answers, judged, run, curve):
            sections.append(effects)
    if log := _read(folder, TRAINING, TrainingStep):
        sections.append(_training(log))
    if not sections and not has_run:
        raise InputError(
            f"{folder} holds no results (none of {RUN}, {', '.join(RESULTS)}, or only empty ones); `ani demo`, "
            "`ani train`, `ani eval --out`, `ani gate-shares --out`, `ani probe --out` and `ani compare` write them"
        )
    page = folder / "report.html"
    text = _template().render(
        run=run, sections=sections, headlines=headlines, provenance=_provenance(run) if has_run else {}
    )
    with replacing_file(page) as file:
        file.write(text)
    return page
