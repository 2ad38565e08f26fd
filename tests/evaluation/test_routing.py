import re
from decimal import Decimal

import pytest
import torch

import ani
from ani import InputError
from ani.data.tool_routing import RoutingQuery, parse_queries, routing_queries
from ani.evaluation import routing
from ani.evaluation.routing import conversation, evaluate_routing, judged, parse_calls
from ani.injection.methods import METHODS
from ani.numbers import find_numbers
from ani.report import summaries
from ani.report.records import RoutedQuery, as_records
from tests.tiny import attached, pair, smollm2

(BONUS,) = parse_queries(
    """
    payroll:
      - query: "Employee 2048 earns $5,000 and gets a 10% bonus. How much is the bonus?"
        roles: NQQ
        solution: 5000 * 0.10 = 500
    """
)
(SEATS,) = parse_queries(
    """
    rooms:
      - query: "Room 12 seats 12 and the hall seats 45. How many can sit?"
        roles: NQQ
        solution: 12 + 45 = 57
    """
)


@pytest.mark.parametrize(
    ("output", "calls"),
    [
        ('calculator(["5000", "0.10"])', [["5000", "0.10"]]),
        (' Sure!\n```python\nresult = calculator( ["5000",\n "0.10"] )\n```', [["5000", "0.10"]]),
        ("Calculator(5000, 0.10)", [["5000", "0.10"]]),
        ("calculator(numbers=[5_000, .1], operation='multiply')", [["5000", "0.1"]]),
        ("calculator(['$5,000', '10%'])", [["5000", "10"]]),
        (r'calculator(["\$5,000", "it\'s 10%)"])', [["5000", "10"]]),
        ("calculator(\"(5000 * 0.1)\") and calculator('2048')", [["5000", "0.1"], ["2048"]]),
        ("calculator((5000 - 12) * 0.10)", [["5000", "12", "0.10"]]),
        ('calculator([calculator(["1", "2"]), "-3"])', [["1", "2", "3"]]),
        ('I use calculator (as asked): calculator(["7", "8"])', [["7", "8"]]),
        ('calculator (["7"]) and calculator (a="8")', [["7"], ["8"]]),
        ("calculator({'a': '5000', 'b': 0.1})", [["5000", "0.1"]]),
        # A Python reader takes 5,000 without quotes for 5 and 0, and so would the tool.
        ("calculator([5,000])", [["5", "0"]]),
        (
            '<tool_call>\n{"name": "calculator", "arguments": {"numbers": ["5000", 0.10]}}\n</tool_call>',
            [["5000", "0.10"]],
        ),
        ('{"name": "calculator", "parameters": {"expression": "5000 * 0.1"}}', [["5000", "0.1"]]),
        (
            '[{"type": "function", "function": {"name": "calculator", "arguments": "{\\"a\\": [1, {\\"b\\": 2}]}"}}]',
            [["1", "2"]],
        ),
    ],
)
def test_calls_in_many_forms(output: str, calls: list[list[str]]) -> None:
    found, named = parse_calls(output)
    assert [[str(value) for value in call] for call in found] == calls
    assert named >= len(calls)


@pytest.mark.parametrize(
    "output",
    [
        'calculator(["5000", "0.10"]',
        'calculator (["5000", "0.10"]',
        'calculator(["5000, 0.10])',
        "calculator(salary, 0.10)",
        "calculator([])",
        'calculator(["salary", "bonus"])',
        "calculator(05000)",
        "calculator(1e99999999999999999999)",
        "calculator(True)",
        "calculator(" * 300,
        "calculator(" + "[" * 3000 + "1" + "]" * 3000 + ")",
        '{"name": "calculator", "arguments": {"numbers": ["5000", ',
        '{"name": "calculator", "arguments": {}}',
        '{"name": "calculator"}',
        '[{"name": "calculator", "arguments": ' + "[" * 100_000,
    ],
)
def test_malformed_calls(output: str) -> None:
    assert parse_calls(output)[0] == []
    assert judged(BONUS, output)["call"] == "malformed"


@pytest.mark.parametrize(
    "output",
    [
        "",
        "500",
        "The calculator says 500.",
        'my_calculator(["5"])',
        '{"name": "x", "a": 5}',
        "I would ask the calculator (a tool), and the calculator\n(with 5000 and 10%) says 500.",
    ],
)
def test_no_calls(output: str) -> None:
    assert parse_calls(output) == ([], 0)
    assert judged(BONUS, output)["call"] == "none"


@pytest.mark.parametrize(
    ("query", "output", "passed", "exact"),
    [
        (BONUS, 'calculator(["5000", "0.10"])', [False, True, True], True),
        (BONUS, 'calculator(["10%", "$5,000"])', [False, True, True], True),
        (BONUS, 'calculator(["5000", "0.1", "2048"])', [True, True, True], False),
        (BONUS, 'calculator(["Employee 2048", "5000"])', [True, True, False], False),
        (BONUS, 'calculator(["57", "46"])', [False, False, False], False),
        (BONUS, 'calculator(["5000", "0.10", "5000"])', [False, True, True], False),
        (BONUS, 'calculator(["5000", "0.10"]) calculator(["2048"])', [True, True, True], False),
        (BONUS, 'calculator(["5000"]) calculator(["0.10"])', [False, True, True], False),
        # A call that is cut off passes nothing, but the answer isn't one call.
        (BONUS, 'calculator(["5000", "0.10"])\ncalculator(["2048", "50', [False, True, True], False),
        (BONUS, 'calculator(["5000", "0.10"]) {"name": "calculator", "arg', [False, True, True], False),
        (BONUS, 'The calculator (a tool) it is: calculator(["5000", "0.10"])', [False, True, True], True),
        # One 12 is the operand; a second one must be the room.
        (SEATS, 'calculator(["12", "45"])', [False, True, True], True),
        (SEATS, 'calculator(["12", "12", "45"])', [True, True, True], False),
        (SEATS, 'calculator(["12", "45"]) calculator(["12"])', [False, True, True], False),
        (BONUS, "calculator(2048", [None, None, None], False),
        (BONUS, "500", [None, None, None], False),
    ],
)
def test_what_a_call_passes(query: RoutingQuery, output: str, passed: list[bool | None], exact: bool) -> None:
    record = judged(query, output)
    assert [number["passed"] for number in record["numbers"]] == passed
    assert record["exact"] is exact


