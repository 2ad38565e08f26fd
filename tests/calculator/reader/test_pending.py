"""Which value is pending where, and that neither chunks nor later text matter."""

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ani.calculator.reader.pending
from ani.calculator.reader import VALUES, Exact, Known, Value
from ani.calculator.reader.pending import Pending, PendingReader
from tests.properties import examples

MEMORY = 25
ENDS = [" [/INST]"]


class Told(Value):
    """The value of these tests, ``[7/3]``."""

    name = "told"
    triggers = (":=",)

    def known(self, text: str) -> Known | None:
        found = re.search(r"\[(-?[0-9]+/[1-9][0-9]*)\][ ?]*\Z", text.removesuffix(":="))
        return Known(Exact.of(Fraction(found[1])), found[0], found.start()) if found else None


@pytest.fixture(autouse=True)
def _told() -> Iterator[None]:
    with patch.dict(VALUES, {"told": Told}, clear=True), patch.object(ani.calculator.reader.pending, "MEMORY", MEMORY):
        yield


PARTS = [
    *("[1/3]", "[-5/2]", "[7/1]", "[1000/1]", "[2/1]", "[9876543/8]", "[199/100]"),
    *("[7/1]:=", "[7/1]?", "[2/1]?", "[1/3]:=", " [-5/2]:=", "[1000/1]? ", "[199/100]:="),
    *(":=", "?", "\n", "\0\0", "A:", "Answer:", " [/INST]", " ", " ", "x", "and"),
    *("7", "1,000", "1{,}000", r"1,\!000", "2", "-2.5", "0.33", ".3", "1.99", "1234567.875", "0"),
    *("$", "-", ".", ",", "{", "}", "\\", r"\!"),
]
texts = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    """A text in pieces, some of them empty."""
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=40)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def read(pieces: list[str]) -> list[Pending | None]:
    return PendingReader(ENDS).feed(pieces)


@examples(150)
@given(cut_texts(), st.lists(st.integers(0, 100), max_size=8), st.integers(0, 100), texts)
def test_neither_chunks_nor_copies_nor_what_follows_matter(
    pieces: list[str], cuts: list[int], at: int, other: str
) -> None:
    whole = read(pieces)
    at %= len(pieces) + 1
    places = sorted({0, len(pieces), *(cut % (len(pieces) + 1) for cut in cuts)})
    chunks = [pieces[a:b] for a, b in pairwise(places)]
    reader = PendingReader(ENDS)
    assert [pending for chunk in chunks for pending in reader.feed(chunk)] == whole
    reader = PendingReader(ENDS)
    assert reader.feed(pieces[:at]) == whole[:at] == read([*pieces[:at], other])[:at]
    copied = reader.copy()
    copied.feed([other])
    reader.copy().feed([other, "[3/1]?", "\0"])
    assert reader.feed(pieces[at:]) == whole[at:]


@pytest.mark.parametrize("filler", ["x" * 900, "1" * 900, "[2/1", "\0" * 700, "7" * 240 + "{,}" * 300])
def test_a_long_text_is_read_in_chunks_as_at_once(filler: str) -> None:
    pieces = re.findall(
        r"\[|.{1,7}|\n", "[7/1]" + filler + ":= 6 [7/1]:=" + filler + "7 [1000/1]? " + filler + "1,000 ?"
    )
    with patch.object(ani.calculator.reader.pending, "MEMORY", 10_000):
        whole = read(pieces)
        reader = PendingReader(ENDS)
        assert [pending for piece in pieces for pending in reader.feed([piece])] == whole
        assert any(whole)


def shown(text: str, **options: list[str]) -> list[str]:
    """What is pending behind each ``^`` of a text."""
    parts = text.split("^")
    found = [pending and str(pending.value.rational) for pending in PendingReader(**options).feed(parts)]
    return [pending or "" for pending in found[:-1]]


