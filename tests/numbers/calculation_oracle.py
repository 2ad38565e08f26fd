"""A second reader of written calculations, from the prose of the grammar; shares no code with `ani.numbers`.

It tries every beginning of an expression from the left, one character at a time, lets Python's own parser say what
comes before what, and looks a result up among all its writings, where the library reads from the right and once.
"""

import ast
from fractions import Fraction
from itertools import product

from tests.numbers import oracle

BLANK = oracle.BLANK
OPERATORS = {"+": "+", "-": "-", "−": "-", "*": "*", "×": "*", "·": "*", "/": "/", "÷": "/", "^": "**"}
CURRENCIES = "$€£"
BEFORE = "\0\n\r([{（=<>≈≤≥≠→;$•：，。"
QUOTES = "\"'“‘`"
COMPUTING = " plus minus times over negative mod modulo twice double triple half sin cos tan ln log exp sqrt abs "
FRACTIONS = "half third thirds quarter quarters fourth fourths fifth fifths tenth tenths"
PARTS = (*"0123456789%", "percent", *FRACTIONS.split(), "root", "roots", "square", "squares", "cube", "cubes")


class NotAnExpression(Exception):
    """Something in a text that is none."""


def upcoming(text: str, fraction_digits: int = 6) -> tuple[str, Fraction, str] | None:
    """(expression, value, what is still to be written) at the end of a text."""
    equals = text.rfind("=")
    if equals < 0:
        return None
    found = calculated(text, equals)
    if found is None:
        return None
    expression, value, currency = found
    scaled = value * 10**fraction_digits
    if scaled.denominator != 1:
        return None
    rest = rest_of(value, currency, text[equals + 1 :], fraction_digits)
    return None if rest is None else (expression, value, rest)


def calculated(text: str, equals: int) -> tuple[str, Fraction, str] | None:
    """The expression before an equals sign, its value and its currency sign."""
    end = equals
    while end and text[end - 1] in BLANK:
        end -= 1
    if equals - end > 8:
        return None
    literals = {}
    for start, stop, value in oracle.numbers(text[:equals]):
        unsigned = start + (text[start] in "+-")
        literals[unsigned] = (stop, abs(Fraction(value)))
    for start in range(end):
        try:
            tokens = expression(text, start, end, literals)
        except NotAnExpression:
            continue
        if not any(token in OPERATORS.values() for token in tokens):
            continue
        if equals - start > 200 or not whole(text, start):
            return None
        return settled(text[start:end], tokens)
    return None


def expression(text: str, start: int, end: int, literals: dict[int, tuple[int, Fraction]]) -> list[object]:
    """The tokens of an expression that is all of [start, end); fractions, operators, brackets and signs."""
    tokens: list[object] = []
    depth, i = 0, start

    def skip(i: int) -> int:
        first = i
        while i < end and text[i] in BLANK:
            i += 1
        if i - first > 8:
            raise NotAnExpression
        return i

    while True:  # an operand, then an operator
        while True:
            signed = text[i : i + 1] in tuple("+-−") and i < end
            if signed:
                if i and text[i - 1] in "+-−":
                    raise NotAnExpression
                tokens.append("u+" if text[i] == "+" else "u-")
                i += 1
            if text[i : i + 1] == "(" and i < end:
                tokens.append("(")
                depth += 1
                i = skip(i + 1)
                continue
            break
        if i < end and text[i] in CURRENCIES:
            tokens.append(text[i])
            i += 1
            if not signed and text[i : i + 1] in tuple("+-−") and i < end:
                tokens.append("u+" if text[i] == "+" else "u-")
                i += 1
        if i not in literals or i >= end:
            raise NotAnExpression
        before, i = i, literals[i][0]
        tokens.append(literals[before][1])
        plain = text[before:i]
        if len(plain) > 1 and plain[0] == "0" and plain[1] in "0123456789":
            tokens.append("date or code")
        while True:
            after = skip(i)
            if text[after : after + 1] != ")" or after >= end:
                break
            tokens.append(")")
            depth -= 1
            if depth < 0:
                raise NotAnExpression
            i, plain = after + 1, ""
        if after == end and i == end:
            if depth:
                raise NotAnExpression
            return tokens
        if text[after] in OPERATORS:
            tokens.append(OPERATORS[text[after]])
            i = skip(after + 1)
        elif text[after] == "x" and after > i and after + 1 < end and text[after + 1] in BLANK:
            i = skip(after + 1)
            if text[i : i + 1] in tuple("+-−"):
                raise NotAnExpression
            tokens.append("*")
        elif text[after] == "x" and after == i and plain and after + 1 in literals:
            tokens += ["*"] if plain != "0" else ["hexadecimal", "*"]
            i = after + 1
        else:
            raise NotAnExpression


