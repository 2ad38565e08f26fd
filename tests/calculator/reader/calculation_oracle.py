"""A second reader of calculations, which shares no code and no list with `ani.calculator.reader`.

It is given an expression and says its value: it rewrites the text as Python, step by step, and lets Python's own parser
say what comes before what. What it does not know it says nothing about (`Unknown`). And it says of a place whether
what stands before can belong to an expression that begins there.
"""

import ast
import math
import re
from fractions import Fraction

import mpmath

Number = Fraction | mpmath.mpf

TIMES = "×·⋅∙∗"
WORDS = {
    r"plus|added to": "+",
    r"minus": "-",
    r"times|multiplied by": "*",
    r"divided by|over": "/",
    r"mod|modulo": "%",
    r"squared": "**2",
    r"cubed": "**3",
}


class Unknown(Exception):
    """Something that this reader does not know."""


def value_of(expression: str) -> Number:
    """The value of an expression."""
    with mpmath.workdps(80):
        try:
            return evaluated(ast.parse(rewritten(expression), mode="eval").body)
        except (SyntaxError, ZeroDivisionError, ValueError, OverflowError) as error:
            raise Unknown(expression) from error


def rewritten(text: str) -> str:
    """An expression as Python."""
    s = re.sub(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|quad|qquad|limits)(?![A-Za-z])", " ", text)
    s = re.sub(r"\\[,;:!> ]|~|\s", " ", s.replace(r"{,}", "").replace(r",\!", ""))
    if re.search(r"(?:^|[^}\d])\d+ *\\[dtc]?frac|\d \d+/\d", s):
        raise Unknown(text)  # mixed numbers
    s = re.sub(r"(?<=\d)[\u2009\u202f](?=\d{3})", "", s)
    while (joined := re.sub(r"(?<![\d.,])(\d{1,3}(?:,\d{3})*),(\d{3})(?!\d)", r"\1_\2", s)) != s:
        s = joined
    s = s.replace("_", "")
    degrees = r"(?:\^\s*\{?\\circ\}?|°)"
    s = re.sub(rf"(\\(?:sin|cos|tan) *\d+){degrees}", r"\1*degree", s)
    if re.search(rf"(?:sin|cos|tan|sqrt)[^+-]*{degrees}", s):
        raise Unknown(text)
    s = re.sub(degrees, "", s)
    s = re.sub(r"\\(?:text|mbox|textrm|mathrm)\s*\{[^{}]*\}", " ", s)
    s = commands(s)
    for pattern, python in WORDS.items():
        s = re.sub(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", python, s, flags=re.IGNORECASE)
    if re.search(r"(?<![a-z])(?:of|hoch|power|add|subtract|sum|zero|one|two|twice)(?![a-z])", s, re.IGNORECASE):
        raise Unknown(text)
    s = re.sub(r"(?<=[\d )])x(?=[\d (.$])", "*", s)
    if re.search(r"[%]|\\%|percent", s):
        raise Unknown(text)
    # Units: words between a literal and what goes on.
    s = re.sub(r"(?<=[\d)])(?: |(?=/))[^\W\d_][^+*×÷()\d]*?(?= *(?:[+*×÷)/-]|$))", " ", s)
    s = re.sub(r"[$€£¥₹]", "", s.replace("\\$", ""))
    s = s.translate({ord(c): "*" for c in TIMES} | {ord("÷"): "/", ord("−"): "-", ord("–"): "-"})
    s = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda m: "**" + m[0].translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")), s)
    s = s.replace("^", "**").replace("[", "(").replace("]", ")").replace("{", "(").replace("}", ")")
    s = re.sub(r"√\s*(\d+(?:\.\d+)?)", r"sqrt(\1)", s).replace("√", "sqrt")
    s = re.sub(r"(\d+)!", r"factorial(\1)", s)
    s = re.sub(r"\|([^|]*)\|", r"abs(\1)", s)
    # Side by side: a factor.
    s = re.sub(r"(?<=[\d)])\s*(?=\()|(?<=\))\s*(?=[a-z])|(?<=\d)\s*(?=[a-z]{2})", "*", s)
    s = re.sub(r"(?<![a-z])(sqrt|factorial|abs|exp|ln|sin|cos|tan|gcd|lcm|frac|root|binom|log)\*\(", r"\1(", s)
    if re.search(r"[!\\|,](?![^()]*\))", s) or re.search(r"(?<![\d.])0\d", s):
        raise Unknown(text)
    return s.strip()


def commands(s: str) -> str:
    """TeX's commands as calls of functions."""
    s = (
        s.replace(r"\times", "*")
        .replace(r"\cdot", "*")
        .replace(r"\div", "/")
        .replace(r"\pi", "(pi)")
        .replace("π", "(pi)")
    )
    s = re.sub(r"\\sqrt\s*\[(\d+)\]", r"\\root\1 ", s)
    s = re.sub(r"\\log_\{?(\d+)\}?", r"\\log\1 ", s)
    s = re.sub(r"\\[dtc]frac", r"\\frac", s).replace(r"\dbinom", r"\binom").replace(r"\tbinom", r"\binom")
    while match := re.search(r"\\(frac|binom|sqrt|root(\d+)|log(\d+))(?![a-z])", s):
        name = re.sub(r"\d", "", match[1])
        given = [match[2] or match[3]] if match[2] or match[3] else []
        at = match.end()
        for _ in range(2 if name in ("frac", "binom") else 1):
            argument, at = one_argument(s, at)
            given.append(argument)
        s = f"{s[: match.start()]} {name}({','.join(given)}) {s[at:]}"
    s = re.sub(r"\\(sin|cos|tan|ln|exp)(?![A-Za-z])", r" \1", s)
    return re.sub(r"(sin|cos|tan|ln|exp)\s*(\d+(?:\.\d+)?(?:\*degree|\(pi\))?|\(pi\)|frac\([^()]*\))", r"\1(\2)", s)


def one_argument(s: str, at: int) -> tuple[str, int]:
    """A group, or one character, or a number behind log."""
    while s[at : at + 1] == " ":
        at += 1
    if s[at : at + 1] not in ("{", "("):
        number = re.compile(r"\d+").match(s, at) if "log" in s[max(0, at - 8) : at] else None
        end = number.end() if number else at + 1
        if not s[at:end]:
            raise Unknown(s)
        return s[at:end], end
    depth = 0
    for end in range(at, len(s)):
        depth += (s[end] in "{(") - (s[end] in "})")
        if not depth:
            return s[at + 1 : end], end + 1
    raise Unknown(s)


def evaluated(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float()):
            return Fraction(ast.unparse(node))
        case ast.Name(id="pi"):
            return mpmath.pi()
        case ast.Name(id="degree"):
            return mpmath.pi() / 180
        case ast.UnaryOp(op=sign, operand=operand):
            return -evaluated(operand) if isinstance(sign, ast.USub) else evaluated(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = evaluated(left), evaluated(right)
            if isinstance(operator, ast.Pow):
                return power(a, b)
            if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
                a, b = real(a), real(b)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a / b
                case ast.FloorDiv():
                    return Fraction(math.floor(a / b))
                case ast.Mod():
                    return a % b
        case ast.Call(func=ast.Name(id=name), args=given):
            values = [evaluated(argument) for argument in given]
            exact = all(isinstance(value, Fraction) and value.denominator == 1 for value in values)
            match name:
                case "frac":
                    return evaluated(ast.BinOp(given[0], ast.Div(), given[1]))
                case "factorial" | "binom" | "gcd" | "lcm" if exact:
                    return Fraction(getattr(math, {"binom": "comb"}.get(name, name))(*map(int, values)))
                case "abs":
                    return abs(values[0])
                case "root":
                    return power(values[1], 1 / Fraction(values[0]))
                case "sqrt":
                    return power(values[0], Fraction(1, 2))
                case "log":
                    return mpmath.log(real(values[1])) / mpmath.log(real(values[0]))
                case "ln":
                    return mpmath.log(real(values[0]))
                case "exp" | "sin" | "cos" | "tan":
                    return getattr(mpmath, name)(real(values[0]))
    raise Unknown(ast.dump(node))


def power(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction) and b.denominator == 1:
        if abs(b) * max(abs(a.numerator), a.denominator).bit_length() > 2000:
            raise Unknown("large")
        return a ** int(b)
    if a < 0 and isinstance(b, Fraction) and b.denominator % 2:
        return -power(-a, b)
    return real(a) ** real(b)


def real(value: Number) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def may_belong(before: str) -> bool:
    """Whether the end of a text is an operator, an operand, or a word that works something out."""
    before = before.rstrip(" \t\xa0")
    if re.search(r"[-+*/^×÷·−–√]\Z", before) and not re.search(r"(?:^|[\s\0])[*>-]$|(?:^|[\s\0(])\*\*$", before):
        return True
    if re.search(r"[)\]°²³%]\Z", before) and not re.search(r"(?:^|[\n\0])\s*\(?[0-9a-z]{1,2}\)$", before):
        return True
    words = "sin|cos|tan|ln|lg|log|exp|sqrt|abs|floor|ceil|half of|twice|thrice|double|plus|minus|times|over|negative"
    words += "|multiplied by|divided by|root of|square of|reciprocal of|value of|add|subtract"
    return bool(re.search(rf"(?<![A-Za-z])(?:{words}|percent|less|than|from|lots of)\Z", before, re.IGNORECASE))
