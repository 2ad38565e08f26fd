"""Invariant 6: the scanner agrees with an oracle that decodes the whole text and parses it with `decimal`."""

import random
import re
from bisect import bisect_left
from functools import cache
from itertools import accumulate

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from ani.numbers import NumberScanner
from tests.numbers import oracle
from tests.properties import deep, examples
from tests.tokenizers import ALL

BATCH = 1000  # texts of one example: tokenizers are fast in batches
PREFIX_BATCH = 20  # of longer texts, each compared at every one of its tokens
ENDED_BATCH = 10  # of texts of which every prefix is tried with several continuations
NAMED = ["<|reserved_special_token_12|>", "<|im_end|>", "</s>", "<bos>", "[INST]"]  # special to some tokenizers only
_WORDS = ["the", "a", "x", "Room", "COVID", "v", "Fig.", "sold", "each", "café", "naïve", "数字", "e", "E", "m²", "I"]
_WORDS += ["to", "--", "->", "…", "“", "”", "é", "Ω", "-ish", "3D", "7th", "#1"]
_SEPARATORS = ["", "", " ", " ", " ", ", ", ". ", " -", " - ", " = ", "\n", "\t", "  ", "\xa0-", f"{'':8}-", f"{'':9}-"]
_SEPARATORS += [",", ".", "-", "+", "(", ")", "%", "=", "*", "/", "$", "e", "E-", ":", "_", "\\", "|", "−", "🙂"]
_SEPARATORS += ["👩\u200d🚀"]


# A seed has nothing to shrink: the assertion shows the text.
batches = settings(examples(10 if deep() else 4), phases=(Phase.explicit, Phase.reuse, Phase.generate))
generators = st.integers(0, 2**64 - 1).map(random.Random)


def number(rng: random.Random) -> str:
    digits = str(rng.randrange(10 ** rng.randrange(1, 8)))
    form = rng.randrange(18)
    if form == 0:
        return f"{rng.randrange(10**7):,}"
    if form == 1:
        return f"{digits}.{rng.randrange(10**4)}"
    if form == 2:
        return f"{digits}{rng.choice('eE')}{rng.choice(['', '-', '+'])}{rng.randrange(2000)}"
    if form == 3:
        return ".".join(str(rng.randrange(300)) for _ in range(rng.randrange(2, 5)))
    if form == 4:
        return ",".join(str(rng.randrange(2000)) for _ in range(rng.randrange(2, 5)))
    if form == 5:
        return f".{digits}"
    if form == 6:
        return f"{digits[:1]},{rng.randrange(1000):03}.{digits}"
    if form == 7:  # groups of any separator, seldom of a wrong length
        joint = rng.choice([",", "'", "’", "_", "\u202f", "\u2009", "{,}", r",\!", r",\! "])
        groups = [f"{rng.randrange(1000):03}" for _ in range(rng.randrange(1, 4))]
        groups[-1] = rng.choice([groups[-1]] * 4 + [digits])
        return joint.join([str(rng.randrange(1000)), *groups]) + rng.choice(["", "", f".{digits}", f",{digits}"])
    if form == 8:  # Indian
        pairs = [f"{rng.randrange(100):02}" for _ in range(rng.randrange(1, 6))]
        return ",".join([str(rng.randrange(130)), *pairs, rng.choice([f"{rng.randrange(1000):03}"] * 3 + [digits])])
    if form == 9:  # a decimal comma
        return ".".join([str(rng.randrange(1000)), *["123", "045"][: rng.randrange(1, 3)]]) + "," + digits
    return digits


def fragment(rng: random.Random, special: list[str]) -> str:
    kind = rng.randrange(20)
    if kind < 8:
        return number(rng)
    if kind < 10:
        return rng.choice(["+", "-", "−", "-$", "−€", r"-\$", "+/-"]) + number(rng)
    if kind < 14:
        return rng.choice(_WORDS)
    if kind == 14:
        return rng.choice(special)
    if kind == 15:
        return "".join(rng.choices("0123456789.,eE+- x%()\n²é−'’{}\\!", k=rng.randrange(1, 9)))
    return rng.choice(_SEPARATORS)


