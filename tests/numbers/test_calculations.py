from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from ani.errors import InputError
from ani.numbers import NumberScanner
from ani.numbers.calculations import LOOK_BEHIND, MAX_BLANKS, MAX_WRITING, Remainder, equations, remainder
from tests.numbers import calculation_oracle
from tests.tokenizers import ALL, llama3, qwen

_SCANNERS: dict[str, NumberScanner] = {}


def scanner_of(name: str) -> NumberScanner:
    if name not in _SCANNERS:
        _SCANNERS[name] = NumberScanner(ALL[name]())
    return _SCANNERS[name]


@pytest.fixture(params=list(ALL))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def upcoming(text: str) -> str | None:
    found = remainder(text)
    return found and found.upcoming


def as_in_oracle(found: Remainder | None) -> tuple[str, Fraction, str] | None:
    return found and (found.calculation.text, Fraction(found.calculation.value), found.upcoming)


@pytest.mark.parametrize(
    ("text", "expression", "result"),
    [
        # operators and what comes first
        ("3 + 4 =", "3 + 4", "7"),
        ("3 − 5 =", "3 − 5", "-2"),
        ("3-5=", "3-5", "-2"),
        ("3 -5 =", "3 -5", "-2"),
        ("12 × 12 =", "12 × 12", "144"),
        ("12·12=", "12·12", "144"),
        ("48 / 2 =", "48 / 2", "24"),
        ("48÷2 =", "48÷2", "24"),
        ("2^10 =", "2^10", "1024"),
        ("2^-2 =", "2^-2", "0.25"),
        ("+2^2 =", "+2^2", "4"),
        ("2 + 3 * 4 =", "2 + 3 * 4", "14"),
        ("(2 + 3) * 4 =", "(2 + 3) * 4", "20"),
        ("8 / 2 * 4 =", "8 / 2 * 4", "16"),
        ("10 - 2 - 3 =", "10 - 2 - 3", "5"),
        ("2 * 3^2 =", "2 * 3^2", "18"),
        ("((1 + 2) * (3 + 4)) =", "((1 + 2) * (3 + 4))", "21"),
        # x
        ("3 x 4 =", "3 x 4", "12"),
        ("3x4=", "3x4", "12"),
        ("10x10x10 =", "10x10x10", "1000"),
        ("2 x (3 + 4) =", "2 x (3 + 4)", "14"),
        # signs
        ("-5 + 3 =", "-5 + 3", "-2"),
        ("−5 + 3 =", "−5 + 3", "-2"),
        ("3 * -5 =", "3 * -5", "-15"),
        ("3 - -5 =", "3 - -5", "8"),
        ("-(3 + 4) * 2 =", "-(3 + 4) * 2", "-14"),
        ("to -5 + 3 =", "-5 + 3", "-2"),
        # literals
        ("1,234 + 1 =", "1,234 + 1", "1235"),
        ("0.1 + 0.2 =", "0.1 + 0.2", "0.3"),
        (".5 * 3 =", ".5 * 3", "1.5"),
        ("2e3 * 3 =", "2e3 * 3", "6000"),
        ("5 - 5 =", "5 - 5", "0"),
        ("0.5 + 0 =", "0.5 + 0", "0.5"),
        ("Room 007: 3 + 4 =", "3 + 4", "7"),
        ("-5 + 5 =", "-5 + 5", "0"),
        ("1 / 64 =", "1 / 64", "0.015625"),
        (f"{10**29 + 1} + {10**29} =", f"{10**29 + 1} + {10**29}", str(2 * 10**29 + 1)),
        (f"{10**29 + 1} * {10**29} =", f"{10**29 + 1} * {10**29}", str((10**29 + 1) * 10**29)),
        # currency
        ("$3 + $4 =", "$3 + $4", "7"),
        ("-$3 + $4 =", "-$3 + $4", "1"),
        ("€2.50 * 3 =", "€2.50 * 3", "7.50"),
        ("a total of $2.5*3=", "$2.5*3", "7.50"),
        ("TeX: $3 + 4 =", "$3 + 4", "7"),
        ("$-5 + 3 =", "$-5 + 3", "-2"),
        # which expression
        ("3 + 4 = 7 * 2 =", "7 * 2", "14"),
        ("(3 + 4 =", "3 + 4", "7"),
        ("2 * (3 + 4 =", "3 + 4", "7"),
        ("a=3+4=", "3+4", "7"),
        ("x = 3 + 4 =", "3 + 4", "7"),
        # what may stand before
        ("What is 3 + 4 =", "3 + 4", "7"),
        ("That's 3 + 4 =", "3 + 4", "7"),
        ("a total of 3 + 4 =", "3 + 4", "7"),
        ("1. 3 + 4 =", "3 + 4", "7"),
        ("Step 2: 3 + 4 =", "3 + 4", "7"),
        ("In 2020, 3 + 4 =", "3 + 4", "7"),
        ("<<3+4=", "3+4", "7"),
        ("ok\n3 + 4 =", "3 + 4", "7"),
        ("12\n3 + 4 =", "3 + 4", "7"),
        ("a\0" + "3 + 4 =", "3 + 4", "7"),
        ("“3 + 4 =", "3 + 4", "7"),
        ("ten '3 + 4 =", "3 + 4", "7"),
        ("Answer:3+4=", "3+4", "7"),
        ("x" + " " * 9 + "3 + 4 =", "3 + 4", "7"),
    ],
)
def test_calculations(text: str, expression: str, result: str) -> None:
    found = remainder(text)
    assert found is not None
    assert (found.calculation.text, found.upcoming) == (expression, result)
    assert found.calculation.value == Fraction(result)
    assert as_in_oracle(found) == calculation_oracle.upcoming(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no sign"),
        ("3 + 4", "no sign"),
        ("x = 5", "no operator"),
        ("7 =", "no operator"),
        ("-7 =", "no operator"),
        ("(7) =", "no operator"),
        ("2x + 3 =", "a variable"),
        ("3x -4 =", "a variable"),
        ("3x - 4 =", "a variable"),
        ("3 x -4 =", "a variable, or a factor"),
        ("2x(3 + 4) =", "a variable, or a factor"),
        ("3x 4 =", "a variable, or a factor"),
        ("0x10 + 5 =", "hexadecimal"),
        ("0x10 =", "hexadecimal"),
        ("x 3 + 4 =", "a variable before"),
        ("x + 3 + 4 =", "an operand before"),
        ("x -3 + 4 =", "an operand before"),
        ("a3 + 4 =", "a name"),
        ("COVID-19 + 3 =", "a name"),
        ("#3 + 4 =", "a name"),
        ("f(3) =", "a function"),
        ("f(3) + 4 =", "a function"),
        ("f(3 + 4) =", "a function"),
        ("sin (3 + 4) * 2 =", "a function"),
        ("2(3 + 4) =", "a function or a label"),
        ("1,2 + 3 =", "a list, or another country's fraction"),
        ("2 + 1,2 * 3 =", "a list, or another country's fraction"),
        ("5 kg + 3 + 4 =", "a unit in between"),
        ("3€ + 4 + 5 =", "a unit in between"),
        ("3 + 4 kg =", "a unit at the end"),
        ("$3 + €4 =", "two currencies"),
        ("50% * 80 =", "percent"),
        ("80 * 50% =", "percent"),
        ("10% 3 + 4 =", "an operand before"),
        ("5 3 + 4 =", "an operand before"),
        ("(a) 3 + 4 =", "an operand before"),
        ("half of 3 + 4 =", "a word that computes"),
        ("10% of 3 + 4 =", "a word that computes"),
        ("50 of 3 + 4 =", "a word that computes"),
        ("2 Times 3 + 4 =", "a word that computes"),
        ("12 divided by 3 + 4 =", "a word that computes"),
        (r"2 \times 3 + 4 =", "a TeX command"),
        (r"\sum 3 + 4 =", "a TeX command"),
        ("12 +\n3 + 4 =", "a line that goes on"),
        ("12\n+ 3 + 4 =", "a line that goes on"),
        ("10:30 + 15 =", "a clock"),
        ("2 : 3 * 4 =", "a ratio"),
        ("1'000 + 5 =", "thousands"),
        ("1'234'567 - 1 =", "thousands"),
        ("1‘000 + 5 =", "thousands"),
        ("5'10 + 2 =", "feet"),
        ("5' 10\" + 2 =", "feet"),
        ('5" 3 + 4 =', "inches"),
        ("1` 3 + 4 =", "minutes"),
        ("2024-01-15 =", "a date"),
        ("007 - 3 =", "a code"),
        ("3 * (01.5 + 2) =", "a date or a clock"),
        ("1.2.3 + 4 =", "a version"),
        ("3--5 =", "a dash"),
        ("3+-5 =", "a sign after a sign"),
        ("- 5 + 3 =", "a bullet or a sign"),
        ("2**3 =", "** is none"),
        ("2^3^2 =", "512 or 64"),
        ("-2^2 =", "-4 or 4"),
        ("3 + 4) =", "a bracket too many"),
        ("[3 + 4] * 2 =", "other brackets"),
        ('"12" + "3" =', "strings"),
        ("1 + 2 + ... + 9 + 10 =", "an ellipsis"),
        ("3 – 4 + 5 =", "a dash"),
        ("3 + 4 ==", "another sign"),
        ("3 + 4 =>", "another sign"),
        ("3 + 4 <=", "another sign"),
        ("3 + 4 !=", "another sign"),
        ("3 + 4 :=", "another sign"),
        ("3 + 4 +=", "another sign"),
        ("3 + 4 ≈", "another sign"),
        ("3 +\n4 =", "a line break"),
        ("3 + 4\n=", "a line break"),
        ("3 +\0" + "4 =", "a boundary"),
        ("3 + 4" + " " * (MAX_BLANKS + 1) + "=", "a column"),
        ("3" + " " * (MAX_BLANKS + 1) + "+ 4 =", "a column"),
        ("1 / 0 =", "no value"),
        ("1 / (2 - 2) =", "no value"),
        ("0^0 =", "no value"),
        ("0^-1 =", "no value"),
        ("2^0.5 =", "no rational value"),
        ("10 / 3 =", "not exact"),
        ("1 / 128 =", "more fraction digits"),
        ("1e-7 * 1 =", "more fraction digits"),
        ("9^9^9 =", "out of bounds"),
        ("9^99999999999 =", "out of bounds"),
        ("2^999 =", "out of bounds"),
        ("1e999 * 1 =", "out of bounds"),
        ("0 / 1e-999 =", "out of bounds"),
        ("1 + " * 50 + "1 =", "too long"),
        ("(" * 150 + "1 + 2" + ")" * 150 + " =", "too long"),
    ],
)
def test_no_calculations(text: str, why: str) -> None:
    assert remainder(text) is None, why
    assert calculation_oracle.upcoming(text) is None


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("341 * 3 =", "1023"),
        ("341 * 3 = ", "1023"),
        ("341 * 3 =" + " " * MAX_BLANKS, "1023"),
        ("341 * 3 = 10", "23"),
        ("341 * 3 = 1,", "023"),
        ("341 * 3 = 1,02", "3"),
        ("341 * 3 = 1,023", ""),
        ("341 * 3 = 1023", ""),
        ("341 * 3 = $", "1023"),
        ("3 - 5 = ", "-2"),
        ("3 - 5 = -", "2"),
        ("3 - 5 = −", "2"),
        ("3 - 5 = $-", "2"),
        ("3 - 5 = -£", "2"),
        ("3 - 5 = -2", ""),
        ("0.25 * 2 =", "0.5"),
        ("0.25 * 2 = 0", ".5"),
        ("0.25 * 2 = .", "5"),
        ("0.25 * 2 = 0.", "5"),
        ("0.25 * 2 = 0.5", ""),
        ("1,000.5 + 1,000 = 2,0", "00.5"),
        # money goes to cents
        ("$2.50 * 3 =", "7.50"),
        ("2.50 * 3 =", "7.5"),
        ("2.50 * 3 = $", "7.50"),
        ("$2.50 * 3 = 7.5", "0"),
        ("$2.50 * 2 = $", "5"),
        ("$1.125 * 3 = $", "3.375"),
        # contradicted, or over
        ("341 * 3 =" + " " * (MAX_BLANKS + 1), None),
        ("341 * 3 = 2", None),
        ("341 * 3 = 1024", None),
        ("341 * 3 = 10230", None),
        ("341 * 3 = 01023", None),
        ("341 * 3 = 10,", None),
        ("341 * 3 = 1,02,", None),
        ("1,234,567 * 1 = 1234,", None),
        ("341 * 3 = 1023.", None),
        ("341 * 3 = 1023.0", None),
        ("341 * 3 = 1023 ", None),
        ("341 * 3 = 1023,", None),
        ("341 * 3 = -", None),
        ("341 * 3 = +", None),
        ("341 * 3 =\n", None),
        ("341 * 3 = ?", None),
        ("341 * 3 = 1 0", None),
        ("341 * 3 = $$", None),
        ("$341 * 3 = €", None),
        ("3 - 5 = 2", None),
        ("3 - 5 = - ", None),
        ("3 - 5 = --", None),
        ("0.25 * 2 = 0.50", None),
        ("0.25 * 2 = 00", None),
        ("3 - 3 = .", None),
    ],
)
def test_what_is_still_to_be_written(text: str, rest: str | None) -> None:
    assert upcoming(text) == rest
    assert as_in_oracle(remainder(text)) == calculation_oracle.upcoming(text)


