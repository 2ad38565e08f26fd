import pytest

import ani
from ani import InputError
from ani.data.finer import FinerSentence, TaggedNumber
from ani.evaluation.finer import FinerRecord, evaluate_finer
from ani.report.records import TaggedDecision, as_records
from ani.report.summaries import finer
from tests.tiny import attached, pair

TEXT = "The 7.00 % notes of $ 1,250 million are due in 2024 , under Note 8 ."
SENTENCES = [
    FinerSentence(TEXT, (TaggedNumber(4, 8, "Rate"), TaggedNumber(47, 51, "DebtInstrumentMaturityDate"))),
    FinerSentence("We have 2 segments .", (TaggedNumber(8, 9, "Segments"),)),
]


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_a_record_for_every_tagged_number(family: str) -> None:
    model, tokenizer = attached(family)
    counted: list[int] = []
    records = list(evaluate_finer(model, tokenizer, SENTENCES, counted.append))
    assert counted == [1, 1]
    assert [(r["value"], r["tag"], r["role"]) for r in records] == [
        ("7.00", "Rate", "quantitative"),
        ("2024", "DebtInstrumentMaturityDate", "nominal"),
        ("2", "Segments", "quantitative"),
    ]
    inspected = {d.text: d for d in ani.inspect(model, tokenizer, TEXT)}
    for record in records[:2]:
        assert TEXT[record["start"] : record["end"]] == record["value"]
        decision = inspected[record["value"]]
        assert (record["alpha"], record["injected"]) == (decision.alpha, decision.injected)


def test_a_model_without_ani_is_refused() -> None:
    with pytest.raises(InputError, match="no ANI module"):
        list(evaluate_finer(*pair("qwen3"), SENTENCES))


def test_summary() -> None:
    def record(text: str, role: str, injected: bool) -> FinerRecord:
        return {  # type: ignore[typeddict-item]
            "text": text, "start": 0, "end": 1, "value": "1", "tag": "T", "role": role, "alpha": 0.1,
            "injected": injected,
        }  # fmt: skip

    records = [
        *(record(text, "nominal", injected) for text, injected in [("a", False), ("a", False), ("b", True)]),
        *(record(text, "quantitative", injected) for text, injected in [("a", True), ("c", False)]),
    ]
    summary = finer(as_records(records, TaggedDecision))
    counts = {name: (share["right"], share["total"]) for name, share in summary._asdict().items()}
    assert counts == {"nominal_bypassed": (2, 3), "quantitative_injected": (1, 2), "precision": (2, 3)}
    assert summary.nominal_bypassed["share"] == pytest.approx(2 / 3)
    assert finer([]).precision["share"] is None
