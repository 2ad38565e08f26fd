"""Linear probes: logistic regressions that read a number's role at each layer.

Every layer has three tests on the same numbers:

- *random split*, the paper's test (Section "Optimal Layer Selection"): sentences of the same domains and templates,
  and often the same numbers, are on both sides;
- *held out*: the domains, templates and number values are new to the probe, so that one that learnt a sentence, a
  number or the words of a domain cannot pass;
- *control task* (Hewitt & Liang, EMNLP 2019, "Designing and Interpreting Probes with Control Tasks"): the random
  split again, with roles shuffled among the number values. A probe can only memorize these. Selectivity is the first
  accuracy minus this one.

The strength of the L2 penalty is cross-validated: each fold takes the one that did best on the other folds.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ani.data.diagnostic import value_split
from ani.errors import InputError
from ani.probing.curve import ProbedNumber
from ani.probing.states import NumberStates

FOLDS = 4
STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Values of scikit-learn's C, times the hidden size: a wider state needs a stronger penalty. Ascending."""
MIN_TESTED = 30
"""Minimum number of tested numbers per role in the held-out test."""
_TOLERANCE = 1e-5  # of the greatest slope; at scikit-learn's 1e-4 single predictions still change
_STEPS = 1000
_CONSTANT = 1e-6  # share of the whole variance

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class ProbeResults(NamedTuple):
    """The probes' answers, true where right; K layers, N numbers, M of them (or of a second set) held out."""

    layers: tuple[int, ...]
    numbers: list[ProbedNumber]
    random_split: Bools
    """(N, K): right under a random split."""
    seen: Bools
    """(N,): the random split's training part contains the number's value, so that the control task can be learnt."""
    control: Bools
    """(N, K): right in the control task; chance where `seen` is false."""
    held_out_numbers: list[ProbedNumber]
    held_out: Bools
    """(M, K): right on a domain, template and value that the probe has not seen."""
    strengths: tuple[float, ...]
    """The K layers' values of C in the held-out test: the median over the folds."""


def probe_layers(
    states: NumberStates,
    held_out: NumberStates | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    on_layer: Callable[[int], None] = lambda amount: None,
) -> ProbeResults:
    """Fit and test the probes of every layer on `states`, in float32, a layer at a time with all its regressions.

    `held_out` has the numbers of the held-out test, of the same layers; None: `states` itself, domain by domain. It is
    needed where all numbers of a domain have one role. `on_layer` is called with 1 after each layer. Raises InputError
    if the numbers left to learn from, or to test on, have one role.
    """
    asked = held_out if held_out is not None else states
    plan = probing_plan(states.numbers, asked.numbers, held_out is not None, seed)
    found = []
    for index in range(len(states.layers)):
        known = states.states[index].to(device).float()
        found.append(_probe_layer(known, known if held_out is None else asked.states[index].to(device).float(), plan))
        on_layer(1)
    random_split, control, right, strengths = zip(*found, strict=True)
    return ProbeResults(
        states.layers,
        states.numbers,
        np.stack(random_split, axis=1),
        plan.seen,
        np.stack(control, axis=1),
        [asked.numbers[i] for i in plan.tested],
        np.stack(right, axis=1),
        strengths,
    )


class CrossValidation(NamedTuple):
    """Folds of a test; N numbers to learn from, M to test on."""

    roles: Bools
    """(N,): quantitative."""
    known: list[Bools]
    """One mask (N,) per fold: the numbers that its probe learns from."""
    asked_roles: Bools
    """(M,): quantitative, of the numbers to test on."""
    folds: Ints
    """(M,): the fold of each."""


class ProbingPlan(NamedTuple):
    """The tests of every layer."""

    random_split: CrossValidation
    control: CrossValidation
    seen: Bools
    """`ProbeResults.seen`."""
    tested: Ints
    """(M,): indices of the numbers that `held_out` tests."""
    held_out: CrossValidation


