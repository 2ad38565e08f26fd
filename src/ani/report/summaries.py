"""The numbers that tables, figures and the page show, each computed here and nowhere else.

Knows nothing about files or how anything is displayed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil, floor, hypot
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.stats import PermutationMethod, pearsonr, rankdata

from ani.errors import InputError
from ani.evaluation.statistics import (
    GroupedShare,
    PairedDifference,
    bootstrap_means,
    grouped_share,
    paired_bootstrap,
    wilson_interval,
)
from ani.report.records import (
    Answer,
    BenchmarkAnswer,
    GateDecision,
    GatedText,
    ProbedLayer,
    RoutedNumber,
    RoutedQuery,
    TaggedDecision,
    TextLoss,
)

T = TypeVar("T", Answer, BenchmarkAnswer, GateDecision, TextLoss)
K = TypeVar("K", int, str)


class Estimate(NamedTuple):
    """A number, such as a share in [0, 1] or a difference of two, with its 95% interval [low, high]."""

    value: float
    low: float
    high: float


class Share(NamedTuple):
    """`successes` of `total` cases, total > 0; a mean over seeds, so `successes` may be a fraction."""

    successes: float
    total: int

    @property
    def estimate(self) -> Estimate:
        """The share with its Wilson 95% interval, a fraction of a success rounded outward.

        The interval is for other cases, not for other seeds. With several seeds it is rather too wide: a case's mean
        over seeds varies no more than a single answer, for which the interval is made.
        """
        low, _ = wilson_interval(floor(self.successes), self.total)
        _, high = wilson_interval(ceil(self.successes), self.total)
        return Estimate(self.successes / self.total, low, high)


def _share(cases: Iterable[bool]) -> Share | None:
    cases = list(cases)
    return Share(sum(cases), len(cases)) if cases else None


def _by_seed(run: str, records: Sequence[T]) -> list[list[T]]:
    """The records of each seed of a run. Raises InputError if seeds were asked different problems."""
    seeds: dict[int | None, list[T]] = {}
    for record in records:
        seeds.setdefault(record.seed, []).append(record)
    groups = list(seeds.values())
    asked = [Counter(map(_question, group)) for group in groups]
    if any(questions != asked[0] for questions in asked):
        raise InputError(f"run {run!r}: its seeds {', '.join(map(str, seeds))} were not asked the same problems")
    return groups


def _question(record: Answer | BenchmarkAnswer | GateDecision | TextLoss) -> tuple[object, ...]:
    match record:
        case Answer():
            return record.digits, record.prompt
        case BenchmarkAnswer():
            return record.id, record.prompt_hash
        case GateDecision():
            return record.role, record.domain
        case TextLoss():
            return record.kind, record.text


def _mean_share(seeds: Iterable[Share]) -> Share:
    seeds = list(seeds)
    return Share(sum(share.successes for share in seeds) / len(seeds), seeds[0].total)


class Accuracy(NamedTuple):
    """Exact-match accuracy of one run on one operation, the mean over its seeds."""

    operation: str
    run: str
    by_digits: dict[int, Share]
    overall: Share
    unreadable: int
    """Answers of all seeds that held no number (`prediction` null); they count as wrong or right as recorded."""
    by_seed: tuple[Share, ...]
    """`overall` of each seed; one entry where answers have no seed."""


def accuracies(answers: Sequence[Answer]) -> list[Accuracy]:
    """One entry an operation and run, both in order of appearance; digits ascending.

    Raises:
        InputError: the seeds of a run were asked different problems.
    """
    result = []
    for operation, runs in _by_operation(answers).items():
        for run, group in runs.items():
            correct: dict[int, list[bool]] = {}
            for answer in group:
                correct.setdefault(answer.digits, []).append(answer.correct)
            seeds = _by_seed(run, group)
            by_seed = tuple(Share(sum(answer.correct for answer in answers), len(answers)) for answers in seeds)
            result.append(
                Accuracy(
                    operation,
                    run,
                    {
                        digits: Share(sum(correct[digits]) / len(seeds), len(correct[digits]) // len(seeds))
                        for digits in sorted(correct)
                    },
                    _mean_share(by_seed),
                    sum(answer.prediction is None for answer in group),
                    by_seed,
                )
            )
    return result


def _by_operation(answers: Iterable[Answer]) -> dict[str, dict[str, list[Answer]]]:
    groups: dict[str, dict[str, list[Answer]]] = {}
    for answer in answers:
        groups.setdefault(answer.operation, {}).setdefault(answer.run, []).append(answer)
    return groups


class Difference(NamedTuple):
    """How much more accurate a run is than the baseline on one operation, both on the same problems."""

    operation: str
    run: str
    by_digits: dict[int, PairedDifference]
    overall: PairedDifference


def differences(answers: Sequence[Answer], baseline: str) -> list[Difference]:
    """One entry an operation and run but the baseline, in order of appearance; digits ascending.

    Raises:
        InputError: a run, or a seed of it, was asked other problems than the baseline, or answers lack their prompt.
    """
    for answer in answers:
        if answer.prompt is None:
            raise InputError(f"run {answer.run!r}: an answer lacks its prompt, so runs can't be compared in pairs")
    result = []
    for operation, runs in _by_operation(answers).items():
        for run in runs:
            if run != baseline:
                pairs = _pairs(operation, runs, run, baseline)
                result.append(Difference(operation, run, pairs.by(lambda answer: answer.digits), pairs.overall()))
    return result


class _Pairs(NamedTuple, Generic[T]):
    """The problems that two runs were asked, and their scores, (N, seeds) each."""

    problems: list[T]
    scores: tuple[NDArray[np.float64], NDArray[np.float64]]

    def overall(self) -> PairedDifference:
        return paired_bootstrap(*self.scores)

    def by(self, key: Callable[[T], K | None]) -> dict[K, PairedDifference]:
        """By the keys of problems, ascending; those whose key is None are left out."""
        keys = [key(problem) for problem in self.problems]
        return {
            value: paired_bootstrap(*(scores[[found == value for found in keys]] for scores in self.scores))
            for value in sorted({found for found in keys if found is not None})
        }


def _pairs(what: str, runs: Mapping[str, Sequence[T]], run: str, baseline: str) -> _Pairs[T]:
    """Raises InputError if the runs, or two seeds of one, were asked different problems."""
    scores: list[dict[tuple[object, ...], list[bool]]] = []
    for name in (run, baseline):
        scores.append({})
        for answer in (answer for seed in _by_seed(name, runs.get(name, [])) for answer in seed):
            scores[-1].setdefault(_question(answer), []).append(cast(Answer | BenchmarkAnswer, answer).correct)
    if scores[0].keys() != scores[1].keys():
        other = len(scores[0].keys() ^ scores[1].keys())
        raise InputError(
            f"{what}: runs {run!r} and {baseline!r} were asked different problems or with different prompts ({other} "
            "that only one has); evaluate both on the same data with the same settings"
        )
    first = {_question(answer): answer for answer in runs[run]}
    own, other_scores = (np.array([answers[question] for question in first], dtype=float) for answers in scores)
    return _Pairs(list(first.values()), (own, other_scores))


class BenchmarkScore(NamedTuple):
    """Accuracy of one run on one benchmark, the mean over its seeds."""

    task: str
    run: str
    overall: Share
    by_part: dict[str, Share]
    """MATH: levels 1–3 and 4–5; MMLU: its four groups."""
    by_subject: dict[str, Share]
    by_seed: tuple[Share, ...]
    unreadable: int
    """Answers of all seeds in which no answer was found; they count as wrong."""
    truncated: int
    """Prompts of all seeds that lost their beginning."""


def benchmark_scores(answers: Sequence[BenchmarkAnswer]) -> list[BenchmarkScore]:
    """One entry a benchmark and run, both in order of appearance; parts and subjects in alphabetical order.

    Raises:
        InputError: the seeds of a run were asked different questions.
    """
    result = []
    for task, runs in _by_task(answers).items():
        for run, group in runs.items():
            seeds = _by_seed(run, group)

            by_seed = tuple(Share(sum(answer.correct for answer in seed), len(seed)) for seed in seeds)
            result.append(
                BenchmarkScore(
                    task,
                    run,
                    _mean_share(by_seed),
                    _shares(seeds, lambda answer: answer.part),
                    _shares(seeds, lambda answer: answer.subject),
                    by_seed,
                    sum(answer.prediction is None for answer in group),
                    sum(answer.truncated for answer in group),
                )
            )
    return result


def _shares(
    seeds: Sequence[Sequence[BenchmarkAnswer]], key: Callable[[BenchmarkAnswer], str | None]
) -> dict[str, Share]:
    groups: list[dict[str, list[bool]]] = []
    for seed in seeds:
        groups.append({})
        for answer in seed:
            if (value := key(answer)) is not None:
                groups[-1].setdefault(value, []).append(answer.correct)
    return {
        value: _mean_share(Share(sum(group[value]), len(group[value])) for group in groups)
        for value in sorted(groups[0])
    }


class BenchmarkDifference(NamedTuple):
    """How much more accurate a run is than the baseline on one benchmark (paper, "Fine-grained bootstrap")."""

    task: str
    run: str
    overall: PairedDifference
    by_part: dict[str, PairedDifference]
    by_subject: dict[str, PairedDifference]


def benchmark_differences(answers: Sequence[BenchmarkAnswer], baseline: str) -> list[BenchmarkDifference]:
    """One entry a benchmark and run but the baseline, in order of appearance.

    Raises:
        InputError: a run, or a seed of it, was asked other questions than the baseline, or with other prompts.
    """
    result = []
    for task, runs in _by_task(answers).items():
        for run in runs:
            if run != baseline:
                pairs = _pairs(task, runs, run, baseline)
                by_part, by_subject = pairs.by(lambda answer: answer.part), pairs.by(lambda answer: answer.subject)
                result.append(BenchmarkDifference(task, run, pairs.overall(), by_part, by_subject))
    return result


def _by_task(answers: Iterable[BenchmarkAnswer]) -> dict[str, dict[str, list[BenchmarkAnswer]]]:
    groups: dict[str, dict[str, list[BenchmarkAnswer]]] = {}
    for answer in answers:
        groups.setdefault(answer.task, {}).setdefault(answer.run, []).append(answer)
    return groups


class RoutingSummary(NamedTuple):
    """Are names kept out of a tool's arguments? Shares with 95% intervals, queries resampled as wholes."""

    traps_closed: GroupedShare
    operands_open: GroupedShare
    """By the gate; of no number without one."""
    called: GroupedShare
    """Queries with a readable call."""
    malformed: GroupedShare
    none: GroupedShare
    exact: GroupedShare
    """Queries with one call, of every operand and nothing else."""
    traps_avoided: GroupedShare
    """Of all traps: one of a query without a readable call is no success."""
    traps_avoided_when_called: GroupedShare
    """Of the traps in queries with a readable call."""
    operands_passed: GroupedShare


