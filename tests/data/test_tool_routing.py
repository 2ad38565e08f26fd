import re
from decimal import Decimal
from importlib import resources

import pytest
import yaml

from ani.data.tool_routing import drawn_queries, parse_queries, routing_queries
from ani.numbers import find_numbers

GOOD = {"query": "Gate 17 lets 30 of 45 people in.", "roles": "NQQ", "solution": "45 - 30 = 15"}


def document(**changes: str) -> str:
    entry = {**GOOD, **changes}
    return "gates:\n  - " + "\n    ".join(f'{key}: "{value}"' for key, value in entry.items()) + "\n"


def test_our_queries() -> None:
    queries = routing_queries()
    assert len(queries) >= 60
    assert len({query.domain for query in queries}) >= 10
    for query in queries:
        assert [number.text for number in query.numbers] == [number.text for number in find_numbers(query.text)]
        for number in query.numbers:
            assert query.text[number.start : number.end] == number.text
        roles = [number.role for number in query.numbers]
        assert 1 <= roles.count("nominal") <= 3 and roles.count("quantitative") >= 2
        assert query.text.endswith("?")
        # An independent reading of the solution: Python's arithmetic.
        assert eval(query.solution) == pytest.approx(float(query.answer))
        operands = [number for number in query.numbers if number.role == "quantitative"]
        used = [Decimal(text) for text in re.findall(r"[\d.]+", query.solution)]
        assert len(used) == len(operands)
        assert all(any(value in operand.forms for value in used) for operand in operands)


def test_few_queries_are_of_many_kinds() -> None:
    few = drawn_queries(16)
    assert few == drawn_queries()[:16] != drawn_queries(16, seed=1)
    assert sorted(drawn_queries()) == sorted(routing_queries())
    assert len({query.domain for query in few}) > len({query.domain for query in routing_queries()[:16]}) + 3


def test_what_makes_them_deceptive() -> None:
    """The role is in neither the value nor the place alone."""
    queries = routing_queries()
    equal = [
        query
        for query in queries
        if {n.value for n in query.numbers if n.role == "nominal"}
        & {n.value for n in query.numbers if n.role == "quantitative"}
    ]
    assert len(equal) >= 5
    assert sum(query.numbers[0].role == "quantitative" for query in queries) >= 8
    assert sum(query.numbers[-1].role == "nominal" for query in queries) >= 8


def test_queries_are_new_to_a_gate_trained_on_our_sentences() -> None:
    def runs(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"#|[a-z']+", text.lower())
        return {run for run in zip(*(words[i:] for i in range(4)), strict=False) if "#" in run}

    trained: set[tuple[str, ...]] = set()
    for name in ("diagnostic_templates.yaml", "contrastive_pairs.yaml"):
        for splits in yaml.safe_load(resources.files("ani.data").joinpath(name).read_text("utf-8")).values():
            for text in splits.get("train", []):
                trained |= runs(re.sub(r"\{[^}]*\}", "#", text))
    assert len(trained) > 1000
    for query in routing_queries():
        masked = query.text
        for number in reversed(query.numbers):
            masked = f"{masked[: number.start]}#{masked[number.end :]}"
        assert not runs(masked) & trained, query.text


def test_percentages_have_two_forms() -> None:
    (query,) = parse_queries(document(query="In 2019, 45% of 60 went.", solution="0.45 * 60 = 27"))
    assert [set(number.forms) for number in query.numbers] == [
        {Decimal(2019)},
        {Decimal(45), Decimal("0.45")},
        {Decimal(60)},
    ]
    assert (query.solution, query.answer, query.domain) == ("0.45 * 60", Decimal(27), "gates")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"roles": "NQ"}, "roles 'NQ' must be N or Q for each of .'17', '30', '45'"),
        ({"roles": "NQX"}, "roles 'NQX'"),
        ({"roles": "QQQ"}, "0 traps"),
        ({"roles": "NNQ"}, "1 operands"),
        ({"solution": "45 - 30"}, "must look like"),
        ({"solution": "45 - 30 = 16"}, "is wrong"),
        ({"solution": "47 - 30 = 17"}, "aren't the operands"),
        ({"query": "Gate 17 lets 30 of 30 people in.", "solution": "30 - 30 = 0"}, "must differ"),
        ({"query": "Gate 30 lets 30% of 50 people in.", "solution": "0.30 * 50 = 15"}, "must differ"),
    ],
)
def test_inconsistent_queries_are_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_queries(document(**changes))
    assert "domain 'gates', query 'Gate" in str(caught.value)


def test_a_query_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        parse_queries(document() + document().partition("\n")[2])
