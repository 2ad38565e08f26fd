"""Splits a text into the tokens of written calculations: numbers, operators, functions, words, units, brackets."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

from ani.calculator.reader.words import BLANK, words
from ani.numbers.grammar import BLANKS, MAX_BLANKS, number_spans

MAX_UNIT = 8
"""Words of what is counted."""

MINUS = "-−–"
MONEY = "$€£¥₹"
BRACKETS = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉"}
BRACKETS |= {rf"\l{name}": rf"\r{name}" for name in ("floor", "ceil", "vert")}
ANGLES = ("sin", "cos", "tan")
OF_LISTS = ("gcd", "lcm", "max", "min")
"""Functions of two operands or more."""
_FUNCTIONS = ("sqrt", "ln", "exp", *OF_LISTS, *ANGLES)
FRACTIONS = (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac")
OPERATORS = {"+": "+", "/": "/", "÷": "/", "^": "^", "**": "^", "//": "//"} | dict.fromkeys(MINUS, "-")
OPERATORS |= dict.fromkeys("*×·⋅∙∗", "*") | {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\bmod": "mod"}
_SYMBOLS = {written: ("operators", value) for written, value in OPERATORS.items()}
_SYMBOLS |= {written: ("open", written) for written in BRACKETS}
_SYMBOLS |= {written: ("close", written) for written in BRACKETS.values()}
_SYMBOLS |= {rf"\{name}": ("function", name) for name in _FUNCTIONS} | {"√": ("function", "sqrt")}
_SYMBOLS |= {name: ("tex", name) for name in (*FRACTIONS, r"\sqrt", r"\binom", r"\dbinom", r"\tbinom")}
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