@pytest.mark.parametrize(
    ("text", "pending"),
    [
        ("[7/1]^:=^ 7^ ^", ["", "7", "7", ""]),  # 7 may be 75 until the blank
        ("[7/1]:= 75^ ^", ["", "7"]),  # nothing within another number
        ("[7/1]?^ It is [1/2]:=^ 0.5^ so ^7^.^ ^", ["7", "1/2", "1/2", "7", "7", "7", ""]),  # the answer's own first
        ("[7/1]:= 7 [3/1]:=^ x^", ["3", "3"]),
        ("[7/1]:= 5 [3/1]:=^ 3 ^", ["3", ""]),  # a number stood behind the first sign
        ("[7/1]:= 5 x:=^", [""]),  # another equation begins
        (r"[7/1]:= \frac{x}{3}, so x :=^", [""]),
        ("[7/1]:= , x :=^", ["7"]),  # nothing follows the first sign
        ("[7/1]? [2/1]:= 5 + ^\n^", ["2", "7"]),  # nor does a line go on
        ("[7/1]:=\n[3/1]:=\0\0^ 7 ^ 3 ^", ["7", "3", ""]),  # both are asked
        ("[7/1]? [3/1]?\0^ 7 ^ 3 ^", ["7", "3", ""]),
        ("[7/1]? [3/1]?\0^ 3 ^ 7 ^", ["7", "7", ""]),  # the second was answered first
        ("[7/1]?\0no\0[3/1]?\0^ 3 ^", ["3", ""]),  # a later message asks
        ("[7/1]?\0Of course.\0^Well?^\0^", ["7", "7", ""]),  # a turn later
        ("[7/1]?\0\0assistant\0Of course.\0^user\0^Well?\0assistant\0^", ["7", "7", ""]),
        ("[7/1]?\0user\0Well?\0^", ["7"]),
        ("Q: [7/1]? A: 8 Q: [3/1]? A:^ 3 ^", ["3", ""]),  # nor does a wrong example stay
        ("[7/1]:= [7/1]?^ 7 ^", ["7", ""]),
        ("[7/1]^\n^", ["", "7"]),
        ("[7/1]^\n\n^ 7 \n^", ["", "7", ""]),
        ("[7/1]:= 7^\0^", ["7", ""]),
        ("[1/3]:= 0.3^ ^", ["1/3", ""]),
        ("[1/3]:= 0.34 ^ 0 ^ 0.333 ^", ["1/3", "1/3", ""]),
        ("[-7/1]:= 7 ^ -7 ^", ["-7", ""]),
        ("[1000/1]:= 1{,}000^\\ ^", ["1000", ""]),
        (r"[1000/1]:= 1,^\^!000^\^ ", ["1000", "1000", "1000", ""]),
        ("[1000/1]:= 1,00 ^ $1,000 ^", ["1000", ""]),
        ("[7/1]:= x + 2\0^", [""]),  # an equation asks for x
        ("[7/1]:= x\0^", ["7"]),
        (r"[7/1]:= \frac{4}{x - 5}^" "\n^", ["7", ""]),  # a number follows the sign
        (r"[7/1]:= \left(\frac{1}{8} x\right)^" "\n^", ["7", ""]),
        ("[7/1] [/INST]^", [""]),
        ("BANSA:[7/1]XA:^", [""]),  # no mark within a word
    ],
)
def test_it_becomes_known_and_is_written(text: str, pending: list[str]) -> None:
    assert shown(text) == pending


def test_a_text_can_end_a_message() -> None:
    assert shown("[7/1] [/INST]^ 7 ^", ends=[" [/INST]"]) == ["7", ""]


def test_it_is_forgotten() -> None:
    found = PendingReader().feed(["[7/1]?"] + [" x"] * MEMORY)
    assert [bool(pending) for pending in found] == [True] * MEMORY + [False]


def test_what_is_kept_is_bounded() -> None:
    reader = PendingReader()
    for _ in range(300):
        reader.feed(["[7/1]?", " [9/1]:=", " x" * 50])
    held = reader.__dict__
    assert len(held["_text"]) < 3 * 1024 and len(held["_asked"]) + len(held["_signs"]) <= 2 * MEMORY
