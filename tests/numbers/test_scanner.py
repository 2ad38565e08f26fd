import codecs
import copy
from bisect import bisect_left
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ani.numbers import Number, NumberScanner
from tests.numbers import oracle
from tests.tokenizers import ALL, gemma_like, qwen, shortened


def scanner_of(name: str) -> NumberScanner:
    return NumberScanner(ALL[name]())


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


names = pytest.mark.parametrize("name", ["qwen", "gemma_like"])


def texts(numbers: list[Number]) -> list[str]:
    return [number.text for number in numbers]


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


@names
def test_padding_and_unknown_ids_are_boundaries_without_characters(name: str) -> None:
    tokenizer, scanner = ALL[name](), scanner_of(name)
    left, right = ids_of(tokenizer, "é 12"), ids_of(tokenizer, "34 é 5")
    beyond = len(tokenizer) + 100
    ids = [-1, -100, *left, -1, beyond, *right, -1]
    numbers = scanner.scan(ids)
    assert texts(numbers) == ["12", "34", "5"]
    assert scanner.text(ids) == scanner.text(left) + scanner.text(right)
    assert [scanner.text(ids)[number.start : number.end] for number in numbers] == texts(numbers)
    assert numbers[0].first_token == 2 + scanner.scan(left)[0].first_token
    assert texts(scanner.scan_running([*left, -1, *right], len(left))) == texts(scanner.scan_running(right))
    whole = ids_of(tokenizer, "12 a")  # characters
    assert scanner.pieces([-1, *whole, beyond]) == (["\0", *scanner.pieces(whole)[0], "\0"], b"")


BYTES = {value: f"<0x{value:02X}>" for value in (0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0x88, 0x92, 0xF0, 0x9F, 0x99, 0xFF)}
MINUS = ["<0xE2>", "<0x88>", "<0x92>"]
TOKENS = [*"0123456789123456789", *".,.,eE+-'{}\\!$", "▁", "x", "(", "=", *BYTES.values(), "<eos>", "<pad>", None]


def reference_of_bytes(tokens: list[str | None]) -> dict[int, str]:
    """Numbers by the token that shows them, from what is whole of each prefix."""
    data = b""
    lengths, text = [], ""
    for token in tokens:
        if token in BYTES.values():
            data += bytes.fromhex(str(token)[3:5])
        else:
            data += b"\0" * len(token or " ") if token in ("<eos>", "<pad>", None) else token.replace("▁", " ").encode()
        text, _ = codecs.utf_8_decode(data, "surrogateescape", False)
        lengths.append(len(text))
    return {bisect_left(lengths, known): text[start:end] for start, end, known in oracle.known(text)}


@given(st.lists(st.sampled_from(TOKENS), max_size=40), st.integers(0, 40))
@example(["x", "▁", *MINUS, *"12", "▁", "<0xE2>", "(", *MINUS, "<0xE2>", *MINUS, "3", "▁"], 4)
@example([*"3e8", "<0xC3>", "<0xA9>", *"5e7", "<0xE2>", "<0x82>", "1", "x"], 4)
@example([*"1" * 20, *"1" * 20, *"e5", "<0xC3>", "<0xA9>"], 43)
def test_any_tokens_at_every_prefix_and_start(tokens: list[str | None], start: int) -> None:
    """Bytes of half-written and broken characters, boundaries and padding among them."""
    scanner = scanner_of("gemma_like")
    ids = [-1 if token is None else gemma_like().convert_tokens_to_ids(token) for token in tokens]
    whole = scanner.scan_ended(ids)
    assert {token: number.text for token, number in whole.items()} == reference_of_bytes(tokens)
    places = {(number.text, number.first_token, number.last_token) for number in scanner.scan([*ids, -1])}
    assert {(number.text, number.first_token, number.last_token) for number in whole.values()} <= places
    for number in whole.values():
        assert scanner.text(ids[number.first_token :])[number.start : number.end] == number.text
    for stop in range(len(ids) + 1):
        first = min(start, stop)
        expected = {token: number for token, number in whole.items() if first <= token < stop}
        assert scanner.scan_ended(ids[:stop], first) == expected
        expected = {token: number for token, number in whole.items() if token == stop - 1}
        assert scanner.scan_ended(ids[:stop], max(stop - 1, 0)) == expected


