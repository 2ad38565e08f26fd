"""Are names kept out of a tool's arguments? By the gate, and in the model's own calls; knows nothing about training.

The paper's appendix, "Synthetic Evaluation on Gating Accuracy and Agentic Tool-Routing". It gives neither its prompt
nor how a query without a readable call counts: the prompt is ours, and such a query is no success but counted apart.
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Literal, TypedDict, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.data.diagnostic import Role
from ani.data.tool_routing import RoutingNumber, RoutingQuery
from ani.evaluation.backends import VllmModel, greedy_texts
from ani.evaluation.gating import decided_alpha, decisions
from ani.injection.attach import has_gate
from ani.injection.methods import METHODS, Method
from ani.models import need_chat_template
from ani.numbers import find_numbers

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
BATCH_SIZE = 16
"""Queries that are answered together."""

CallStatus = Literal["called", "malformed", "none"]

_NAME = re.compile(r"""\bcalculator(?:\(|\s+\((?=\s*(?:["'\[{(\d.$+-]|\w+\s*=)))""", re.IGNORECASE)
"""After a space only with the beginning of a literal or of a named argument: "the calculator (a tool)" is prose."""
_JSON_NAME = re.compile(r'"name"\s*:\s*"calculator"', re.IGNORECASE)


class RoutedNumber(TypedDict):
    """A number of a query, the gate's decision about it, and whether the model passed it to the tool."""

    text: str
    value: str
    start: int
    end: int
    role: Role
    """Traps are nominal, operands quantitative."""
    alpha: float | None
    """σ(z); None where the overflow rule left the number alone, and without a gate."""
    injected: bool | None
    """None without a gate."""
    passed: bool | None
    """None unless `call` is `called`."""


class RoutingRecord(TypedDict):
    """A query and what became of it, a line of `routing.jsonl`."""

    query: str
    domain: str
    output: str
    call: CallStatus
    """`called`: a call can be read and holds a number, whatever else the output has. `malformed`: the tool is named as
    if to call it, but no call is so."""
    calls: list[list[str]]
    """The numbers of each readable call, as values."""
    exact: bool
    """There is one call, and it has every operand once and nothing else. A second one counts also if it can't be read,
    as where the output was cut off: it would get through to no tool, so `passed` doesn't know it."""
    numbers: list[RoutedNumber]


def evaluate_routing(
    model: PreTrainedModel | VllmModel,
    tokenizer: PreTrainedTokenizerBase,
    queries: Sequence[RoutingQuery],
    *,
    method: Method = METHODS["ani"],
    batch_size: int = BATCH_SIZE,
    on_batch: Callable[[int], None] | None = None,
) -> Iterator[RoutingRecord]:
    """Ask for the tool call of every query, greedily; where the model has a gate, inspect the query as well.

    The gate is asked about the query by itself, as `evaluate_gating` asks it about sentences; a call is written with
    the tools prompt and two examples before the query.

    Args:
        model: In evaluation mode; with ANI attached or without; a PeftModel will do. vLLM's gate isn't asked.
        tokenizer: Its tokenizer; any padding side.
        queries: In the order of the records.
        method: How texts are written for the model, and its answers read.
        batch_size: Queries that are answered together.
        on_batch: Called with the number of queries answered, after each batch.

    Raises:
        InputError: The tokenizer has no chat template, or changes numbers (`ani.evaluation.gating.decisions`).
    """
    need_chat_template(tokenizer, "tool routing")
    attached = None if isinstance(model, VllmModel) or not has_gate(model) else model
    for first in range(0, len(queries), batch_size):
        batch = queries[first : first + batch_size]
        outputs = _answers(model, tokenizer, [conversation(query, method) for query in batch])
        for query, output in zip(batch, outputs, strict=True):
            record = judged(query, method.read(output))
            if attached is not None:
                for number, decision in zip(record["numbers"], decisions(attached, tokenizer, query.text), strict=True):
                    number["alpha"], number["injected"] = decided_alpha(decision), decision.injected
            yield record
        if on_batch is not None:
            on_batch(len(batch))


def conversation(query: RoutingQuery, method: Method = METHODS["ani"]) -> list[dict[str, str]]:
    """The chat messages whose answer is the query's call, as a method writes them."""
    turns = [("user", TOOLS_PROMPT + EXAMPLES[0][0]), ("assistant", EXAMPLES[0][1])]
    turns += [turn for question, call in EXAMPLES[1:] for turn in (("user", question), ("assistant", call))]
    return [{"role": role, "content": method.write(content)} for role, content in (*turns, ("user", query.text))]


def _answers(
    model: PreTrainedModel | VllmModel,
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[list[dict[str, str]]],
) -> list[str]:
    rendered = [
        # Models that can think first would do so for thousands of tokens; other templates ignore the switch.
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
        for messages in conversations
    ]
    return greedy_texts(model, tokenizer, cast(list[str], rendered), MAX_NEW_TOKENS, add_special_tokens=False)


def judged(query: RoutingQuery, output: str) -> RoutingRecord:
    """What a model's answer passes of a query's numbers; the gate's decisions are left open.

    A number of a call is taken for the operand that it stands for (a percentage may be a fraction), as long as that
    one isn't taken yet in this call; else for the traps of its value. A trap or operand is passed if any call has it.
    """
    calls, named = parse_calls(output)
    passed: set[RoutingNumber] = set()
    exact = len(calls) == named == 1
    for call in calls:
        open_operands = [number for number in query.numbers if number.role == "quantitative"]
        for value in call:
            operand = next((number for number in open_operands if value in number.forms), None)
            if operand is not None:
                open_operands.remove(operand)
                passed.add(operand)
            else:
                exact = False
                passed.update(number for number in query.numbers if number.role == "nominal" and value == number.value)
        exact = exact and not open_operands
    return {
        "query": query.text,
        "domain": query.domain,
        "output": output,
        "call": "called" if calls else "malformed" if named else "none",
        "calls": [[str(value) for value in call] for call in calls],
        "exact": exact,
        "numbers": [
            {
                "text": number.text,
                "value": str(number.value),
                "start": number.start,
                "end": number.end,
                "role": number.role,
                "alpha": None,
                "injected": None,
                "passed": number in passed if calls else None,
            }
            for number in query.numbers
        ],
    }


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
    depth, quote = 1, ""
    while position < len(text):
        character = text[position]
        if quote:
            if character == "\\":
                position += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
            if not depth:
                return position + 1
        position += 1
    return None


def _python_values(source: str) -> list[Decimal] | None:
    """The numbers of a call written in Python; None if it holds anything but literals."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the escape in "\$5,000", of which kind depends on the Python
            return list(_literal_values(ast.parse(source, mode="eval").body, source))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _literal_values(node: ast.expr, source: str) -> Iterator[Decimal]:
    inner: Sequence[ast.expr]
    match node:
        case ast.Call(func=ast.Name(id=name)) if name.lower() == "calculator":
            inner = [*node.args, *(keyword.value for keyword in node.keywords)]
        case ast.List() | ast.Tuple() | ast.Set():
            inner = node.elts
        case ast.Dict():
            inner = node.values
        case ast.BinOp():
            inner = [node.left, node.right]
        case ast.UnaryOp():
            inner = [node.operand]
        case ast.Constant(value=str() as text):
            yield from _text_values(text)
            return
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            yield Decimal(ast.get_source_segment(source, node) or "")  # as written: a float would round it
            return
        case _:
            raise ValueError(f"{type(node).__name__} is no literal")
    for child in inner:
        yield from _literal_values(child, source)


def _json_calls(output: str) -> Iterator[list[Decimal]]:
    decoder = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal)
    position = output.find("{")
    while position >= 0:
        try:
            value, _ = decoder.raw_decode(output, position)
            if str(value.get("name")).lower() == "calculator":
                arguments = value.get("arguments", value.get("parameters"))
                if isinstance(arguments, str):  # OpenAI's form, JSON within JSON; or plain text
                    arguments = _loaded(decoder, arguments)
                if values := list(_json_values(arguments)):
                    yield values
        except (ValueError, ArithmeticError, RecursionError):
            pass
        position = output.find("{", position + 1)


def _loaded(decoder: json.JSONDecoder, text: str) -> Any:
    try:
        return decoder.decode(text)
    except ValueError:
        return text


def _json_values(value: Any) -> Iterator[Decimal]:
    match value:
        case Decimal():
            yield abs(value)
        case str():
            yield from _text_values(value)
        case list() | dict():
            for child in value.values() if isinstance(value, dict) else value:
                yield from _json_values(child)


def _text_values(text: str) -> Iterator[Decimal]:
    """Signs go: whether a subtrahend is passed as -12 or 12 is a matter of style."""
    return (abs(number.value) for number in find_numbers(text))
