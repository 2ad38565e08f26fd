import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ani.encoders import FourierNumberEncoder
from ani.encoders.remainder import Carried, CarriedEncoder, RemainderEncoder

upcoming = st.one_of(st.none(), st.from_regex(r"-?[0-9]{0,12}(\.[0-9]{1,6})?", fullmatch=True))


def slow(text: str | None, characters: int) -> list[float]:
    """The features one by one: cos, sin, digit, point, minus, end of each character."""
    features: list[float] = []
    for place in range(characters):
        character = None if text is None or place > len(text) else [*text, "end"][place]
        digit = int(character) if character is not None and character.isdigit() else None
        turn = (math.cos(2 * math.pi * digit / 10), math.sin(2 * math.pi * digit / 10)) if digit is not None else (0, 0)
        features += [*turn, digit is not None, character == ".", character == "-", character == "end"]
    return features


@given(st.lists(upcoming, max_size=5), st.integers(1, 4))
def test_each_character_has_its_own_features(texts: list[str | None], characters: int) -> None:
    found = RemainderEncoder(characters).encode(texts)
    assert found.dtype == torch.float32 and found.shape == (len(texts), 6 * characters)
    expected = torch.tensor([slow(text, characters) for text in texts], dtype=torch.float32).reshape(found.shape)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def test_what_follows_a_digit_changes_nothing_of_it() -> None:
    near, far = RemainderEncoder(3).encode(["299", "200"])
    assert torch.equal(near[:6], far[:6]) and not torch.equal(near[6:], far[6:])


@pytest.mark.parametrize("literal", [None, FourierNumberEncoder(4, 2)])
def test_literals_and_results_have_columns_of_their_own(literal: FourierNumberEncoder | None) -> None:
    encoder = CarriedEncoder(literal, 2)
    both, alone, nothing = encoder.encode([Carried("345", "12"), Carried(upcoming="12"), Carried("345")])
    assert len(both) == encoder.width == 12 + (0 if literal is None else literal.width)
    assert torch.equal(both[-12:], alone[-12:]) and not nothing[-12:].any() and not alone[:-12].any()
    if literal is not None:
        assert torch.equal(both[:-12], literal.encode(["345"])[0])
    assert encoder.encode([]).shape == (0, encoder.width)