def probing_plan(
    numbers: Sequence[ProbedNumber], asked: Sequence[ProbedNumber], two_sets: bool, seed: int
) -> ProbingPlan:
    """The folds of all tests: `numbers` to learn from, and the numbers that the held-out test asks about, which are
    others if `two_sets`. Raises InputError as `probe_layers` does."""
    roles = _roles(numbers)
    random = Random(f"probe {seed}")

    tested = np.flatnonzero([value_split(number.value) == "test" for number in asked])
    questions = [asked[i] for i in tested]
    tested_roles = _roles(questions)
    if min(tested_roles.sum(), (~tested_roles).sum()) < MIN_TESTED:
        raise InputError(
            f"the held-out test has {int(tested_roles.sum())} quantities and {int((~tested_roles).sum())} names (a "
            f"third of all number values is kept for it): it needs {MIN_TESTED} of each; give more sentences"
            + ("" if two_sets else ", or a second, held-out set (such as diagnostic)")
        )

    # The two sentences of a minimal pair stay together: one without the other would teach the wrong role by heart.
    values_of: dict[int, list[Decimal]] = {}
    for number in numbers:
        values_of.setdefault(number.sentence, []).append(number.value)
    units = [(number.template, *values_of[number.sentence]) for number in numbers]
    even_folds = [index % FOLDS for index in range(len(set(units)))]
    random.shuffle(even_folds)
    fold_of_unit = dict(zip(dict.fromkeys(units), even_folds, strict=True))
    random_folds = np.array([fold_of_unit[unit] for unit in units])
    random_known = [random_folds != fold for fold in range(random_folds.max() + 1)]
    _check_folds(roles, random_known, "a random split")

    values = sorted({number.value for number in numbers})
    half = [index % 2 == 0 for index in range(len(values))]
    random.shuffle(half)
    control_role = dict(zip(values, half, strict=True))
    control_roles = np.array([control_role[number.value] for number in numbers])
    known_values = [{numbers[i].value for i in np.flatnonzero(mask)} for mask in random_known]
    seen = np.array([number.value in known_values[fold] for number, fold in zip(numbers, random_folds, strict=True)])

    fold_of_domain = _domain_folds(questions, random)
    tested_folds = np.array([fold_of_domain[number.domain] for number in questions])
    new_value = np.array([value_split(number.value) == "test" for number in numbers])
    known = []
    for fold in range(max(fold_of_domain.values()) + 1):
        part = [number for number in questions if fold_of_domain[number.domain] == fold]
        domains, templates = {number.domain for number in part}, {number.template for number in part}
        new_context = np.array([number.domain in domains or number.template in templates for number in numbers])
        known.append(~new_value & ~new_context)
    second = "name a second, held-out set that has both roles in its domains (such as diagnostic)"
    fix = "give sentences to learn from of more domains" if two_sets else second
    _check_folds(roles, known, "holding out domains", fix)

    if not seen.any():
        raise InputError("no number value occurs in two sentences, so the control task is empty; give more sentences")
    _check_folds(control_roles, random_known, "the control task", "give sentences with more number values")
    return ProbingPlan(
        CrossValidation(roles, random_known, roles, random_folds),
        CrossValidation(control_roles, random_known, control_roles, random_folds),
        seen,
        tested,
        CrossValidation(roles, known, tested_roles, tested_folds),
    )


def _roles(numbers: Sequence[ProbedNumber]) -> Bools:
    return np.array([number.role == "quantitative" for number in numbers], dtype=np.bool_)


def _domain_folds(numbers: Sequence[ProbedNumber], random: Random) -> dict[str, int]:
    """The fold of each domain; the folds have about equally many numbers."""
    sizes = Counter(number.domain for number in numbers)
    domains = sorted(sizes)
    random.shuffle(domains)
    filled = [0] * min(FOLDS, len(domains))
    fold_of_domain = {}
    for domain in sorted(domains, key=lambda domain: -sizes[domain]):
        fold = filled.index(min(filled))
        fold_of_domain[domain] = fold
        filled[fold] += sizes[domain]
    return fold_of_domain


def _check_folds(roles: Bools, known: Sequence[Bools], what: str, fix: str = "give more sentences") -> None:
    for mask in known:
        left = roles[mask]
        if len(left) == 0 or left.all() or not left.any():
            kind = "no number" if len(left) == 0 else "only quantities" if left[0] else "only names"
            raise InputError(f"{what} leaves {kind} to learn from; {fix}")


