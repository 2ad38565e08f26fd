import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.values.counts import Counts

words = st.text("abcdefgrstABCRS", min_size=1, max_size=12)
FORMS = [
    "How many {0}'s are in {1}?",
    "How many times does the letter {0} appear in the word {1}?",
    'How many "{0}" are there in "{1}"?',
    "Count the {0}'s in {1}.",
    "the number of letters {0} in '{1}'",
]


def value(text: str) -> int | None:
    known = Counts().known("\0Hello, it's me. " + text)
    if known is None:
        return None
    rational = known.value.rational
    assert rational is not None and rational.denominator == 1
    return int(rational)


@given(words, st.sampled_from("abcrsz"), st.sampled_from(FORMS))
def test_letters_of_a_word(word: str, letter: str, form: str) -> None:
    assert value(form.format(letter, word)) == sum(each in (letter, letter.upper()) for each in word)


@given(st.lists(words, min_size=1, max_size=6))
def test_letters_and_words_of_a_quotation(parts: list[str]) -> None:
    text = " ".join(parts)
    assert value(f'How many words are there in the sentence "{text}"?') == len(parts)
    assert value(f"How many letters are in “{text}”?") == len("".join(parts))
    assert value(f"How many a's are in '{text}'?") == text.upper().count("A")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("How many r's are in strawberry?", 3),
        ("How many R's are in strawberry?", 3),
        ("How many Rs are there in strawberry?", 3),
        ("how many times does r occur in strawberry", None),
        ("How many letters are in the word strawberry?", 10),
        ("How many letters are there in Hawaiian?", None),
        ("How many m are in km?", None),
        ("How many r's are in the United States?", None),
        ("How many words are in my essay?", None),
        ("Many r's are in strawberry.", None),
    ],
)
def test_examples(text: str, expected: int | None) -> None:
    assert value(text) == expected
