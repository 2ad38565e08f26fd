"""Does the gate tell names from quantities? Knows nothing about how it learnt to."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import Field

from ani.data.diagnostic import DiagnosticSentence, Role, diagnostic_sentences
from ani.evaluation.backend import Backend
from ani.evaluation.task import Answers, GateTask, Measured
from ani.results.files import Integer, Probability, Run
from ani.results.scores import ONE_MODEL, TaskRecord, by_seed, grouped
from ani.results.sections import Figure, Histogram, Section, headline
from ani.results.statistics import Estimate, mean_of_two, mean_share, share_facts
from ani.results.tables import MISSING, Cell, Table, count, percent


class GateDecision(TaskRecord):
    """The gate's decision about one number of a labelled sentence, a line of `gating.jsonl`."""

    text: str | None = None
    """The sentence."""
    start: Integer | None = None
    end: Integer | None = None
    value: str | None = None
    role: Role
    alpha: Probability | None = None
    """σ(z); None where the number got nothing (`NumberDecision.alpha`)."""
    injected: bool
    domain: str | None = None

    @property
    def identity(self) -> tuple[str, str | None]:
        """Role and domain."""
        return self.role, self.domain

    @property
    def right(self) -> bool:
        """Whether the gate did what the role asks for: open for a quantity, closed for a name."""
        return self.injected == (self.role == "quantitative")


class Separation(NamedTuple):
    """How well the gate tells roles apart. None where a role (or, for `auc`, an alpha) is missing."""

    nominal_closed: Estimate | None
    quantitative_open: Estimate | None
    auc: float | None
    """P(α of a quantitative number > α of a nominal one) + P(equal)/2, the rank statistic: what any threshold could
    reach, where the shares are for the threshold in use."""

    @property
    def balanced_accuracy(self) -> Estimate | None:
        """Mean of the two shares."""
        if self.nominal_closed is None or self.quantitative_open is None:
            return None
        return mean_of_two(self.nominal_closed, self.quantitative_open)


class Gating(GateTask, Measured):
    """Held-out sentences whose numbers have known roles; for models with a gate."""

    name = "gating"
    title = "Gate and roles"
    note = (
        "Held-out sentences: a quantitative number (an operand) should open the gate, a nominal one (a name) should "
        "leave it closed. Intervals take numbers as independent, which those of one sentence, or of sentences made "
        "from one template, are not quite."
    )
    caption = "How well the gate tells the roles apart, with 95% intervals"
    unit = "sentences"
    record = GateDecision
    gates_numbers = True

    count: int = Field(default=100, ge=1)
    """Sentences."""

    def questions(self, seed: int) -> list[DiagnosticSentence]:
        return diagnostic_sentences(self.count, split="test", seed=seed)

    def answer(self, backend: Backend, questions: Sequence[DiagnosticSentence]) -> Answers:
        """A record for each number. Raises InputError as `Backend.decide_roles`."""
        for place, (text, roles, _, domain, _) in enumerate(questions):
            numbers = zip(backend.decide_roles(text, self.before), roles, strict=True)
            decided = [{**found.model_dump(mode="json", exclude={"text"}), "role": role} for found, role in numbers]
            yield place, [GateDecision(run=ONE_MODEL, text=text, domain=domain, **facts) for facts in decided]

    @classmethod
    def summary(cls, records: Sequence[GateDecision]) -> dict[str, Any]:
        found = separation(records)
        return {"nominal": share_facts(found.nominal_closed), "quantitative": share_facts(found.quantitative_open)}

    @classmethod
    def measures(cls, records: Sequence[GateDecision]) -> dict[str, tuple[str, Estimate | None]]:
        found = separation(*by_seed(records[0].run, records))
        return {
            "nominal": ("Nominal numbers left alone (gate closed)", found.nominal_closed),
            "quantitative": ("Quantitative numbers injected (gate open)", found.quantitative_open),
            "balanced_accuracy": ("Balanced accuracy", found.balanced_accuracy),
        }

    @classmethod
    def tables(cls, records: Sequence[GateDecision], baseline: str | None = None) -> list[Table]:
        (table,) = super().tables(records, baseline)
        found = [(each.auc, each.balanced_accuracy) for each in separations(records).values()]
        cells = [
            Cell(MISSING) if auc is None or balanced is None else Cell(f"{auc:.3f}", (count(balanced),))
            for auc, balanced in found
        ]
        return [table._replace(rows=(*table.rows, (Cell("AUC of α"), *cells)))]

    @classmethod
    def section(cls, records: Sequence[GateDecision], run: Run) -> Section:
        shown = super().section(records, run)
        if _is_comparison(records):
            return shown._replace(title="Gates and roles")
        summary = separation(records)
        alphas = {role: [r.alpha for r in records if r.role == role and r.alpha is not None] for role in ROLES}
        domains = grouped(records, lambda record: record.domain)
        headlines = []
        if (balanced := summary.balanced_accuracy) is not None:
            headlines.append(headline("Roles told apart, balanced accuracy", balanced))
        return shown._replace(
            figures=(Figure("α by role", Histogram(alphas)),) if any(alphas.values()) else (),
            folded=(_by_domain(domains),) if domains else (),
            headlines=tuple(headlines),
        )


ROLES = ("quantitative", "nominal")


def separation(*seeds: Sequence[GateDecision]) -> Separation:
    """Of one model's decisions; of those of several seeds, about the same numbers, the mean."""

    def right(role: Role) -> Estimate | None:
        cases = [[record.right for record in seed if record.role == role] for seed in seeds]
        return mean_share([(sum(seed), len(seed)) for seed in cases]) if cases[0] else None

    aucs = [auc for auc in map(_auc, seeds) if auc is not None]
    mean = sum(aucs) / len(aucs) if len(aucs) == len(seeds) else None
    return Separation(right("nominal"), right("quantitative"), mean)


def _auc(records: Sequence[GateDecision]) -> float | None:
    quantitative, nominal = ([r.alpha for r in records if r.role == role] for role in ROLES)
    alphas = sorted(alpha for alpha in nominal if alpha is not None)
    if not quantitative or not nominal or None in quantitative or len(alphas) < len(nominal):
        return None
    below = sum(bisect_left(alphas, alpha) + bisect_right(alphas, alpha) for alpha in quantitative if alpha is not None)
    return below / (2 * len(nominal) * len(quantitative))


def separations(records: Sequence[GateDecision]) -> dict[str, Separation]:
    """Those of a comparison's runs, means over seeds. Raises InputError if seeds were shown different numbers."""
    runs = grouped(records, lambda record: record.run)
    return {run: separation(*by_seed(run, of_run)) for run, of_run in runs.items()}


def _is_comparison(records: Sequence[GateDecision]) -> bool:
    return any(record.run != ONE_MODEL for record in records)


def _by_domain(domains: dict[str, list[GateDecision]]) -> Table:
    found = {domain: separation(domains[domain]) for domain in sorted(domains)}
    return Table(
        "The gate by domain, with Wilson 95% intervals",
        ("Domain", "Nominal closed", "Quantitative open"),
        tuple(
            (Cell(name), percent(each.nominal_closed), percent(each.quantitative_open)) for name, each in found.items()
        ),
        label_columns=1,
    )
