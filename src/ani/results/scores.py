"""Shares of right answers by run, as means over seeds, and differences of runs in pairs."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ani.errors import InputError
from ani.results.records import Integer, Record
from ani.results.statistics import Estimate, grouped_share, paired_difference

ONE_MODEL = "model"
"""The run's name in results that aren't a comparison's."""


class TaskRecord(Record):
    """A model's answer to a question, or its gate's decisions."""

    run: str = ONE_MODEL
    """Variant of a comparison."""
    seed: Integer | None = None
    """Training seed of a comparison's model; null: untrained."""

    known_by: ClassVar[tuple[str, ...]]
    """Keys that identify the question, whatever the run and seed."""

    @property
    def identity(self) -> Hashable:
        """The values of `known_by`."""
        return tuple(getattr(self, key) for key in self.known_by)


class Answer(TaskRecord):
    """A judged answer."""

    prediction: str | None = None
    """Answer that was read in the output; None: there is none."""
    correct: bool


T = TypeVar("T")
A = TypeVar("A", bound=TaskRecord)
J = TypeVar("J", bound=Answer)
Key = Callable[[J], Any]
_Right = dict[Hashable, list[bool]]
"""Maps a question to one bool per training seed: True if the answer is right."""


class Score(NamedTuple):
    """Share of right answers of one run in one task, the mean over its seeds."""

    task: str
    run: str
    overall: Estimate
    parts: dict[Any, Estimate]
    """Share by part, ascending."""
    by_seed: tuple[Estimate, ...]
    """`overall` of each seed; one entry where answers have no seed."""
    unreadable: int
    """Number of outputs, of all seeds, in which no answer was found."""


class Difference(NamedTuple):
    """Gain of a run over the baseline in one task, both asked the same."""

    task: str
    run: str
    overall: Estimate
    parts: dict[Any, Estimate]
    """Share by part, ascending."""
    fixed: int
    """Number of problems that a greater share of the run's seeds solves than of the baseline's."""
    broken: int
    """Number of problems that a smaller share solves."""


def grouped(records: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Return the records by key, in order of appearance; a record whose key is None is left out."""
    groups: dict[Any, list[T]] = {}
    for record in records:
        if (value := key(record)) is not None:
            groups.setdefault(value, []).append(record)
    return groups


def by_seed(run: str, records: Iterable[A]) -> list[list[A]]:
    """Return the records of each seed of a run; raises InputError if seeds were asked different questions."""
    seeds = grouped(records, lambda record: (record.seed,))
    asked = [Counter(record.identity for record in group) for group in seeds.values()]
    if any(questions != asked[0] for questions in asked):
        names = ", ".join(str(seed) for (seed,) in seeds)
        raise InputError(f"run {run!r}: its seeds {names} were not asked the same problems")
    return list(seeds.values())


def scores(answers: Iterable[J], task: Key[J], part: Key[J]) -> list[Score]:
    """Return an entry per task and run, in order of appearance. An answer whose part is None belongs to no part. Raises
    InputError if the seeds of a run were asked different questions."""
    return [
        Score(
            name,
            run,
            _mean_share(seeds),
            {
                value: _mean_share([[answer for answer in seed if part(answer) == value] for seed in seeds])
                for value in sorted({part(answer) for answer in seeds[0]} - {None})
            },
            tuple(_mean_share([seed]) for seed in seeds),
            sum(answer.prediction is None for answer in of_run),
        )
        for name, of_task in grouped(answers, task).items()
        for run, of_run in grouped(of_task, lambda answer: answer.run).items()
        for seeds in [by_seed(run, of_run)]
    ]


def _mean_share(seeds: Sequence[Sequence[Answer]]) -> Estimate:
    found = grouped_share((answer.identity, answer.seed, answer.correct) for seed in seeds for answer in seed)
    assert found is not None  # each seed was asked something
    return found._replace(cases=len(seeds[0]), seeds=len(seeds))


def differences(answers: Iterable[J], baseline: str, task: Key[J], part: Key[J]) -> list[Difference]:
    """Return an entry per task and run except the baseline; task and part as for `scores`. Raises InputError if a run,
    or a seed of it, was asked other questions than the baseline."""
    result = []
    for name, of_task in grouped(answers, task).items():
        runs = grouped(of_task, lambda answer: answer.run)
        for run in [run for run in runs if run != baseline]:
            own, other = (_scores(which, runs.get(which, [])) for which in (run, baseline))
            if own.keys() != other.keys():
                raise InputError(
                    f"{name}: runs {run!r} and {baseline!r} were asked different problems or with different prompts "
                    f"({len(own.keys() ^ other.keys())} that only one has); evaluate both on the same data with the "
                    "same settings"
                )
            asked = {answer.identity: answer for answer in runs[run]}
            questions = grouped(asked.values(), part)
            gains = [sum(own[one]) / len(own[one]) - sum(other[one]) / len(other[one]) for one in own]
            result.append(
                Difference(
                    name,
                    run,
                    _difference(own, other, asked.values()),
                    {value: _difference(own, other, questions[value]) for value in sorted(questions)},
                    sum(gain > 0 for gain in gains),
                    sum(gain < 0 for gain in gains),
                )
            )
    return result


def _difference(own: _Right, other: _Right, asked: Iterable[Answer]) -> Estimate:
    questions = [answer.identity for answer in asked]
    return paired_difference(*(np.array([found[one] for one in questions], dtype=float) for found in (own, other)))


def _scores(run: str, answers: Sequence[Answer]) -> _Right:
    questions = grouped(chain.from_iterable(by_seed(run, answers)), lambda answer: answer.identity)
    return {question: [answer.correct for answer in found] for question, found in questions.items()}
