"""Numbers with their least significant digit first: the form, and that it can be undone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.data.arithmetic import arithmetic_problems
from ani.data.diagnostic import diagnostic_sentences
from ani.injection.methods import METHODS
from ani.numbers.reversed import turn_back

EXAMPLES = {
    "Calculate 12 + 345 =": "Calculate 21 + 543 =",
    "3.14 and -120": "41.3 and -021",
    "1.5e3": "5.1e3",
    "Room 505, v20, 8:15, 2.0.1": "Room 505, v02, 8:51, 2.0.1",
    "no number": "no number",
}
SIMPLIFIED = {"1,234,567.25 kg": ("52.7654321 kg", "1234567.25 kg"), "is .5": ("is 5.0", "is 0.5")}


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_form(text: str) -> None:
    method = METHODS["reversed"]
    assert method.write(text) == EXAMPLES[text]
    assert method.read(EXAMPLES[text]) == text


@pytest.mark.parametrize("text", SIMPLIFIED)
def test_separators_and_bare_points_are_not_kept(text: str) -> None:
    written, read = SIMPLIFIED[text]
    assert METHODS["reversed"].write(text) == written and turn_back(written) == read


@given(st.from_regex(r"[+-]?[0-9]{1,30}(\.[0-9]{1,20})?(e-?[0-9]{1,3})?", fullmatch=True))
def test_every_number_comes_back(number: str) -> None:
    assert turn_back(METHODS["reversed"].write(f"is {number}")) == f"is {number}"


def test_our_data_comes_back() -> None:
    texts = [sentence.text.replace(",", "") for sentence in diagnostic_sentences(2000, split="train")]
    problems = arithmetic_problems(600, digits=[2, 12], operations=["subtraction"], split="test", seed=0)
    for text in [*texts, *(f"{problem.prompt} {problem.answer}" for problem in problems)]:
        assert turn_back(METHODS["reversed"].write(text)) == text
