"""Computes the exact value of one expression from its tokens.

What an expression is, and where in a text it is looked for, is in `ani.calculator.reader.calculations`.
"""

import math
import re
from fractions import Fraction
from typing import NamedTuple, cast

from ani.calculator.reader.exact import MAX_DEGREE, MAX_WHOLE, PI, SURE_PLACES, E, Exact
from ani.calculator.reader.operations import (
    KEEP_UNITS,
    LEVELS,
    POWER,
    PRODUCT,
    SUM,
    WHOLE,
    Doubt,
    Operand,
    counted,
    currency_of,
    currency_unit,
    in_whole_money,
    listed,
    operated,
    unit_of,
)
from ani.calculator.reader.tokens import ANGLES, BRACKETS, COUNTED, FRACTIONS, OF_LISTS, TEX, Token
from ani.numbers.text import decimal_value

_DATE = re.compile(r"(?<![0-9])(?:[0-9]{4}([-/])[0-9]{1,2}\1[0-9]{1,2}|[0-9]{1,2}([-/])[0-9]{1,2}\2[0-9]{4})(?![0-9])")
_CHAIN = re.compile(r"[0-9]/[0-9]+/[0-9]")
MAX_WORK = 60
"""Operands of an expression; a function and a root count for several."""
MAX_DEPTH = 24
"""Depth of nested brackets, fractions, roots and functions."""
MAX_COUNT = 300
"""Largest number of things to choose from."""

_SMALL_FRACTION = re.compile(r"[0-9]{1,2}/[0-9]{1,2}")
_ROUNDING = {r"\lfloor": math.floor, "⌊": math.floor, r"\lceil": math.ceil, "⌈": math.ceil}


