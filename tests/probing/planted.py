"""Numbers with planted hidden states or planted answers of probes."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from ani.data.diagnostic import DiagnosticSentence
from ani.numbers import find_numbers
from ani.probing.curve import ProbedNumber
from ani.probing.probes import ProbeResults
from ani.probing.states import NumberStates
from ani.roles import RoleName

WIDTH = 128
DOMAINS = 40
VALUES = 60
ROLES: tuple[RoleName, RoleName] = ("nominal", "quantitative")

Floats = NDArray[np.float32]
Layer = Callable[[list[ProbedNumber], np.random.Generator], Floats]


def sentence(text: str, *roles: RoleName, domain: str = "rooms", template: str = "") -> DiagnosticSentence:
    """A labelled sentence, the roles of its numbers in order."""
    assert len(find_numbers(text)) == len(roles)
    return DiagnosticSentence(text, roles, domain, template or text)


def numbers(count: int = 960, *, domains: int = DOMAINS, values: int = VALUES) -> list[ProbedNumber]:
    """One number per sentence; value, domain and role are independent, roles and domains equally frequent."""
    random = np.random.default_rng(0)
    found = []
    for index in range(count):
        domain = index // 2 % domains
        template = f"{domain}.{random.integers(4)}"
        value = Decimal(int(100 + random.integers(values)))
        of = {"role": ROLES[index % 2], "domain": f"domain {domain}", "template": template}
        found.append(ProbedNumber(sentence=index, position=5, value=value, **of))
    return found


def states(known: list[ProbedNumber], *layers: Layer, seed: int = 0) -> NumberStates:
    """The states that each of `layers` makes of the numbers."""
    random = np.random.default_rng(seed)
    return NumberStates(
        known, tuple(range(len(layers))), torch.from_numpy(np.stack([layer(known, random) for layer in layers]))
    )


def noise(known: list[ProbedNumber], random: np.random.Generator) -> Floats:
    """Nothing."""
    return random.standard_normal((len(known), WIDTH), dtype=np.float32)


def role(strength: float) -> Layer:
    """The role, in one direction for all domains, in noise."""

    def layer(known: list[ProbedNumber], random: np.random.Generator) -> Floats:
        signs = np.array([1 if number.role == "quantitative" else -1 for number in known], dtype=np.float32)
        return noise(known, random) + strength * signs[:, None] * _vector("role") * WIDTH**-0.5

    return layer


def cue(known: list[ProbedNumber], random: np.random.Generator) -> Floats:
    """A word that gives the role within its domain; another domain has other words for it."""
    return 0.3 * noise(known, random) + np.stack([_vector(f"{number.domain} {number.role}") for number in known])


def identity(known: list[ProbedNumber], random: np.random.Generator) -> Floats:
    """Which number it is, and nothing else."""
    return 0.1 * noise(known, random) + np.stack([_vector(str(number.value)) for number in known])


@cache
def _vector(word: str) -> Floats:
    return np.random.default_rng(list(word.encode())).standard_normal(WIDTH, dtype=np.float32)


def answers(
    random_split: Sequence[float], held_out: Sequence[float], *, count: int = 600, layers: Sequence[int] | None = None
) -> ProbeResults:
    """Probes with these accuracies, layer by layer; what a layer gets right, all better ones do."""
    known = numbers(count)

    def right(accuracies: Sequence[float]) -> NDArray[np.bool_]:
        luck = np.random.default_rng(1).permutation(count) + 0.5
        return luck[:, None] < count * np.asarray(accuracies)

    chosen = tuple(layers) if layers is not None else tuple(range(len(held_out)))
    chance = right([0.5] * len(chosen))
    strengths = (1 / WIDTH,) * len(chosen)
    seen = np.ones(count, dtype=np.bool_)
    return ProbeResults(chosen, known, right(random_split), seen, chance, known, right(held_out), strengths)
