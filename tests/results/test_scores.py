"""Scores and differences against brute force, whatever the task."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ani.results.scores import Answer, Difference, Score, differences, scores
from ani.results.statistics import grouped_share, paired_difference, wilson_interval
from tests.refusals import refused

SOLVED = {"base": [[1, 0, 0, 0]], "ours": [[1, 1, 1, 0], [1, 1, 0, 0]], "other": [[0, 0, 0, 0], [0, 0, 0, 0]]}
"""Run: for each seed, which of four problems it solved; the first two have one digit, the others three."""


class Solved(Answer):
    """An answer to a problem of some digits."""

    operation: str = "+"
    digits: int
    problem: int = 0

    @property
    def identity(self) -> int:
        return self.problem


ANSWERS = st.lists(
    st.builds(
        Solved,
        run=st.sampled_from(["before", "after"]),
        operation=st.sampled_from(["addition", "product"]),
        digits=st.integers(1, 12),
        correct=st.booleans(),
    )
).map(lambda answers: [each.model_copy(update={"problem": place}) for place, each in enumerate(answers)])


def scored(answers: list[Solved]) -> list[Score]:
    return scores(answers, lambda answer: answer.operation, lambda answer: answer.digits)


def compared(answers: list[Solved], baseline: str = "base") -> list[Difference]:
    return differences(answers, baseline, lambda answer: answer.operation, lambda answer: answer.digits)


def solved() -> list[Solved]:
    return [
        Solved(run=run, seed=seed, digits=1 + problem // 2 * 2, problem=problem, correct=bool(right), prediction="1")
        for run, seeds in SOLVED.items()
        for seed, answers in enumerate(seeds)
        for problem, right in enumerate(answers)
    ]


@given(ANSWERS)
def test_scores_partition_the_answers(answers: list[Solved]) -> None:
    rows = scored(answers)
    assert len({(row.task, row.run) for row in rows}) == len(rows)
    for row in rows:
        assert list(row.parts) == sorted(row.parts)
        of_row = [a for a in answers if (a.operation, a.run) == (row.task, row.run)]
        for digits, share in [(None, row.overall), *row.parts.items()]:
            cases = [a.correct for a in of_row if digits in (None, a.digits)]
            assert (share.value, share.cases) == (sum(cases) / len(cases), len(cases))
            assert (share.low, share.high) == wilson_interval(sum(cases), len(cases))
        assert row.overall.cases == sum(share.cases for share in row.parts.values())
        assert row.unreadable == len(of_row)
    assert sum(row.overall.cases for row in rows) == len(answers)


def test_shares_are_means_over_seeds() -> None:
    base, ours, _ = scored(solved())
    assert {digits: share.value for digits, share in ours.parts.items()} == {1: 1, 3: 0.25}
    assert [share.value for share in ours.by_seed] == [0.75, 0.5] and [s.value for s in base.by_seed] == [0.25]
    right = np.array(SOLVED["ours"])
    found = grouped_share((problem, seed, each == 1) for (seed, problem), each in np.ndenumerate(right))
    assert found is not None and ours.overall == found._replace(cases=4, seeds=2)
    assert base.overall == (0.25, *wilson_interval(1, 4), 4, 1, None)


def test_differences_pair_the_problems() -> None:
    # Another order of the records is the same comparison.
    for records in (solved(), solved()[::-1]):
        ours = next(row for row in compared(records) if row.run == "ours")
        assert ours.overall.value == 0.375
        assert {digits: found.value for digits, found in ours.parts.items()} == {1: 0.5, 3: 0.25}
    ours, other = compared(solved())
    assert (ours.run, other.run) == ("ours", "other")
    right, baseline = (np.array(SOLVED[run]).T for run in ("ours", "base"))
    assert ours.overall == paired_difference(right, baseline)
    assert ours.parts == {1: paired_difference(right[:2], baseline[:2]), 3: paired_difference(right[2:], baseline[2:])}
    assert ours.overall.p is not None and other.overall.p is not None
    assert ours.overall.p < 0.5 < other.overall.p


def test_runs_that_were_asked_different_problems_are_refused() -> None:
    refused(lambda: scored(solved()[:-1]), "'other'", "0, 1")
    refused(lambda: compared(solved()[1:]), "'ours'", "'base'")
    refused(lambda: compared(solved()[4:], "gone"), "'ours'", "'gone'")
