from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from ani.data.diagnostic import value_split
from ani.probing import probes as probes_module
from ani.probing.curve import ProbedNumber
from ani.probing.probes import FOLDS, MIN_TESTED, STRENGTHS, CrossValidation, ProbeResults, probe_layers, probing_plan
from tests.probing.planted import ROLES, WIDTH, cue, identity, noise, numbers, role, states
from tests.properties import examples
from tests.refusals import refused

KNOWN = numbers()


@pytest.fixture(scope="module")
def results() -> ProbeResults:
    """Layers: noise, the role, a word that gives it in its domain, the number's value."""
    return probe_layers(states(KNOWN, noise, role(30), cue, identity))


def test_each_layer_gives_what_was_planted(results: ProbeResults) -> None:
    """Noise gives nothing, the role everything; a word of the domain and a memorized number are exposed."""
    held_out_numbers = [number for number in KNOWN if value_split(number.value) == "test"]
    assert (results.layers, results.numbers, results.held_out_numbers) == ((0, 1, 2, 3), KNOWN, held_out_numbers)
    assert results.random_split.shape == results.control.shape == (len(KNOWN), 4)
    assert results.held_out.shape == (len(held_out_numbers), 4) and results.seen.all()
    random_split, control, held_out = (
        right.mean(axis=0) for right in (results.random_split, results.control, results.held_out)
    )
    guess = pytest.approx(0.5, abs=0.1)
    assert (random_split[0], control[0], held_out[0]) == (guess, guess, guess)
    assert random_split[1] > 0.99 and held_out[1] > 0.99 and control[1] == guess
    assert random_split[2] > 0.99 and held_out[2] == pytest.approx(0.5, abs=0.15)
    assert control[3] > 0.95 and (random_split[3], held_out[3]) == (guess, guess)


def test_the_regressions_are_scikit_learns() -> None:
    """Fitted one after another, each on states standardized by what it knows: the same number is read as the same role
    wherever the reference is not in doubt. What is in doubt, the last bit may decide, and a strength with it."""
    for known in (states(numbers(480), role(1.5), identity), states(numbers(480), uneven, seed=1)):
        plan = probing_plan(known.numbers, known.numbers, False, 0)
        questions = [(test.roles, mask) for test in plan[:2] for mask in test.known]
        for layer in known.states:
            standardized = torch.from_numpy(StandardScaler().fit_transform(layer.numpy()))
            x = torch.nn.functional.pad(standardized, (0, 1), value=1.0)
            reads = (probes_module._fit(x, questions) @ x.T > 0).transpose(0, 1).numpy()
            for (roles, mask), read in zip(questions, reads, strict=True):
                scaler = StandardScaler().fit(layer[mask].double().numpy())
                scaled, width = scaler.transform(layer.double().numpy()), layer.shape[1]
                for strength, ours in zip(STRENGTHS, read, strict=True):
                    regression = LogisticRegression(C=strength / width, solver="newton-cholesky", tol=1e-8)
                    scores = regression.fit(scaled[mask], roles[mask]).decision_function(scaled)
                    certain = np.abs(scores) > 0.002 * np.abs(scores).max()
                    assert certain.mean() > 0.9
                    assert np.array_equal(ours[certain], scores[certain] > 0)


def uneven(known: list[ProbedNumber], random: np.random.Generator) -> NDArray[np.float32]:
    """The role among states of very different sizes, one the same everywhere and one in a single domain alone."""
    found = role(1.5)(known, random) * np.geomspace(1e-3, 1e3, WIDTH, dtype=np.float32) + 100
    found[:, 0] = 7
    found[:, 1] = [number.domain == known[0].domain for number in known]
    return found