def settled(written: str, tokens: list[object]) -> tuple[str, Fraction, str] | None:
    """What is doubtful about an expression is looked for in Python's tree of it; then it is evaluated."""
    currencies = {str(token) for token in tokens if token in tuple(CURRENCIES)}
    if len(currencies) > 1 or "hexadecimal" in tokens or "date or code" in tokens:
        return None
    values = [token for token in tokens if isinstance(token, Fraction)]
    source, number = "", 0
    for token in tokens:
        if isinstance(token, Fraction):
            source += f"v[{number}]"
            number += 1
        elif token == "(":
            source += "f("  # so that brackets leave a trace in the tree
        elif token not in tuple(CURRENCIES):
            source += str(token).removeprefix("u")

    def evaluate(node: ast.expr) -> Fraction:
        match node:
            case ast.Subscript(slice=ast.Constant(value=int(index))):
                return bounded(values[index])
            case ast.Call(args=[inner]):
                return evaluate(inner)
            case ast.UnaryOp(op=sign, operand=operand):
                if isinstance(operand, ast.BinOp) and isinstance(sign, ast.USub):  # Python's -a ** b
                    raise NotAnExpression
                value = evaluate(operand)
                return -value if isinstance(sign, ast.USub) else value
            case ast.BinOp(left=left, op=operator, right=right):
                a, b = evaluate(left), evaluate(right)
                match operator:
                    case ast.Add():
                        return bounded(a + b)
                    case ast.Sub():
                        return bounded(a - b)
                    case ast.Mult():
                        return bounded(a * b)
                    case ast.Div():
                        if b == 0:
                            raise NotAnExpression
                        return bounded(a / b)
                    case ast.Pow():
                        exponent = right.operand if isinstance(right, ast.UnaryOp) else right
                        if isinstance(exponent, ast.BinOp) or b.denominator != 1 or (a == 0 and b <= 0):
                            raise NotAnExpression
                        if abs(b.numerator) * max(a.numerator.bit_length(), a.denominator.bit_length()) > 1000:
                            raise NotAnExpression
                        return bounded(a**b.numerator)
        raise AssertionError(ast.dump(node))

    try:
        return written, evaluate(ast.parse(source, mode="eval").body), "".join(currencies)
    except NotAnExpression:
        return None


def bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 1000:
        raise NotAnExpression
    return value


def whole(text: str, start: int) -> bool:
    """Whether nothing that stands before the expression can belong to it."""
    i = start
    while i and text[i - 1] in BLANK:
        i -= 1
    blanks = start - i
    if i == 0 or blanks > 8:
        return True
    before = text[i - 1]
    two = text[i - 2] if i > 1 else "\0"
    if before in "\n\r":
        while i and text[i - 1] in "\n\r":
            i -= 1
        line = text[:i].rstrip(BLANK)
        if len(text[:i]) - len(line) > 8 or not line:
            return True
        return not (line[-1] in OPERATORS and line[-2:-1] and line[-2] in "0123456789)" + BLANK)
    if before in BEFORE:
        return True
    if before in QUOTES:
        return two not in "0123456789"
    if before in ",.!?:":
        return (blanks > 0 and two not in BLANK) or (before == ":" and two not in BLANK + "0123456789")
    if not before.isalpha() or not blanks:
        return False
    if not (two.isalpha() or (two in "'’" and i > 2 and text[i - 3].isalpha())):
        return False
    name = last_word(text[:i])
    rest = text[: i - len(name)]
    if rest.endswith("\\") and name.isascii():
        return False
    place = rest.rstrip(BLANK)
    if name == "of" and 0 < len(rest) - len(place) <= 8:
        return not place.lower().endswith(PARTS)
    if name == "by" and rest[-1:] == " ":
        return last_word(rest[:-1]) not in ("multiplied", "divided")
    return f" {name} " not in COMPUTING


def last_word(text: str) -> str:
    first = len(text)
    while first and text[first - 1].isalpha():
        first -= 1
    return text[first:].lower()


def rest_of(value: Fraction, currency: str, written: str, fraction_digits: int) -> str | None:
    """What is missing to the first of all writings of a value that begins as it is written."""
    body = written.lstrip(BLANK)
    if len(written) - len(body) > 8:
        return None
    digits = str(abs(value.numerator * 10**fraction_digits // value.denominator)).zfill(fraction_digits + 1)
    integer, fraction = digits[: len(digits) - fraction_digits], digits[len(digits) - fraction_digits :].rstrip("0")
    if len(integer) * 4 // 3 + len(fraction) > 98:
        return None
    signs = ["-", "−"] if value < 0 else [""]
    for money, sign in product(["", *(currency or CURRENCIES)], signs):
        places = fraction + "0" if len(fraction) == 1 and (money or currency) else fraction
        numbers = [integer, f"{int(integer):,}"] + [""] * (integer == "0" and places != "")
        for number in numbers:
            for writing in (sign + money + number, money + sign + number):
                whole_writing = writing + ("." + places if places else "")
                if whole_writing.startswith(body):
                    return "".join(c for c in whole_writing[len(body) :] if c not in CURRENCIES + ",").replace("−", "-")
    return None
