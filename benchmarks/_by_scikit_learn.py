"""The probes of a layer by scikit-learn, one regression after another; knows nothing about how ours are fitted."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from ani.probing.probes import STRENGTHS, Bools, CrossValidation, ProbingPlan


def probe_layer(
    states: np.ndarray, asked: np.ndarray, plan: ProbingPlan, **settings: Any
) -> tuple[Bools, Bools, Bools]:
    """What is right on a random split, in the control task and held out; `settings` are LogisticRegression's."""
    with warnings.catch_warnings():
        # A weak penalty may want more steps; its predictions have settled long before.
        warnings.simplefilter("ignore", ConvergenceWarning)
        random_split, strengths = _cross_fit(states, states, plan.random_split, settings)
        control, roles = np.zeros(len(states), dtype=np.bool_), plan.control.roles
        for known, strength in zip(plan.control.known, strengths, strict=True):
            control[~known] = _fit(states[known], roles[known], states[~known], roles[~known], [strength], settings)[0]
        return random_split, control, _cross_fit(states, asked[plan.tested], plan.held_out, settings)[0]


def _cross_fit(
    states: np.ndarray, asked: np.ndarray, test: CrossValidation, settings: Any
) -> tuple[Bools, list[float]]:
    """Right or wrong for every number asked, and each fold's strength: the one that did best on the other folds."""
    right = np.zeros((len(STRENGTHS), len(asked)), dtype=np.bool_)
    parts = [test.folds == fold for fold in range(len(test.known))]
    for part, known in zip(parts, test.known, strict=True):
        right[:, part] = _fit(
            states[known], test.roles[known], asked[part], test.asked_roles[part], STRENGTHS, settings
        )
    best = [int(right[:, ~part].sum(axis=1).argmax()) for part in parts]
    return right[np.take(best, test.folds), np.arange(len(asked))], [STRENGTHS[index] for index in best]


def _fit(
    states: np.ndarray, roles: Bools, asked: np.ndarray, asked_roles: Bools, strengths: Sequence[float], settings: Any
) -> Bools:
    """(strengths, asked): right or wrong after learning from `states`."""
    scaler = StandardScaler().fit(states)
    states, asked = scaler.transform(states), scaler.transform(asked)
    probe = LogisticRegression(warm_start=True, **{"max_iter": 1000, **settings})
    right = []
    for strength in strengths:
        probe.set_params(C=strength / states.shape[1]).fit(states, roles)
        right.append(probe.predict(asked) == asked_roles)
    return np.stack(right)