def _folds(known: list[ProbedNumber], seed: int = 0) -> tuple[list[tuple[list[int], list[int]]], ...]:
    """The folds of the random split, the control task and the held-out test: which numbers are learnt and asked."""
    plan = probing_plan(known, known, False, seed)

    def folds(test: CrossValidation, asked: NDArray[np.int64]) -> list[tuple[list[int], list[int]]]:
        parts = [asked[test.folds == fold].tolist() for fold in range(len(test.known))]
        return [(np.flatnonzero(mask).tolist(), part) for mask, part in zip(test.known, parts, strict=True)]

    every = np.arange(len(known))
    return folds(plan.random_split, every), folds(plan.control, every), folds(plan.held_out, plan.tested)


KINDS = st.tuples(st.integers(0, 5), st.integers(0, 8), st.integers(100, 140), st.sampled_from(ROLES))


@given(kinds=st.lists(KINDS, min_size=1, max_size=12), seed=st.integers(0, 3))
@settings(examples(40))
def test_nothing_that_is_held_out_is_learnt(kinds: list[tuple[int, int, int, Any]], seed: int) -> None:
    """No value, domain or template of what a probe is asked; and what is asked is asked once."""
    drawn = [
        ProbedNumber(
            sentence=i, position=0, value=Decimal(value), role=role, domain=f"domain {domain}", template=f"template {t}"
        )
        for i, (domain, t, value, role) in enumerate(kinds * 3)
    ]
    # Templates of one domain each, besides the drawn ones that may be in several.
    known = numbers(300, domains=6) + [
        number.model_copy(update=dict(sentence=300 + number.sentence)) for number in drawn
    ]
    random_split, control, held_out = _folds(known, seed)
    assert 2 <= len(held_out) <= FOLDS
    for learnt, asked in held_out:
        assert learnt
        for field in ("value", "domain", "template"):
            assert {getattr(known[i], field) for i in learnt}.isdisjoint(getattr(known[i], field) for i in asked)
    tested = [i for _, asked in held_out for i in asked]
    assert sorted(tested) == [i for i, n in enumerate(known) if value_split(n.value) == "test"]
    assert len(random_split) == FOLDS and control == random_split
    for learnt, asked in random_split:
        assert {known[i].sentence for i in learnt}.isdisjoint(known[i].sentence for i in asked)
        assert sorted(learnt + asked) == list(range(len(known)))


def test_the_strength_is_chosen_on_the_other_folds() -> None:
    """A fold's own answers have no say: here each strength is right on one fold alone."""
    folds = np.repeat(np.arange(4), 10)
    assert probes_module._best(np.array([folds == fold for fold in range(4)]), folds) == [1, 0, 0, 0]


def test_a_minimal_pair_stays_together() -> None:
    """Sentences of one template with the same numbers: one would teach the other's role, wrongly, by heart."""
    known = numbers(600, domains=6)
    for learnt, asked in _folds(known)[0]:
        known_pairs = {(known[i].template, known[i].value) for i in learnt}
        assert known_pairs.isdisjoint((known[i].template, known[i].value) for i in asked)


def test_bad_input() -> None:
    def changed(**fields: Callable[[int, ProbedNumber], Any]) -> list[ProbedNumber]:
        return [n.model_copy(update={key: of(i, n) for key, of in fields.items()}) for i, n in enumerate(KNOWN)]

    of_role = changed(domain=lambda _, n: n.role)
    for known, words in (
        (numbers(120), [str(MIN_TESTED)]),
        (of_role, ["domains", "only", "held-out set"]),
        (changed(template=lambda i, _: str(i % 3)), ["domains", "no number"]),
        # Every quantity is in one sentence, so the fold of that sentence leaves names alone.
        (changed(sentence=lambda i, n: 0 if n.role == "quantitative" else i, template=lambda _, n: n.role), ["only"]),
        (changed(value=lambda i, _: Decimal(i + 1)), ["control task"]),
    ):
        refused(partial(probe_layers, states(known, noise)), *words)
    asked = changed(domain=lambda *_: "nominal")
    refused(lambda: probe_layers(states(of_role, noise), states(asked, noise)), "domains", "only quantities")
