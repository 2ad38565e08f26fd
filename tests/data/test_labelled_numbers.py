"""Numbers whose roles were labelled by hand: the package's file, and null for roles that nobody knows."""

import json
import re
from collections import Counter
from importlib.resources import files

from pydantic import TypeAdapter

from ani.data.diagnostic import read_split
from ani.data.sources import AnySource, LabelledSource
from ani.numbers import find_numbers

FILE = files("ani.data") / "labelled_numbers.jsonl"
FUNCTION_WORDS = set(
    re.findall(
        r"\w+",
        "about after again because been before could every from have into more most never only over some still than "
        "that their them then there they this were what when where which while will with would your",
    )
)
RECORDS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def test_the_card_counts_what_the_file_contains() -> None:
    card = (files("ani.data") / "labelled_numbers.md").read_text(encoding="utf-8")
    roles = Counter(role for record in RECORDS for role in record["roles"])
    counts = re.search(r"([\d,]+) numbers in ([\d,]+) texts, ([\d,]+) of them nominal and ([\d,]+) quantitative", card)
    assert counts is not None
    found = [roles["nominal"] + roles["quantitative"], len(RECORDS), roles["nominal"], roles["quantitative"]]
    assert [int(count.replace(",", "")) for count in counts.groups()] == found
    rows = re.findall(r"^\| .+ \| .+ \| (\d+) \| (\d+) \|$", card, re.MULTILINE)
    assert [sum(map(int, column)) for column in zip(*rows, strict=True)] == found[2:]


def test_each_record_is_an_example_whose_last_number_has_a_role() -> None:
    source = TypeAdapter[LabelledSource](AnySource).validate_python({"kind": "labelled", "limit": 5})
    whole = LabelledSource(kind="labelled").examples(0)
    assert source.examples(0) == whole[:5] and len(whole) == len({str(example) for example in whole}) == len(RECORDS)
    for example, record in zip(whole, RECORDS, strict=True):
        assert isinstance(example.prompt, str) and example.roles is not None and example.roles[-1] is not None
        assert find_numbers(example.prompt)[-1].end == len(example.prompt)
        assert find_numbers(example.prompt + example.completion)[len(example.roles) - 1].end == len(example.prompt)
        assert record["source"] and record["licence"]


def test_no_sentence_of_ours_is_like_a_held_out_one() -> None:
    def nouns_and_verbs(text: str) -> set[str]:
        words = re.findall(r"[a-z]+", re.sub(r"\{.*?\}", "", text).lower())
        return {word.removesuffix("s") for word in words if len(word) > 3} - FUNCTION_WORDS

    held_out = [nouns_and_verbs(text) for _, text in read_split("diagnostic_templates.yaml", "test")]
    ours = [record["prompt"] + record["completion"] for record in RECORDS if record["source"] == "ours"]
    assert len(ours) > 1000
    for text, words in zip(ours, map(nouns_and_verbs, ours), strict=True):
        assert all(len(words & of_template) < 2 for of_template in held_out), text
