"""NumeroLogic's text form: the published examples, and that it can be undone."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ani.injection.methods import METHODS
from ani.numbers.digit_counts import remove_digit_counts
from tests.properties import examples

EXAMPLES = {
    "42": "2:42",
    "3.14": "1.2:3.14",
    "Calculate 12 + 345 = 357": "Calculate 2:12 + 3:345 = 3:357",
    "x = -5 and .5": "x = -1:5 and 0.1:.5",
    "1,234,567.25 kg": "7.2:1,234,567.25 kg",
    "1e-5": "1:1e-5",
    "−$12,34,567 or 1'234.50": "−$7:12,34,567 or 4.2:1'234.50",
    r"1{,}234 and 11,\! 111": r"4:1{,}234 and 5:11,\! 111",
    "Room 505, v2, 8:15, 2.0.1": "Room 3:505, v1:2, 1:8:2:15, 1:2.1:0.1:1",
    "no number": "no number",
}


@pytest.mark.parametrize(("text", "written"), EXAMPLES.items())
def test_the_form_is_the_published_one(text: str, written: str) -> None:
    assert METHODS["numerologic"].write(text) == written
    assert remove_digit_counts(written) == text


@examples(2000)
@given(st.text("0123456789.,:-−+eE $%ab\n'{}\\!", max_size=30))
def test_it_can_be_undone_in_any_text(text: str) -> None:
    assume(
        not re.search(r"[0-9][eE][+−-]?[0-9]+:|[.'][0-9]{3},[0-9]+:|\{,\}[0-9]+:", text)
    )  # the exceptions of the docstring
    assert remove_digit_counts(METHODS["numerologic"].write(text)) == text


@pytest.mark.parametrize("text", ["3:42", "2:4", "1.2:3.1", "at 9:30 sharp", ":42", "2:", "1.:5", "ratio 7:x"])
def test_what_does_not_count_right_stays(text: str) -> None:
    assert remove_digit_counts(text) == text
