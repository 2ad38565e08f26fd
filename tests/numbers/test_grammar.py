from itertools import pairwise, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ani.numbers.context import settled
from ani.numbers.grammar import Rule, digit_runs, ended_spans, number_spans
from ani.numbers.signs import MAX_BLANKS
from ani.numbers.text import find_numbers
from tests.numbers import oracle
from tests.properties import deep, examples

# Dense in everything that the rules look at.
texts = st.text(st.sampled_from("0123456789" * 2 + ".,.,eE+- -  x_%()$=\n\0é²π€�−'’{}\\!"), max_size=40) | st.text(
    max_size=20
)
# Groups in full, which single characters seldom make.
GROUPS = [
    "1",
    "12",
    "34",
    "05",
    "123",
    "234",
    "0123",
    *",,,,..'’_",
    "{,}",
    ",\\!",
    ",\\! ",
    "\u202f",
    "e",
    "-$",
    "−",
    "+/-",
    " ",
    "x",
]
joined = st.lists(st.sampled_from(GROUPS), max_size=16).map("".join)
texts |= joined


def literals(text: str) -> list[str]:
    return [number.text for number in find_numbers(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no digits, ٣ ² ½ ५", []),
        ("10%, $5,000, 7th, v2, COVID-19", ["10", "5,000", "7", "2", "19"]),
        ("3D and x2y3", ["3", "2", "3"]),
        # thousands
        ("1,234,567", ["1,234,567"]),
        ("1,234,5678", ["1,234", "5678"]),
        ("0,123", ["0", "123"]),
        ("-1,234.5e3", ["-1,234.5e3"]),
        ("1'234.50, 1’234’567, 1_234 and 12\u202f345", ["1'234.50", "1’234’567", "1_234", "12\u202f345"]),
        (r"1{,}234{,}567, 1,\!234 and 11,\! 111", ["1{,}234{,}567", r"1,\!234", r"11,\! 111"]),
        ("5'10 and 1'234,567'890", ["5", "10", "1'234", "567'890"]),
        (r"1,\!234,567", [r"1,\!234", "567"]),
        # Indian groups
        ("₹12,34,567.5 of 1,00,000 and 1,05,00,00,000", ["12,34,567.5", "1,00,000", "1,05,00,00,000"]),
        ("12,34,56 and 10,20,30,40,50,600", ["12", "34", "56", "10", "20", "30", "40", "50,600"]),
        ("123,45,678 and 01,23,456", ["123", "45,678", "01", "23,456"]),
        ("12,34,567,890", ["12,34,567", "890"]),
        # unread literals
        ("1.234,56 and 1.234.567,8 and 1'234,50", []),
        ("3{,}14 and 0{,}5 and 1{,}23{,}456", []),
        (
            "1.234,5,6 and 1.234,5.6 and 0.123,5 and 1.23,4",
            ["1.234", "5", "6", "1.234", "5.6", "0.123", "5", "1.23", "4"],
        ),
        # dates, times, scales
        ("2020-11-12 10:30, 1.5k of $2M", ["2020", "11", "12", "10", "30", "1.5", "2"]),
        # fractions
        ("3.14", ["3.14"]),
        ("costs 3.5. Then", ["3.5"]),
        (".5", [".5"]),
        ("Fig.5.2", ["5.2"]),
        ("...5", ["5"]),
        # dotted chains
        ("192.168.1.1", ["192", "168", "1", "1"]),
        ("2.0.1", ["2", "0", "1"]),
        (".5.6", ["5", "6"]),
        ("1,234.5.6", ["1,234", "5", "6"]),
        # exponents
        ("1e-5", ["1e-5"]),
        ("2.5E+10 m", ["2.5E+10"]),
        ("1e−5", ["1e−5"]),
        ("v2e5", ["2", "5"]),
        ("1e5e3", ["1", "5", "3"]),
        # signs that belong to the number
        ("-5", ["-5"]),
        ("-.5", ["-.5"]),
        ("(-5", ["-5"]),
        ("to -5 degrees", ["-5"]),
        ("x\n-5", ["-5"]),
        ("3, -5", ["3", "-5"]),
        ("x & -5 \\\\-6", ["-5", "-6"]),
        ("<|x|>\0-5", ["-5"]),
        ("−5 and −.5", ["−5", "−.5"]),
        (r"-$100,000.00, −€5 and -\$5", ["-$100,000.00", "−€5", r"-\$5"]),
        ("$-5 and £-5", ["-5", "-5"]),
        # and those that may be an operator or a hyphen
        ("3-5", ["3", "5"]),
        ("3 -5", ["3", "5"]),
        ("2x -5", ["2", "5"]),
        ("x² -5", ["5"]),
        ("10% -5", ["10", "5"]),
        ("5.0+/-0.2 and 3+/−1", ["5.0", "0.2", "3", "1"]),
        ("$3-$5 and 3 −5", ["3", "5", "3", "5"]),
        ("a $30$-$60$-$90$ triangle", ["30", "60", "90"]),
        # boundaries
        ("1\0002", ["1", "2"]),
        ("1,\000234", ["1", "234"]),
        ("3 \0-5", ["3", "-5"]),
    ],
)
def test_numbers_of_a_text(text: str, expected: list[str]) -> None:
    assert literals(text) == expected
    assert [text[start:end] for start, end, _ in oracle.numbers(text)] == expected