def routing(records: Sequence[RoutedQuery]) -> RoutingSummary:
    """Summary over all queries (paper, "Synthetic Evaluation on Gating Accuracy and Agentic Tool-Routing")."""
    numbers = [(index, record, number) for index, record in enumerate(records) for number in record.numbers]
    traps = [entry for entry in numbers if entry[2].role == "nominal"]
    operands = [entry for entry in numbers if entry[2].role == "quantitative"]

    def share(
        entries: Iterable[tuple[int, RoutedQuery, RoutedNumber]], right: Callable[[RoutedNumber], bool]
    ) -> GroupedShare:
        chosen = list(entries)
        return grouped_share([right(number) for _, _, number in chosen], [index for index, _, _ in chosen])

    def queries(right: Callable[[RoutedQuery], bool]) -> GroupedShare:
        return grouped_share([right(record) for record in records], range(len(records)))

    return RoutingSummary(
        share((entry for entry in traps if entry[2].injected is not None), lambda number: number.injected is False),
        share((entry for entry in operands if entry[2].injected is not None), lambda number: number.injected is True),
        queries(lambda record: record.call == "called"),
        queries(lambda record: record.call == "malformed"),
        queries(lambda record: record.call == "none"),
        queries(lambda record: record.exact),
        share(traps, lambda number: number.passed is False),
        share((entry for entry in traps if entry[1].call == "called"), lambda number: number.passed is False),
        share(operands, lambda number: number.passed is True),
    )


