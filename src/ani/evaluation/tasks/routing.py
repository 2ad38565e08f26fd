"""Task `routing`: counts the nominal numbers that the gate, and the model's own calls, keep out of a tool's arguments.

The paper's appendix, "Synthetic Evaluation on Gating Accuracy and Agentic Tool-Routing", describes 50 deceptive
queries, with nominal numbers as traps beside the operands of a calculation, but gives neither them nor its prompt:
those in `routing.yaml` and the prompt are ours. A query without a readable call is no success, and counted apart.
"""

import ast
import contextlib
import json
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import ClassVar, Literal, NamedTuple

import yaml
from pydantic import Field

from ani.evaluation.engines import Engine, check_numbers
from ani.evaluation.task import Answers, Measured, few_shot
from ani.numbers import find_numbers
from ani.results.records import Integer, Probability, Record
from ani.results.scores import ONE_MODEL, TaskRecord
from ani.results.statistics import Estimate, grouped_share
from ani.roles import RoleName

_ROLES: dict[str, RoleName] = {"N": "nominal", "Q": "quantitative"}
_PERCENTAGE = re.compile(r"\s*(?:%|percent\b)")
TOOLS_PROMPT = """\
You have one tool, a calculator. Call it with the numbers that the calculation needs, as a list of texts. Write a \
percentage as a fraction: 10% is "0.10". Answer every query with one call and nothing else.

"""
"""Text before the first query, as not every chat template takes a system message."""
EXAMPLES = (
    ("A shop sells 57 lamps at $46 each. How much money does it take?", 'calculator(["57", "46"])'),
    ("A rent of $690 goes up by 10%. How many dollars is that?", 'calculator(["690", "0.10"])'),
)
"""Earlier turns, without which SmolLM2 answers in prose. They contain no trap, and no query contains their numbers."""
MAX_NEW_TOKENS = 128

CallStatus = Literal["called", "malformed", "none"]