def test_the_caller_says_how_many_fraction_digits_a_result_may_have() -> None:
    found = remainder("1 / 128 =", fraction_digits=7)
    assert found and found.upcoming == "0.0078125"
    assert remainder("1 / 128 =", fraction_digits=6) is None
    assert remainder("1 / 2 =", fraction_digits=0) is None
    found = remainder("4 / 2 =", fraction_digits=0)
    assert found and found.upcoming == "2"


@pytest.mark.parametrize(
    "unit", ["(", "-(", "1+", "1e9^", "9^", "9.9/7*", "$", "= ", "1+1=", "1,234", "x", "3x", " ", "--", ")", "²", "\0"]
)
def test_long_texts_cost_no_more_than_short_ones(unit: str) -> None:
    """Each of these takes minutes if a sign makes all of the text be read."""
    long = unit * (1_000_000 // len(unit))
    for text in (long, long + "1+1=", long + "="):
        for _ in range(200):
            remainder(text)


_PIECES = (
    "3 4 12 0 007 1,234 .5 2.5 1e3 1.2.3 + - − * × · / ÷ ^ x ( ( ) ) = = $ € % , . : ; ' \" \\ [ ] < > ! ? 7 1 2 | # "
    "is of by sin half times divided a s é 数"
)
pieces = st.sampled_from(
    [*_PIECES.split(), " ", " ", " ", " + ", " x ", "\t", "\n", "\0", "\xa0", " " * 8, " " * 9, "3+4=", "="]
)
texts = st.lists(pieces, max_size=24).map("".join)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, Fraction]:
    """An expression in one of several notations and its value, worked out beside it."""
    blank = draw(st.sampled_from(["", " ", "  ", "\xa0"]))
    times = draw(st.sampled_from("*×·" + "x" * (blank == " ")))
    minus, over = draw(st.sampled_from("-−")), draw(st.sampled_from("/÷"))

    def operand(depth: int) -> tuple[str, Fraction]:
        if not depth or draw(st.booleans()):
            number = draw(st.integers(0, 10**5))
            scale = draw(st.sampled_from([1, 1, 1, 10, 100]))
            written = f"{number // scale:,}" if draw(st.booleans()) else str(number // scale)
            if scale > 1:
                written += "." + str(number % scale).zfill(len(str(scale)) - 1)
            return written, Fraction(number, scale)
        inner, value = operation(depth - 1)
        return f"({inner})", value

    def operation(depth: int) -> tuple[str, Fraction]:
        left, a = operand(depth)
        right, b = operand(depth)
        operator = draw(st.sampled_from(["+", minus, times, over]))
        if operator == over and b == 0:
            operator = times
        value = {"+": a + b, minus: a - b, times: a * b}.get(operator)
        return left + blank + operator + blank + right, a / b if value is None else value

    return operation(draw(st.integers(0, 3)))


@given(texts)
@example("3 - 5 = −")
@settings(max_examples=400, deadline=None)
def test_every_prefix_agrees_with_the_oracle(text: str) -> None:
    for end in range(len(text) + 1):
        prefix = text[:end]
        assert as_in_oracle(remainder(prefix)) == calculation_oracle.upcoming(prefix), prefix


@given(expressions(), st.sampled_from(["", "It is ", "Then, ", "a\n", "x = ", "(", '"', "**"]), st.data())
@settings(max_examples=300, deadline=None)
def test_random_expressions_have_their_value(made: tuple[str, Fraction], before: str, data: st.DataObject) -> None:
    expression, value = made
    found = remainder(f"{before}{expression} =")
    exact = (value * 10**6).denominator == 1
    if before == "**" or not exact or len(expression) > 190:
        assert found is None
        return
    assert found is not None
    assert (found.calculation.text, Fraction(found.calculation.value)) == (expression, value)
    assert Fraction(found.upcoming) == value
    # As it is written, each character takes one away from what is to come; a wrong one ends it.
    result = found.upcoming
    for end in range(len(result) + 1):
        assert upcoming(f"{before}{expression} = {result[:end]}") == result[end:]
    wrong = data.draw(st.integers(0, len(result) - 1))
    other = data.draw(st.sampled_from("0123456789").filter(lambda digit: digit != result[wrong]))
    assert upcoming(f"{before}{expression} = {result[:wrong]}{other}") is None


@given(texts, st.text(max_size=LOOK_BEHIND), st.text(max_size=20))
@settings(deadline=None)
def test_only_the_end_of_a_text_is_looked_at(text: str, between: str, before: str) -> None:
    context = (between * (LOOK_BEHIND + MAX_WRITING))[: LOOK_BEHIND + MAX_WRITING] or "a" * (LOOK_BEHIND + MAX_WRITING)
    assert remainder(before + context + text) == remainder("b" + context + text)


# --- tokens -----------------------------------------------------------------------------------------------------------

SENTENCE = (
    "It’s 48 / 2 = 24 and 341 × 3 = 1,023; then 3 − 5 = −2, $2.50 * 3 = $7.50. x = 5, 10 / 3 = 3.33.\n"
    "(123,456 + 654,321) * 2 = 1555554 é数 0.25 * 2 = .5, 3 + 4 = 8; 12 - 20 = €"
)


def by_prefixes(name: str, ids: Sequence[int]) -> dict[int, Remainder]:
    """The text level at every prefix; a special token or padding begins a text."""
    tokenizer, scanner = ALL[name](), scanner_of(name)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} | set(
        tokenizer.all_special_ids
    )
    readable = set(tokenizer.get_vocab().values()) - special
    results = {}
    begin = 0
    for token, token_id in enumerate(ids):
        if token_id not in readable:
            begin = token + 1
            continue
        found = remainder("\0" * (begin > 0) + scanner.text(ids[begin : token + 1]))
        if found:
            results[token] = found
    return results


