import ast
import hashlib
import operator
import re
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from importlib import resources

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ani.calculator.reader.calculations import Calculation, calculation_before
from ani.data.arithmetic import Operation, arithmetic_problems
from ani.data.calculation_sentences import CalculationSentence, calculation_sentences
from ani.data.calculations import calculation_problems, exact_result
from ani.data.split import Split
from ani.errors import InputError
from ani.numbers import find_numbers
from tests.properties import examples

OPERATIONS: dict[str, Operation] = {"+": "addition", "-": "subtraction", "*": "multiplication", "/": "division"}
KINDS: dict[str, dict[str, list[str]]] = yaml.safe_load(
    resources.files("ani.data").joinpath("calculation_templates.yaml").read_text("utf-8")
)
SPLITS: tuple[Split, ...] = ("train", "test")
splits = st.sampled_from(SPLITS)
seeds = st.integers(-5, 10**9)
_COMPUTE = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def last_calculation(text: str) -> Calculation | None:
    """The one that ends at the last equals sign."""
    return calculation_before(text, text.rindex("="))


def plain(expression: str) -> str:
    """An expression in Python's symbols."""
    for written, symbol in ("×*", "x*", "÷/", "−-"):
        expression = expression.replace(written, symbol)
    return expression.replace("$", "").replace("^", "**")


def value(expression: str) -> Fraction:
    """Independent of our grammar: as Python parses it."""

    def of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Pow):
                return of(node.left) ** int(of(node.right))
            return Fraction(_COMPUTE[type(node.op)](of(node.left), of(node.right)))
        source = ast.get_source_segment(text, node)
        assert isinstance(node, ast.Constant) and source is not None
        return Fraction(source)

    text = plain(expression).replace(" ", "")
    return of(ast.parse(text, mode="eval").body)


def both_orders(expression: str) -> object:
    """The same for both orders of each sum and product."""

    def of(node: ast.expr) -> object:
        if isinstance(node, ast.BinOp):
            sides = [of(node.left), of(node.right)]
            return type(node.op).__name__, *(sorted(sides, key=repr) if type(node.op) in (ast.Add, ast.Mult) else sides)
        return ast.unparse(node)

    return of(ast.parse(plain(expression).replace(" ", ""), mode="eval").body)


@examples(60)
@given(
    count=st.integers(0, 60),
    operations=st.lists(st.sampled_from(list(OPERATIONS.values())), min_size=1, unique=True),
    digits=st.lists(st.integers(3, 12), min_size=1, max_size=3, unique=True),
    operands=st.lists(st.integers(2, 4), min_size=1, max_size=3, unique=True),
    parentheses=st.booleans(),
    decimals=st.booleans(),
    split=splits,
    seed=seeds,
)
def test_problems_are_exact_and_what_they_say(
    count: int,
    operations: list[Operation],
    digits: list[int],
    operands: list[int],
    parentheses: bool,
    decimals: bool,
    split: Split,
    seed: int,
) -> None:
    problems = calculation_problems(
        count,
        operations=operations,
        digits=digits,
        operands=operands,
        parentheses=parentheses,
        decimals=decimals,
        split=split,
        seed=seed,
    )
    assert len(problems) == len({problem.expression for problem in problems}) == count
    for problem in problems:
        expression = plain(problem.expression)
        assert Fraction(problem.answer) == value(expression)
        found = last_calculation(problem.prompt)
        assert found is not None and found.text.strip() == problem.expression
        assert exact_result(problem.prompt) == problem.answer
        assert set(problem.operations) == {OPERATIONS[symbol] for symbol in set(expression) & set(OPERATIONS)}
        assert set(problem.operations) <= set(operations)
        literals = re.findall(r"[0-9.]+", expression)
        assert problem.operands == len(literals)
        assert problem.parentheses == ("(" in expression) <= parentheses
        assert problem.decimals == any("." in each for each in (*literals, problem.answer)) <= decimals
        if "division" not in problem.operations and not problem.decimals:
            assert problem.digits == max(map(len, literals))
    cells = Counter((problem.operands, problem.digits) for problem in problems)
    each = count / (len(digits) * len(operands))
    assert all(abs(number - each) <= len(operations) for number in cells.values())


def test_the_splits_share_no_problem_whatever_the_seeds_nor_with_arithmetic() -> None:
    def drawn(split: Split) -> set[object]:
        own = (
            problem.expression
            for seed in range(3)
            for problem in calculation_problems(300, digits=(2,), operands=(2, 3), split=split, seed=seed)
        )
        others = arithmetic_problems(2000, digits=(2,), operations=list(OPERATIONS.values()), split=split)
        sentences = (
            found.text
            for sentence in calculation_sentences(500, split=split)
            if (found := last_calculation(sentence.prompt)) and find_numbers(found.text)
        )
        return {both_orders(each) for each in (*own, *sentences, *(f"{p.left}{p.operation}{p.right}" for p in others))}

    train, test = map(drawn, SPLITS)
    assert len(train) > 2500 and len(test) > 2000 and not train & test