class Reader:
    """Reads tokens as an expression, by precedence."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text, self.tokens = text, tokens
        self.tex = TEX.search(text) is not None
        self.at = 0
        self.depth = self.work = 0
        self.operated = False
        """True once there was something to compute."""
        self.currencies: set[str] = set()
        self.joints: frozenset[str] = frozenset()
        """Words that separate the items of the list that is being read."""

    @property
    def next(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, kind: str, *values: str) -> Token | None:
        """Take the next token if it is of this kind and has one of these values; no values: any value."""
        token = self.next
        if token is None or token.kind != kind or (values and token.value not in values):
            return None
        self.at += 1
        return token

    def do(self, work: int) -> None:
        """Count the work of an operation; raises `Doubt` above `MAX_WORK`."""
        self.work += work
        if self.work > MAX_WORK:
            raise Doubt

    def spaced(self, at: int) -> bool:
        """Return whether there is a blank between the token at a place and the token before it."""
        return not 0 < at < len(self.tokens) or self.tokens[at - 1].end < self.tokens[at].start

    def chain(self, least: int = SUM) -> Operand:
        """Read operands and the operators between them, of a level or above."""
        left = self.signed()
        while (token := self.next) and not (token.phrase and token.phrase in self.joints):
            if token.kind == "operators" and LEVELS[token.value] >= least:
                self.check_operator(token)
                self.at += 1
                left = self.combined(token.value, left, self.chain(LEVELS[token.value] + 1), bool(token.phrase))
            elif token.kind != "operators" and least <= PRODUCT and self.is_factor(token, left):
                left = self.combined("*", left, self.chain(POWER))
            else:
                break
        return left

    def check_operator(self, token: Token) -> None:
        """Raise `Doubt` if an operator may be something else, such as a hyphen or bold type."""
        before, after = self.tokens[self.at - 1], self.tokens[self.at + 1 : self.at + 2]
        spaces = self.spaces(self.at)
        if self.text[token.start] in "xX":
            signed = after and after[0].value in ("+", "-")
            doubtful = signed or spaces[0] != spaces[1] or (before.value == "0" and not spaces[0])  # 3x -4, 0x10
        elif self.text.startswith("**", token.start):
            doubtful = spaces[0] != spaces[1]  # bold type
        elif token.value == "/":  # 8 / 1/2
            doubtful = self.at > 1 and self.tokens[self.at - 2].value == "/" and self.spaces(self.at - 2) != spaces
        else:  # 3 feet -4: a sign, or a hyphen
            unit = before.kind == "unit" and self.text[before.start] not in "^°"  # degrees
            doubtful = token.value == "-" and unit and spaces != (True, True)
        if doubtful:
            raise Doubt

    def is_range(self) -> bool:
        """Return whether signs without blanks may make a range, a date or a size (``90-100 + 5``, ``9/11/01``)."""
        tight, loose = [], False
        for at in range(1, self.at):
            token, spaces = self.tokens[at], self.spaces(at)
            if token.kind != "operators":
                continue
            loose = loose or spaces == (True, True)
            following = self.tokens[min(at + 1, len(self.tokens) - 1)]
            if self.tokens[at - 1].kind == "number" == following.kind and spaces == (False, False):
                tight.append(self.text[token.start])
        written = self.text[self.tokens[0].start : self.tokens[self.at - 1].end]
        dated = _CHAIN.search(written) is not None or _DATE.search(written) is not None
        scaled = any(token.kind == "number" and self.text[token.end - 1].isalpha() for token in self.tokens[: self.at])
        return dated or ((loose or scaled) and not {*tight}.isdisjoint("-−–xX"))

    def spaces(self, at: int) -> tuple[bool, bool]:
        """Return whether there are blanks before and after the token at a place."""
        return self.spaced(at), self.spaced(at + 1)

    def is_factor(self, token: Token, left: Operand) -> bool:
        """Return whether the next token is a factor without an operator before it."""
        before = self.tokens[self.at - 1]
        if token.phrase or before.phrase or (self.spaced(self.at) and not self.tex):
            return False
        operand = before.kind in ("number", "close", "constant", "suffix") and left.unit != "%"
        match token.kind:
            case "open":
                factor = operand and token.value in "(["
            case "function" | "constant":
                factor = operand or left.unit == "angle:degree"
            case "tex":  # 1\frac12 may be a mixed number
                factor = before.kind in ("close", "constant") or (operand and token.value == r"\sqrt")
            case _:
                factor = token.kind == "number" and before.value == "!"
        if factor and (left.divided or (left.open and token.kind != "function")):
            raise Doubt
        return factor

    def combined(self, operator: str, left: Operand, right: Operand, worded: bool = False) -> Operand:
        """Apply an operator to two operands; raises `Doubt` where words or units leave the result in doubt."""
        level = LEVELS[operator]
        if (
            (left.open and (left.worded or worded))
            or (left.worded and (left.level not in (level, POWER) or left.divided))
            or (right.worded and not right.open and right.level != level)
            or (operator == "of" and not (left.divided or left.unit == "%"))
        ):
            raise Doubt
        self.operated = True
        if operator in ("+", "-"):
            left, right = in_whole_money(left, right.unit), in_whole_money(right, left.unit)
        unit, scale = unit_of(operator, left.unit, right.unit, right.value, left.value)
        value = operated(operator, left.value, right.value)
        value = value if scale == 1 else value * Exact.of(scale)
        divided = operator in ("/", "//", "mod") or (level == PRODUCT and left.divided)
        return Operand(value, level, worded or left.worded or right.worded, divided, right.open, unit, left.signed)

    def signed(self) -> Operand:
        """Read an operand with its sign and its powers."""
        sign = self.next
        if sign is None or sign.kind != "operators" or sign.value not in ("+", "-") or sign.phrase:
            return self.power()
        if self.at and self.tokens[self.at - 1].value in ("+", "-") and not self.spaced(self.at):
            raise Doubt  # a dash
        self.at += 1
        if self.spaced(self.at) and not self.tex:
            raise Doubt  # a bullet
        found = self.power()
        if found.signed or (sign.value == "-" and found.level == POWER and not self.tex):
            raise Doubt  # -2^2 is 4 in a spreadsheet
        return found._replace(value=-found.value if sign.value == "-" else found.value, signed=True)

    def power(self) -> Operand:
        base = self.suffixed(self.operand())
        power = self.next
        if power is None or power.kind != "operators" or power.value != "^" or power.phrase in self.joints - {""}:
            return base
        self.check_operator(power)
        self.at += 1
        if self.tex and not power.phrase:
            exponent = self.argument()
        else:
            sign = self.take("operators", "+", "-")
            exponent = self.suffixed(self.operand())
            if sign and sign.value == "-":
                exponent = exponent._replace(value=-exponent.value)
        following = self.next
        chained = base.level == POWER or exponent.level == POWER or (following and following.value == "^")
        if chained or (following and following.kind == "suffix"):
            raise Doubt  # 2^3^2 is 512, and 64 in a spreadsheet
        if base.open or exponent.unit or base.unit:
            raise Doubt
        self.operated = True
        if base.value.rational is None or exponent.value.ends != 0:
            self.do(10)
        worded = bool(power.phrase)
        return Operand(base.value**exponent.value, POWER, worded, open=worded, unit=base.unit, signed=base.signed)

    def suffixed(self, operand: Operand) -> Operand:
        """Read what follows an operand: ``!``, ``%``, ``²``, a unit, a currency sign."""
        while token := self.take("suffix") or self.take("unit") or self.take("money"):
            before = self.tokens[self.at - 2]
            match token.kind, token.value:
                case "unit", unit:
                    if (unit and operand.unit) or operand.level != WHOLE:
                        raise Doubt
                    operand = operand._replace(unit=operand.unit or unit)
                case "money", sign:
                    if before.kind != "number":
                        raise Doubt
                    self.currencies.add(sign)
                    operand = operand._replace(unit=currency_unit(sign))
                case _ if operand.unit or operand.level != WHOLE or operand.open or before.kind == "unit":
                    raise Doubt
                case "suffix", "%":
                    operand = operand._replace(unit="%")
                case _ if before.end < token.start and not token.phrase:
                    raise Doubt
                case "suffix", "!":
                    if before.value == "!":
                        raise Doubt  # 5!! is 5 * 3 * 1
                    operand = self.result(Exact.of(math.factorial(counted(operand, MAX_WHOLE))))
                case "suffix", power:
                    while not token.phrase and (digit := self.take("suffix")):
                        power += digit.value
                    if not power.isdigit():
                        raise Doubt
                    self.operated = True
                    value = operand.value ** Exact.of(int(power))
                    operand = Operand(value, POWER, bool(token.phrase), signed=operand.signed)
        return operand

    def operand(self) -> Operand:
        """Read a literal, a bracket, a function with its argument, or a list in words."""
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
        """Read the argument of a TeX command: a group in braces, or one character."""
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
        """Add the fraction that follows a whole number, if there is one: ``1 1/2``, ``1\\frac12``."""
        at, following = self.at, self.tokens[self.at : self.at + 3]
        if following and following[0].value in FRACTIONS:
            self.at += 1
            fraction = self.read_tex(following[0]).value
            if self.next is not None and self.next.value in FRACTIONS:
                raise Doubt  # in 80\frac12\frac15 all are factors
        elif [token.kind for token in following] == ["number", "operators", "number"] and following[1].value == "/":
            self.at += 3
            written = self.text[following[0].start : following[2].end]
            if not _SMALL_FRACTION.fullmatch(written):
                raise Doubt  # 736 335/8.7
            fraction = Exact.of(Fraction(written))
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
        value = -value if sign and sign.value == "-" else value
        return Operand(value, unit=currency_unit(token.value), signed=sign is not None)

    def read_constant(self, token: Token) -> Operand:
        return Operand(PI if token.value == "π" else E)

    def read_open(self, token: Token) -> Operand:
        self.joints = frozenset()
        inner = self.chain()
        if not self.take("close", BRACKETS[token.value]):
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
            degree = counted(self.operand(), MAX_DEGREE) if self.next and self.next.value == "[" else 2
            return self.result(self.argument().value.root(degree))
        first, second = self.argument(), self.argument()
        if token.value in FRACTIONS:
            quotient = self.combined("/", first, second)
            return Operand(quotient.value, unit=quotient.unit)
        return self.result(Exact.of(math.comb(counted(first, MAX_COUNT), counted(second, MAX_COUNT))))

    def read_function(self, token: Token) -> Operand:
        name, _, base = token.value.partition(" ")
        power = self.argument().value if self.tex and self.take("operators", "^") else None
        bracketed = self.next is not None and self.next.value in ("(", "{")
        if name in OF_LISTS:
            self.at += 1
            operands = [self.chain()]
            while self.take("joint", ","):
                operands.append(self.chain())
            if not bracketed or not self.take("close"):
                raise Doubt
            if len({operand.unit for operand in operands}) > 1:
                raise Doubt  # max(3 km, 500 m)
            return self.result(listed(name, [operand.value for operand in operands]), operands[0].unit)
        of = self.operand()
        while not bracketed and name in ANGLES and self.next and self.next.kind == "constant":
            of = self.combined("*", of, self.operand())  # sin 2π
        if not bracketed:
            of = self.suffixed(of)
        value = of.value
        if name in ANGLES:
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
        if of.level == POWER:
            raise Doubt  # half of 7 squared
        power = {"square": 2, "cube": 3}.get(token.value)
        degree = {"sqrt": 2, "cbrt": 3}.get(token.value)
        if of.unit.startswith(COUNTED) or ((power or degree) and (of.unit or (of.worded and not of.open))):
            raise Doubt
        if power:
            return self.phrase(of.value ** Exact.of(power))
        return self.phrase(of.value.root(degree) if degree else of.value * Exact.of(Fraction(token.value)), of.unit)

    def read_lists(self, token: Token) -> Operand:
        self.joints = frozenset((*token.value, ","))
        level = PRODUCT if KEEP_UNITS.issuperset(token.value.values()) else POWER
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
        if any(operand.worded and not operand.open and operand.level != POWER for operand in operands):
            raise Doubt  # the sum of 3 and 4 times 2
        operator = token.value.get(used)
        units = {operand.unit for operand in operands}
        if operator is None or len(units) > 1 or (operator not in (*KEEP_UNITS, "/") and units != {""}):
            raise Doubt
        unit = "" if operator == "/" else units.pop()
        return self.phrase(listed(operator, [operand.value for operand in operands]), unit)

    def phrase(self, value: Exact, unit: str = "") -> Operand:
        return self.result(value, unit)._replace(worded=True, open=True)

    read_orders = read_lists


class Found(NamedTuple):
    """An expression that has been read."""

    start: int
    end: int
    value: Exact
    currency: str
    signed: bool


def read(text: str, tokens: list[Token]) -> Found | None:
    """Read the longest expression at the beginning of tokens; None: there is none, or it is doubtful."""
    reader = Reader(text, tokens)
    try:
        found = reader.chain()
        value = found.value.decided()
    except ArithmeticError:
        return None
    if not reader.operated or len(reader.currencies) > 1 or reader.is_range():
        return None
    last = reader.tokens[reader.at - 1]
    currency = "".join(reader.currencies) if found.unit else ""  # the ratio of two amounts is none
    return Found(tokens[0].start, last.end, value, currency or currency_of(found.unit), found.signed)