def after(results: dict[int, Remainder], start: int) -> dict[int, Remainder]:
    return {token: found for token, found in results.items() if token >= start}


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def test_tokens_carry_what_is_still_to_be_written(name: str) -> None:
    scanner, ids = scanner_of(name), ids_of(ALL[name](), SENTENCE)
    whole = scanner.scan_results(ids)
    assert whole == by_prefixes(name, ids)
    assert {found.calculation.text for found in whole.values()} == {
        "48 / 2",
        "341 × 3",
        "3 − 5",
        "$2.50 * 3",
        "(123,456 + 654,321) * 2",
        "0.25 * 2",
        "3 + 4",
        "12 - 20",
    }
    for start in range(len(ids) + 1):
        assert scanner.scan_results(ids, start) == after(whole, start)
        assert scanner.scan_results(ids[:start]) == {token: found for token, found in whole.items() if token < start}


def test_tokens_of_one_and_of_three_digits() -> None:
    text = "1234 * 1000 = 1234000"
    for name, tokenizer, rests in (
        ("qwen", qwen, ["1234000", "1234000", "234000", "34000", "4000", "000", "00", "0", ""]),
        ("llama3", llama3, ["1234000", "1234000", "4000", "0", ""]),
    ):
        found = scanner_of(name).scan_results(ids_of(tokenizer(), text))
        assert [result.upcoming for result in found.values()] == rests


