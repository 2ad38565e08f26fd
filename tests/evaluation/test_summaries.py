"""What tasks make of their records, against brute force."""

from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from ani.evaluation.tasks.arithmetic import Arithmetic, ArithmeticAnswer
from ani.evaluation.tasks.gates import DecidedText, gate_shares
from ani.evaluation.tasks.language import TextLoss, perplexities
from ani.injection.decisions import NumberDecision
from ani.results.statistics import grouped_share, mean_of_two
from tests.refusals import refused


@pytest.mark.parametrize(
    ("right", "given", "kind"),
    [
        ("1298444902467", "1398444902467", "Carries"), ("-190", "-280", "Carries"), ("-190", "-217", "Other digits"),
        ("46", "460", "Length or sign"), ("-46", "146", "Length or sign"), ("46", None, "Length or sign"),
    ],
)  # fmt: skip
def test_wrong_answers_are_sorted(right: str, given: str | None, kind: str) -> None:
    asked: dict[str, Any] = {"operation": "+", "digits": 2, "prompt": "", "answer": right, "output": ""}
    wrong = ArithmeticAnswer(run="a", **asked, prediction=given, correct=False)
    _, errors = Arithmetic.tables([wrong, wrong.model_copy(update={"prediction": right, "correct": True})])
    counts = {name: cell.details for name, cell in zip(errors.header[2:], errors.rows[0][2:], strict=True)}
    assert counts == {name: (f"{int(name == kind)} of 2",) for name in ("Carries", "Other digits", "Length or sign")}


DECISIONS = st.lists(
    st.tuples(st.sampled_from(["nominal", "quantitative"]), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.booleans())
)


def gated(*numbers: tuple[Any, float | None, bool], source: str = "a", **more: Any) -> list[DecidedText]:
    """Numbers (role, α, injected), each in a text of its own."""
    place: dict[str, Any] = {"text": "1", "value": Decimal(1), "start": 0, "end": 1}
    return [
        DecidedText(
            source=source,
            text=f"1 {index}",
            numbers=(NumberDecision(**place, role=role, alpha=alpha, injected=injected),),
            **more,
        )
        for index, (role, alpha, injected) in enumerate(numbers)
    ]


@given(DECISIONS)
def test_gates_equal_counting_pairs(decisions: list[tuple[str, float, bool]]) -> None:
    if not decisions:
        assert gate_shares([]) == []
        return
    (found,) = gate_shares(gated(*decisions))
    alphas = [[alpha for role, alpha, _ in decisions if role == wanted] for wanted in ("quantitative", "nominal")]
    pairs = list(product(*alphas))
    estimate = found.measures["balanced_accuracy"]
    if not pairs:
        assert found.auc is None and estimate is None
        return
    assert found.auc == pytest.approx(sum((q > n) + (q == n) / 2 for q, n in pairs) / len(pairs))
    closed = [not injected for role, _, injected in decisions if role == "nominal"]
    opened = [injected for role, _, injected in decisions if role == "quantitative"]
    assert estimate is not None
    assert estimate.value == pytest.approx((sum(closed) / len(closed) + sum(opened) / len(opened)) / 2)
    assert -1e-9 <= estimate.low <= estimate.value <= estimate.high <= 1 + 1e-9


def test_balanced_interval_covers_as_promised() -> None:
    """Exact coverage by summing the binomials: close to 95% (never under 93% at these rates)."""
    n = 20
    shares = [grouped_share((i, 0, i < right) for i in range(n)) for right in range(n + 1)]
    for p, q in ((0.9, 0.7), (0.5, 0.95), (0.8, 0.8)):
        covered = 0.0
        for a, b in product(range(n + 1), repeat=2):
            closed, opened = shares[a], shares[b]
            assert closed is not None and opened is not None
            estimate = mean_of_two(closed, opened)
            if estimate.low <= (p + q) / 2 <= estimate.high:
                covered += float(binom.pmf(a, n, p) * binom.pmf(b, n, q))
        assert 0.93 < covered < 0.985


def test_gates_are_summarised_a_run_and_seed() -> None:
    # Each seed separates the roles perfectly, at another threshold: pooling them would hide it.
    def of_seed(seed: int, run: str = "ours") -> list[DecidedText]:
        alphas = [
            (role, alpha + 0.3 * seed) for role, alpha in (("nominal", 0.2), ("nominal", 0.3), ("quantitative", 0.4))
        ]
        return gated(*((role, alpha, alpha > 0.5) for role, alpha in alphas), run=run, seed=seed)

    other, ours = gate_shares([*of_seed(0, "other"), *of_seed(0), *of_seed(1)])
    assert (other.run, ours.run, ours.texts) == ("other", "ours", 3)
    assert ours.auc == 1.0
    # One seed separates them, the other the wrong way round.
    alphas = enumerate(((0.2, 0.4), (0.4, 0.2)))
    mixed = [gated(("nominal", a, False), ("quantitative", b, False), seed=seed) for seed, (a, b) in alphas]
    assert gate_shares([record for of in mixed for record in of])[0].auc == 0.5
    assert gate_shares(gated(("nominal", 0.1, False), ("quantitative", None, True)))[0].auc is None
    closed, opened = ours.measures["nominal"], ours.measures["quantitative"]
    assert closed is not None and (closed.value, closed.cases) == (0.75, 4)
    assert opened is not None and (opened.value, opened.cases) == (0.5, 2)
    refused(lambda: gate_shares([*of_seed(0), *of_seed(1)[1:]]), "its seeds 0, 1 were not asked the same")


