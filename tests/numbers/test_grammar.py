import re
from itertools import pairwise, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ani.numbers.context import settled
from ani.numbers.grammar import ended_spans, number_spans
from ani.numbers.text import find_numbers
from tests.numbers import oracle
from tests.properties import deep

# Dense in everything that the rules look at.
texts = st.text(st.sampled_from("0123456789" * 2 + ".,.,eE+- -  x_%()$=\n\0é²π€�−'’{}\\!"), max_size=40) | st.text(
    max_size=20
)
# Groups in full, which single characters seldom make.
GROUPS = ["1", "12", "34", "05", "123", "234", "0123", *",,,,..'’_", "{,}", ",\\!", ",\\! ", "\u202f", "e", "-$"]
GROUPS += ["−", "+/-", " ", "x"]
joined = st.lists(st.sampled_from(GROUPS), max_size=16).map("".join)
texts |= joined


EXAMPLES = [
    "no digits, ٣ ² ½ ५", "«10»%, $«5,000», «7»th, v«2», COVID-«19»", "«3»D and x«2»y«3»", "«1,234,567»",
    "«1,234»,«5678»", "«0»,«123»", "«-1,234.5e3»", "«1'234.50», «1’234’567», «1_234» and «12\u202f345»",
    r"«1{,}234{,}567», «1,\!234» and «11,\! 111»", "«5»'«10» and «1'234»,«567'890»", r"«1,\!234»,«567»",
    "₹«12,34,567.5» of «1,00,000» and «1,05,00,00,000»", "«12»,«34»,«56» and «10»,«20»,«30»,«40»,«50,600»",
    "«123»,«45,678» and «01»,«23,456»", "«12,34,567»,«890»", "1.234,56 and 1.234.567,8 and 1'234,50",
    "3{,}14 and 0{,}5 and 1{,}23{,}456", "«1.234»,«5»,«6» and «1.234»,«5.6» and «0.123»,«5» and «1.23»,«4»",
    "«2020»-«11»-«12» «10»:«30», «1.5»k of $«2»M", "«3.14»", "costs «3.5». Then", "«.5»", "Fig.«5.2»", "...«5»",
    "«192».«168».«1».«1»", "«2».«0».«1»", ".«5».«6»", "«1,234».«5».«6»", "«1e-5»", "«2.5E+10» m", "«1e−5»", "v«2»e«5»",
    "«1»e«5»e«3»", "«-5»", "«-.5»", "(«-5»", "to «-5» degrees", "x\n«-5»", "«3», «-5»", r"x & «-5» \\«-6»",
    "<|x|>\0«-5»", "«−5» and «−.5»", r"«-$100,000.00», «−€5» and «-\$5»", "$«-5» and £«-5»", "«3»-«5»", "«3» -«5»",
    "«2»x -«5»", "x² -«5»", "«10»% -«5»", "«5.0»+/-«0.2» and «3»+/−«1»", "$«3»-$«5» and «3» −«5»",
    "a $«30»$-$«60»$-$«90»$ triangle", "«1»\0«2»", "«1»,\0«234»", "«3» \0«-5»", "«3»" + " " * 8 + "-«5»",
    "x" + " " * 8 + "-«5»", "x" + " " * 9 + "«-5»",
]  # fmt: skip
"""Texts with their numbers marked."""


@pytest.mark.parametrize("marked", EXAMPLES)
def test_numbers_of_a_text(marked: str) -> None:
    text, expected = re.sub("[«»]", "", marked), re.findall("«(.*?)»", marked)
    for spans in (number_spans(text).items(), [(start, end) for start, end, _ in oracle.numbers(text)]):
        assert [text[start:end] for start, end in spans] == expected


ENDED = [
    "7% 3-5; v2:", "1,234 screws", "costs 3. Then 3.5. Then", "2.0.1", "192.168.1.1,", "1,23", "1,23 ", "12,34,567 ",
    "12,34,5 ", "12,34.", "10,20,30,40,50,60 ", "1.234, ", "1.234,5 ", "1.234,5,6 ", "3{,}14 ", "3{,x", r"1,\!x",
    "1'2 ", "(1,2,3)", "1,234,5678 ", "3e8f", "3e8 3e-8) 3e8. 3e8,", "1e1234", "3e-8e5 ",
]  # fmt: skip


@pytest.mark.parametrize("text", ENDED)
def test_where_a_number_is_known_to_be_complete(text: str) -> None:
    assert oracle.known(text) == ended_spans(text)


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


@given(texts)
@example("1,234.5.6e7")
def test_agrees_with_the_oracle(text: str) -> None:
    assert [(n.start, n.end, n.value) for n in find_numbers(text)] == oracle.numbers(text)


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
