"""Tokenizes one expression and computes its exact value.

What an expression is, and where in a text it stands, is in `ani.calculator.reader.calculations`.
"""

import math
import re
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any, NamedTuple, cast

from ani.calculator.reader.exact import MAX_DEGREE, MAX_WHOLE, PI, SURE_PLACES, E, Exact
from ani.calculator.reader.words import BLANK, words
from ani.numbers.grammar import BLANKS, MAX_BLANKS, decimal_value, number_spans

MAX_WORK = 60
"""Operands of an expression; a function and a root count for several."""
MAX_DEPTH = 24
"""Of brackets, fractions, roots and functions in each other."""
MAX_COUNT = 300
"""Of things that are chosen from."""
MAX_UNIT = 8
"""Words of what is counted."""

MINUS = "-−–"
MONEY = "$€£¥₹"
_CURRENCY = "money:"
_SUM, _PRODUCT, _POWER, _WHOLE = 1, 2, 3, 4
_LEVELS = {"+": _SUM, "-": _SUM, "^": _POWER} | dict.fromkeys(("*", "/", "//", "mod", "of"), _PRODUCT)
_BRACKETS = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉"}
_BRACKETS |= {rf"\l{name}": rf"\r{name}" for name in ("floor", "ceil", "vert")}
_ROUNDING = {r"\lfloor": math.floor, "⌊": math.floor, r"\lceil": math.ceil, "⌈": math.ceil}
_ANGLES = ("sin", "cos", "tan")
_OF_LISTS = ("gcd", "lcm", "max", "min")
"""Functions of two operands or more."""
_FUNCTIONS = ("sqrt", "ln", "exp", *_OF_LISTS, *_ANGLES)
_KEEP_UNITS = frozenset(("+", "-", "reversed -", "mean", "max", "min"))
"""What is worked out of a list of quantities in one unit, in that unit."""
_FRACTIONS = (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac")
OPERATORS = {"+": "+", "/": "/", "÷": "/", "^": "^", "**": "^", "//": "//"} | dict.fromkeys(MINUS, "-")
OPERATORS |= dict.fromkeys("*×·⋅∙∗", "*") | {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\bmod": "mod"}
_SYMBOLS = {written: ("operators", value) for written, value in OPERATORS.items()}
_SYMBOLS |= {written: ("open", written) for written in _BRACKETS}
_SYMBOLS |= {written: ("close", written) for written in _BRACKETS.values()}
_SYMBOLS |= {rf"\{name}": ("function", name) for name in _FUNCTIONS} | {"√": ("function", "sqrt")}
_SYMBOLS |= {name: ("tex", name) for name in (*_FRACTIONS, r"\sqrt", r"\binom", r"\dbinom", r"\tbinom")}
_SYMBOLS |= {r"\pi": ("constant", "π"), "π": ("constant", "π"), "|": ("bar", "|"), ",": ("joint", ",")}
_SYMBOLS |= {c: ("behind", str(i)) for i, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_SYMBOLS |= {"%": ("behind", "%"), r"\%": ("behind", "%"), "!": ("behind", "!")}

_LETTER = r"[^\W\d_⁰¹²³⁴⁵⁶⁷⁸⁹]"
WORD = rf"{_LETTER}(?:{_LETTER}|['’&](?={_LETTER}))*"
_PIECE = re.compile(
    rf"""(?P<blank>(?:{BLANK}|\\[,;:!>\ ]|~|\\(?:left|right|[bB]igg?[lrm]?|displaystyle)(?![A-Za-z]))+)
    |(?P<degree>°|\^\\circ\b|\^\{{\\circ\}})
    |(?P<text>\\(?:text(?:rm|bf|normal)?|mbox|mathrm|operatorname)\s*\{{(?P<inside>[^{{}}]*)\}}(?:\^\{{?[23]\}}?)?)
    |(?P<log>\\?log_?(?:\{{(?P<base>[0-9]+)\}}|(?P<digits>[0-9]+)))(?={BLANK}*\\?[\w(\{{])
    |(?P<math>\\begin\{{[a-z]+\*?\}}|\\\\(?:\[[^\]\n]*\])?|\\[()\[\]]|\\q?quad\b|\$\$|(?<!\\)&)
    |(?P<symbol>\\[A-Za-z]+|\\.|\*\*|//|[^\w\s]|[⁰¹²³⁴⁵⁶⁷⁸⁹])
    |(?P<word>{WORD})""",
    re.VERBOSE,
)
_GROUPED = re.compile(
    r"[0-9]{1,3}(?:(?:\{,\}|,\\!|[\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}])[0-9]{3})+(?![0-9])(?:\.[0-9]+)?"
)
_GROUPING = re.compile(r"[^0-9.]")
TEX = re.compile(r"\\[A-Za-z(\[]|\\\\[\s&]|[\^_]\{|\$[^\s$][^$\n]{0,80}(?<!\s)\$(?![0-9])")
_REMAINDER = re.compile(rf"(?:{BLANK}%{BLANK}|[0-9]%)[0-9]")
"""A percent sign between two numbers, with what stands before it."""
UNIT = re.compile(rf"({BLANK}?/{BLANK}?|{BLANK}|-|)({WORD})[²³]?")
_AFTER_UNIT = re.compile(
    rf"{BLANK}{{0,{MAX_BLANKS}}}(?:[+*×·⋅∙∗÷/)\]}}=?!]|[.,](?![0-9])|[{MINUS}](?={BLANK})|x{BLANK}|\Z)"
)


# --- tokens -----------------------------------------------------------------------------------------------------------


class Token(NamedTuple):
    """Characters that belong together."""

    kind: str
    value: Any
    start: int
    end: int
    phrase: str = ""
    """The words that it is."""


def tokens_of(text: str, begin: int, *, to_break: bool = False) -> list[Token]:
    """The tokens of a text from a place on, or those up to a break, which is what no expression holds."""
    tex = TEX.search(text) is not None
    literals = _literals(text, max(0, text.rfind("=", 0, begin)))  # no number goes over a sign
    found: list[Token] = []
    at = begin
    while at < len(text) and not (to_break and found and found[-1].kind == "break"):
        counted = not tex and found and found[-1].kind in ("number", "close", "behind", "constant")
        if counted and (unit := _unit(text, at)):
            found.append(unit)
        elif at in literals:
            grouped = _GROUPED.match(text, at)
            end = grouped.end() if grouped else literals[at]
            found.append(Token("number", _GROUPING.sub("", text[at:end]) if grouped else text[at:end], at, end))
        elif match := _PIECE.match(text, at):
            if match.lastgroup == "blank":
                if match.end() - at > MAX_BLANKS and not tex:
                    found.append(Token("break", "", at, match.end()))
                at = match.end()
                continue
            found.append(_token(text, match, tex))
        else:
            found.append(Token("math" if tex and text[at] == "\n" else "break", text[at], at, at + 1))
        at = found[-1].end
    return found


@lru_cache(maxsize=4)  # a question is read from many places on
def _literals(text: str, first: int) -> dict[int, int]:
    """Where numbers from a place on begin, without their signs, and end."""
    spans = number_spans(text[first:])
    return {first + start + (text[first + start] in "+-"): first + end for start, end in spans.items()}


def _token(text: str, match: re.Match[str], tex: bool) -> Token:
    written, start, end = match[0], match.start(), match.end()
    match match.lastgroup:
        case "degree":
            return Token("unit", "angle:degree", start, end)
        case "text":
            name = match["inside"].strip()
            if name in _FUNCTIONS:
                return Token("function", name, start, end)
            changes = any(
                word in words().listed["changing"] or word in words().phrases for word in name.lower().split()
            )
            return Token("break" if changes else "unit", words().measures.get(name, ""), start, end)
        case "log":
            base = match["base"] or match["digits"]
            if match["digits"] and tex:  # TeX lowers one character
                base, end = base[0], match.start("digits") + 1
            return Token("function", f"log {base}", start, end)
        case "math":
            return Token("math", written, start, end)
        case "word":
            return _word(text, match, tex)
    if written[-1] in MONEY:
        number = text[start - 1 : start].isdigit() or text[end : end + 2].lstrip(" ")[:1] in (*"0123456789.+-−",)
        return Token("money" if number and (written != "$" or not tex) else "math", written[-1], start, end)
    kind, value = _SYMBOLS.get(written, ("break", written))
    if written == "%" and _REMAINDER.match(text, start - 1):
        kind, value = "operators", "mod"
    return Token(kind, value, start, end, "," if written == "," else "")


def _word(text: str, match: re.Match[str], tex: bool) -> Token:
    word, start, end = match[0].lower(), match.start(), match.end()
    around = text[start - 1 : start] + text[end : end + 1]
    if word == "x" and not tex and (around.isdigit() or not around.strip(BLANKS)):
        return Token("operators", "*", start, end)
    if word in _FUNCTIONS and around[-1:] == "(":
        return Token("function", word, start, end)
    if word == "e" and around[-1:] == "^":
        return Token("constant", "e", start, end)
    article = UNIT.match(text, end) if word in words().listed["articles"] else None
    found = words().phrase(text, article.start(2), article[2]) if article else words().phrase(text, start, word)
    if found and (not article or found[0].kind in ("functions", "lists")):
        return Token(found[0].kind, found[0].value, start, found[1], found[0].text)
    return Token("break", word, start, end)


def _unit(text: str, begin: int) -> Token | None:
    """The words behind an operand that say what it counts or measures."""
    at, measure, count = begin, "", 0
    goes_on = None
    while match := UNIT.match(text, at):
        gap, word = match[1].strip(), match[2].lower()
        known = words().measures.get(match[2]) or (words().measures.get(word) if len(word) > 1 else None)
        goes_on = words().phrase(text, match.start(2), word)
        of = goes_on is not None and goes_on[0].value == "of"
        if word == "x" or word in words().listed["changing"] or (goes_on and not (of and count)):
            break
        if not count:
            # Letters directly behind a digit are a variable, if not a known unit, and so is a single one.
            short = len(word) < 3 if match[1] else True
            if gap == "-" or (short and not (known and (match[1] or len(word) > 1))):
                break
            measure = known or "" if not gap else ""
        elif gap == "/" or word == "per":
            measure = ""
        at, count, goes_on = match.end(), count + 1, None
    ends = goes_on[0].kind in ("operators", "joint") and not of if goes_on else _AFTER_UNIT.match(text, at)
    return Token("unit", measure, begin, at) if ends and 0 < count <= MAX_UNIT else None


# --- reading ----------------------------------------------------------------------------------------------------------


class Operand(NamedTuple):
    """A part of an expression that has been read."""

    value: Exact
    level: int = _WHOLE
    """Of its last operator that stands in no bracket."""
    worded: bool = False
    """Whether one of them is a word."""
    divided: bool = False
    """Whether it is a quotient, so that what multiplies it next may belong to the divisor."""
    open: bool = False
    """Whether it ends with what a function without brackets is of, so that more may belong to that."""
    unit: str = ""
    """What it is measured in: "%", or a quantity and a unit of it."""
    signed: bool = False
    """Whether it begins with a sign."""


class Doubt(ArithmeticError):
    """What is written is no expression, or may be several."""


class Reader:
    """Reads tokens as an expression, by precedence."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text, self.tokens = text, tokens
        self.tex = TEX.search(text) is not None
        self.at = 0
        self.depth = self.work = 0
        self.operated = False
        """Whether there was anything to work out."""
        self.currencies: set[str] = set()
        self.joints: frozenset[str] = frozenset()
        """Of the list that is being read."""

    @property
    def next(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, kind: str, *values: str) -> Token | None:
        """The next token, if it is of this kind and has one of these values, or any."""
        token = self.next
        if token is None or token.kind != kind or (values and token.value not in values):
            return None
        self.at += 1
        return token

    def do(self, work: int) -> None:
        """Count what costs time; raises where it is too much."""
        self.work += work
        if self.work > MAX_WORK:
            raise Doubt

    def spaced(self, at: int) -> bool:
        """Whether something stands between the token at a place and the one before it."""
        return not 0 < at < len(self.tokens) or self.tokens[at - 1].end < self.tokens[at].start

    def chain(self, least: int = _SUM) -> Operand:
        """Operands and the operators between them, of a level or above."""
        left = self.signed()
        while (token := self.next) and not (token.phrase and token.phrase in self.joints):
            if token.kind == "operators" and _LEVELS[token.value] >= least:
                self.check_operator(token)
                self.at += 1
                left = self.combined(token.value, left, self.chain(_LEVELS[token.value] + 1), bool(token.phrase))
            elif token.kind != "operators" and least <= _PRODUCT and self.is_factor(token, left):
                left = self.combined("*", left, self.chain(_POWER))
            else:
                break
        return left

    def check_operator(self, token: Token) -> None:
        """Raise where an operator may be something else."""
        before, after = self.tokens[self.at - 1], self.tokens[self.at + 1 : self.at + 2]
        spaces = self.spaces(self.at)
        if self.text[token.start] in "xX":
            signed = after and after[0].value in ("+", "-")
            doubtful = signed or spaces[0] != spaces[1] or (before.value == "0" and not spaces[0])  # 3x -4, 0x10
        elif self.text.startswith("**", token.start):
            doubtful = spaces[0] != spaces[1]  # bold type
        elif token.value == "/":
            doubtful = (
                self.at > 1 and self.tokens[self.at - 2].value == "/" and self.spaces(self.at - 2) != spaces
            )  # 8 / 1/2
        else:  # 3 feet -4: a sign, or a hyphen
            doubtful = (
                token.value == "-"
                and before.kind == "unit"
                and spaces != (True, True)
                and self.text[before.start] not in "^°"  # degrees
            )
        if doubtful:
            raise Doubt

    def spaces(self, at: int) -> tuple[bool, bool]:
        """Whether something stands before and behind the token at a place."""
        return self.spaced(at), self.spaced(at + 1)

    def is_factor(self, token: Token, left: Operand) -> bool:
        """Whether the next token is a factor without an operator before it."""
        before = self.tokens[self.at - 1]
        if token.phrase or before.phrase or (self.spaced(self.at) and not self.tex):
            return False
        behind = before.kind in ("number", "close", "constant", "behind") and left.unit != "%"
        match token.kind:
            case "open":
                factor = behind and token.value in "(["
            case "function" | "constant":
                factor = behind or left.unit == "angle:degree"
            case "tex":  # 1\frac12 may be a mixed number
                factor = before.kind in ("close", "constant") or (behind and token.value == r"\sqrt")
            case _:
                factor = token.kind == "number" and before.value == "!"
        if factor and (left.divided or (left.open and token.kind != "function")):
            raise Doubt
        return factor

    def combined(self, operator: str, left: Operand, right: Operand, worded: bool = False) -> Operand:
        """What an operator makes of two operands."""
        level = _LEVELS[operator]
        if (
            (left.open and (left.worded or worded))
            or (left.worded and (left.level not in (level, _POWER) or left.divided))
            or (right.worded and not right.open and right.level != level)
            or (operator == "of" and not (left.divided or left.unit == "%"))
        ):
            raise Doubt
        self.operated = True
        unit, scale = _unit_of(operator, left, right)
        value = _operated(operator, left.value, right.value)
        return Operand(
            value if scale == 1 else value * Exact.of(scale),
            level,
            worded or left.worded or right.worded,
            operator in ("/", "//", "mod") or (level == _PRODUCT and left.divided),
            right.open,
            unit,
            left.signed,
        )

    def signed(self) -> Operand:
        """An operand with its sign and its powers."""
        sign = self.next
        if sign is None or sign.kind != "operators" or sign.value not in ("+", "-") or sign.phrase:
            return self.power()
        if self.at and self.tokens[self.at - 1].value in ("+", "-") and not self.spaced(self.at):
            raise Doubt  # a dash
        self.at += 1
        if self.spaced(self.at) and not self.tex:
            raise Doubt  # a bullet
        found = self.power()
        if found.signed or (sign.value == "-" and found.level == _POWER and not self.tex):
            raise Doubt  # -2^2 is 4 in a spreadsheet
        return found._replace(value=-found.value if sign.value == "-" else found.value, signed=True)

    def power(self) -> Operand:
        base = self.behind(self.operand())
        power = self.next
        if power is None or power.kind != "operators" or power.value != "^" or power.phrase in self.joints - {""}:
            return base
        self.check_operator(power)
        self.at += 1
        if self.tex and not power.phrase:
            exponent = self.argument()
        else:
            sign = self.take("operators", "+", "-")
            exponent = self.behind(self.operand())
            if sign and sign.value == "-":
                exponent = exponent._replace(value=-exponent.value)
        following = self.next
        chained = base.level == _POWER or exponent.level == _POWER or (following and following.value == "^")
        if chained or (following and following.kind == "behind"):
            raise Doubt  # 2^3^2 is 512, and 64 in a spreadsheet
        if base.open or exponent.unit or base.unit not in ("", _CURRENCY):
            raise Doubt
        self.operated = True
        if base.value.rational is None or exponent.value.ends != 0:
            self.do(10)
        worded = bool(power.phrase)
        return Operand(base.value**exponent.value, _POWER, worded, open=worded, unit=base.unit, signed=base.signed)

    def behind(self, operand: Operand) -> Operand:
        """An operand with what stands behind it: ``!``, ``%``, ``²``, a unit, a currency."""
        while token := self.take("behind") or self.take("unit") or self.take("money"):
            before = self.tokens[self.at - 2]
            match token.kind, token.value:
                case "unit", unit:
                    if (unit and operand.unit) or operand.level != _WHOLE:
                        raise Doubt
                    operand = operand._replace(unit=operand.unit or unit)
                case "money", sign:
                    if before.kind != "number":
                        raise Doubt
                    self.currencies.add(sign)
                    operand = operand._replace(unit=_CURRENCY)
                case _ if operand.unit or operand.level != _WHOLE or operand.open or before.kind == "unit":
                    raise Doubt
                case "behind", "%":
                    operand = operand._replace(unit="%")
                case _ if before.end < token.start and not token.phrase:
                    raise Doubt
                case "behind", "!":
                    if before.value == "!":
                        raise Doubt  # 5!! is 5 * 3 * 1
                    operand = self.result(Exact.of(math.factorial(_count(operand, MAX_WHOLE))))
                case "behind", power:
                    while not token.phrase and (digit := self.take("behind")):
                        power += digit.value
                    if not power.isdigit():
                        raise Doubt
                    self.operated = True
                    value = operand.value ** Exact.of(int(power))
                    operand = Operand(value, _POWER, bool(token.phrase), signed=operand.signed)
        return operand

    def operand(self) -> Operand:
        """A literal, a bracket, a function with what it is of, or a list in words."""
        token = self.next
        read = getattr(self, f"read_{token.kind}", None) if token else None
        self.depth += 1
        if token is None or read is None or self.depth > MAX_DEPTH:
            raise Doubt
        self.do(6 if token.kind in ("tex", "function") else 1)
        self.at += 1
        joints, found = self.joints, read(token)
        self.joints = joints
        self.depth -= 1
        return cast(Operand, found)

    def argument(self) -> Operand:
        """What a TeX command takes: a group, or one character."""
        if token := self.take("number"):
            if len(token.value) > 1:
                if not token.value.isdigit():
                    raise Doubt
                rest = token._replace(value=token.value[1:], start=token.start + 1)
                self.tokens.insert(self.at, rest)
                token = self.tokens[self.at - 1] = token._replace(value=token.value[0], end=token.start + 1)
            return Operand(Exact.of(int(token.value)))
        if (token := self.next) is None or token.kind not in ("open", "constant") or token.value == "(":
            raise Doubt
        return self.operand()

    def result(self, value: Exact, unit: str = "") -> Operand:
        self.operated = True
        return Operand(value, unit=unit)

    def read_number(self, token: Token) -> Operand:
        if token.value[0] == "0" and token.value[1:2].isdigit():
            raise Doubt  # a date, or a code
        found = Operand(Exact.of(decimal_value(token.value)))
        return self.mixed(found) if token.value.isdigit() else found

    def mixed(self, whole: Operand) -> Operand:
        """A whole number with the fraction behind it, if there is one: ``1 1/2``, ``1\\frac12``."""
        at, following = self.at, self.tokens[self.at : self.at + 3]
        if following and following[0].value in _FRACTIONS:
            self.at += 1
            fraction = self.read_tex(following[0]).value
            if self.next is not None and self.next.value in _FRACTIONS:
                raise Doubt  # in 80\frac12\frac15 all are factors
        elif [token.kind for token in following] == ["number", "operators", "number"] and following[1].value == "/":
            self.at += 3
            fraction = Exact.of(decimal_value(following[0].value)) / Exact.of(decimal_value(following[2].value))
            if not self.spaced(at) or self.spaces(at + 1) != (False, False):
                raise Doubt
        else:
            return whole
        if fraction.rational is None or not 0 < fraction.rational < 1:
            raise Doubt
        return self.result(whole.value + fraction)

    def read_money(self, token: Token) -> Operand:
        sign = self.take("operators", "+", "-")
        number = self.take("number")
        if number is None or not 0 <= number.start - (sign or token).end < 2:
            raise Doubt
        self.currencies.add(token.value)
        value = self.read_number(number).value
        return Operand(-value if sign and sign.value == "-" else value, unit=_CURRENCY, signed=sign is not None)

    def read_constant(self, token: Token) -> Operand:
        return Operand(PI if token.value == "π" else E)

    def read_open(self, token: Token) -> Operand:
        self.joints = frozenset()
        inner = self.chain()
        if not self.take("close", _BRACKETS[token.value]):
            raise Doubt
        if token.value == r"\lvert":
            return self.size(inner)
        if token.value in _ROUNDING:
            value = inner.value.rational or Fraction(inner.value.rounded(SURE_PLACES))
            return self.result(Exact.of(_ROUNDING[token.value](value)), inner.unit)
        return Operand(inner.value, unit=inner.unit)

    def read_bar(self, token: Token) -> Operand:
        inner = self.chain()
        if not self.take("bar"):
            raise Doubt
        return self.size(inner)

    def size(self, inner: Operand) -> Operand:
        return self.result(-inner.value if inner.value.decided().negative else inner.value, inner.unit)

    def read_tex(self, token: Token) -> Operand:
        if token.value == r"\sqrt":
            degree = _count(self.operand(), MAX_DEGREE) if self.next and self.next.value == "[" else 2
            return self.result(self.argument().value.root(degree))
        first, second = self.argument(), self.argument()
        if token.value in _FRACTIONS:
            quotient = self.combined("/", first, second)
            return Operand(quotient.value, unit=quotient.unit)
        return self.result(Exact.of(math.comb(_count(first, MAX_COUNT), _count(second, MAX_COUNT))))

    def read_function(self, token: Token) -> Operand:
        name, _, base = token.value.partition(" ")
        power = self.argument().value if self.tex and self.take("operators", "^") else None
        bracketed = self.next is not None and self.next.value in ("(", "{")
        if name in _OF_LISTS:
            self.at += 1
            operands = [self.chain()]
            while self.take("joint", ","):
                operands.append(self.chain())
            if not bracketed or not self.take("close"):
                raise Doubt
            return self.result(_listed(name, [operand.value for operand in operands]))
        of = self.operand()
        while not bracketed and name in _ANGLES and self.next and self.next.kind == "constant":
            of = self.combined("*", of, self.operand())  # sin 2π
        if not bracketed:
            of = self.behind(of)
        value = of.value
        if name in _ANGLES:
            if of.unit == "angle:degree":
                value *= PI / Exact.of(180)
            elif of.unit != "angle:radian" and value.in_pi is None:
                raise Doubt  # degrees, or radians
        elif of.unit:
            raise Doubt
        if name in ("sqrt", "log"):
            value = value.root(2) if name == "sqrt" else value.log(int(base))
        else:
            value = getattr(value, name)()
        if power:
            if power.negative:
                raise Doubt  # the inverse function, or the reciprocal
            value **= power
        return self.result(value)._replace(open=not bracketed)

    def read_functions(self, token: Token) -> Operand:
        of = self.power()
        power = {"square": 2, "cube": 3}.get(token.value)
        degree = {"sqrt": 2, "cbrt": 3}.get(token.value)
        if (power or degree) and (of.unit or (of.worded and not of.open)):
            raise Doubt
        if power:
            return self.phrase(of.value ** Exact.of(power))
        return self.phrase(of.value.root(degree) if degree else of.value * Exact.of(Fraction(token.value)), of.unit)

    def read_lists(self, token: Token) -> Operand:
        self.joints = frozenset((*token.value, ","))
        level = _PRODUCT if _KEEP_UNITS.issuperset(token.value.values()) else _POWER
        operands, used = [self.chain(level)], ""
        while (joint := self.next) and joint.phrase in self.joints:
            following = self.tokens[self.at + 1 : self.at + 2]
            if len(operands) > 1 and (not following or following[0].kind == "break"):
                break  # the sum of 3 and 4, please
            self.at += 1
            if joint.phrase == "," and self.next and self.next.phrase in token.value:
                continue  # ", and"
            if used not in ("", joint.phrase):
                raise Doubt
            used = "" if joint.phrase == "," else joint.phrase
            operands.append(self.chain(level))
        if any(operand.worded and not operand.open and operand.level != _POWER for operand in operands):
            raise Doubt  # the sum of 3 and 4 times 2
        operator = token.value.get(used)
        units = {operand.unit for operand in operands}
        if operator is None or len(units) > 1 or (operator not in _KEEP_UNITS and units != {""}):
            raise Doubt
        return self.phrase(_listed(operator, [operand.value for operand in operands]), units.pop())

    def phrase(self, value: Exact, unit: str = "") -> Operand:
        return self.result(value, unit)._replace(worded=True, open=True)

    read_orders = read_lists


def _unit_of(operator: str, left: Operand, right: Operand) -> tuple[str, Fraction | int]:
    """The unit of a result, and what is to be multiplied to it; raises where units are to be converted before."""
    a, b = left.unit, right.unit
    percents = (a == "%") + (b == "%")
    match operator:
        case "+" | "-" if a == b or (not percents and not (a and b)):
            return a or b, 1
        case "*" | "of" if percents == 1:
            if right == Operand(Exact.of(100), unit="%"):  # 1/4 * 100% is 25%, and 50 * 100% is 50
                if left.value.rational is None or left.value.rational >= 2:
                    raise Doubt
                return "%", 1
            return b if a == "%" else a, Fraction(1, 100)
        case "*" if not percents:
            return "" if a and b else a or b, 1
        case "of" if not a:
            return b, 1
        case "/" if b == "%":
            return ("", 1) if a == "%" else (a, 100)
        case "/" if not percents and (not (a and b) or a == b or a.split(":")[0] != b.split(":")[0]):
            return "" if b else a, 1
        case "//" | "mod" if not a and not b:
            return "", 1
    raise Doubt


def _operated(operator: str, a: Exact, b: Exact) -> Exact:
    match operator:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*" | "of":
            return a * b
        case "/":
            return a / b
        case "^":
            return a**b
    x, y = a.rational, b.rational
    if x is None or y is None or x < 0 or y <= 0:
        raise Doubt  # what is left of a negative number differs between languages
    return Exact.of(x // y if operator == "//" else x % y)


def _listed(operator: str, values: list[Exact]) -> Exact:
    """What is worked out of a list."""
    if len(values) < 2 or (len(values) > 2 and operator not in ("+", "*", "mean", *_OF_LISTS)):
        raise Doubt
    if operator in ("gcd", "lcm"):
        whole = [value.rational or Fraction(1, 2) for value in values]
        if any(number.denominator != 1 or number < 1 for number in whole):
            raise Doubt
        return Exact.of(getattr(math, operator)(*map(int, whole)))
    if operator in ("max", "min"):
        return reduce(lambda a, b: b if (a - b).decided().negative == (operator == "max") else a, values)
    if operator == "mean":
        return reduce(Exact.__add__, values) / Exact.of(len(values))
    if operator == "reversed -":
        return values[1] - values[0]
    result = reduce(lambda a, b: _operated(operator, a, b), values)
    if operator == "-" and result.decided().negative:
        raise Doubt  # the difference of 3 and 5 is 2 for some
    return result


def _count(operand: Operand, most: int) -> int:
    value = operand.value.rational
    if value is None or operand.unit or value.denominator != 1 or not 0 <= value <= most:
        raise Doubt
    return int(value)


class Found(NamedTuple):
    """An expression that has been read."""

    start: int
    end: int
    value: Exact
    currency: str
    signed: bool
    order: bool
    """Whether it is an order."""
    counted: str
    """The words that it ends with, if they are no unit of measurement."""


def read(text: str, tokens: list[Token]) -> Found | None:
    """The expression that tokens begin with, as far as it goes on; None if it is none, or a doubtful one."""
    reader = Reader(text, tokens)
    try:
        found = reader.chain()
        value = found.value.decided()
    except ArithmeticError:
        return None
    if not reader.operated or len(reader.currencies) > 1:
        return None
    last = reader.tokens[reader.at - 1]
    counted = text[last.start : last.end] if last.kind == "unit" and not last.value else ""
    order = tokens[0].kind == "orders"
    return Found(tokens[0].start, last.end, value, "".join(reader.currencies), found.signed, order, counted)


def starts_of(tokens: list[Token]) -> list[int]:
    """Where the expression that ends a list of tokens may begin: behind what holds none, or at a list in words."""
    depth, first, joint, label = 0, len(tokens), 0, 0
    lists: list[int] = []
    while first:
        token = tokens[first - 1]
        if token.kind in ("break", "math") or (token.kind == "open" and not depth):
            break
        if token.kind == "close" and not depth:
            label = first
        depth += (token.kind == "close") - (token.kind == "open")
        if not depth and token.kind in ("joint", "lists", "orders"):
            joint = joint or first
            lists += [first - 1] * (token.kind != "joint")
        first -= 1
    if depth:
        first = max(label, joint)  # behind "1)", or "a)"
    starts = [first, *lists[:-3:-1], joint] if lists else [max(first, joint)]
    for i, start in enumerate(starts):
        while start < len(tokens) and (
            tokens[start].value == "!"
            or (
                tokens[start].kind == "operators"
                and not (tokens[start].value in ("+", "-") and not tokens[start].phrase)
            )
        ):
            start += 1  # "Of course! 3 + 4", "a total of 3 + 4", a bullet, bold type
        starts[i] = start
    return [start for start in starts if start < len(tokens)]