_NAME = re.compile(r"""\bcalculator(?:\(|\s+\((?=\s*(?:["'\[{(\d.$+-]|\w+\s*=)))""", re.IGNORECASE)
"""After a space only before a literal or a named argument: "the calculator (a tool)" is prose."""
_QUOTE_OR_PARENTHESIS = re.compile(r"""[()]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|["']""", re.DOTALL)
_JSON_NAME = re.compile(r'"name"\s*:\s*"calculator"', re.IGNORECASE)
_LITERAL: tuple[type[ast.AST], ...] = (
    ast.Expression,
    ast.Call,
    ast.keyword,
    ast.Name,
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
)
_LITERAL += (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
"""Nodes of a readable call."""


class RoutedNumber(Record):
    """A number of a query, the gate's decision, and whether the model passed the number to the tool."""

    text: str
    value: Decimal
    start: Integer
    """First character in the query."""
    end: Integer
    """One after the last character."""
    role: RoleName
    """Traps are nominal, operands quantitative."""
    alpha: Probability | None = None
    """σ(z) (`NumberDecision.alpha`); None without a gate."""
    injected: bool | None = None
    """True if the gate is open; None without a gate."""
    passed: bool | None = None
    """True if a call contains the number; None unless `call` is `called`."""


class RoutedQuery(TaskRecord):
    """A query and the model's calls, a line of `routing.jsonl`."""

    query: str
    domain: str | None = None
    output: str | None = None
    call: CallStatus
    """`called`: a call can be read and contains a number; `malformed`: the tool is named as if to call it, but no call
    can be read; `none`: neither."""
    calls: list[list[str]] | None = None
    """Values of the numbers of each readable call."""
    exact: bool
    """True if there is one call, with every operand once and nothing else. A second call counts even if it can't be
    read, for example because the output was cut off."""
    numbers: list[RoutedNumber]


class RoutingQuery(NamedTuple):
    """A query, its numbers in order, and the calculation that answers it, such as `4800 * 0.05 = 240`."""

    text: str
    domain: str
    numbers: tuple[RoutedNumber, ...]
    solution: str

    def forms(self, number: RoutedNumber) -> set[Decimal]:
        """Return the values that mean a number in a call: its own, and for a percentage also the fraction."""
        is_percentage = _PERCENTAGE.match(self.text, number.end)
        return {number.value, number.value / 100} if is_percentage else {number.value}


class Routing(Measured):
    """Calls of a calculator for 64 deceptive queries, and the gate's decisions if the model has one."""

    name = "routing"
    title = "Tool routing"
    note = (
        "Queries with a calculator at hand. An operand is a number that the calculation needs; a trap is a name "
        "that looks like one. A query without a readable call is no success, and counted apart."
    )
    caption = "Tool routing, with 95% intervals (queries resampled as wholes, and training seeds)"
    published: ClassVar[Mapping[str, str]] = {"traps_avoided": "92.9% with ANI, 69.6% without"}
    unit = "queries"
    record = RoutedQuery
    together = 16

    limit: int | None = Field(default=None, ge=1)
    """Number of queries, drawn by the seed; null: all. A larger limit only appends."""

    def questions(self, seed: int) -> list[RoutingQuery]:
        queries = list(routing_queries())
        random.Random(f"tool routing {seed}").shuffle(queries)
        return queries[: self.limit]

    def answer(self, engine: Engine, questions: Sequence[RoutingQuery]) -> Answers:
        """Ask for the tool call of every query, greedily, after the tools prompt and two examples; and the gate about
        the query's numbers. Raises InputError if the tokenizer changes numbers (`check_numbers`)."""
        chats = [conversation(query) for query in questions]
        before = chats[0][:-1]  # the same for all
        every = engine.decide([query.text for query in questions], before) if engine.gated else None
        for place, output in engine.generate(chats, MAX_NEW_TOKENS):
            query = questions[place]
            record = judged(query, output)
            if every is not None:
                check_numbers(query.text, every[place])
                decided = zip(record.numbers, every[place], strict=True)
                numbers = [n.model_copy(update={"alpha": d.alpha, "injected": d.injected}) for n, d in decided]
                record = record.model_copy(update={"numbers": numbers})
            yield place, [record]

    @classmethod
    def measures(cls, records: Sequence[RoutedQuery]) -> dict[str, tuple[str, Estimate | None]]:
        """Return label and share by measure, with queries resampled as wholes."""

        def share(role: RoleName, key: str, wanted: bool, known: bool = True) -> Estimate | None:
            """Return the share of a role's numbers, or of those whose value is `known`."""
            found = ((q.query, q.seed, getattr(n, key)) for q in records for n in q.numbers if n.role == role)
            return grouped_share(
                (text, seed, is_so is wanted) for text, seed, is_so in found if is_so is not None or not known
            )

        def queries(right: Callable[[RoutedQuery], bool]) -> Estimate | None:
            return grouped_share((record.query, record.seed, right(record)) for record in records)

        return {
            "traps_closed": ("Gate: traps closed", share("nominal", "injected", False)),
            "operands_open": ("Gate: operands open", share("quantitative", "injected", True)),
            "exact": ("Calls: every operand and nothing else", queries(lambda query: query.exact)),
            "traps_avoided": ("Calls: traps kept out, of all", share("nominal", "passed", False, known=False)),
            "traps_avoided_when_called": (
                "Calls: traps kept out, of those in queries with a call",
                share("nominal", "passed", False),
            ),
            "operands_passed": ("Calls: operands passed", share("quantitative", "passed", True, known=False)),
            "called": ("Queries with a readable call", queries(lambda query: query.call == "called")),
            "malformed": ("Queries with a malformed call", queries(lambda query: query.call == "malformed")),
            "none": ("Queries without a call", queries(lambda query: query.call == "none")),
        }


@cache
def routing_queries() -> tuple[RoutingQuery, ...]:
    """Return all queries, in the order of the file."""
    document = resources.files("ani.evaluation.tasks").joinpath("routing.yaml").read_text("utf-8")
    return tuple(_query(domain, entry) for domain, entries in yaml.safe_load(document).items() for entry in entries)


def _query(domain: str, entry: dict[str, str]) -> RoutingQuery:
    numbers = (
        RoutedNumber(text=n.text, value=n.value, start=n.start, end=n.end, role=_ROLES[letter])
        for n, letter in zip(find_numbers(entry["query"]), entry["roles"], strict=True)
    )
    return RoutingQuery(entry["query"], domain, tuple(numbers), entry["solution"])


def conversation(query: RoutingQuery) -> list[dict[str, str]]:
    """Return the chat messages that ask for the query's call."""
    (first, call), *others = EXAMPLES
    return few_shot([(TOOLS_PROMPT + first, call), *others], query.text)


def judged(query: RoutingQuery, output: str) -> RoutedQuery:
    """Find which of a query's numbers a model's answer passes; the gate's decisions are left open.

    A number of a call is taken for the operand that it means (a percentage may be a fraction), unless that operand is
    already taken in this call; else for the traps of its value. A trap or operand is passed if any call contains it.
    """
    calls, named = parse_calls(output)
    passed: set[RoutedNumber] = set()
    exact = len(calls) == named == 1
    for call in calls:
        open_operands = [number for number in query.numbers if number.role == "quantitative"]
        for value in call:
            operand = next((number for number in open_operands if value in query.forms(number)), None)
            if operand is not None:
                open_operands.remove(operand)
                passed.add(operand)
            else:
                exact = False
                passed.update(number for number in query.numbers if number.role == "nominal" and value == number.value)
        exact = exact and not open_operands
    return RoutedQuery(
        run=ONE_MODEL,
        query=query.text,
        domain=query.domain,
        output=output,
        call="called" if calls else "malformed" if named else "none",
        calls=[[str(value) for value in call] for call in calls],
        exact=exact,
        numbers=[number.model_copy(update={"passed": number in passed if calls else None}) for number in query.numbers],
    )


# --- reading calls ----------------------------------------------------------------------------------------------------


def parse_calls(output: str) -> tuple[list[list[Decimal]], int]:
    """Return the absolute values of the numbers of every readable call, in order; and how often the tool is named as if
    to call it.

    A call is `calculator(…)` with literals: numbers, texts with numbers ("$5,000", "5000 * 0.1"), lists or named
    arguments of them, calculations with them; or a JSON object whose `name` is "calculator", with `arguments` or
    `parameters`. Anything else that names the tool so, and a call without a number, can't be read.
    """
    calls: list[list[Decimal]] = []
    position = named = 0
    while match := _NAME.search(output, position):
        named += 1
        end = _closing(output, match.end())
        position = end or match.end()  # calls within a call are part of it
        if end and (values := _python_values("calculator(" + output[match.end() : end])):
            calls.append(values)
    if in_json := len(_JSON_NAME.findall(output)):
        named += in_json
        calls += _json_calls(output)
    return calls, named


def _closing(text: str, position: int) -> int | None:
    """Return the position after the parenthesis that closes the one before `position`; None if there is none."""
    depth = 1
    for part in _QUOTE_OR_PARENTHESIS.finditer(text, position):
        if part[0] in ("'", '"'):  # without its end
            return None
        depth += {"(": 1, ")": -1}.get(part[0], 0)
        if not depth:
            return part.end()
    return None


def _python_values(source: str) -> list[Decimal]:
    """Return the numbers of a call written in Python; none if it contains anything but literals."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the escape in "\$5,000"
            nodes = [*ast.walk(ast.parse(source, mode="eval"))]
        named = {node.id.lower() for node in nodes if isinstance(node, ast.Name)}
        if named - {"calculator"} or not all(isinstance(node, _LITERAL) for node in nodes):
            return []
        keys = {key for node in nodes if isinstance(node, ast.Dict) for key in node.keys}
        values = [node for node in nodes if isinstance(node, ast.Constant) and node not in keys]
        values.sort(key=lambda node: (node.lineno, node.col_offset))
        return [number for node in values for number in _constant_values(node, source)]
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return []


def _constant_values(node: ast.Constant, source: str) -> list[Decimal]:
    """Return the absolute values of a literal's numbers: whether a subtrahend has a sign is a matter of style."""
    if isinstance(node.value, str):
        return [abs(number.value) for number in find_numbers(node.value)]
    if type(node.value) not in (int, float):
        return []
    return [Decimal(ast.get_source_segment(source, node) or "")]  # as written: a float would round it


def _json_calls(output: str) -> Iterator[list[Decimal]]:
    decoder = json.JSONDecoder(parse_float=str, parse_int=str)
    for brace in re.finditer(r"\{", output):
        with contextlib.suppress(ValueError, RecursionError):
            value, _ = decoder.raw_decode(output, brace.start())
            if str(value.get("name")).lower() == "calculator":
                arguments = value.get("arguments", value.get("parameters"))
                if isinstance(arguments, str):  # OpenAI's form, JSON within JSON; or plain text
                    with contextlib.suppress(ValueError):
                        arguments = decoder.decode(arguments)
                if values := _python_values(repr(arguments)):
                    yield values
