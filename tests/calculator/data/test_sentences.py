import ast
import operator
import re
from fractions import Fraction

import pytest

from ani.calculator.data.drawn_expressions import exact_result
from ani.calculator.data.drawn_text import DrawnText
from ani.calculator.data.sentences import sentences
from ani.calculator.reader.calculations import Calculation, calculation_before
from ani.data.split import Split, read_templates

KINDS: dict[str, dict[str, list[str]]] = read_templates("sentence_templates.yaml", "ani.calculator.data")
SPLITS: tuple[Split, ...] = ("train", "test")
_COMPUTE = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def last_calculation(text: str) -> Calculation | None:
    """The one that ends at the last equals sign."""
    return calculation_before(text, text.rindex("="))


def plain(expression: str) -> str:
    """An expression in Python's symbols."""
    for written, symbol in ("×*", "x*", "÷/", "−-"):
        expression = expression.replace(written, symbol)
    return expression.replace("$", "").replace("^", "**").replace(" ", "")


def value(expression: str) -> Fraction:
    """Independent of our grammar: as Python parses it."""
    text = plain(expression)

    def of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Pow):
                return of(node.left) ** int(of(node.right))
            return Fraction(_COMPUTE[type(node.op)](of(node.left), of(node.right)))
        source = ast.get_source_segment(text, node)
        assert isinstance(node, ast.Constant) and source is not None
        return Fraction(source)

    return of(ast.parse(text, mode="eval").body)


@pytest.fixture(scope="module")
def drawn() -> dict[Split, list[DrawnText]]:
    return {split: sentences(1000, split=split) for split in SPLITS}


@pytest.mark.parametrize("split", SPLITS)
def test_every_template_is_used_and_its_calculation_found(drawn: dict[Split, list[DrawnText]], split: Split) -> None:
    assert {each.template for each in drawn[split]} == {text for texts in KINDS.values() for text in texts[split]}
    assert len({each.prompt for each in drawn[split]}) == len(drawn[split])
    for each in drawn[split]:
        found = last_calculation(each.prompt)
        assert found is not None, each
        assert exact_result(each.prompt) == each.result and Fraction(each.result) == value(found.text)
        written = re.match(r"[ $]*([^ ]*?)[.,;!?)\]\"`]*(?=\s|\Z)", each.completion)
        assert (written is not None and written[1] == each.result) == each.meant, each
        assert "{" not in each.prompt + each.completion


def both_orders(expression: str) -> object:
    """Return a form of an expression that does not depend on the order of its terms and factors."""

    def of(node: ast.expr) -> object:
        if isinstance(node, ast.BinOp):
            sides = [of(node.left), of(node.right)]
            return type(node.op).__name__, *(sorted(sides, key=repr) if type(node.op) in (ast.Add, ast.Mult) else sides)
        return ast.unparse(node)

    return of(ast.parse(plain(expression), mode="eval").body)


def test_the_splits_have_no_expression_in_common(drawn: dict[Split, list[DrawnText]]) -> None:
    train, test = (
        {both_orders(found.text) for each in drawn[split] if (found := last_calculation(each.prompt))}
        for split in SPLITS
    )
    assert len(train) > 200 and len(test) > 150 and not train & test
