import re
from collections import Counter
from decimal import Decimal

import pytest

import ani
from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks import routing
from ani.evaluation.tasks.routing import (
    Routing,
    RoutingQuery,
    conversation,
    judged,
    parse_calls,
    routing_queries,
)
from ani.numbers import find_numbers
from tests.answers import answers_of
from tests.tiny import attached


def query(domain: str, text: str, solution: str) -> RoutingQuery:
    return routing._query(domain, {"query": text, "roles": "NQQ", "solution": solution})


BONUS = query("payroll", "Employee 2048 earns $5,000 and gets a 10% bonus. How much is the bonus?", "5000 * 0.10 = 500")
SEATS = query("rooms", "Room 12 seats 12 and the hall seats 45. How many can sit?", "12 + 45 = 57")


@pytest.mark.parametrize(
    ("output", "calls"),
    [
        (' Sure!\n```python\nresult = calculator( ["5000",\n "0.10"] )\n```', [["5000", "0.10"]]),
        ("calculator(numbers=[5_000, .1], operation='multiply')", [["5000", "0.1"]]),
        (r'calculator(["\$5,000", "it\'s 10%)"])', [["5000", "10"]]),
        ("calculator(\"(5000 * 0.1)\") and calculator('2048')", [["5000", "0.1"], ["2048"]]),
        ('calculator([calculator(["1", "2"]), "-3"])', [["1", "2", "3"]]),
        ('I use calculator (as asked): calculator(["7", "8"])', [["7", "8"]]),
        ("calculator({'a1': '5000', 'b': 0.1})", [["5000", "0.1"]]),
        ('<tool_call>\n{"name": "calculator", "arguments": {"numbers": ["5000", 0.10]}}', [["5000", "0.10"]]),
        ('{"name": "calculator", "parameters": {"expression": "5000 * 0.1", "exact": true}}', [["5000", "0.1"]]),
        ('[{"function": {"name": "calculator", "arguments": "{\\"a\\": [1, {\\"b\\": 2}]}"}}]', [["1", "2"]]),
    ],
)
def test_calls_in_many_forms(output: str, calls: list[list[str]]) -> None:
    found, named = parse_calls(output)
    assert [[str(value) for value in call] for call in found] == calls
    assert named >= len(calls)


MALFORMED = [
    'calculator(["5000", "0.10"]', 'calculator(["5000, 0.10])', "calculator(salary, 0.10)", "calculator(05000)",
    "calculator(1e99999999999999999999)", "calculator(True)", "calculator(" * 300, '{"name": "calculator"}',
    "calculator(" + "[" * 3000 + "1" + "]" * 3000 + ")", '[{"name": "calculator", "arguments": ' + "[" * 100_000,
]  # fmt: skip
NONE = [
    "",
    "The calculator says 500.",
    'my_calculator(["5"])',
    '{"name": "x"}',
    "the calculator\n(with 5000) says 500.",
]


def test_no_readable_call() -> None:
    for output in MALFORMED + NONE:
        assert parse_calls(output)[0] == []
        assert judged(BONUS, output).call == ("malformed" if output in MALFORMED else "none"), output[:80]


@pytest.mark.parametrize(
    ("query", "output", "passed", "exact"),
    [
        (BONUS, 'calculator(["5000", "0.10"])', [False, True, True], True),
        (BONUS, 'calculator(["10%", "$5,000"])', [False, True, True], True),
        (BONUS, 'calculator(["5000", "0.1", "2048"])', [True, True, True], False),
        (BONUS, 'calculator(["Employee 2048", "5000"])', [True, True, False], False),
        (BONUS, 'calculator(["5000", "0.10"]) calculator(["2048"])', [True, True, True], False),
        (BONUS, 'calculator(["5000"]) calculator(["0.10"])', [False, True, True], False),
        # A call that is cut off passes nothing, but the answer isn't one call.
        (BONUS, 'calculator(["5000", "0.10"])\ncalculator(["2048", "50', [False, True, True], False),
        # One 12 is the operand; a second one must be the room.
        (SEATS, 'calculator(["12", "45"])', [False, True, True], True),
        (SEATS, 'calculator(["12", "12", "45"])', [True, True, True], False),
        (SEATS, 'calculator(["12", "45"]) calculator(["12"])', [False, True, True], False),
        (BONUS, "calculator(2048", [None, None, None], False),
    ],
)
def test_what_a_call_passes(query: RoutingQuery, output: str, passed: list[bool | None], exact: bool) -> None:
    record = judged(query, output)
    assert [number.passed for number in record.numbers] == passed
    assert record.exact is exact