def text(rng: random.Random, fragments: int, special: list[str]) -> str:
    return "".join(fragment(rng, special) + rng.choice(_SEPARATORS) for _ in range(fragments))


def scanner(name: str) -> NumberScanner:
    return NumberScanner(ALL[name]())


@cache
def specials(name: str) -> list[str]:
    tokenizer = ALL[name]()
    return sorted({*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder}, key=len, reverse=True)


@cache
def special_pattern(name: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, specials(name))))


def as_the_oracle_reads(decoded: str, name: str) -> str:
    """Special tokens as boundaries of the same length."""
    return special_pattern(name).sub(lambda match: "\0" * len(match[0]), decoded)


def decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """With a boundary for each padding id."""
    segments: list[list[int]] = [[]]
    for i in ids:
        if i < 0:
            segments.append([])
        else:
            segments[-1].append(i)
    return "\0".join(
        tokenizer.decode(segment, skip_special_tokens=False, clean_up_tokenization_spaces=False) for segment in segments
    )


def written(tokenizer: PreTrainedTokenizerBase, ids: list[int], known: dict[int, str]) -> str:
    """The text of some tokens, from that of each (`known`) if none is a blank or begins within a character."""
    for i in ids:
        if i not in known:
            known[i] = tokenizer.decode([i])
    alone = [known[i] for i in ids]
    return "".join(alone) if all(alone) and "\ufffd" not in "".join(alone) else str(tokenizer.decode(ids))


