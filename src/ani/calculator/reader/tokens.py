"""Splits a text into the tokens of an expression: numbers, units, operators, brackets, functions, words.

A number is a literal or number words, with the scale word after it (``2.5 million``, ``twenty-five``, ``5k``). A number
that touches a character which may change its value is no number (``A26``, ``#5``, ``12,34``, ``3'10``): lists say what
may touch it. What no expression contains is a token of the kind "break".
"""

import re
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from text_to_num import text2num

from ani.calculator.reader.words import BLANK, words
from ani.numbers.grammar import number_spans
from ani.numbers.signs import BLANKS, BOUNDARY, MAX_BLANKS
from ani.numbers.text import decimal_value

MINUS = "-−–"
MONEY = "$€£¥₹"
CENTS = "money:cent"
COUNTED = "counted:"
"""Prefix of the unit of what is counted (``3 apples``); the rest is the noun."""

BRACKETS = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉"}
BRACKETS |= {rf"\l{name}": rf"\r{name}" for name in ("floor", "ceil", "vert")}
ANGLES = ("sin", "cos", "tan")
OF_LISTS = ("gcd", "lcm", "max", "min")
"""Functions of two operands or more."""
FUNCTIONS = ("sqrt", "ln", "exp", *OF_LISTS, *ANGLES)
FRACTIONS = (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac")
OPERATORS = {"+": "+", "/": "/", "÷": "/", "^": "^", "**": "^", "//": "//"} | dict.fromkeys(MINUS, "-")
OPERATORS |= dict.fromkeys("*×·⋅∙∗", "*") | {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\bmod": "mod"}
_SYMBOLS = {written: ("operators", value) for written, value in OPERATORS.items()}
_SYMBOLS |= {written: ("open", written) for written in BRACKETS}
_SYMBOLS |= {written: ("close", written) for written in BRACKETS.values()}
_SYMBOLS |= {rf"\{name}": ("function", name) for name in FUNCTIONS} | {"√": ("function", "sqrt")}
_SYMBOLS |= {name: ("tex", name) for name in (*FRACTIONS, r"\sqrt", r"\binom", r"\dbinom", r"\tbinom")}
_SYMBOLS |= {r"\pi": ("constant", "π"), "π": ("constant", "π"), "|": ("bar", "|"), ",": ("joint", ",")}
_SYMBOLS |= {c: ("suffix", str(i)) for i, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_SYMBOLS |= {"%": ("suffix", "%"), r"\%": ("suffix", "%"), "!": ("suffix", "!"), "¢": ("unit", CENTS)}

_LETTER = r"[^\W\d_⁰¹²³⁴⁵⁶⁷⁸⁹]"
WORD = rf"{_LETTER}(?:{_LETTER}|['’&](?={_LETTER}))*"
_PIECE = re.compile(
    rf"""(?P<blank>(?:{BLANK}|\\[,;:!>\ ]|~|\\(?:left|right|[bB]igg?[lrm]?|displaystyle)(?![A-Za-z]))+)
    |(?P<degree>°(?!{BLANK}?[CFK]\b)|\^\\circ\b|\^\{{\\circ\}})
    |(?P<text>\\(?:text(?:rm|bf|normal)?|mbox|mathrm|operatorname)\s*\{{(?P<inside>[^{{}}]*)\}}(?:\^\{{?[23]\}}?)?)
    |(?P<log>\\?log_?(?:\{{(?P<base>[0-9]+)\}}|(?P<digits>[0-9]+)))(?={BLANK}*\\?[\w(\{{])
    |(?P<math>\\begin\{{[a-z]+\*?\}}|\\\\(?:\[[^\]\n]*\])?|\\[()\[\]]|\\q?quad\b|\$\$|(?<!\\)&)
    |(?P<symbol>\\[A-Za-z]+|\\.|\*\*|//|[^\w\s]|[⁰¹²³⁴⁵⁶⁷⁸⁹])
    |(?P<word>{WORD})""",
    re.VERBOSE,
)
_GROUPED = re.compile(
    r"[0-9]{1,3}(?:(?:\{,\}|,\\![ ]?|\\,|[\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}])[0-9]{3})+(?![0-9])(?:\.[0-9]+)?"
)
_GROUPING = re.compile(r"[^0-9.]")
_MANTISSA = re.compile(r"[0-9.]")
TEX = re.compile(r"\\[A-Za-z(\[]|\\\\[\s&]|[\^_]\{|\$[^\s$][^$\n]{0,80}(?<!\s)\$(?![0-9])")
_REMAINDER = re.compile(rf"(?:{BLANK}%{BLANK}|[0-9]%)[0-9]")
"""A percent sign between two numbers, with the character before it."""

_SIGNS = re.escape("".join(written for written in OPERATORS if len(written) == 1))
_MAY_PRECEDE = re.compile(
    rf"(?:[\s{BOUNDARY}{BLANKS}{_SIGNS}(\[{{|⌊⌈√π!%=≈{MONEY}\"“‘'`:;,<>?¿]"
    r"|\\[a-zA-Z]+|\\[,;:!>]|(?<=[0-9])[xX])\Z"
)
_MAY_FOLLOW = re.compile(
    rf"(?:\Z|[\s{BOUNDARY}{BLANKS})\]}}|⌋⌉√π({{\[!%°^¢={MONEY}²³⁰¹⁴⁵⁶⁷⁸⁹\"”’`~≈≠<>≤≥&?]"
    rf"|[{_SIGNS}]"
    rf"|['.,:;](?![\w']|\.[0-9])|,(?=[0-9])|[xX]{BLANK}?(?=[0-9])|\\)"
)
_LISTED = re.compile(r",[0-9]")
_HYPHENED = re.compile(rf"[-–]{_LETTER}")
_SCALES = {name: 10**zeros for zeros, names in {
    2: ("hundred",), 3: ("thousand", "k", "grand"), 5: ("lakh", "lakhs"), 6: ("million", "millions", "mn"),
    7: ("crore", "crores"), 9: ("billion", "billions", "bn"), 12: ("trillion", "trillions"), 15: ("quadrillion",),
}.items() for name in names}  # fmt: skip
"""Powers of ten of scale words."""
SCALE = re.compile(rf"(?:{BLANK}?(?:k|mn|bn)|(?:{BLANK}|-)?(?:{'|'.join(n for n in _SCALES if len(n) > 2)}))(?![\w-])")
"""Matches a scale word after a number."""
_WORD = re.compile(WORD)
_BETWEEN_WORDS = re.compile(rf"-|{BLANK}+and{BLANK}+|{BLANK}+")
_HALF = re.compile(rf"{BLANK}+and a half(?![\w-])", re.IGNORECASE)
_HALF_A = re.compile(rf"half an? ({'|'.join(n for n in _SCALES if len(n) > 3)})(?![\w-])", re.IGNORECASE)
_ARTICLE = re.compile(r"an?[ ](?=(?:hundred|thousand|million|billion|trillion)\b)", re.IGNORECASE)
_POINT = re.compile(rf"{BLANK}point((?:{BLANK}(?:zero|one|two|three|four|five|six|seven|eight|nine))+)(?![\w-])", re.I)
UNIT = re.compile(rf"({BLANK}|)({WORD})(?![\w²³])")
_NEAR = 120
"""Characters around a noun in which the other operands have it, too."""
_AFTER_UNIT = re.compile(
    rf"{BLANK}{{0,{MAX_BLANKS}}}(?:[+*×·⋅∙∗÷/)\]}}=?!]|[.,](?![0-9])|[{MINUS}](?={BLANK})|x{BLANK}|\Z|\\?\$)"
)


class Token(NamedTuple):
    """Characters that belong together."""

    kind: str
    value: Any
    start: int
    end: int
    phrase: str = ""
    """The words of the token, if it is written in words."""


def tokens_of(text: str, begin: int, *, to_break: bool = False) -> list[Token]:
    """The tokens of a text from a place on, or only those up to the first break."""
    tex = TEX.search(text) is not None
    literals = _literals(text, max(0, text.rfind("=", 0, begin)))  # no number extends across an equals sign
    found: list[Token] = []
    at = begin
    while at < len(text) and not (to_break and found and found[-1].kind == "break"):
        operand = not tex and found and found[-1].kind in ("number", "close", "suffix", "constant")
        if at in literals:
            found.append(_literal(text, at, literals[at], tex))
        elif operand and (unit := _unit(text, at)):
            found.append(unit)
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


@lru_cache(maxsize=4)  # a question is read from many places
def _literals(text: str, first: int) -> dict[int, int]:
    """Start and end of each number from a place on, without signs."""
    spans = number_spans(text[first:])
    mantissas = {start: _MANTISSA.search(text, first + start) for start in spans}
    return {match.start(): first + spans[start] for start, match in mantissas.items() if match}


def _literal(text: str, start: int, end: int, tex: bool) -> Token:
    """The number that begins at a place, with its scale word; a break if a character next to it may change it."""
    if grouped := _GROUPED.match(text, start):
        end = grouped.end()
    digits = _GROUPING.sub("", text[start:end]) if grouped else text[start:end]
    before = text[:start]
    clean = not start or (tex and before.endswith("~")) or _MAY_PRECEDE.search(before[-12:]) is not None
    value, after = decimal_value(digits), text[end : end + 1]
    scaled = _scaled(text, end, value) if not tex or after == " " else None
    if not scaled and after in ("K", "M") and text[start - 1 : start] in (*MONEY,):  # 5K may be a temperature
        scaled = value * {"K": 1000, "M": 10**6}[after], end + 1
    if scaled:
        digits, end = f"{scaled[0]:f}", scaled[1]
    follows = _MAY_FOLLOW.match(text, end) or _unit(text, end)
    listed = "," in digits and (before.endswith(",") or _LISTED.match(text, end))  # max(12,345,6)
    if not clean or not follows or listed or _HYPHENED.match(text, end):
        return Token("break", digits, start, end)
    return Token("number", digits, start, end)


def _scaled(text: str, end: int, value: Decimal) -> tuple[Decimal, int] | None:
    """A value times the scale words after it, plus "and a half", and its end; None: there are none."""
    at = end
    while match := SCALE.match(text, at):
        word = match[0].strip("- \t\N{NO-BREAK SPACE}")
        value *= _SCALES[word.lower()]
        at = match.end()
    if at == end and (match := _HALF.match(text, at)):
        value, at = value + Decimal("0.5"), match.end()
    return (value, at) if at > end else None


def spoken(text: str, start: int) -> tuple[Decimal, int] | None:
    """The number in words that begins at a place, and its end; None: there is none, or it isn't well formed."""
    if match := _HALF_A.match(text, start):
        return Decimal(_SCALES[match[1].lower()]) / 2, match.end()
    article = _ARTICLE.match(text, start)
    at = article.end() if article else start
    names = ["one"] if article else []
    numbers = words().listed["numbers"]
    while match := _WORD.match(text, at):
        if match[0].lower() not in numbers:
            break
        names.append(match[0].lower())
        end = match.end()
        gap = _BETWEEN_WORDS.match(text, end)
        at = gap.end() if gap and ("and" not in gap[0] or names[-1] in _SCALES) else len(text)
    if not names or (article and len(names) == 1):
        return None
    try:
        value = Decimal(text2num(" ".join(names), "en"))
    except ValueError:
        return None
    if match := _POINT.match(text, end):
        value += Decimal("0." + "".join(str(text2num(digit, "en")) for digit in match[1].split()))
        end = match.end()
    elif match := _HALF.match(text, end):
        value, end = value + Decimal("0.5"), match.end()
    return value, end


def _token(text: str, match: re.Match[str], tex: bool) -> Token:
    written, start, end = match[0], match.start(), match.end()
    match match.lastgroup:
        case "degree":
            return Token("unit", "angle:degree", start, end)
        case "text":
            name = match["inside"].strip()
            if name in FUNCTIONS:
                return Token("function", name, start, end)
            measure = words().measures.get(name)
            return Token("unit", measure, start, end) if measure else Token("break", name, start, end)
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
        foreign = text[start - 1 : start].isalpha() and written == "$"  # R$, A$
        kind = "break" if foreign else "money" if number and (written != "$" or not tex) else "math"
        return Token(kind, written[-1], start, end)
    kind, value = _SYMBOLS.get(written, ("break", written))
    if written == "%" and _REMAINDER.match(text, start - 1):
        kind, value = "operators", "mod"
    return Token(kind, value, start, end, "," if written == "," else "")


def _word(text: str, match: re.Match[str], tex: bool) -> Token:
    word, start, end = match[0].lower(), match.start(), match.end()
    around = text[start - 1 : start] + text[end : end + 1]
    if word == "x" and not tex and (around.isdigit() or not around.strip(BLANKS)):
        return Token("operators", "*", start, end)
    if word in FUNCTIONS and around[-1:] == "(":
        return Token("function", word, start, end)
    if word == "e" and around[-1:] == "^":
        return Token("constant", "e", start, end)
    article = UNIT.match(text, end) if word in words().listed["articles"] else None
    found = words().phrase(text, article.start(2), article[2]) if article else words().phrase(text, start, word)
    if found and (not article or found[0].kind in ("functions", "lists")):
        return Token(found[0].kind, found[0].value, start, found[1], found[0].text)
    number = spoken(text, start)
    begins = text[start - 1 : start].strip(BLANKS + BOUNDARY + "\n(:\"'“$*") == ""
    if number and begins and _MAY_FOLLOW.match(text, number[1]) and not _HYPHENED.match(text, number[1]):
        return Token("number", f"{number[0]:f}", start, number[1], "number")
    return Token("break", word, start, number[1] if number else end)


def _joins(text: str, at: int) -> bool:
    """Return whether an operator or joint in words begins at a place, after a blank."""
    match = UNIT.match(text, at)
    found = words().phrase(text, match.start(2), match[2]) if match else None
    return found is not None and found[0].kind in ("operators", "joint")


def _unit(text: str, begin: int) -> Token | None:
    """The word after an operand that says what it measures or counts."""
    match = UNIT.match(text, begin)
    if match is None:
        return None
    gap, word = match[1], match[2].lower()
    measure = words().measures.get(match[2]) or (words().measures.get(word) if len(word) > 1 else None)
    if measure is None:
        known = words().phrase(text, match.start(2), word) or word in words().changing or len(word) < 3
        noun, around = word.removesuffix("s"), text[max(0, begin - _NEAR) : begin + _NEAR]
        shared = len(re.findall(rf"(?<!\w){re.escape(noun)}s?(?!\w)", around, re.IGNORECASE)) > 1
        if known or not gap or not shared or not (_AFTER_UNIT.match(text, match.end()) or _joins(text, match.end())):
            return None
        measure = COUNTED + noun
    elif len(match[2]) == 1 and gap and not _AFTER_UNIT.match(text, match.end()):
        return None
    if SCALE.fullmatch(match[0]):
        return None
    return Token("unit", measure, begin, match.end())


def starts_of(tokens: list[Token]) -> list[int]:
    """Return the places where the expression at the end of tokens may begin: after a break, or at a list in words."""
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
        first = max(label, joint)  # after "1)" or "a)"
    starts = [first, *lists[:-3:-1], joint] if lists else [max(first, joint)]
    for i, start in enumerate(starts):
        for token in tokens[start:]:
            is_sign = token.value in ("+", "-") and not token.phrase
            if token.value != "!" and (token.kind != "operators" or is_sign):
                break
            start += 1  # "Of course! 3 + 4", "a total of 3 + 4", a bullet, bold type
        starts[i] = start
    return [start for start in starts if start < len(tokens)]