def test_the_right_call_of_every_query_is_exact() -> None:
    for query in routing_queries():
        operands = re.findall(r"[\d.]+", query.solution)
        assert judged(query, f"calculator({operands})")["exact"]
        every = judged(query, f"calculator({[number.text for number in query.numbers]})")
        assert all(number["passed"] for number in every["numbers"])


def test_no_query_holds_a_number_of_the_prompt() -> None:
    """A model that only repeats the examples passes neither traps nor operands."""
    *before, last = conversation(BONUS)
    assert [message["role"] for message in before] == ["user", "assistant"] * 2
    assert last == {"role": "user", "content": BONUS.text}
    example = {number.value for message in before for number in find_numbers(message["content"])}
    assert {Decimal(57), Decimal(46), Decimal(690), Decimal("0.10")} <= example
    for query in routing_queries():
        assert not example & {form for number in query.numbers for form in number.forms}


def test_malformed_calls_are_no_successes() -> None:
    outputs = ['calculator(["5000", "0.10"])', 'calculator(["2048", "5000"])', "calculator(2048", "I can't."]
    summary = summaries.routing(as_records((judged(BONUS, output) for output in outputs), RoutedQuery))
    counts = {name: (share["right"], share["total"]) for name, share in summary._asdict().items()}
    assert counts == {
        "called": (2, 4),
        "malformed": (1, 4),
        "none": (1, 4),
        "exact": (1, 4),
        "traps_closed": (0, 0),
        "operands_open": (0, 0),
        "traps_avoided": (1, 4),
        "traps_avoided_when_called": (1, 2),
        "operands_passed": (3, 8),
    }


@pytest.mark.parametrize("batch_size", [1, 3])
def test_gate_and_calls_of_a_tiny_model(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_NEW_TOKENS", 6)
    model, tokenizer = attached("qwen3")
    queries = routing_queries()[:4]
    counted: list[int] = []
    records = list(evaluate_routing(model, tokenizer, queries, batch_size=batch_size, on_batch=counted.append))
    assert counted == ([1] * 4 if batch_size == 1 else [3, 1])
    prompts = [
        tokenizer.apply_chat_template(
            conversation(query), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        for query in queries
    ]
    for query, record, prompt in zip(queries, records, prompts, strict=True):
        answer = model.generate(**prompt, max_new_tokens=6, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        assert record["output"] == tokenizer.decode(answer, skip_special_tokens=True)
        decisions = ani.inspect(model, tokenizer, query.text)
        assert [number["injected"] for number in record["numbers"]] == [d.injected for d in decisions]
        assert [number["start"] for number in record["numbers"]] == [d.start for d in decisions]
    numbers = [number for record in records for number in record["numbers"]]
    gate = summaries.routing(as_records(records, RoutedQuery))
    assert gate.traps_closed["right"] == sum(n["role"] == "nominal" and not n["injected"] for n in numbers)
    assert gate.operands_open["right"] == sum(n["role"] == "quantitative" and n["injected"] for n in numbers)
    assert {number["injected"] for number in numbers} == {True, False}


def test_models_without_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_NEW_TOKENS", 1)
    for model, tokenizer in (pair("qwen3"), attached("qwen3", gate="open")):
        (record,) = evaluate_routing(model, tokenizer, [BONUS])
        assert {(number["alpha"], number["injected"]) for number in record["numbers"]} == {(None, None)}


def test_a_method_that_rewrites_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model reads digit counts, and its answer is judged without them."""
    model, tokenizer = pair("qwen3")
    seen: list[str] = []

    def answer(*_: object, input_ids: torch.Tensor, **__: object) -> torch.Tensor:
        seen.append(tokenizer.decode(input_ids[0]))
        return torch.cat([input_ids, tokenizer('calculator(["4:5000", "1.2:0.10"])', return_tensors="pt").input_ids], 1)

    monkeypatch.setattr(model, "generate", answer)
    (record,) = evaluate_routing(model, tokenizer, [BONUS], method=METHODS["numerologic"])
    assert "Employee 4:2048 earns" in seen[0]
    assert record["exact"] and record["query"] == BONUS.text


def test_a_tokenizer_without_a_chat_template() -> None:
    model, tokenizer = pair("llama")
    with pytest.raises(InputError, match="a chat template is needed for tool routing"):
        next(evaluate_routing(model, tokenizer, [BONUS]))


def test_smollm2_writes_calls() -> None:
    record, _ = evaluate_routing(*smollm2(), [routing_queries()[2], BONUS])
    assert record["call"] == "called" and record["calls"]