class FinerSummary(NamedTuple):
    """Does the gate bypass FiNER-139's nominal tags? Shares with 95% intervals, sentences resampled as wholes."""

    nominal_bypassed: GroupedShare
    """Numbers under a nominal tag with a closed gate. We read the paper's "75.8% precision in bypassing these nominal
    identifiers" so; a gate that is always closed would get all of it, so it wants reading beside the next."""
    quantitative_injected: GroupedShare
    """The other tagged numbers with an open gate."""
    precision: GroupedShare
    """In the word's usual sense, of the tagged numbers with a closed gate the nominal ones; depends on how many
    sentences of each kind were read."""


def finer(records: Sequence[TaggedDecision]) -> FinerSummary:
    """Summary over all tagged numbers."""

    def share(chosen: Iterable[TaggedDecision], right: Callable[[TaggedDecision], bool]) -> GroupedShare:
        listed = list(chosen)
        return grouped_share([right(record) for record in listed], [record.text for record in listed])

    return FinerSummary(
        share((record for record in records if record.role == "nominal"), lambda record: not record.injected),
        share((record for record in records if record.role == "quantitative"), lambda record: record.injected),
        share((record for record in records if not record.injected), lambda record: record.role == "nominal"),
    )


class GateShare(NamedTuple):
    """How often α = 1; the paper doesn't say whether its "instances" are numbers or texts."""

    source: str
    group: str | None
    texts: int
    numbers: GroupedShare
    """Of all numbers, texts resampled as wholes."""
    texts_open: GroupedShare
    """Of the texts that hold a number: those with an open gate."""


