from itertools import pairwise, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ani.numbers.grammar import MAX_BLANKS, Rule, digit_runs, ended_spans, number_spans, settled
from ani.numbers.text import find_numbers
from tests.numbers import oracle
from tests.properties import examples

# Dense in everything that the rules look at.
texts = st.text(st.sampled_from("0123456789" * 2 + ".,.,eE+- -  x_%()$=\n\0é²π€�"), max_size=40) | st.text(max_size=20)


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
        # and those that may be an operator or a hyphen
        ("3-5", ["3", "5"]),
        ("3 -5", ["3", "5"]),
        ("2x -5", ["2", "5"]),
        ("x² -5", ["5"]),
        ("10% -5", ["10", "5"]),
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
        ("192.168.1.1,", ["192|.168.1", "168|.1", "1|.", "1|,"]),
        ("1,23", []),
        ("1,23 ", ["1|,23 ", "23| "]),
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
def test_ended_numbers_are_those_that_nothing_can_change(text: str) -> None:
    spans = ended_spans(text)
    assert spans == oracle.known(text)
    assert all(before[2] <= after[2] for before, after in pairwise(spans))
    assert all(before[2] < after[2] for before, after in zip(spans, spans[2:], strict=False))  # two at most


def test_ended_numbers_of_all_short_texts() -> None:
    for length in range(7):
        for letters in product("1.,e-x", repeat=length):
            text = "".join(letters)
            assert [(begin, end) for begin, end, _ in ended_spans(text)] == [n[:2] for n in oracle.ended(text)], text


@examples(30)
@given(st.text(st.sampled_from("01.,e+- xé"), max_size=8))
@example("1,23")
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
    for run in digit_runs(text):
        for cut in range(run.begin + 1, run.end + 1):
            assert (run.start(cut, ""), cut) == list(number_spans(text[:cut]).items())[-1]


@given(texts)
def test_whole_texts_are_read_off_the_runs(text: str) -> None:
    spans = {run.start(run.end, text[run.end :]): run.end for run in digit_runs(text)}
    assert spans == number_spans(text)
    assert all((run.rule is not Rule.ALONE) or run.alone == run.joined for run in digit_runs(text))


@given(texts, st.integers(0, 40))
@example("1,234.5", 4)
def test_runs_after_a_start_are_those_of_the_whole_text(text: str, start: int) -> None:
    found, whole = ([run for run in digit_runs(text, at) if run.end > start] for at in (start, 0))
    assert found == whole


@given(texts, texts)
def test_nothing_runs_across_a_boundary(left: str, right: str) -> None:
    shift = len(left) + 1
    separate = find_numbers(left) + [
        number._replace(start=number.start + shift, end=number.end + shift) for number in find_numbers(right)
    ]
    assert find_numbers(left + "\0" + right) == separate


@given(texts, st.text(st.sampled_from("0123456789,,.eE+- x%"), min_size=12, max_size=40), texts)
@example("1", ",123" * 10, "4")
@example("1", ",12" * 10 + ",", "456")
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
    n = 50_000
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
