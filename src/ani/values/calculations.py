"""Say which characters of a text are a calculation, and what it comes to."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cache, reduce
from importlib import resources
from typing import Any, NamedTuple, cast

import yaml

from ani.numbers.grammar import BLANKS, BOUNDARY, MAX_BLANKS, decimal_value, number_spans
from ani.values.exact import MAX_DEGREE, MAX_WHOLE, PI, SURE_PLACES, E, Exact

MAX_LENGTH = 200
"""Characters of an expression, with what stands between it and the sign."""
MAX_WORK = 60
"""Operands of an expression; a function and a root count for several."""
MAX_STARTS = 3
"""Places at which a question's expression may begin."""
MAX_DEPTH = 24
"""Of brackets, fractions, roots and functions in each other."""
MAX_COUNT = 300
"""Of things that are chosen from."""
MAX_UNIT = 5
"""Words of what is counted."""
_CONTEXT = 64  # characters before the expression that say whether it is whole
LOOK_BEHIND = MAX_LENGTH + _CONTEXT
"""Characters before an equals sign that are looked at."""
MAX_QUESTION = 480
"""Characters of a question with what is said around it."""

_B = f"[{BLANKS}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}]"
_MINUS = "-−–"
_MONEY = "$€£¥₹"
_CURRENCY = "money:"
_SUM, _PRODUCT, _POWER, _WHOLE = 1, 2, 3, 4
_LEVELS = {"+": _SUM, "-": _SUM, "^": _POWER} | dict.fromkeys(("*", "/", "//", "mod", "of"), _PRODUCT)
_BRACKETS = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉"}
_BRACKETS |= {rf"\l{name}": rf"\r{name}" for name in ("floor", "ceil", "vert")}
_ANGLES = ("sin", "cos", "tan")
_FUNCTIONS = ("sqrt", "ln", "exp", "gcd", "lcm", *_ANGLES)
_FRACTIONS = (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac")
_OPERATORS = {"+": "+", "/": "/", "÷": "/", "^": "^", "**": "^", "//": "//"} | dict.fromkeys(_MINUS, "-")
_OPERATORS |= dict.fromkeys("*×·⋅∙∗", "*") | {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\bmod": "mod"}
_SYMBOLS = {written: ("operators", value) for written, value in _OPERATORS.items()}
_SYMBOLS |= {written: ("open", written) for written in _BRACKETS}
_SYMBOLS |= {written: ("close", written) for written in _BRACKETS.values()}
_SYMBOLS |= {rf"\{name}": ("function", name) for name in _FUNCTIONS} | {"√": ("function", "sqrt")}
_SYMBOLS |= {name: ("tex", name) for name in (*_FRACTIONS, r"\sqrt", r"\binom", r"\dbinom", r"\tbinom")}
_SYMBOLS |= {r"\pi": ("constant", "π"), "π": ("constant", "π"), "|": ("bar", "|"), ",": ("joint", ",")}
_SYMBOLS |= {c: ("behind", str(i)) for i, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {
    c: ("behind", c[-1]) for c in ("%", r"\%", "!")
}

_LETTER = r"[^\W\d_]"
_WORD = rf"{_LETTER}(?:{_LETTER}|['’](?={_LETTER}))*"
_PIECE = re.compile(
    rf"""(?P<blank>(?:{_B}|\\[,;:!>\ ]|~|\\q?quad\b|\\(?:left|right|[bB]igg?[lrm]?|limits|displaystyle|textstyle)(?![A-Za-z]))+)
    |(?P<degree>°|\^\\circ\b|\^\{{\\circ\}})
    |(?P<text>\\(?:text(?:rm|bf|normal)?|mbox|mathrm|operatorname|mathop)\s*\{{(?P<inside>[^{{}}]*)\}}(?:\^\{{?[23]\}}?)?)
    |(?P<log>\\?log_?(?:\{{(?P<base>[0-9]+)\}}|(?P<digits>[0-9]+)))(?={_B}*\\?[\w(\{{])
    |(?P<math>\\begin\{{[a-z]+\*?\}}|\\\\(?:\[[^\]\n]*\])?|\\[()\[\]]|\$\$|&)
    |(?P<symbol>\\[A-Za-z]+|\\.|\*\*|//|[^\w\s]|[⁰¹²³⁴⁵⁶⁷⁸⁹])
    |(?P<word>{_WORD})""",
    re.VERBOSE,
)
_GROUPED = re.compile(
    r"[0-9]{1,3}(?:(?:\{,\}|,\\!|[\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}])[0-9]{3})+(?![0-9])(?:\.[0-9]+)?"
)
_GROUPING = re.compile(r"[^0-9.]")
_TEX = re.compile(r"\\[A-Za-z(\[]|\\\\[\s&]|[\^_]\{|\$[^\s$][^$\n]{0,80}(?<!\s)\$(?![0-9])")
_UNIT = re.compile(rf"({_B}?/{_B}?|{_B}|-|)({_WORD})")
_AFTER_UNIT = re.compile(rf"{_B}{{0,{MAX_BLANKS}}}(?:[+*×·⋅∙∗÷/)\]}}=?!]|[.,](?![0-9])|[{_MINUS}](?={_B})|x{_B}|\Z)")
_STARTS_NUMBER = (*"0123456789.+-−",)
_PLAIN = re.compile(r"[^-0-9.,/:–−]")
_BEHIND = re.compile(
    rf"{_B}{{0,{MAX_BLANKS}}}(?:\\boxed\{{)?(?:\\?[{_MONEY}](?P<later>[-−])|(?P<sign>[-−])?(?:\\?[{_MONEY}])?)"
)
_GOES_ON = re.compile(
    rf"{_B}{{0,{MAX_BLANKS}}}(?:[-−–+*×·⋅÷/^]{_B}{{0,{MAX_BLANKS}}}[{_MONEY}(.]?[0-9]|(?<={_B})[0-9]|[rR]\s?[0-9]|remainder)"
)
_DATE = re.compile(r"[0-9]{4}([-/])[0-9]{1,2}\1[0-9]{1,2}|[0-9]{1,2}([-/])[0-9]{1,2}\2[0-9]{2,4}")


_BLANK_END = re.compile(rf"(?:{_B}|\\[,;:!> ]|~|\\q?quad|\\left|\\displaystyle)*\Z")
_MATH_BEGIN = re.compile(r"(?:\$\$?|\\[(\[]|\\begin\{[a-z]+\*?\})\Z")
_OPERATOR_END = re.compile(rf"(?:[{re.escape(''.join(c for c in _OPERATORS if len(c) == 1))}]|\\[a-z]+)\Z")
_LINE_END = re.compile(rf"(?:[\n\r]|{_B}|\\\\(?:\[[^\]\n]*\])?|&)*(?:[\n\r]|\\\\(?:\[[^\]\n]*\])?|&)\Z|{BOUNDARY}\Z")
_LAST_WORDS = re.compile(rf"(?:(?P<first>{_WORD}){_B}+)?(?<![\\\w])(?P<last>{_WORD}|e\.g\.|i\.e\.)\Z")
_OPERAND_ENDS = (*"0123456789)]}%°",)
_OPERAND_END = re.compile(r"[\w)\]}%°!$]\Z")
_SEPARATE = re.compile(
    rf"""(?:[(\[{{（=<>≈≤≥≠→⇒;：，。]
    |(?:^|[\n\r{BOUNDARY}])\s*(?:[•*>]|\#+|\(?[0-9a-z]{{1,2}}\))[ ]
    |(?<![0-9])["'“‘`]
    |(?<![{BLANKS}])[,.!?:][ ]
    |(?<![0-9{BLANKS}]):
    |(?:^|[\n\r{BLANKS}{BOUNDARY}])[*_]{{1,3}}
    |\\(?:approx|leq?|geq?|neq?|Rightarrow|Longrightarrow|implies|to|therefore|qquad|quad))\ ?\Z""",
    re.VERBOSE,
)


class Calculation(NamedTuple):
    """A written calculation with its exact value."""

    text: str
    """The expression as it is written."""
    start: int
    """Its first character."""
    value: Exact
    currency: str
    """The sign that its literals bear, or nothing."""


class _Lexicon(NamedTuple):
    """What the languages' files say."""

    phrases: Mapping[str, list[tuple[str, re.Pattern[str], str, Any]]]
    """(phrase, its pattern, kind of token, value) by their first words, the longest first."""
    articles: frozenset[str]
    measures: Mapping[str, str]
    changing: frozenset[str]
    before: frozenset[str]
    before_signs: frozenset[str]
    before_names: frozenset[str]
    before_verbs: frozenset[str]
    before_particles: frozenset[str]
    before_endings: tuple[str, ...]
    computing: frozenset[str]
    sentence: re.Pattern[str]
    """Up to where an expression may stand without a question's words."""
    question: re.Pattern[str]
    closing: re.Pattern[str]


@cache
def _lexicon() -> _Lexicon:
    files = sorted((resources.files("ani.values") / "languages").iterdir(), key=lambda file: file.name)
    languages = [yaml.safe_load(file.read_text("utf-8")) for file in files]

    def listed(key: str) -> list[str]:
        return [phrase for language in languages for phrase in re.split(r",\s+", language.get(key, "")) if phrase]

    phrases: dict[str, list[tuple[str, re.Pattern[str], str, Any]]] = {}
    measures: dict[str, str] = {}

    def put(phrase: str, kind: str, value: Any) -> None:
        words = phrase.split(" ")
        pattern = re.compile(rf"{_B}+".join(map(re.escape, words)) + r"(?!\w)", re.IGNORECASE)
        phrases.setdefault(words[0], []).append((phrase, pattern, kind, value))

    for language in languages:
        for kind in ("operators", "functions", "behind"):
            for value, names in language[kind].items():
                for phrase in names.split(", "):
                    put(phrase, kind, value)
        for kind in ("lists", "orders"):
            for phrase, joints in language[kind].items():
                put(phrase, kind, joints)
                for joint in joints:
                    if joint not in language["operators"].values():
                        put(joint, "joint", None)
        for i, phrase in enumerate(re.split(r",\s+", language["numbers"])):
            put(phrase, "number", str(i))
        for dimension, units in language["measures"].items():
            measures |= {name: f"{dimension}:{unit.split()[0]}" for unit in units for name in unit.split()}
    for found in phrases.values():
        found.sort(key=lambda entry: (-len(entry[0]), entry[2] == "joint"))

    def any_of(key: str) -> str:
        return "|".join(re.escape(phrase) for phrase in sorted(listed(key), key=len, reverse=True))

    question = rf"(?<!\w)(?:{any_of('questions')})(?!\w)(?:[:,]?{_B}+(?:{any_of('fillers')})(?!\w))*[:,]?{_B}*"
    beginnings = [name for language in languages for key in ("orders", "lists") for name in language[key]]
    beginnings += [
        name for language in languages for names in language["functions"].values() for name in names.split(", ")
    ]
    named = rf"(?:{'|'.join(beginnings)})(?!\w)|(?:{any_of('articles')}){_B}"
    sentence = (
        rf"(?:[\n\r{BOUNDARY}]|[.!?]{_B})\s*(?:(?:(?:{any_of('introductions')}){_B}*)+:\s*)?(?=[0-9$€£¥₹(\[{{\\|√⌊⌈π+−.-]|{named})"
        rf"|[;,]{_B}+(?={named})"
    )
    words = rf"(?:{any_of('closing')})(?!\w)|[0-9]{{1,2}}(?={_B}(?:{any_of('rounding')})(?!\w))"
    return _Lexicon(
        phrases,
        frozenset(listed("articles")),
        measures,
        frozenset(listed("changing")),
        frozenset(listed("before")),
        frozenset(listed("before_signs")),
        frozenset(listed("before_names")),
        frozenset(listed("before_verbs")),
        frozenset(listed("before_particles")),
        tuple(listed("before_endings")),
        frozenset(listed("computing")),
        re.compile(sentence, re.IGNORECASE),
        re.compile(question, re.IGNORECASE),
        re.compile(rf"(?:{words}|[\s?.!,:;=()\"'`*$\\\])}}{BOUNDARY}])*", re.IGNORECASE),
    )


# --- tokens -----------------------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str
    value: Any
    start: int
    end: int
    phrase: str = ""
    """The words that it is."""


def _tokens(text: str, begin: int) -> list[_Token]:
    """The tokens of a text from a place on; what no expression holds is a break."""
    tex = _TEX.search(text) is not None
    literals = {start + (text[start] in "+-"): end for start, end in number_spans(text).items()}
    tokens: list[_Token] = []
    at = begin
    while at < len(text):
        if tokens and _ends_operand(tokens[-1]) and not tex and (unit := _unit(text, at)):
            tokens.append(unit)
        elif at in literals:
            grouped = _GROUPED.match(text, at)
            end = grouped.end() if grouped else literals[at]
            tokens.append(_Token("number", _GROUPING.sub("", text[at:end]) if grouped else text[at:end], at, end))
        elif match := _PIECE.match(text, at):
            if match.lastgroup == "blank":
                if match.end() - at > MAX_BLANKS and not tex:
                    tokens.append(_Token("break", "", at, match.end()))
                at = match.end()
                continue
            tokens.append(_token(text, match, tex))
        else:
            tokens.append(_Token("math" if tex and text[at] == "\n" else "break", text[at], at, at + 1))
        at = tokens[-1].end
    return tokens


def _token(text: str, match: re.Match[str], tex: bool) -> _Token:
    written, start, end = match[0], match.start(), match.end()
    match match.lastgroup:
        case "degree":
            return _Token("unit", "angle:degree", start, end)
        case "text":
            name = match["inside"].strip()
            kind = "function" if name in _FUNCTIONS else "unit"
            return _Token(kind, name if kind == "function" else _lexicon().measures.get(name, ""), start, end)
        case "log":
            base = match["base"] or match["digits"]
            if match["digits"] and tex:  # TeX lowers one character
                base, end = base[0], match.start("digits") + 1
            return _Token("function", f"log {base}", start, end)
        case "math":
            return _Token("math", written, start, end)
        case "word":
            return _word(text, match, tex)
    if written[-1] in _MONEY:
        number = text[start - 1 : start].isdigit() or text[end : end + 2].lstrip(" ")[:1] in _STARTS_NUMBER
        return _Token("money" if number and (written != "$" or not tex) else "math", written[-1], start, end)
    kind, value = _SYMBOLS.get(written, ("break", written))
    return _Token(kind, value, start, end, "," if written == "," else "")


def _word(text: str, match: re.Match[str], tex: bool) -> _Token:
    lexicon, word, start, end = _lexicon(), match[0].lower(), match.start(), match.end()
    around = text[start - 1 : start] + text[end : end + 1]
    if word == "x" and not tex and (around.replace(".", "0").isdigit() or not around.strip(BLANKS)):
        return _Token("operators", "*", start, end)
    if word in _FUNCTIONS and around[-1:] == "(":
        return _Token("function", word, start, end)
    if word == "e" and around[-1:] == "^":
        return _Token("constant", "e", start, end)
    article = _UNIT.match(text, end) if word in lexicon.articles else None
    phrase = _phrase(text, article.start(2), article[2]) if article else _phrase(text, start, word)
    if phrase and (not article or phrase.kind in ("functions", "lists")):
        return phrase._replace(start=start)
    return _Token("break", word, start, end)


def _phrase(text: str, start: int, word: str) -> _Token | None:
    """The longest phrase at a place where a word begins."""
    for phrase, pattern, kind, value in _lexicon().phrases.get(word.lower(), ()):
        if found := pattern.match(text, start):
            return _Token(kind, value, start, found.end(), phrase)
    return None


def _ends_operand(token: _Token) -> bool:
    return token.kind in ("number", "close", "behind", "constant")


def _unit(text: str, begin: int) -> _Token | None:
    """The words behind an operand that say what it counts or measures."""
    lexicon = _lexicon()
    at, measure, words = begin, "", 0
    following = None
    while match := _UNIT.match(text, at):
        gap, word = match[1].strip(), match[2].lower()
        known = lexicon.measures.get(match[2], lexicon.measures.get(word, "") if len(word) > 1 else "")
        following = _phrase(text, match.start(2), word)
        if word == "x" or word in lexicon.changing or (following and (following.value != "of" or not words)):
            break
        if not words and (
            gap == "-"
            or len(word) < 2 + (not known) + (not match[1]) * (not known) * 99 - (known != "" and match[1] != "")
        ):
            break
        measure = known if not words and not gap else "" if gap == "/" or word == "per" else measure
        at, words, following = match.end(), words + 1, None
    ends = (
        following.value != "of" and following.kind in ("operators", "joint")
        if following
        else _AFTER_UNIT.match(text, at)
    )
    return _Token("unit", measure, begin, at) if ends and 0 < words <= MAX_UNIT else None


# --- reading ----------------------------------------------------------------------------------------------------------


class _Operand(NamedTuple):
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


class _Doubt(ArithmeticError):
    """What is written is no expression, or may be several."""


class _Reader:
    """Reads tokens as an expression, by precedence."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self.text, self.tokens = text, tokens
        self.tex = _TEX.search(text) is not None
        self.at = 0
        self.depth = self.work = 0
        self.operated = False
        """Whether there was anything to work out."""
        self.currencies: set[str] = set()
        self.joints: frozenset[str] = frozenset()
        """Of the list that is being read."""

    @property
    def next(self) -> _Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, kind: str, *values: str) -> _Token | None:
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
            raise _Doubt

    def spaced(self, at: int) -> bool:
        """Whether something stands between the token at a place and the one before it."""
        return not 0 < at < len(self.tokens) or self.tokens[at - 1].end < self.tokens[at].start

    def chain(self, least: int = _SUM) -> _Operand:
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

    def check_operator(self, token: _Token) -> None:
        """Raise where an operator may be something else."""
        before, after = self.tokens[self.at - 1], self.tokens[self.at + 1 : self.at + 2]
        spaced = self.spaced(self.at), self.spaced(self.at + 1)
        if self.text[token.start] == "x":
            if (
                spaced[0] != spaced[1]
                or (before.value == "0" and not spaced[0])
                or (after and after[0].value in ("+", "-"))
            ):
                raise _Doubt  # a variable, or a hexadecimal number
        elif (
            token.value == "/"
            and self.at > 1
            and self.tokens[self.at - 2].value == "/"
            and spaced[0] != self.spaced(self.at - 2)
        ):
            raise _Doubt  # 28 / 1/5
        elif self.text.startswith("**", token.start) and spaced[0] != spaced[1]:
            raise _Doubt  # bold type
        elif (
            token.value == "-"
            and before.kind == "unit"
            and spaced != (True, True)
            and self.text[before.start] not in "^°"
        ):
            raise _Doubt  # a hyphen, or a sign

    def is_factor(self, token: _Token, left: _Operand) -> bool:
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
            raise _Doubt
        return factor

    def combined(self, operator: str, left: _Operand, right: _Operand, worded: bool = False) -> _Operand:
        """What an operator makes of two operands."""
        level = _LEVELS[operator]
        if (
            (left.open and (left.worded or worded))
            or (left.worded and (left.level not in (level, _POWER) or left.divided))
            or (right.worded and not right.open and right.level != level)
            or (operator == "of" and not (left.divided or left.unit == "%"))
        ):
            raise _Doubt
        self.operated = True
        unit, scale = _unit_of(operator, left, right)
        value = _operated(operator, left.value, right.value)
        return _Operand(
            value if scale == 1 else value * Exact.of(scale),
            level,
            worded or left.worded or right.worded,
            operator in ("/", "//", "mod") or (level == _PRODUCT and left.divided),
            right.open,
            unit,
            left.signed,
        )

    def signed(self) -> _Operand:
        """An operand with its sign and its powers."""
        sign = self.next
        if sign is None or sign.kind != "operators" or sign.value not in ("+", "-") or sign.phrase:
            return self.power()
        if self.at and self.tokens[self.at - 1].value in ("+", "-") and not self.spaced(self.at):
            raise _Doubt  # a dash
        self.at += 1
        if self.spaced(self.at) and not self.tex:
            raise _Doubt  # a bullet
        found = self.power()
        if found.signed or (sign.value == "-" and found.level == _POWER and not self.tex):
            raise _Doubt  # -2^2 is 4 in a spreadsheet
        return found._replace(value=-found.value if sign.value == "-" else found.value, signed=True)

    def power(self) -> _Operand:
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
        if (
            base.open
            or base.level == _POWER
            or exponent.unit
            or base.unit not in ("", _CURRENCY)
            or exponent.level == _POWER
        ):
            raise _Doubt
        if following and (following.value == "^" or following.kind == "behind"):
            raise _Doubt  # 2^3^2 is 512, and 64 in a spreadsheet
        self.operated = True
        if base.value.rational is None or exponent.value.ends != 0:
            self.do(5)
        worded = bool(power.phrase)
        return _Operand(base.value**exponent.value, _POWER, worded, open=worded, unit=base.unit, signed=base.signed)

    def behind(self, operand: _Operand) -> _Operand:
        """An operand with what stands behind it: ``!``, ``%``, ``²``, a unit, a currency."""
        while token := self.take("behind") or self.take("unit") or self.take("money"):
            match token.kind, token.value:
                case "unit", unit:
                    if (unit and operand.unit) or operand.level != _WHOLE:
                        raise _Doubt
                    operand = operand._replace(unit=operand.unit or unit)
                case "money", sign:
                    if self.tokens[self.at - 2].kind != "number":
                        raise _Doubt
                    self.currencies.add(sign)
                    operand = operand._replace(unit=_CURRENCY)
                case _ if (
                    operand.unit or operand.level != _WHOLE or operand.open or self.tokens[self.at - 2].kind == "unit"
                ):
                    raise _Doubt
                case "behind", "%":
                    operand = operand._replace(unit="%")
                case "behind", _ if self.spaced(self.at - 1) and not token.phrase:
                    raise _Doubt
                case "behind", "!":
                    operand = self.result(Exact.of(math.factorial(_count(operand, MAX_WHOLE))))
                case "behind", power:
                    while not token.phrase and (digit := self.take("behind")):
                        power += digit.value
                    if not power.isdigit():
                        raise _Doubt
                    self.operated = True
                    value = operand.value ** Exact.of(int(power))
                    operand = _Operand(value, _POWER, bool(token.phrase), signed=operand.signed)
        return operand

    def operand(self) -> _Operand:
        """A literal, a bracket, a function with what it is of, or a list in words."""
        token = self.next
        read = getattr(self, f"read_{token.kind}", None) if token else None
        self.depth += 1
        if token is None or read is None or self.depth > MAX_DEPTH:
            raise _Doubt
        self.do(5 if token.kind in ("tex", "function") else 1)
        self.at += 1
        joints, found = self.joints, read(token)
        self.joints = joints
        self.depth -= 1
        return cast(_Operand, found)

    def argument(self) -> _Operand:
        """What a TeX command takes: a group, or one character."""
        token = self.next
        if token and token.kind == "number" and len(token.value) > 1 and token.value.isdigit():
            first, rest = token.value[0], token.value[1:]
            cut = token.start + 1
            self.tokens[self.at : self.at + 1] = [
                token._replace(value=first, end=cut),
                token._replace(value=rest, start=cut),
            ]
        elif token is None or token.kind not in ("number", "open", "constant") or token.value == "(":
            raise _Doubt
        return self.operand()

    def result(self, value: Exact, unit: str = "") -> _Operand:
        self.operated = True
        return _Operand(value, unit=unit)

    def read_number(self, token: _Token) -> _Operand:
        if token.value[0] == "0" and token.value[1:2].isdigit():
            raise _Doubt  # a date, or a code
        found = _Operand(Exact.of(decimal_value(token.value)))
        return self.mixed(found) if token.value.isdigit() else found

    def mixed(self, whole: _Operand) -> _Operand:
        """A whole number with the fraction behind it, if there is one: ``1 1/2``, ``1\\frac12``."""
        at, following = self.at, self.tokens[self.at : self.at + 3]
        if following and following[0].value in _FRACTIONS:
            self.at += 1
            fraction = self.read_tex(following[0]).value
        elif [token.value for token in following[1:2]] == ["/"] and [token.kind for token in following[::2]] == [
            "number"
        ] * 2:
            if not self.spaced(at) or self.spaced(at + 1) or self.spaced(at + 2):
                raise _Doubt
            self.at += 3
            fraction = Exact.of(
                Fraction(decimal_value(following[0].value)) / Fraction(decimal_value(following[2].value))
            )
        else:
            return whole
        if fraction.rational is None or not 0 < fraction.rational < 1:
            raise _Doubt
        return self.result(whole.value + fraction)

    def read_money(self, token: _Token) -> _Operand:
        sign = self.take("operators", "+", "-")
        number = self.take("number")
        if number is None or not 0 <= number.start - (sign or token).end < 2:
            raise _Doubt
        self.currencies.add(token.value)
        value = self.read_number(number).value
        return _Operand(-value if sign and sign.value == "-" else value, unit=_CURRENCY, signed=sign is not None)

    def read_constant(self, token: _Token) -> _Operand:
        return _Operand(PI if token.value == "π" else E)

    def read_open(self, token: _Token) -> _Operand:
        self.joints = frozenset()
        inner = self.chain()
        if not self.take("close", _BRACKETS[token.value]):
            raise _Doubt
        if round_off := {"floor": math.floor, "⌊": math.floor, "ceil": math.ceil, "⌈": math.ceil}.get(
            token.value.strip("\\l")
        ):
            return self.result(Exact.of(round_off(Fraction(inner.value.rounded(SURE_PLACES)))), inner.unit)
        if token.value == r"\lvert":
            return self.read_size(inner)
        return _Operand(inner.value, unit=inner.unit)

    def read_bar(self, token: _Token) -> _Operand:
        inner = self.chain()
        if not self.take("bar"):
            raise _Doubt
        return self.read_size(inner)

    def read_size(self, inner: _Operand) -> _Operand:
        return self.result(-inner.value if inner.value.decided().negative else inner.value, inner.unit)

    def read_tex(self, token: _Token) -> _Operand:
        if token.value == r"\sqrt":
            degree = _count(self.operand(), MAX_DEGREE) if self.next and self.next.value == "[" else 2
            return self.result(self.argument().value.root(degree))
        first, second = self.argument(), self.argument()
        if token.value in _FRACTIONS:
            quotient = self.combined("/", first, second)
            return _Operand(quotient.value, unit=quotient.unit)
        return self.result(Exact.of(math.comb(_count(first, MAX_COUNT), _count(second, MAX_COUNT))))

    def read_function(self, token: _Token) -> _Operand:
        name, _, base = token.value.partition(" ")
        power = self.argument().value if self.tex and self.take("operators", "^") else None
        bracketed = self.next is not None and self.next.value in ("(", "{")
        if name in ("gcd", "lcm"):
            self.at += 1
            operands = [self.chain()]
            while self.take("joint", ","):
                operands.append(self.chain())
            if not bracketed or not self.take("close") or len(operands) < 2:
                raise _Doubt
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
                raise _Doubt  # degrees, or radians
        elif of.unit:
            raise _Doubt
        match name:
            case "sqrt":
                value = value.root(2)
            case "log":
                value = value.log(int(base))
            case _:
                value = getattr(value, name)()
        if power:
            if power.negative:
                raise _Doubt  # the inverse function, or the reciprocal
            value **= power
        return self.result(value)._replace(open=not bracketed)

    def read_functions(self, token: _Token) -> _Operand:
        of = self.power()
        match token.value:
            case "square" | "cube":
                value = of.value ** Exact.of(2 + (token.value == "cube"))
            case "sqrt" | "cbrt":
                value = of.value.root(2 + (token.value == "cbrt"))
            case factor:
                return self.result(of.value * Exact.of(Fraction(factor)), of.unit)._replace(worded=True, open=True)
        if of.unit or (of.worded and not of.open):
            raise _Doubt
        return self.result(value)._replace(worded=True, open=True)

    def read_lists(self, token: _Token) -> _Operand:
        self.joints = frozenset((*token.value, ","))
        operators = set(token.value.values())
        level = _PRODUCT if operators <= {"+", "-", "reversed -", "mean"} else _POWER
        operands, used = [self.chain(level)], ""
        while (joint := self.next) and joint.phrase in self.joints:
            self.at += 1
            if joint.phrase == "," and self.next and self.next.phrase in token.value:
                continue  # ", and"
            if used not in ("", joint.phrase):
                raise _Doubt
            used = "" if joint.phrase == "," else joint.phrase
            operands.append(self.chain(level))
        operator = token.value.get(used, "")
        units = {operand.unit for operand in operands}
        several = operator in ("+", "*", "mean", "gcd", "lcm")
        if (
            len(operands) < 2
            or not operator
            or (len(operands) > 2 and not several)
            or (len(units) > 1 and operator != "*")
        ):
            raise _Doubt
        if operator == "*" and units != {""}:
            raise _Doubt
        unit = units.pop() if operator in ("+", "-", "reversed -", "mean") else ""
        return self.result(_listed(operator, [operand.value for operand in operands]), unit)._replace(
            worded=True, open=True
        )

    read_orders = read_lists


def _unit_of(operator: str, left: _Operand, right: _Operand) -> tuple[str, Fraction | int]:
    """The unit of a result, and what is to be multiplied to it; raises where units are to be converted before."""
    a, b = left.unit, right.unit
    percents = (a == "%") + (b == "%")
    match operator:
        case "+" | "-" if a == b or (not percents and not (a and b)):
            return a or b, 1
        case "*" | "of" if percents == 1:
            percent, other = (left, b) if a == "%" else (right, a)
            if operator == "*" and percent.value == Exact.of(100):
                return "%", 1
            return other, Fraction(1, 100)
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
    raise _Doubt


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
        raise _Doubt  # what is left of a negative number differs between languages
    return Exact.of(x // y if operator == "//" else x % y)


def _listed(operator: str, values: list[Exact]) -> Exact:
    """What is worked out of a list."""
    if operator in ("gcd", "lcm"):
        whole = [value.rational for value in values]
        if not all(number and number > 0 and number.denominator == 1 for number in whole):
            raise _Doubt
        return Exact.of(getattr(math, operator)(*(int(number or 0) for number in whole)))
    if operator == "mean":
        return reduce(Exact.__add__, values) / Exact.of(len(values))
    if operator == "reversed -":
        return values[1] - values[0]
    return reduce(lambda a, b: _operated(operator, a, b), values)


def _rational(operand: _Operand) -> Fraction:
    value = operand.value.rational
    if value is None or operand.unit:
        raise _Doubt
    return value


def _count(operand: _Operand, most: int) -> int:
    value = _rational(operand)
    if value.denominator != 1 or not 0 <= value <= most:
        raise _Doubt
    return int(value)


# --- where it stands --------------------------------------------------------------------------------------------------


def calculation_before(text: str, end: int) -> Calculation | None:
    """The calculation that ends directly before a place, that of an equals sign, if there is one."""
    first = max(0, end - LOOK_BEHIND)
    window = text[first:end] if first else BOUNDARY + text[:end]
    tokens = _tokens(window, max(window.rfind("="), window.rfind(BOUNDARY)) + 1)
    if window.endswith("!") and not _TEX.search(window):
        return None  # 3 != 4
    while tokens and tokens[-1].kind == "math":
        tokens.pop()
    for start in _starts(tokens):
        if (found := _read(window, tokens[start:])) and found.end == tokens[-1].end:
            token = tokens[start]
            if len(window) - token.start > MAX_LENGTH or not _may_stand_before(window, token, found.signed):
                return None
            return found.calculation(window, first or -1)
    return None


def calculation_asked(text: str, end: int) -> Calculation | None:
    """The calculation that a question or an order asks for which ends at a place, if there is one."""
    lexicon = _lexicon()
    first = max(0, end - MAX_QUESTION, text.rfind(BOUNDARY, 0, len(text[:end].rstrip(BOUNDARY + " \n"))) + 1)
    window = BOUNDARY + text[first:end]
    starts = {match.end(): True for match in lexicon.question.finditer(window)}
    starts = {match.end(): False for match in lexicon.sentence.finditer(window)} | starts
    for start in sorted(starts, reverse=True)[:MAX_STARTS]:
        tokens = _tokens(window[: start + MAX_LENGTH], start)
        opening = next((i for i, token in enumerate(tokens) if token.kind != "math"), 0)
        found = _read(window, tokens[opening:])
        if found and found.counted and window.count(found.counted, found.start, found.end) < 2:
            found = found._replace(end=found.end - len(found.counted))  # "in Roman numerals" is no unit
        if found is None or not lexicon.closing.fullmatch(window, found.end):
            continue
        written = window[found.start : found.end]
        if (
            written[-1] == "!"
            and found.end - found.start > 3
            and window[found.end : found.end + 1] not in tuple("?.=$")
        ):
            continue  # 3 + 4! may be 7
        if _DATE.fullmatch(written) or not (starts[start] or found.order or _PLAIN.search(written)):
            continue
        return found.calculation(window, first - 1)
    return None


class _Found(NamedTuple):
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

    def calculation(self, window: str, first: int) -> Calculation:
        return Calculation(window[self.start : self.end], first + self.start, self.value, self.currency)


def _read(text: str, tokens: list[_Token]) -> _Found | None:
    """The expression that tokens begin with, as far as it goes on; None if it is none, or a doubtful one."""
    reader = _Reader(text, tokens)
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
    return _Found(tokens[0].start, last.end, value, "".join(reader.currencies), found.signed, order, counted)


def _starts(tokens: list[_Token]) -> list[int]:
    """Where the expression that ends a list of tokens may begin: behind what holds none, or at a list in words."""
    depth, first, joint = 0, len(tokens), 0
    lists: list[int] = []
    while first:
        token = tokens[first - 1]
        if token.kind in ("break", "math") or (token.kind == "open" and not depth):
            break
        depth += (token.kind == "close") - (token.kind == "open")
        if not depth and token.kind in ("joint", "lists", "orders"):
            joint = joint or first
            lists += [first - 1] * (token.kind != "joint")
        first -= 1
    starts = [first, *lists[:-3:-1], joint] if lists else [max(first, joint)]
    for i, start in enumerate(starts):
        while start < len(tokens) and tokens[start].kind == "operators" and tokens[start].phrase:
            start += 1  # "a total of 3 + 4"
        starts[i] = start
    return [] if depth else [start for start in starts if start < len(tokens)]


def _may_stand_before(text: str, first: _Token, signed: bool) -> bool:
    """Whether what stands before an expression's first token can't belong to it."""
    context = text[max(0, first.start - _CONTEXT) : first.start]
    before = _BLANK_END.sub("", context)
    gap = len(context) - len(before)
    lexicon = _lexicon()
    if signed and text[first.end] in BLANKS and before[-1:] not in tuple("=&([{<>"):
        return False  # a bullet
    if match := _MATH_BEGIN.search(before):
        before = before[: match.start()].rstrip()
        return not _OPERATOR_END.search(before)
    if match := _LINE_END.search(before):
        line = before[: match.start()].rstrip()
        return not line or not (_OPERATOR_END.search(line) or (signed and _OPERAND_END.search(line)))
    if match := _LAST_WORDS.search(before):
        first_word, last = (match["first"] or "").lower(), match["last"].lower()
        known = lexicon.before_signs if signed else lexicon.before
        if not gap or last in known or f"{first_word} {last}" in known:
            return gap > 0
        if signed or first.kind not in ("number", "money"):
            return False
        if match["last"].istitle():
            return first_word in lexicon.before_names
        if first_word in lexicon.before_verbs and last not in lexicon.computing and len(last) > 2:
            return True
        verb, at = (first_word, "first") if last in lexicon.before_particles else (last, "last")
        known = lexicon.computing | lexicon.changing | lexicon.measures.keys()
        before = before[: match.start(at)].rstrip()
        return (
            verb.endswith(lexicon.before_endings)
            and len(verb) > 3
            and verb not in known
            and before[-1:] not in _OPERAND_ENDS
        )
    return _SEPARATE.search(before + " " * min(gap, 1)) is not None


# --- equations --------------------------------------------------------------------------------------------------------


class Equation(NamedTuple):
    """A written calculation and the number behind its equals sign."""

    calculation: Calculation
    written: Decimal
    percent: bool
    """Whether a percent sign stands behind the number."""

    @property
    def right(self) -> bool:
        """Whether the number is the value, rounded to the places that it has; of a half, up or down."""
        places = -cast(int, self.written.as_tuple().exponent)
        value = Fraction(self.calculation.value.rounded(max(places, 0) + 30))
        error = Fraction(1, 2 * 10**places) if places >= 0 else Fraction(10**-places, 2)
        forms = (Fraction(self.written), Fraction(self.written) / 100) if self.percent else (Fraction(self.written),)
        return any(abs(form - value) <= error for form in forms)


def equations(text: str) -> list[Equation]:
    """The written equations of a text, from left to right.

    Left out are those whose number does not stand alone (``= 5 + 2``, ``= 3/4``, ``= 1 1/2``, ``= 3 r 1``), as it may
    not be what the left side is said to be, and those in another unit (``$0.05 * 4 = 20 cents``).
    """
    found = []
    for sign in re.finditer("=", text):
        value, end = _number_at(text, sign.end())
        if value is None or _GOES_ON.match(text, end):
            continue
        if calculation := calculation_before(text, sign.start()):
            unit = _UNIT.match(text, end)
            measure = _lexicon().measures.get(unit[2].lower()) if unit else None
            equation = Equation(calculation, value, text[end : end + 1] == "%")
            if equation.right or not measure or not _in_another_unit(calculation, measure):
                found.append(equation)
    return found


def _in_another_unit(calculation: Calculation, measure: str) -> bool:
    """Whether a calculation has units of what a unit measures, and not that one."""
    quantity = measure.split(":")[0]
    units = {_lexicon().measures.get(word.lower(), ":") for word in re.findall(_WORD, calculation.text)}
    units |= {"money:"} if calculation.currency else set()
    return measure not in units and any(unit.startswith(f"{quantity}:") for unit in units)


def number_behind(text: str) -> Decimal | None:
    """The number with which a text behind an equals sign begins, as in an equation; None: with something else."""
    return _number_at(text, 0)[0]


def _number_at(text: str, begin: int) -> tuple[Decimal | None, int]:
    """The number directly behind an equals sign, and its end."""
    behind = _BEHIND.match(text, begin)
    if behind is None:
        return None, 0
    begin = behind.end()
    numbers = {start + (text[start] in "+-"): end for start, end in number_spans(text[: begin + MAX_LENGTH]).items()}
    if begin not in numbers:
        return None, 0
    value = decimal_value(text[begin : numbers[begin]])
    return -value if behind["sign"] or behind["later"] else value, numbers[begin]
