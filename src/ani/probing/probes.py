"""Linear probes: what a logistic regression reads of a number's role at each layer; knows nothing about choosing one.

Every layer is asked three things about the same numbers:

- *random split*, the paper's question (Section "Optimal Layer Selection"): sentences of the same domains and
  templates, and often the same numbers, stand on both sides;
- *held out*: the probe is tested on domains, templates and number values that it has never seen, so that one that
  learnt a sentence, a number or the words of a domain cannot pass;
- *control task* (Hewitt & Liang, EMNLP 2019, "Designing and Interpreting Probes with Control Tasks"): the random
  split again, with roles that were shuffled among the number values. What a probe gets right there it has learnt by
  heart. Selectivity is the first accuracy minus this one.

The strength of the L2 penalty is cross-validated: each fold takes the one that did best on the other folds.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from random import Random
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ani.data.diagnostic import value_split
from ani.errors import InputError
from ani.probing.states import NumberStates, ProbedNumber

FOLDS = 4
STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Values of scikit-learn's C, times the hidden size: a wider state needs a stronger penalty. Ascending."""
MIN_TESTED = 30
"""Numbers of each role that the held-out test needs at least."""
_WORKER_BYTES = 2 << 30  # all layers that are fitted at the same time

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class ProbeResults(NamedTuple):
    """What the probes got right; K layers, N numbers, M of them (or of a second set) held out."""

    layers: tuple[int, ...]
    numbers: list[ProbedNumber]
    random_split: Bools
    """(N, K): right under a random split."""
    seen: Bools
    """(N,): the random split's training part holds the number's value, so that the control task can be learnt."""
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
    on_layer: Callable[[int], None] = lambda amount: None,
) -> ProbeResults:
    """Fit and test the probes of every layer.

    Args:
        states: Of the numbers to learn from.
        held_out: Of the numbers that the held-out test asks about; None: it asks about `states` itself, domain by
            domain. Needed where a domain's numbers all have one role.
        seed: Of folds and shuffled roles.
        on_layer: Called with 1 after each layer.

    Raises:
        InputError: If the numbers left to learn from, or those to be tested on, are of one role.
    """
    asked = held_out if held_out is not None else states
    if asked.layers != states.layers:
        raise InputError("the held-out states are of other layers than the states to learn from")
    plan = _plan(states.numbers, asked.numbers, held_out is not None, seed)
    width = states.states.shape[2]
    rows = len(states.numbers) + (len(asked.numbers) if held_out is not None else 0)
    workers = max(1, min(os.cpu_count() or 1, _WORKER_BYTES // (3 * rows * width * 4)))

    def probe(index: int) -> tuple[Bools, Bools, Bools, float]:
        known = states.states[index].float().numpy()
        return _probe_layer(known, known if held_out is None else held_out.states[index].float().numpy(), plan)

    found = []
    # Layers are many and their fits small: threads over layers, and one thread a fit.
    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
        # A weak penalty may want more iterations; its predictions have settled long before. (The filter is the
        # process's: the threads must not set it one by one.)
        warnings.simplefilter("ignore", ConvergenceWarning)
        jobs = (delayed(probe)(index) for index in range(len(states.layers)))
        for result in Parallel(n_jobs=workers, prefer="threads", return_as="generator")(jobs):
            found.append(result)
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


class _Test(NamedTuple):
    """What is learnt and asked, fold by fold."""

    roles: Bools  # (N,) quantitative, of the numbers to learn from
    known: list[Bools]  # a fold: (N,) which of them may be learnt from before it is tested on
    asked_roles: Bools  # (M,) likewise, of the numbers to ask about
    folds: Ints  # (M,)


class _Plan(NamedTuple):
    """The same for every layer."""

    random_split: _Test
    control_roles: Bools  # (N,)
    seen: Bools  # (N,)
    tested: Ints  # (M,) indices of the numbers that `held_out` asks about
    held_out: _Test


def _plan(numbers: Sequence[ProbedNumber], asked: Sequence[ProbedNumber], two_sets: bool, seed: int) -> _Plan:
    roles = _roles(numbers)
    random = Random(f"probe {seed}")

    tested = np.flatnonzero([value_split(number.value) == "test" for number in asked])
    questions = [asked[i] for i in tested]
    tested_roles = _roles(questions)
    if min(tested_roles.sum(), (~tested_roles).sum()) < MIN_TESTED:
        raise InputError(
            f"the held-out test has {int(tested_roles.sum())} quantities and {int((~tested_roles).sum())} names (a "
            f"third of all number values is kept for it): it needs {MIN_TESTED} of each; give more sentences"
            + ("" if two_sets else ", or a second, held-out set (such as contrastive)")
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
    known_values = [
        {number.value for number, known in zip(numbers, mask, strict=True) if known} for mask in random_known
    ]
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
    if two_sets:
        mend = "; give sentences to learn from of more domains"
    else:
        mend = "; name a second, held-out set that has both roles in its domains (such as contrastive)"
    _check_folds(roles, known, "holding out domains", mend)

    if not seen.any():
        raise InputError(
            "no number value returns in other sentences, so there is nothing that the control task could learn by "
            "heart; give more sentences"
        )
    _check_folds(control_roles, random_known, "the control task", "; give sentences with more number values")
    random_split = _Test(roles, random_known, roles, random_folds)
    return _Plan(random_split, control_roles, seen, tested, _Test(roles, known, tested_roles, tested_folds))


def _roles(numbers: Sequence[ProbedNumber]) -> Bools:
    return np.array([number.role == "quantitative" for number in numbers], dtype=np.bool_)


def _domain_folds(numbers: Sequence[ProbedNumber], random: Random) -> dict[str, int]:
    """Each domain's fold, so that the folds hold about equally many numbers."""
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


def _check_folds(roles: Bools, known: Sequence[Bools], what: str, mend: str = "; give more sentences") -> None:
    for mask in known:
        left = roles[mask]
        if len(left) == 0 or left.all() or not left.any():
            kind = "no number" if len(left) == 0 else "only quantities" if left[0] else "only names"
            raise InputError(f"{what} leaves {kind} to learn from{mend}")


def _probe_layer(states: Floats, asked: Floats, plan: _Plan) -> tuple[Bools, Bools, Bools, float]:
    random_split, strengths = _cross_fit(states, states, plan.random_split)
    control, roles = np.zeros(len(states), dtype=np.bool_), plan.control_roles
    for known, strength in zip(plan.random_split.known, strengths, strict=True):
        control[~known] = _fit(states[known], roles[known], states[~known], roles[~known], [strength])[0]
    held_out, strengths = _cross_fit(states, asked[plan.tested], plan.held_out)
    return random_split, control, held_out, float(np.median(strengths)) / states.shape[1]


def _cross_fit(states: Floats, asked: Floats, test: _Test) -> tuple[Bools, list[float]]:
    """Right or wrong for every number asked, and each fold's strength: the one that did best on the other folds."""
    right = np.zeros((len(STRENGTHS), len(asked)), dtype=np.bool_)
    parts = [test.folds == fold for fold in range(len(test.known))]
    for part, known in zip(parts, test.known, strict=True):
        right[:, part] = _fit(states[known], test.roles[known], asked[part], test.asked_roles[part], STRENGTHS)
    # Of equals the strongest penalty; so, too, with one fold, as there are no others.
    best = [int(right[:, ~part].sum(axis=1).argmax()) for part in parts]
    return right[np.take(best, test.folds), np.arange(len(asked))], [STRENGTHS[index] for index in best]


def _fit(states: Floats, roles: Bools, asked: Floats, asked_roles: Bools, strengths: Sequence[float]) -> Bools:
    """(strengths, asked): right or wrong after learning from `states`."""
    scaler = StandardScaler().fit(states)
    states, asked = scaler.transform(states), scaler.transform(asked)
    probe = LogisticRegression(warm_start=True, max_iter=1000)
    right = []
    for strength in strengths:
        probe.set_params(C=strength / states.shape[1]).fit(states, roles)
        right.append(probe.predict(asked) == asked_roles)
    return np.stack(right)