@pytest.mark.parametrize("blanks", [1, MAX_BLANKS - 1, MAX_BLANKS])
def test_an_operand_is_seen_through_blanks(blanks: int) -> None:
    assert literals("3" + " " * blanks + "-5") == ["3", "5"]
    assert literals("x" + " " * blanks + "-5") == ["5"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7% 3-5; v2:", ["7|%", "3|-", "5|;", "2|:"]),
        ("1,234 screws", ["1,234| "]),
        ("costs 3. Then 3.5. Then", ["3|. ", "3.5|. "]),
        ("2.0.1", ["2|.0.1", "0|.1"]),
        ("192.168.1.1,", ["192|.168.1.", "168|.1.", "1|.", "1|,"]),
        ("1,23", []),
        ("1,23 ", ["1|,23 ", "23| "]),
        ("12,34,567 ", ["12,34,567| "]),
        ("12,34,5 ", ["12|,34,5 ", "34|,5 ", "5| "]),
        ("12,34.", ["12|,34."]),
        ("10,20,30,40,50,60 ", ["10|,20,30,40,50,", "20|,30,40,50,", "30|,40,50,", "40|,50,", "50|,60 ", "60| "]),
        ("1.234, ", ["1.234|, "]),
        ("1.234,5 ", []),
        ("1.234,5,6 ", ["1.234|,5,6", "5|,6 ", "6| "]),
        ("3{,}14 ", []),
        ("3{,x", ["3|{,x"]),
        (r"1,\!x", [r"1|,\!x"]),
        ("1'2 ", ["1|'2 ", "2| "]),
        ("(1,2,3)", ["1|,2,", "2|,3)", "3|)"]),
        ("1,234,5678 ", ["1,234|,5678", "5678| "]),
        ("3e8f", ["3|e8f", "8|f"]),
        ("3e8 3e-8) 3e8. 3e8,", ["3e8| ", "3e-8|)", "3e8|.", "3e8|,"]),
        ("1e1234", ["1|e1234"]),
        ("3e-8e5 ", ["3|e-8e", "8e5| "]),
    ],
)
def test_where_a_number_is_known_to_be_complete(text: str, expected: list[str]) -> None:
    assert [f"{text[begin:end]}|{text[end:known]}" for begin, end, known in ended_spans(text)] == expected
    assert oracle.known(text) == [(begin, end, known) for begin, end, known in ended_spans(text)]


@given(texts)
@example("1,234.5.6e7 1,23e5x 2.0.1.")
@example("11,22,33,44,55 1.234.567,5.6 ")
@example("1.234.567.123.456.7 1.234.567.123,5 1'234'567'123'456,7 ")
def test_ended_numbers_are_those_that_nothing_can_change(text: str) -> None:
    spans = ended_spans(text)
    assert spans == oracle.known(text)
    assert all(before[2] <= after[2] for before, after in pairwise(spans))
    assert all(before[2] < after[2] for before, after in zip(spans, spans[5:], strict=False))  # five at most


def test_ended_numbers_of_all_short_texts() -> None:
    for length in range(7 if deep() else 6):
        for letters in product("1.,e-x", repeat=length):
            text = "".join(letters)
            assert [(begin, end) for begin, end, _ in ended_spans(text)] == [n[:2] for n in oracle.ended(text)], text


@examples(30)
@given(
    st.text(st.sampled_from("01.,e+- xé{}\\!'"), max_size=8)
    | st.lists(st.sampled_from(GROUPS), max_size=5).map("".join)
)
@example("1,23")
@example("1.234.567")
@example(r"1,\!234,")
@example("2.0.")
@example("3e-")
@example("1,234,")
def test_no_continuation_but_zeros_has_to_be_tried(text: str) -> None:
    assert oracle.ended(text) == oracle.ended(text, oracle.CONTINUATIONS)