@given(st.lists(pieces, max_size=30).map("".join), st.data())
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("tokenizer_name", list(ALL))
def test_tokens_agree_with_the_text_at_every_prefix(tokenizer_name: str, text: str, data: st.DataObject) -> None:
    tokenizer, scanner = ALL[tokenizer_name](), scanner_of(tokenizer_name)
    ids = ids_of(tokenizer, text)
    for odd in data.draw(st.lists(st.sampled_from([-1, -100, 2**31, *tokenizer.all_special_ids]), max_size=2)):
        ids.insert(data.draw(st.integers(0, len(ids))), odd)
    start = data.draw(st.integers(0, len(ids)))
    assert scanner.scan_results(ids, start) == after(by_prefixes(tokenizer_name, ids), start)


@pytest.mark.parametrize("filler", ["word ", "1 + ", "1", "(", "é", "数", " ", "= ", "1+1=", ", 3 ", "9\n"])
def test_a_far_beginning_is_read_alike(name: str, filler: str) -> None:
    """The context that a step reads back is as good as all of the text."""
    scanner = scanner_of(name)
    ids = ids_of(ALL[name](), filler * 150 + " 12 * 12 = 14")
    whole = scanner.scan_results(ids)
    assert whole == by_prefixes(name, ids)
    for start in range(max(0, len(ids) - 12), len(ids)):
        assert scanner.scan_results(ids, start) == after(whole, start)