def test_added_tokens_may_hold_more_than_one_number() -> None:
    tokenizer = copy.deepcopy(shortened(qwen(), 10_000))
    added = ("1 2", "e5x", "e6数", "e7 ", "1.2.3,", " 7 8 9 ", "price 12")
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added] + [AddedToken("<7>", special=True)])
    scanner = NumberScanner(tokenizer)
    ids = ids_of(tokenizer, "41 23e5x 3e6数 3e7 1.2.3,456 1.2.3, 1 21 2")
    running = scanner.scan_running(ids)
    assert texts(running) == [*("4", "2", "23", "5", "3", "6", "3", "3e7", "3", "4", "45", "456", "3", "2", "2")]
    for t in range(len(ids)):
        last = [number.text for number in running if number.last_token == t]
        assert texts(scanner.scan_running(ids[: t + 1], t)) == last
        assert not last or scanner.scan(ids[: t + 1])[-1].text == last[0]
    assert [number.value for number in scanner.scan(ids)] == [found[2] for found in oracle.numbers(scanner.text(ids))]
    # Of several numbers that end in a token the last counts.
    ended = scanner.scan_ended(ids_of(tokenizer, "1 7 8 9 5 6"))
    assert [(t, n.text, n.first_token, n.last_token) for t, n in ended.items()] == [(1, "9", 1, 1), (3, "5", 2, 2)]
    ids = ids_of(tokenizer, "the price 123<7>4")
    assert texts(scanner.scan(ids)) == ["123", "4"] and scanner.text(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("as_type", [tuple, np.array, torch.tensor, lambda ids: np.array(ids, np.int32)])
def test_any_sequence_of_integers(as_type) -> None:  # type: ignore[no-untyped-def]
    scanner = scanner_of("gemma_like")
    ids = ids_of(gemma_like(), "from 1,234 to -5")
    assert scanner.scan(as_type(ids)) == scanner.scan(ids)
    assert scanner.scan_running(as_type(ids), 2) == scanner.scan_running(ids, 2)
    assert scanner.scan_ended(as_type(ids), 2) == scanner.scan_ended(ids, 2)
    assert scanner.text(as_type(ids)) == scanner.text(ids)


def test_a_batch_and_a_start_outside_are_refused() -> None:
    scanner = scanner_of("gemma_like")
    with pytest.raises(ValueError, match=r"shape \(1, 3\).*one sequence"):
        scanner.scan(torch.ones(1, 3, dtype=torch.long))
    for start, scan in product((-1, 4), (scanner.scan_running, scanner.scan_ended)):
        with pytest.raises(ValueError, match=f"start is {start}.*0 to 3"):
            scan([1, 2, 3], start)


@names
@pytest.mark.parametrize("context", ["word ", "- 5, ", "x = -3.5e2; ", "12,", "1,2,3,"])
def test_streaming_reads_a_bounded_context(name: str, context: str) -> None:
    tokenizer, scanner = ALL[name](), scanner_of(name)
    reads = []
    for repeats in (60, 600):
        ids = Counted(ids_of(tokenizer, context * repeats + "7"))
        assert len(scanner.scan_running(ids, len(ids) - 1)) == 1
        ids.ids.append(-1)
        assert len(scanner.scan_ended(ids, len(ids) - 1)) == 1
        reads.append(ids.reads)
    assert reads[0] == reads[1] <= 200


@pytest.mark.parametrize("text", ["1" * 20_000, "123," * 10_000, "1.5" * 8_000, "1e" * 20_000])
def test_long_sequences_are_linear(text: str) -> None:
    """Minutes, or gigabytes, if a token looks at all of its number again or keeps a copy of it."""
    ids = ids_of(qwen(), text)
    running = scanner_of("qwen").scan_running(ids)
    assert len(running) == sum(character.isdigit() for character in text)
    whole = scanner_of("qwen").scan(ids)
    assert whole[-1].last_token == running[-1].last_token
    assert list(scanner_of("qwen").scan_ended([*ids, -1]).values())[-1].text == whole[-1].text


@pytest.mark.parametrize(
    ("vocab", "decoder", "named"),
    [
        ("1", None, "neither a byte-level BPE nor a sentencepiece"),
        ("1", decoders.WordPiece(), "neither a byte-level BPE nor a sentencepiece"),
        ("1", decoders.Replace("x", " "), "neither a byte-level BPE nor a sentencepiece"),
        ("one", decoders.ByteLevel(), "no token with an ASCII digit"),
        ("12", decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip("?", 1, 0)]), "decodes a sample"),
    ],
)
def test_other_kinds_of_tokenizer_are_refused(vocab: str, decoder: decoders.Decoder | None, named: str) -> None:
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["?", *vocab])}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(ValueError, match=named):
        NumberScanner(PreTrainedTokenizerFast(tokenizer_object=backend))
