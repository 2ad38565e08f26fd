"""Task `routing`: counts the nominal numbers that the gate, and the model's own calls, keep out of a tool's arguments.

The paper's appendix, "Synthetic Evaluation on Gating Accuracy and Agentic Tool-Routing", speaks of 50 deceptive
queries, with nominal numbers as traps beside the operands of a calculation, without giving them; those in
`routing.yaml` are ours. Of the denominators below 112 only 56 yields both of its results, 69.6% (39) and 92.9% (52):
its cases are probably traps. It gives neither its prompt nor how a query without a readable call counts: the prompt is
ours, and such a query is no success but counted apart.
"""

import ast
import contextlib
import json
import random
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import Field

from ani.evaluation.engines import Engine
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
"""Before the first query, as not every chat template takes a system message."""
EXAMPLES = (
    ("A shop sells 57 lamps at $46 each. How much money does it take?", 'calculator(["57", "46"])'),
    ("A rent of $690 goes up by 10%. How many dollars is that?", 'calculator(["690", "0.10"])'),
)
"""Earlier turns: SmolLM2 answers in prose without them. They hold no trap, and no query holds their numbers."""
MAX_NEW_TOKENS = 128

CallStatus = Literal["called", "malformed", "none"]

_NAME = re.compile(r"""\bcalculator(?:\(|\s+\((?=\s*(?:["'\[{(\d.$+-]|\w+\s*=)))""", re.IGNORECASE)
"""After a space only with the beginning of a literal or of a named argument: "the calculator (a tool)" is prose."""
_QUOTE_OR_PARENTHESIS = re.compile(r"""[()]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|["']""", re.DOTALL)
_JSON_NAME = re.compile(r'"name"\s*:\s*"calculator"', re.IGNORECASE)


class RoutedNumber(Record):
    """A number of a query, the gate's decision about it, and whether the model passed it to the tool."""

    text: str
    value: Decimal
    start: Integer
    """First character in the query."""
    end: Integer
    """One after the last character."""
    role: RoleName
    """Traps are nominal, operands quantitative."""
    alpha: Probability | None = None
    """σ(z); None where the number got nothing (`NumberDecision.alpha`), and without a gate."""
    injected: bool | None = None
    """None without a gate."""
    passed: bool | None = None
    """None unless `call` is `called`."""


class RoutedQuery(TaskRecord):
    """A query and what became of it, a line of `routing.jsonl`."""

    query: str
    domain: str | None = None
    output: str | None = None
    call: CallStatus
    """`called`: a call can be read and holds a number, whatever else the output has. `malformed`: the tool is named as
    if to call it, but no call is so."""
    calls: list[list[str]] | None = None
    """The numbers of each readable call, as values."""
    exact: bool
    """There is one call, and it has every operand once and nothing else. A second one counts also if it can't be read,
    as where the output was cut off: it would get through to no tool, so `passed` doesn't know it."""
    numbers: list[RoutedNumber]


class RoutingQuery(NamedTuple):
    """A query, its numbers in order, and the calculation that answers it, such as `4800 * 0.05 = 240`."""

    text: str
    domain: str
    numbers: tuple[RoutedNumber, ...]
    solution: str

    def forms(self, number: RoutedNumber) -> set[Decimal]:
        """The values that stand for a number in a call: its own, and for a percentage also the fraction."""
        is_percentage = _PERCENTAGE.match(self.text, number.end)
        return {number.value, number.value / 100} if is_percentage else {number.value}