def _probe_layer(states: torch.Tensor, asked: torch.Tensor, plan: ProbingPlan) -> tuple[Bools, Bools, Bools, float]:
    tests = (plan.random_split, plan.control, plan.held_out)
    mean, scale = states.mean(dim=0), states.std(dim=0, correction=0)
    scale[scale == 0] = 1
    standardized = ((each - mean) / scale for each in (states, asked[plan.tested]))
    known, asked = (nn.functional.pad(each, (0, 1), value=1.0) for each in standardized)  # a 1 for the intercept
    weights = _fit(known, [(test.roles, mask) for test in tests for mask in test.known])
    parts = weights.split([len(test.known) for test in tests], dim=1)
    random_split, control, held_out = map(_right, parts, (known, known, asked), tests)
    best, best_held_out = _best(random_split, plan.random_split.folds), _best(held_out, plan.held_out.folds)
    return (
        _at(best, random_split, plan.random_split.folds),
        _at(best, control, plan.control.folds),  # the strengths of the roles themselves
        _at(best_held_out, held_out, plan.held_out.folds),
        float(np.median(np.take(STRENGTHS, best_held_out))) / states.shape[1],
    )


def _right(weights: torch.Tensor, x: torch.Tensor, test: CrossValidation) -> Bools:
    """(strengths, asked): right or wrong answers, each by its fold's probe; `weights` (strengths, folds, d + 1)."""
    read = (weights @ x.T > 0).cpu().numpy()[:, test.folds, np.arange(len(test.folds))]
    return cast(Bools, test.asked_roles == read)


def _best(right: Bools, folds: Ints) -> list[int]:
    """The strength for each fold: the one that did best on the other folds."""
    # The first of equals has the strongest penalty; so, too, with one fold, as there are no others.
    return [int(right[:, folds != fold].sum(axis=1).argmax()) for fold in range(folds.max() + 1)]


def _at(best: Sequence[int], right: Bools, folds: Ints) -> Bools:
    return cast(Bools, right[np.take(best, folds), np.arange(len(folds))])


# --- logistic regressions ---


def _fit(x: torch.Tensor, questions: Sequence[tuple[Bools, Bools]]) -> torch.Tensor:
    """Fit all regressions of a layer together, with the result of scikit-learn's `StandardScaler` and
    `LogisticRegression`. Each of the P `questions` has the roles, (N,), and the mask of the known ones, (N,). `x` is
    standardized states and a 1, float32 (N, d + 1). Returns the weights at each of S strengths, (S, P, d + 1)."""
    roles, known = (torch.from_numpy(np.stack(each)).to(x) for each in zip(*questions, strict=True))
    counts = known.sum(dim=1, keepdim=True)
    shares = known / counts
    # Penalties are on the weights of states that are standardized by what is known; what is constant there stays.
    variances = shares @ x.square() - (shares @ x).square()
    variances = torch.where(variances > _CONSTANT, variances, 1)
    gram, weights, found = x.T @ x / 4, torch.zeros_like(variances), []
    for strength in STRENGTHS:
        penalties = torch.full_like(x[0], (x.shape[1] - 1) / strength)
        penalties[-1] = 0  # of the intercept
        metric = torch.linalg.cholesky((gram + penalties.diag()) / counts.mean())
        weights = _minimized(weights, metric, x, roles, shares, penalties * variances / counts)
        found.append(weights)  # and the next strength begins there
    return torch.stack(found)


def _minimized(
    weights: torch.Tensor,  # (P, d + 1), to begin at
    metric: torch.Tensor,  # (d + 1, d + 1), lower triangular
    x: torch.Tensor,  # (N, d + 1)
    roles: torch.Tensor,  # (P, N), 0 or 1
    shares: torch.Tensor,  # (P, N), of each number in the mean loss
    penalties: torch.Tensor,  # (P, d + 1), on the squares of weights
) -> torch.Tensor:
    """The weights of the least loss. Uses L-BFGS in coordinates in which a quarter of the states' Gram matrix plus the
    penalty, which no Hessian exceeds by much (Böhning & Lindsay 1988), is the identity: some forty steps."""
    coordinates = (weights @ metric).contiguous()
    search = torch.optim.LBFGS(
        [coordinates], max_iter=_STEPS, tolerance_grad=_TOLERANCE, history_size=10, line_search_fn="strong_wolfe"
    )

    def solved() -> torch.Tensor:
        return cast(torch.Tensor, torch.linalg.solve_triangular(metric, coordinates, upper=False, left=False))

    def loss() -> torch.Tensor:
        weights = solved()
        scores = weights @ x.T
        slopes = (shares * (scores.sigmoid() - roles)) @ x + penalties * weights
        coordinates.grad = torch.linalg.solve_triangular(metric.T, slopes, upper=True, left=False).contiguous()
        return (shares * (nn.functional.softplus(scores) - roles * scores)).sum() + (penalties * weights**2).sum() / 2

    search.step(cast(Any, loss))
    return solved()