def gate_shares(records: Sequence[GatedText]) -> list[GateShare]:
    """One entry a source, in order of appearance, and after it one for each of its groups, if it has two or more, from
    the greatest share of numbers to the least (paper, Figure "Interpretability Analysis")."""
    result = []
    for source in dict.fromkeys(record.source for record in records):
        texts = [record for record in records if record.source == source]
        groups = dict.fromkeys(record.group for record in texts if record.group is not None)
        result.append(_gate_share(source, None, texts))
        if len(groups) > 1:
            found = [_gate_share(source, group, [t for t in texts if t.group == group]) for group in groups]
            result += sorted(found, key=lambda share: share.numbers["share"] or 0.0, reverse=True)
    return result


def _gate_share(source: str, group: str | None, texts: Sequence[GatedText]) -> GateShare:
    decisions = [(index, number.injected) for index, text in enumerate(texts) for number in text.numbers]
    numbered = [text for text in texts if text.numbers]
    return GateShare(
        source,
        group,
        len(texts),
        grouped_share([opened for _, opened in decisions], [index for index, _ in decisions]),
        grouped_share([any(number.injected for number in text.numbers) for text in numbered], range(len(numbered))),
    )


class Errors(NamedTuple):
    """How the wrong answers of one run to one operation are wrong, those of all seeds together."""

    operation: str
    run: str
    asked: int
    carries: int
    """Of the right length, and every wrong digit one too high or too low (modulo 10), as if it had lost a carry."""
    digits: int
    """Of the right length, with another wrong digit."""
    length: int
    """Of another length or sign, or no number."""


def errors(answers: Sequence[Answer]) -> list[Errors]:
    """One entry an operation and run, both in order of appearance; those without the right answer are left out."""
    return [
        Errors(operation, run, len(group), *(kinds.count(kind) for kind in ("carries", "digits", "length")))
        for operation, runs in _by_operation(answers).items()
        for run, group in runs.items()
        if all(answer.answer is not None for answer in group)
        for kinds in [[_kind_of_error(answer) for answer in group if not answer.correct]]
    ]


def _kind_of_error(answer: Answer) -> str:
    right, given = str(answer.answer), answer.prediction or ""
    written = given.removeprefix("-").isdecimal() and right.removeprefix("-").isdecimal()
    if not written or len(right) != len(given) or right.startswith("-") != given.startswith("-"):
        return "length"
    pairs = [(a, b) for a, b in zip(right, given, strict=True) if a != b]
    return "carries" if all((int(a) - int(b)) % 10 in (1, 9) for a, b in pairs) else "digits"


class Gating(NamedTuple):
    """How well the gate tells roles apart. None where a role (or, for `auc`, an alpha) is missing."""

    nominal_closed: Share | None
    quantitative_open: Share | None
    auc: float | None

    @property
    def balanced_accuracy(self) -> Estimate | None:
        """Mean of the two shares, its 95% interval combined from theirs.

        Square-and-add (Newcombe 1998; MOVER, Zou & Donner 2008): the distances from the estimate to the
        limits of independent intervals add in quadrature. Stays within [0, 1], unlike a normal interval.
        """
        if self.nominal_closed is None or self.quantitative_open is None:
            return None
        a, b = self.nominal_closed.estimate, self.quantitative_open.estimate
        value = (a.value + b.value) / 2
        return Estimate(
            value,
            value - hypot(a.value - a.low, b.value - b.low) / 2,
            value + hypot(a.high - a.value, b.high - b.value) / 2,
        )