class Routing(Measured):
    """A calculator's calls for 64 deceptive queries; where the model has a gate, it is asked as well."""

    name = "routing"
    title = "Tool routing"
    note = (
        "Queries with a calculator at hand. An operand is a number that the calculation needs; a trap is a name "
        "that looks like one. A query without a readable call is no success, and counted apart."
    )
    caption = "Tool routing, with 95% intervals (queries resampled as wholes)"
    unit = "queries"
    record = RoutedQuery
    together = 16

    limit: int | None = Field(default=None, ge=1)
    """Queries, drawn by the seed; null: all. A larger limit only appends."""

    def questions(self, seed: int) -> list[RoutingQuery]:
        queries = list(routing_queries())
        random.Random(f"tool routing {seed}").shuffle(queries)
        return queries[: self.limit]

    def answer(self, engine: Engine, questions: Sequence[RoutingQuery]) -> Answers:
        """Ask for the tool call of every query, greedily, and the gate about the query's numbers. Raises InputError if
        the tokenizer changes numbers (`Engine.decide_roles`).

        A call is written with the tools prompt and two examples before the query.
        """
        chats = [conversation(query) for query in questions]
        for place, output in engine.generate(chats, MAX_NEW_TOKENS):
            query, chat = questions[place], chats[place]
            record = judged(query, output)
            if engine.gated:
                decided = zip(record.numbers, engine.decide_roles(query.text, chat[:-1]), strict=True)
                numbers = [n.model_copy(update={"alpha": d.alpha, "injected": d.injected}) for n, d in decided]
                record = record.model_copy(update={"numbers": numbers})
            yield place, [record]

    @classmethod
    def measures(cls, records: Sequence[RoutedQuery]) -> dict[str, tuple[str, Estimate | None]]:
        """Measure: what it is called, and its share, queries resampled as wholes."""

        def share(role: RoleName, key: str, wanted: bool, known: bool = True) -> Estimate | None:
            """Of the numbers of a role, or of those of which the answer is `known`."""
            found = ((query.query, getattr(n, key)) for query in records for n in query.numbers if n.role == role)
            return grouped_share((query, is_so is wanted) for query, is_so in found if is_so is not None or not known)

        def queries(right: Callable[[RoutedQuery], bool]) -> Estimate | None:
            return grouped_share((record.query, right(record)) for record in records)

        return {
            "traps_closed": ("Gate: traps closed", share("nominal", "injected", False)),
            "operands_open": ("Gate: operands open", share("quantitative", "injected", True)),
            "exact": ("Calls: every operand and nothing else", queries(lambda query: query.exact)),
            # One of a query without a readable call is no success.
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
    """All of our queries, in the order of the file, whose header states its form."""
    document = resources.files("ani.evaluation.tasks").joinpath("routing.yaml").read_text("utf-8")
    return tuple(_query(domain, entry) for domain, entries in yaml.safe_load(document).items() for entry in entries)


def _query(domain: str, entry: dict[str, str]) -> RoutingQuery:
    numbers = (
        RoutedNumber(text=n.text, value=n.value, start=n.start, end=n.end, role=_ROLES[letter])
        for n, letter in zip(find_numbers(entry["query"]), entry["roles"], strict=True)
    )
    return RoutingQuery(entry["query"], domain, tuple(numbers), entry["solution"])


def conversation(query: RoutingQuery) -> list[dict[str, str]]:
    """The chat messages whose answer is the query's call."""
    (first, call), *others = EXAMPLES
    return few_shot([(TOOLS_PROMPT + first, call), *others], query.text)


def judged(query: RoutingQuery, output: str) -> RoutedQuery:
    """What a model's answer passes of a query's numbers; the gate's decisions are left open.

    A number of a call is taken for the operand that it stands for (a percentage may be a fraction), as long as that
    one isn't taken yet in this call; else for the traps of its value. A trap or operand is passed if any call has it.
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
    """The absolute values of the numbers of every readable call, in order; and how often the tool is named as if to
    call it.

    A call is `calculator(…)` with literals in the parentheses: numbers, texts with numbers in them ("$5,000", "10%",
    "5000 * 0.1"), lists or named arguments of them, calculations with them; or a JSON object whose `name` is
    "calculator", with `arguments` or `parameters`, as chat models with tools of their own write it. Anything else that
    names the tool so, and a call without a number, can't be read.
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
    """One after the parenthesis that closes the one before `position`; None if there is none."""
    depth = 1
    for part in _QUOTE_OR_PARENTHESIS.finditer(text, position):
        if part[0] in ("'", '"'):  # without its end
            return None
        depth += {"(": 1, ")": -1}.get(part[0], 0)
        if not depth:
            return part.end()
    return None


def _python_values(source: str) -> list[Decimal] | None:
    """The numbers of a call written in Python; None if it holds anything but literals."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the escape in "\$5,000", of which kind depends on the Python
            return _literal_values(ast.parse(source, mode="eval").body, source)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _literal_values(node: ast.expr, source: str) -> list[Decimal]:
    inner: Iterable[ast.AST]
    match node:
        case ast.Constant(value=str() as text):
            return _text_values(text)
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return [Decimal(ast.get_source_segment(source, node) or "")]  # as written: a float would round it
        case ast.Call(func=ast.Name(id=name)) if name.lower() == "calculator":
            inner = [*node.args, *(keyword.value for keyword in node.keywords)]
        case ast.Dict():
            inner = node.values
        case ast.List() | ast.Tuple() | ast.Set() | ast.BinOp() | ast.UnaryOp():
            inner = ast.iter_child_nodes(node)  # operators are among them
        case _:
            raise ValueError(f"{type(node).__name__} is no literal")
    return [value for child in inner if isinstance(child, ast.expr) for value in _literal_values(child, source)]


def _json_calls(output: str) -> Iterator[list[Decimal]]:
    decoder = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal)
    for brace in re.finditer(r"\{", output):
        with contextlib.suppress(ValueError, ArithmeticError, RecursionError):
            value, _ = decoder.raw_decode(output, brace.start())
            if str(value.get("name")).lower() != "calculator":
                continue
            arguments = value.get("arguments", value.get("parameters"))
            if isinstance(arguments, str):  # OpenAI's form, JSON within JSON; or plain text
                with contextlib.suppress(ValueError):
                    arguments = decoder.decode(arguments)
            if values := _json_values(arguments):
                yield values


def _json_values(value: Any) -> list[Decimal]:
    match value:
        case Decimal():
            return [abs(value)]
        case str():
            return _text_values(value)
        case list():
            return [found for child in value for found in _json_values(child)]
        case dict():
            return _json_values(list(value.values()))
    return []


def _text_values(text: str) -> list[Decimal]:
    """Signs go: whether a subtrahend is passed as -12 or 12 is a matter of style."""
    return [abs(number.value) for number in find_numbers(text)]