class Counted(Sequence[int]):
    """Token ids that count how many of them are read."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.reads = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.reads += len(range(len(self))[index]) if isinstance(index, slice) else 1
        return self.ids[index]


def test_a_step_reads_little() -> None:
    prose = ids_of(qwen(), "The cat sat on the mat. " * 500 + "and")
    scanner = scanner_of("qwen")
    counted = Counted(prose)
    assert scanner.scan_results(counted, len(prose) - 1) == {}
    assert counted.reads == 1
    for end in ("1", "= ", "3 + 4 = ", "3 + 4 = 7"):
        counted = Counted(prose + ids_of(qwen(), end))
        scanner.scan_results(counted, len(counted) - 1)
        assert counted.reads < 1500


def test_long_sequences_are_linear() -> None:
    """Each of these takes minutes if a sign makes more than what belongs to it be read."""
    n = 20_000
    chain = ids_of(qwen(), "".join(f"{i}+{i}=" for i in range(n)))
    assert len(scanner_of("qwen").scan_results(chain)) >= n
    zeros = ids_of(qwen(), "3-3=" + "0" * n)
    assert len(scanner_of("qwen").scan_results(zeros)) == 2
    assert scanner_of("qwen").scan_results(ids_of(qwen(), "=" * n + "(" * n + "1+" * n + "=" * n)) == {}


def test_ids_of_any_kind() -> None:
    ids = ids_of(qwen(), "3 + 4 = 7")
    scanner = scanner_of("qwen")
    for given_ids in (tuple(ids), np.array(ids), torch.tensor(ids)):
        for start in range(len(ids) + 1):
            assert scanner.scan_results(given_ids, start) == scanner.scan_results(ids, start)


@pytest.mark.parametrize("start", [-1, 4])
def test_a_start_outside_is_refused(start: int) -> None:
    with pytest.raises(InputError, match=f"start is {start}: it must lie in 0 to 3"):
        scanner_of("qwen").scan_results(ids_of(qwen(), "123"), start)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("3 + 4 = 7, so 7 * 2 = 15 and 15-20=-5.", [True, False, True]),
        ("3 - 5 = −2", [True]),
        ("<<48/2=24>>24", [True]),
        ("5 * 2 = $10 and $3 - $4 = -$1 = $-1", [True, True]),
        ("600 * 2 = 1,200 apples", [True]),
        ("3 + 4 = 7.0\n8 + 1 =\t9", [True, True]),
        ("3 + 4 = 7 - that is all", [True]),
        # rounded to two places or more, up or down at a half
        ("0.125 * 3 = $0.38 = 0.375", [True]),
        ("1 / 8 = 0.12 or 1 / 8 = 0.13 or 1 / 8 = 0.14", [True, True, False]),
        ("5 / 2 = 3 or 2.45 + 0 = 2.5", [False, False]),
        # no result, or the number doesn't stand alone
        ("10 / 3 = 3.33 and x = 5", []),
        ("3 + 4 = x, 3 + 4 = 5 + 2, 3 + 4 = 7 * $2, 3 / 4 = 3/4, 3 / 2 = 1 1/2, 1 / 5 = 20%, 3 + 4 = (7)", []),
        ("3 + 4 == 7, 3 + 4 = = 7, 3 + 4 =", []),
        ("12 + 1 = 1e999", [False]),
    ],
)
def test_equations(text: str, right: list[bool]) -> None:
    assert [found.right for found in equations(text)] == right