@pytest.mark.parametrize("name", list(ALL))
@batches
@given(rng=generators)
def test_whole_texts(name: str, rng: random.Random) -> None:
    tokenizer = ALL[name]()
    used = [token for token in specials(name) if token != tokenizer.unk_token][:8] + NAMED
    cases = [text(rng, rng.randrange(1, 7), used) for _ in range(BATCH)]
    token_texts: dict[int, str] = {}
    found = 0
    batch = tokenizer(cases, add_special_tokens=rng.random() < 0.5)["input_ids"]
    decoded_batch = tokenizer.batch_decode(batch, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    for ids, decoded in zip(batch, decoded_batch, strict=True):
        numbers = scanner(name).scan(ids)
        shift = len(scanner(name).text(ids)) - len(decoded)  # a sentencepiece decoder's stripped space
        assert shift in (0, 1)
        expected = oracle.numbers(as_the_oracle_reads(decoded, name))
        assert [(n.start - shift, n.end - shift, n.value) for n in numbers] == expected, (decoded, ids)
        for n in numbers:
            # No token too many: without the first or the last, the first or last character is gone.
            for tokens in (range(n.first_token + 1, n.last_token + 1), range(n.first_token, n.last_token)):
                assert n.text not in written(tokenizer, [ids[i] for i in tokens], token_texts), (decoded, ids)
            tokens = range(n.first_token, n.last_token + 1)
            assert n.text in written(tokenizer, [ids[i] for i in tokens], token_texts), (decoded, ids)
        found += len(numbers)
    assert found > BATCH


@pytest.mark.parametrize("name", list(ALL))
@batches
@given(rng=generators)
def test_values_do_not_depend_on_the_tokenizer(name: str, rng: random.Random) -> None:
    cases = [text(rng, 5, [" "]) for _ in range(BATCH // 10)]
    for case, ids in zip(cases, ALL[name]()(cases, add_special_tokens=False)["input_ids"], strict=True):
        # Decoders that strip the first space decide nothing here: a space before a text changes no number.
        values = [value for _, _, value in oracle.numbers(case)]
        assert [number.value for number in scanner(name).scan(ids)] == values, case


@pytest.mark.parametrize("name", list(ALL))
@batches
@given(rng=generators)
def test_every_prefix(name: str, rng: random.Random) -> None:
    tokenizer = ALL[name]()
    used = [token for token in specials(name) if token != tokenizer.unk_token][:8] + NAMED
    long_lists = [",".join(["123"] * 60), "12," * 60, "1" * 90, "1,234" + ",567" * 30 + ".5", "1.2" * 40, "-" * 80]
    for case in range(PREFIX_BATCH):
        written = text(rng, rng.randrange(1, 14), used)
        if case % 8 == 0:
            written += rng.choice(long_lists) + text(rng, 3, used)
        ids = tokenizer.encode(written, add_special_tokens=case % 2 == 0)
        if case % 5 == 0:
            ids.insert(rng.randrange(len(ids) + 1), -1)
        running = {n.last_token: n for n in scanner(name).scan_running(ids)}
        for t in range(len(ids)):
            streamed = scanner(name).scan_running(ids[: t + 1], t)
            assert streamed == ([running[t]] if t in running else []), (written, ids[: t + 1])
            if t % 3 == 0:
                assert scanner(name).scan_running(ids, t) == [n for at, n in running.items() if at >= t], (written, t)
        for t in set(range(len(ids))) - running.keys():  # no digits, or those of an unread literal
            read = as_the_oracle_reads(decode(tokenizer, ids[: t + 1]), name)
            literal = oracle.DIGIT.search(scanner(name).pieces(ids[: t + 1])[0][-1]) and oracle.numbers(read)[-1:]
            assert not literal or literal[0][1] <= max(map(read.rfind, oracle.DIGITS)), (written, ids[: t + 1])
        prefixes = [ids[: t + 1] for t in running]
        for prefix, number in zip(prefixes, running.values(), strict=True):
            decoded = decode(tokenizer, prefix)
            start, end, value = oracle.numbers(as_the_oracle_reads(decoded, name))[-1]
            assert (number.text, number.value) == (decoded[start:end], value), decoded
            of_its_tokens = scanner(name).text(prefix[number.first_token :])
            assert of_its_tokens[number.start : number.end] == number.text
            digit_text = tokenizer.decode([prefix[-1]])
            assert any(character in digit_text for character in oracle.DIGITS)


@pytest.mark.parametrize("name", list(ALL))
@batches
@given(rng=generators)
def test_ended_numbers_at_every_prefix(name: str, rng: random.Random) -> None:
    """Each is where, by the oracle, no continuation can change it any more; wherever the scan begins or stops."""
    tokenizer = ALL[name]()
    used = [token for token in specials(name) if token != tokenizer.unk_token][:8] + NAMED
    found = 0
    for case in range(ENDED_BATCH):
        ids = tokenizer.encode(text(rng, rng.randrange(1, 8), used), add_special_tokens=case % 2 == 0)
        if case % 5 == 0:  # not within a character
            ids.insert(rng.choice([i for i in range(len(ids) + 1) if "\ufffd" not in decode(tokenizer, ids[:i])]), -1)
        read = [as_the_oracle_reads(decode(tokenizer, ids[: t + 1]), name) for t in range(len(ids))]
        # Without half a character, for whose sake some decoders give up whole ones before it.
        lengths = list(accumulate((len(prefix.rstrip("\ufffd")) for prefix in read), max))
        expected: dict[int, list[str]] = {}
        for start, end, known in oracle.known(read[-1]) if ids else []:
            expected.setdefault(bisect_left(lengths, known), []).append(read[-1][start:end])
        whole = scanner(name).scan_ended(ids)
        assert {t: n.text for t, n in whole.items()} == {t: texts[-1] for t, texts in expected.items()}, (read, ids)
        for t in range(len(ids)):
            assert scanner(name).scan_ended(ids[: t + 1], t) == {at: n for at, n in whole.items() if at == t}, ids
            if t % 3 == 0:
                assert scanner(name).scan_ended(ids, t) == {at: n for at, n in whole.items() if at >= t}
        # A boundary ends what the text left open: then they are all numbers of the text but those that share a token.
        over = list(scanner(name).scan_ended([*ids, -1]).values())
        numbers = scanner(name).scan(ids)
        places = [(n.text, n.first_token, n.last_token) for n in numbers]
        assert [place for n in over if (place := (n.text, n.first_token, n.last_token)) not in places] == []
        shared = sum(len(texts) - 1 for texts in expected.values())
        assert len(numbers) - shared - 5 <= len(over) <= len(numbers) - shared
        found += len(whole)
    assert found > 0
