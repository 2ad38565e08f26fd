"""Deceptive queries: numbers that are names beside the operands of a calculation; knows nothing about models.

The paper's appendix "Synthetic Evaluation" speaks of 50 such queries without giving them; these are ours. Of the
denominators below 112 only 56 yields both of its results, 69.6% (39) and 92.9% (52): its cases are probably traps.
"""

import random
import re
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import yaml

from ani.data.diagnostic import Role
from ani.numbers import find_numbers

_ROLES: dict[str, Role] = {"N": "nominal", "Q": "quantitative"}
_PERCENTAGE = re.compile(r"\s*(?:%|percent\b)")
_SOLUTION = re.compile(r"([\d.]+) ([-+*/]) ([\d.]+) = ([\d.]+)", re.ASCII)
_OPERATIONS = {"+": Decimal.__add__, "-": Decimal.__sub__, "*": Decimal.__mul__, "/": Decimal.__truediv__}


class RoutingNumber(NamedTuple):
    """A number of a query."""

    text: str
    value: Decimal
    start: int
    """First character in the query."""
    end: int
    """One after the last character."""
    role: Role
    """A nominal number is a trap, a quantitative one an operand."""
    forms: frozenset[Decimal]
    """The values that stand for it in a call: its own, and for a percentage also the fraction."""


class RoutingQuery(NamedTuple):
    """A query, its numbers in order, and what answers it."""

    text: str
    domain: str
    numbers: tuple[RoutingNumber, ...]
    solution: str
    """The calculation, such as `4800 * 0.05`: every operand once, a percentage as a fraction."""
    answer: Decimal


@cache
def routing_queries() -> tuple[RoutingQuery, ...]:
    """All of our queries, in the file's order."""
    return parse_queries(resources.files("ani.data").joinpath("tool_routing.yaml").read_text("utf-8"))


def drawn_queries(limit: int | None = None, seed: int = 0) -> list[RoutingQuery]:
    """All queries, or so many of them, in an order that the seed draws: a larger limit only appends."""
    queries = list(routing_queries())
    random.Random(f"tool routing {seed}").shuffle(queries)
    return queries[:limit]


def parse_queries(document: str) -> tuple[RoutingQuery, ...]:
    """Read and check the YAML of queries, whose header states its form.

    Raises:
        ValueError: A query occurs twice, its numbers aren't labelled one by one, traps or operands are too few or too
            many or can't be told apart in a call, or the solution is wrong or holds other numbers than the operands.
    """
    queries = tuple(_query(domain, entry) for domain, entries in yaml.safe_load(document).items() for entry in entries)
    texts = [query.text for query in queries]
    for text in texts:
        if texts.count(text) > 1:
            raise ValueError(f"query {text!r}: it occurs twice, remove one")
    return queries


def _query(domain: str, entry: dict[str, str]) -> RoutingQuery:
    text, roles = entry["query"], entry["roles"]
    where = f"domain {domain!r}, query {text!r}"
    found = find_numbers(text)
    if len(roles) != len(found) or not set(roles) <= set(_ROLES):
        raise ValueError(f"{where}: roles {roles!r} must be N or Q for each of {[number.text for number in found]}")
    numbers = []
    for number, letter in zip(found, roles, strict=True):
        forms = {number.value}
        if _PERCENTAGE.match(text, number.end):
            forms.add(number.value / 100)
        numbers.append(RoutingNumber(number.text, number.value, *number[1:], _ROLES[letter], frozenset(forms)))
    traps, operands = ([number for number in numbers if number.role == role] for role in _ROLES.values())
    if not 1 <= len(traps) <= 3 or len(operands) < 2:
        raise ValueError(f"{where}: it has {len(traps)} traps (write one to three) and {len(operands)} operands")
    several = [number for number in (*traps, *operands) if len(number.forms) > 1]
    values = [form for operand in operands for form in operand.forms]
    if len(set(values)) < len(values) or any(
        number is not other and number.forms & other.forms for number in several for other in numbers
    ):
        raise ValueError(f"{where}: operands, and a percentage and any other number, must differ in value")
    solution, answer = _solution(entry["solution"], operands, where)
    return RoutingQuery(text, domain, tuple(numbers), solution, answer)


def _solution(solution: Any, operands: list[RoutingNumber], where: str) -> tuple[str, Decimal]:
    match = _SOLUTION.fullmatch(str(solution))
    if match is None:
        raise ValueError(f"{where}: the solution {solution!r} must look like '4800 * 0.05 = 240'")
    left, operator, right, result = match.groups()
    wanted = sorted(min(operand.forms) for operand in operands)
    if sorted((Decimal(left), Decimal(right))) != wanted:
        raise ValueError(f"{where}: {left} and {right} of the solution aren't the operands {list(map(str, wanted))}")
    if _OPERATIONS[operator](Decimal(left), Decimal(right)) != Decimal(result):
        raise ValueError(f"{where}: {solution} is wrong")
    return f"{left} {operator} {right}", Decimal(result)