def gating(decisions: Sequence[GateDecision]) -> Gating:
    """Summary over all decisions.

    `auc` is P(α of a quantitative number > α of a nominal one) + P(equal)/2, the rank statistic: what any
    threshold could reach, where the shares are for the threshold in use.
    """
    by_role = {
        role: [decision for decision in decisions if decision.role == role] for role in ("nominal", "quantitative")
    }
    nominal, quantitative = (
        [decision.alpha for decision in group if decision.alpha is not None] for group in by_role.values()
    )
    auc = None
    if nominal and quantitative and len(nominal) + len(quantitative) == len(decisions):
        ranks = rankdata([*quantitative, *nominal])[: len(quantitative)]
        pairs = len(nominal) * len(quantitative)
        auc = (float(ranks.sum()) - len(quantitative) * (len(quantitative) + 1) / 2) / pairs
    return Gating(
        _share(decision.right for decision in by_role["nominal"]),
        _share(decision.right for decision in by_role["quantitative"]),
        auc,
    )


def gating_by_run(decisions: Sequence[GateDecision]) -> dict[str, Gating]:
    """The same a run of a comparison, in order of appearance: means over seeds; decisions without a run are left out.

    Raises:
        InputError: the seeds of a run were shown different numbers.
    """
    groups: dict[str, list[GateDecision]] = {}
    for decision in decisions:
        if decision.run is not None:
            groups.setdefault(decision.run, []).append(decision)
    result = {}
    for run, group in groups.items():
        seeds = [gating(seed) for seed in _by_seed(run, group)]
        nominal = [seed.nominal_closed for seed in seeds if seed.nominal_closed is not None]
        quantitative = [seed.quantitative_open for seed in seeds if seed.quantitative_open is not None]
        aucs = [seed.auc for seed in seeds if seed.auc is not None]
        result[run] = Gating(
            _mean_share(nominal) if nominal else None,
            _mean_share(quantitative) if quantitative else None,
            sum(aucs) / len(aucs) if len(aucs) == len(seeds) else None,
        )
    return result


def gating_by_domain(decisions: Sequence[GateDecision]) -> dict[str, Gating]:
    """The same a domain, in alphabetical order; decisions without a domain are left out."""
    groups: dict[str, list[GateDecision]] = {}
    for decision in decisions:
        if decision.domain is not None:
            groups.setdefault(decision.domain, []).append(decision)
    return {domain: gating(groups[domain]) for domain in sorted(groups)}


class Perplexity(NamedTuple):
    """How well one run predicts the word tokens of one kind of text, the mean over its seeds."""

    value: Estimate
    """exp of the mean loss of a word token, of all seeds."""
    texts: int
    seeds: int
    difference: Estimate | None
    """Mean loss minus the baseline's, in nats; None for the baseline, or without one."""


def perplexities(losses: Sequence[TextLoss], baseline: str | None = None) -> dict[str, dict[str, Perplexity]]:
    """Run, in order of appearance → kind of text → its perplexity.

    Intervals are percentiles over 1,000 resamples of texts, each drawn with its loss and tokens under both runs, so
    differences are paired. They are for other texts, not for other seeds.

    Raises:
        InputError: the seeds of a run were given different texts, or a run other texts than the baseline.
    """
    runs: dict[str, list[TextLoss]] = {}
    # A text's loss and tokens, summed over seeds: their ratio doesn't mind how many there are.
    sums: dict[str, dict[str, dict[str, NDArray[np.float64]]]] = {}
    for record in losses:
        runs.setdefault(record.run, []).append(record)
        texts = sums.setdefault(record.run, {}).setdefault(record.kind, {})
        texts.setdefault(record.text, np.zeros(2))[:] += record.loss, record.tokens
    result: dict[str, dict[str, Perplexity]] = {}
    for run, kinds in sums.items():
        seeds, result[run] = len(_by_seed(run, runs[run])), {}
        for kind, texts in kinds.items():
            others = texts if baseline is None else sums.get(baseline, {}).get(kind, {})
            if texts.keys() != others.keys():
                raise InputError(f"{kind} texts: runs {run!r} and {baseline!r} were given different ones")
            rows = np.array([[*texts[text], *others[text]] for text in others])
            means = np.vstack([rows.mean(axis=0), bootstrap_means(rows)])
            own, other = means[:, 0] / means[:, 1], means[:, 2] / means[:, 3]
            difference = None if baseline in (None, run) else _estimate(own - other)
            result[run][kind] = Perplexity(_estimate(np.exp(own)), len(texts), seeds, difference)
    return result