def test_draws_follow_the_seed_and_are_pinned_for_every_platform() -> None:
    problems = calculation_problems(300, split="test", seed=7)
    sentences = calculation_sentences(301, split="test", seed=7)
    assert problems == calculation_problems(300, split="test", seed=7) != calculation_problems(300, split="test")
    assert (
        sentences[:120] == calculation_sentences(120, split="test", seed=7) != calculation_sentences(120, split="test")
    )
    text = "\n".join(f"{problem.expression} = {problem.answer}" for problem in problems)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "cfd8193fe79cadf3"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"count": -1}, "-1"),
        ({"digits": (0, 2)}, r"digits .* 1 to 30, not \(0, 2\)"),
        ({"digits": (31,)}, "31"),
        ({"operands": (1,)}, r"operands .* 2 to 8, not \(1,\)"),
        ({"operands": ()}, r"\(\)"),
        ({"operations": ("addition", "addition")}, "addition"),
        ({"operations": ("power",)}, "power"),
        ({"split": "validation"}, "validation"),
        ({"count": 100, "digits": (1,), "operands": (2,)}, "additions of 2 operands and 1 digits than the test split"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], named: str) -> None:
    arguments: dict[str, object] = {"count": 3, "split": "test", **change}
    with pytest.raises(InputError, match=named):
        calculation_problems(arguments.pop("count"), **arguments)
    if not {"digits", "operands", "operations"} & set(change):
        with pytest.raises(InputError, match=named):
            calculation_sentences(change.get("count", 3), split=arguments["split"])


@pytest.fixture(scope="module")
def sentences() -> dict[Split, list[CalculationSentence]]:
    return {split: calculation_sentences(1000, split=split) for split in SPLITS}


@pytest.mark.parametrize("split", SPLITS)
def test_every_template_is_used_and_its_calculation_found(
    sentences: dict[Split, list[CalculationSentence]], split: Split
) -> None:
    assert {(each.kind, each.template) for each in sentences[split]} == {
        (kind, template) for kind, texts in KINDS.items() for template in texts[split]
    }
    assert len({each.prompt for each in sentences[split]}) == len(sentences[split])
    for each in sentences[split]:
        found = last_calculation(each.prompt)
        assert found is not None, each
        assert exact_result(each.prompt) == each.result and Fraction(each.result) == value(found.text)
        written = re.match(r"[ $]*([^ ]*?)[.,;!?)\]\"`]*(?=\s|\Z)", each.completion)
        meant = written is not None and written[1] == each.result
        assert meant == (each.role == "quantitative"), each
        assert len(each.roles) == len(find_numbers(each.prompt)) and each.roles[-1] == each.role
        assert "{" not in each.prompt + each.completion


def test_kinds_have_one_role_enough_templates_and_none_twice(
    sentences: dict[Split, list[CalculationSentence]],
) -> None:
    roles = {(each.kind, each.role) for split in SPLITS for each in sentences[split]}
    assert len(roles) == len(KINDS) == 19
    assert all(len(texts["train"]) >= 10 and len(texts["test"]) >= 4 for texts in KINDS.values())
    texts = [text for kind in KINDS.values() for split in SPLITS for text in kind[split]]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize("split", SPLITS)
def test_only_the_context_tells_roles_apart(sentences: dict[Split, list[CalculationSentence]], split: Split) -> None:
    def expression(sentence: CalculationSentence) -> tuple[list[Decimal], str]:
        found = last_calculation(sentence.prompt)
        assert found is not None
        text = found.text.replace("$", "").strip()
        return [abs(number.value) for number in find_numbers(text)], re.sub(r"[0-9.]", "", text)

    nominal, quantitative = sentences[split][::2], sentences[split][1::2]
    assert {each.role for each in nominal} == {"nominal"} and {each.role for each in quantitative} == {"quantitative"}
    assert list(map(expression, nominal)) == list(map(expression, quantitative))


def test_numbers_have_the_role_of_their_own_calculation(sentences: dict[Split, list[CalculationSentence]]) -> None:
    template = "The pupil wrote {e} = {wrong}, but in truth {e} = {r}."
    found = [each for each in sentences["train"] if each.template == template]
    assert found
    for each in found:
        operands = len(each.roles) // 2
        assert each.roles == ("nominal",) * (operands + 1) + ("quantitative",) * operands
    template = "The correct line is {f} = {F}, while the wrong line says {e} = {wrong}."
    assert any(
        set(each.roles) == {"nominal", "quantitative"} for each in sentences["train"] if each.template == template
    )