def test_precision_is_of_the_numbers_left_alone_whose_role_is_known() -> None:
    known = [("nominal", 0.1, False), ("nominal", 0.1, False), ("nominal", 0.9, True), ("quantitative", 0.1, False)]
    (found,) = gate_shares(gated(*known, (None, 0.1, False)))
    counts = {key: each and (round(each.value * each.cases), each.cases) for key, each in found.measures.items()}
    expected = {"numbers": (1, 5), "texts_open": (1, 5), "nominal": (2, 3), "quantitative": (0, 1), "precision": (2, 3)}
    assert {key: counts[key] for key in expected} == expected


def test_gate_shares_go_from_the_greatest_to_the_least() -> None:
    def text(name: str, source: str, group: str | None, *injected: bool) -> DecidedText:
        place: dict[str, Any] = {"text": "1", "value": Decimal(1)}
        numbers = (NumberDecision(**place, start=i, end=i + 1, injected=each) for i, each in enumerate(injected))
        return DecidedText(source=source, group=group, text="1111" + name, numbers=tuple(numbers))

    texts = [text("a", "b", "closed", False), text("b", "b", "empty"), text("c", "b", "half", True, False)]
    texts += [text("d", "a", "only", True), text("e", "b", "open", True, True)]
    shares = gate_shares([*texts, text("f", "b", "half", False, False, False, True)])
    expected = [("b", None, 5), ("b", "open", 1), ("b", "half", 2), ("b", "closed", 1), ("b", "empty", 1)]
    assert [(share.source, share.group, share.texts) for share in shares] == [*expected, ("a", None, 1)]
    whole, half = shares[0].measures, shares[2].measures
    assert whole["numbers"] is not None and (whole["numbers"].value, whole["numbers"].cases) == (4 / 9, 9)
    assert whole["texts_open"] is not None and (whole["texts_open"].value, whole["texts_open"].cases) == (3 / 4, 4)
    # Two texts with 1 of 2 and 1 of 4: resamples of whole texts reach no further than either's share.
    assert half["numbers"] is not None and half["numbers"][:3] == (2 / 6, 0.25, 0.5)
    assert shares[4].measures["numbers"] is None


LOSSES = [
    TextLoss(run=run, seed=seed, kind="plain", text=text, tokens=tokens, loss=loss)
    for run, seed, texts in (
        ("base", None, {"short": (1, 2.0), "long": (10, 30.0)}),
        ("ours", 0, {"short": (1, 1.5), "long": (10, 28.0)}),
        ("ours", 1, {"long": (10, 30.0), "short": (1, 2.5)}),
        ("other", 0, {"short": (2, 5.0), "long": (10, 31.0)}),
    )
    for text, (tokens, loss) in texts.items()
]


def test_perplexity_weighs_tokens_and_pairs_texts() -> None:
    # Another order of the records is the same comparison, but for which text is drawn when.
    for records in (LOSSES, LOSSES[::-1]):
        found = {run: kinds["plain"] for run, kinds in perplexities(records, "base").items()}
        base, ours, other = (found[run] for run in ("base", "ours", "other"))
        assert [(run.value.cases, run.value.seeds) for run in (base, ours)] == [(2, 1), (2, 2)]
        # Of two texts, a quarter of the resamples hold the first alone and a quarter the second: the interval's ends.
        assert base.value[:3] == pytest.approx(np.exp([32 / 11, 2, 3]))
        # With two seeds a sixteenth each hold one text of one seed.
        assert ours.value[:3] == pytest.approx(np.exp([31 / 11, 1.5, 3]))
        assert base.difference is None and ours.difference is not None and other.difference is not None
        # The same texts for both runs: 1.5 - 2 and 2.5 - 2 with the short text alone, in one seed.
        assert ours.difference[:3] == pytest.approx((-1 / 11, -0.5, 0.5), abs=1e-12)
        # Each run has its own tokens: 36/12 - 32/11 with both texts, 2.5 - 2 and 3.1 - 3 with one alone.
        assert other.difference[:3] == pytest.approx((1 / 11, 1 / 11, 0.5), abs=1e-12)
    assert all(kinds["plain"].difference is None for kinds in perplexities(LOSSES).values())