def _estimate(values: NDArray[np.float64]) -> Estimate:
    """From the observed value, first, and its resamples."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return Estimate(float(values[0]), float(low), float(high))


class LayerProbe(NamedTuple):
    """How well linear probes read numbers' roles after a layer (paper, Section "Optimal Layer Selection")."""

    layer: int
    random_split: Estimate
    held_out: Estimate
    control: float
    selectivity: Estimate


def layer_probes(records: Iterable[ProbedLayer]) -> list[LayerProbe]:
    """One entry a layer, ascending. Raises InputError if a layer is there twice."""
    curve = [
        LayerProbe(
            record.layer,
            Estimate(record.random_split, record.random_split_low, record.random_split_high),
            Estimate(record.held_out, record.held_out_low, record.held_out_high),
            record.control,
            Estimate(record.selectivity, record.selectivity_low, record.selectivity_high),
        )
        for record in sorted(records, key=lambda record: record.layer)
    ]
    for before, after in pairwise(curve):
        if before.layer == after.layer:
            raise InputError(f"layer {after.layer} was probed twice; keep one of its records")
    return curve


class LayerEffect(NamedTuple):
    """What a run gains from the layer that it injects at, beside what a probe reads there."""

    layer: int
    run: str
    task: Share
    """Right answers, the mean over seeds."""
    probe: Estimate
    """Held-out accuracy."""


def layer_effects(
    shares: Mapping[str, Share], layers: Mapping[str, int], curve: Sequence[LayerProbe]
) -> list[LayerEffect]:
    """One entry a run whose layer was probed, by layer; empty where two runs share a layer, so differ in more.

    Args:
        shares: Run of a comparison: its right answers.
        layers: Run: the layer it injects at. Other runs are left out.
        curve: Of the model before training.
    """
    probes = {probe.layer: probe.held_out for probe in curve}
    effects = [
        LayerEffect(layers[run], run, share, probes[layers[run]])
        for run, share in shares.items()
        if layers.get(run) in probes
    ]
    if len({effect.layer for effect in effects}) < len(effects):
        return []
    return sorted(effects, key=lambda effect: effect.layer)


def exact_shares(answers: Sequence[Answer]) -> dict[str, Share]:
    """Run: exact answers of all operations, the mean over seeds. Raises InputError as `accuracies`."""
    shares: dict[str, list[Share]] = {}
    for row in accuracies(answers):
        shares.setdefault(row.run, []).append(row.overall)
    return {
        run: Share(sum(share.successes for share in found), sum(share.total for share in found))
        for run, found in shares.items()
    }


class Correlation(NamedTuple):
    """Of two measures over the same points, taken as exact; p two-sided, by permutation."""

    pearson: float
    low: float
    high: float
    """Of `pearson`: Fisher's 95% interval; all of [-1, 1] for three points."""
    pearson_p: float
    spearman: float
    spearman_p: float
    points: int


def correlation(x: Sequence[float], y: Sequence[float]) -> Correlation | None:
    """Pearson's and Spearman's; None where one of the measures is the same at all points.

    p counts all orders of the points up to eight of them, and 50,000 orders by chance beyond.
    """
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    values = pearsonr(x, y, method=PermutationMethod(n_resamples=50_000, rng=0))
    # Spearman's is Pearson's of the ranks.
    ranks = pearsonr(rankdata(x), rankdata(y), method=PermutationMethod(n_resamples=50_000, rng=0))
    low, high = values.confidence_interval(0.95)
    return Correlation(
        float(values.statistic),
        float(low),
        float(high),
        float(values.pvalue),
        float(ranks.statistic),
        float(ranks.pvalue),
        len(x),
    )
