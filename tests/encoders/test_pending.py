from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader import Exact
from ani.calculator.reader.pending import Pending
from ani.encoders.pending import PendingDigitsEncoder

COLUMNS = [*"0123456789.-", "end", "endless", *(f"last {digit}" for digit in range(10)), "fraction", "separator"]


def pending(value: int | Fraction, written: str = "") -> Pending:
    return Pending("arithmetic", Exact.of(value), "", "", written)


def named(features: torch.Tensor) -> list[set[str]]:
    """The names of the features that are there, of each character."""
    return [{COLUMNS[i] for i in row.nonzero().flatten().tolist()} for row in features.reshape(-1, len(COLUMNS))]


def test_features_of_characters() -> None:
    values = [pending(-5), None, pending(Fraction(2, 3), "0.6"), pending(7, "7"), pending(7, "7."), pending(7, "7.0")]
    found = PendingDigitsEncoder(3).encode(values)
    assert found.dtype == torch.float32 and found.shape == (6, 78)
    assert named(found[0]) == [{"-"}, {"5", "last 5"}, {"end"}]
    assert named(found[1]) == [set()] * 3
    assert named(found[2]) == [{"6", "endless", "last 7"}] * 3
    assert named(found[3]) == [{"end"}, set(), set()]
    assert named(found[4]) == [{"end", "separator"}, set(), set()]
    assert named(found[5]) == [{"end", "fraction"}, set(), set()]
    assert named(PendingDigitsEncoder(2).encode([pending(Fraction(1, 4), "0")])[0]) == [{"."}, {"2", "last 3"}]
    assert PendingDigitsEncoder(2).encode([]).shape == (0, 52)


@given(st.lists(st.fractions(-1000, 1000, max_denominator=50), max_size=4), st.integers(1, 3))
def test_a_character_has_the_same_features_however_many_follow(values: list[Fraction], characters: int) -> None:
    few, many = (PendingDigitsEncoder(count).encode([*map(pending, values)]) for count in (characters, 4))
    assert torch.equal(many[:, : few.shape[1]], few)