@given(texts, texts)
def test_all_numbers_of_a_text_are_over_at_a_boundary(text: str, after: str) -> None:
    spans = [span for span in ended_spans(text + "\0" + after) if span[1] <= len(text)]
    assert [(begin, end) for begin, end, _ in spans] == list(number_spans(text).items())
    assert all(known <= len(text) + 1 for *_, known in spans)


@given(texts, st.integers(0, 40))
@example("1,234.5", 4)
@example("2.0.1", 4)
def test_numbers_known_after_a_start_are_those_of_the_whole_text(text: str, start: int) -> None:
    found, whole = ([span for span in ended_spans(text, at) if span[2] > start] for at in (start, 0))
    assert found == whole


@given(texts)
@example("1,234.5.6e7")
def test_agrees_with_the_oracle(text: str) -> None:
    assert [(n.start, n.end, n.value) for n in find_numbers(text)] == oracle.numbers(text)


@given(texts)
def test_prefixes_are_read_off_the_runs(text: str) -> None:
    for run, _ in digit_runs(text):
        for cut in range(run.begin + 1, run.end + 1):
            start, last = run.start(cut, ""), list(number_spans(text[:cut]).items())[-1:]
            assert (last == [(start, cut)]) == run.is_read(cut, start)
            assert not last or last[0][1] <= run.begin or last == [(start, cut)]


@given(texts)
def test_whole_texts_are_read_off_the_runs(text: str) -> None:
    runs = {(start, run.end): run for run, start in digit_runs(text)}
    assert all(start == run.start(run.end, text[run.end :]) for (start, _), run in runs.items())
    assert set(number_spans(text).items()) <= {place for place, run in runs.items() if run.is_read(run.end, place[0])}
    assert all((run.rule is not Rule.ALONE) or run.alone == start for (start, _), run in runs.items())


@given(texts, st.integers(0, 40))
@example("1,234.5", 4)
def test_runs_after_a_start_are_those_of_the_whole_text(text: str, start: int) -> None:
    found, whole = ([each for each in digit_runs(text, at) if each[0].end > start] for at in (start, 0))
    assert found == whole


@given(texts, texts)
def test_nothing_runs_across_a_boundary(left: str, right: str) -> None:
    shift = len(left) + 1
    separate = find_numbers(left) + [
        number._replace(start=number.start + shift, end=number.end + shift) for number in find_numbers(right)
    ]
    assert find_numbers(left + "\0" + right) == separate


@given(texts, st.text(st.sampled_from("0123456789,,.eE+- x%'{}\\!−"), min_size=12, max_size=40) | joined, texts)
@example("1", ",123" * 10, "4")
@example("1", ",12" * 10 + ",", "456")
@example("1.234", ".234.567.123,5,6,", "7.8 ")
@example("1.234", ".234.567.1234,5", ".6 ")
def test_a_settled_context_decides_alone(before: str, context: str, after: str) -> None:
    def numbers_ending_after(text: str, position: int) -> list[tuple[int, int]]:
        spans = number_spans(text).items()
        return [(start - position, end - position) for start, end in spans if end > position]

    def numbers_known_after(text: str, position: int) -> list[list[int]]:
        return [[i - position for i in span] for span in ended_spans(text) if span[2] > position]

    if settled(context):
        alone = numbers_ending_after(context + after, len(context))
        assert numbers_ending_after(before + context + after, len(before + context)) == alone
        alone = numbers_known_after(context + after, len(context))
        assert numbers_known_after(before + context + after, len(before + context)) == alone


def test_long_runs_are_linear() -> None:
    """Each of these takes a minute or more if any rule looks at a run or a list again for each of its digits."""
    n = 20_000
    assert find_numbers("1" * n)[0].end == n
    assert find_numbers("123" + ",123" * n)[0].end == 3 + 4 * n
    assert len(find_numbers("1," * n)) == n
    assert len(find_numbers("1." * n + "1")) == n + 1
    assert len(find_numbers("1e" * n)) == n
    assert find_numbers("1." + "1" * n + ".")[0].end == n + 2
    assert len(find_numbers(" " * n + "-5" + " -5" * n)) == n + 1
    assert ended_spans("123" + ",123" * n + " ") == [(0, 3 + 4 * n, 4 + 4 * n)]
    assert len(ended_spans("1," * n)) == n - 1
    assert len(ended_spans("1." * n)) == n
    assert len(ended_spans("1e" * n)) == n
    assert len(find_numbers("12," * n)) == len(ended_spans("12," * n)) + 1 == n
    assert len(find_numbers("1.234" + ".234" * n + ",5" * n)) == 2 * n + 2
    assert find_numbers("3" + "{,}14" * n) == find_numbers("1.234," + "1" * n) == []