def test_the_right_call_of_every_query_is_exact() -> None:
    for query in routing_queries():
        operands = re.findall(r"[\d.]+", query.solution)[:2]
        assert judged(query, f"calculator({operands})").exact
        every = judged(query, f"calculator({[number.text for number in query.numbers]})")
        assert all(number.passed for number in every.numbers)


@pytest.mark.parametrize(("together", "policy"), [(1, "terminal"), (3, "after")])
def test_gate_and_calls_of_a_tiny_model(together: int, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_NEW_TOKENS", 6)
    monkeypatch.setattr(Routing, "together", together)
    model, tokenizer = attached("qwen3", policy=policy)
    queries = routing_queries()[:4]
    records = answers_of(Routing(), TransformersEngine(model, tokenizer), queries)
    for query, record in zip(queries, records, strict=True):
        prompt = tokenizer.apply_chat_template(
            conversation(query), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        answer = model.generate(**prompt, max_new_tokens=6, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        assert record.output == tokenizer.decode(answer, skip_special_tokens=True)
        chat = tokenizer.decode(prompt["input_ids"][0])
        first = chat.rindex(query.text)
        decisions = [
            (decision.start - first, decision.alpha, decision.injected)
            for decision in ani.inspect(model, tokenizer, chat, around=("", ""))
            if first <= decision.start < first + len(query.text)
        ]
        found = [(number.start, number.alpha, number.injected) for number in record.numbers]
        assert found == [(start, pytest.approx(alpha, abs=1e-5), injected) for start, alpha, injected in decisions]
    numbers = [number for record in records for number in record.numbers]
    gate = Routing.summary(records)
    assert gate["traps_closed"]["right"] == sum(n.role == "nominal" and not n.injected for n in numbers)
    assert gate["operands_open"]["right"] == sum(n.role == "quantitative" and n.injected for n in numbers)
    assert {number.injected for number in numbers} == {True, False}


def test_our_queries() -> None:
    queries = routing_queries()
    assert len({query.text for query in queries}) == len(queries) >= 60
    for query in queries:
        assert [number.text for number in query.numbers] == [number.text for number in find_numbers(query.text)]
        roles = [number.role for number in query.numbers]
        assert 1 <= roles.count("nominal") <= 3 and roles.count("quantitative") >= 2
        # An independent reading of the solution: Python's arithmetic.
        assert re.fullmatch(r"[\d.]+ [-+*/] [\d.]+ = [\d.]+", query.solution, re.ASCII), query.solution
        calculation, result = query.solution.split(" = ")
        assert eval(calculation) == pytest.approx(float(result))
        operands = [number for number in query.numbers if number.role == "quantitative"]
        used = [Decimal(text) for text in re.findall(r"[\d.]+", calculation)]
        assert sorted(used) == sorted(min(query.forms(operand)) for operand in operands)
        # Operands and percentages differ in a call.
        forms = Counter(form for operand in operands for form in query.forms(operand))
        every = Counter(form for number in query.numbers for form in query.forms(number))
        percentages = [form for n in query.numbers if len(query.forms(n)) > 1 for form in query.forms(n)]
        assert set(forms.values()) == {1} and all(every[form] == 1 for form in percentages), query.text


def test_the_seed_draws_the_queries() -> None:
    few = Routing(limit=16).questions(seed=0)
    assert few == Routing().questions(seed=0)[:16] != Routing(limit=16).questions(seed=1)
    assert sorted(Routing().questions(seed=0)) == sorted(routing_queries())
